"""Noise that meets every value by itself: Gaussian, shot, impulse and speckle.

A value has 256 levels before and after, so the noise is a table: the probability of each level given each other.
A level is then drawn with one 32-bit word and one lookup (Walker's alias method), which is exact to 2^-32 and
faster than drawing normal or Poisson numbers and rounding them.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctta.corruptions.random import Draws

LEVELS = 256
BLOCK = 1 << 15
"""Values looked up at once: what belongs to them stays in the processor's cache."""


def noise(x: Tensor, name: str, amount: float, draws: Draws) -> Tensor:
    """Pass every value of N x 3 x H x W bytes through the noise `name`."""
    table = alias_table(name, amount)
    values = x.numpy().reshape(-1)
    words = draws.bits(values.size // max(len(x), 1)).reshape(-1)
    out = np.empty_like(values)
    for start in range(0, values.size, BLOCK):
        part = slice(start, start + BLOCK)
        word = words[part]
        place = values[part].astype(np.intp)
        place <<= 8
        place |= word & np.uint32(255)
        entry = table.take(place)
        # the upper 24 bits of an entry are a threshold, the lower 8 the level taken from there on
        kept = word < (entry & np.uint32(0xFFFFFF00))
        out[part] = np.where(kept, word, entry).astype(np.uint8)
    return torch.from_numpy(out).view(x.shape)


def probabilities(name: str, amount: float) -> NDArray[np.float64]:
    """Probability of each level after the noise (columns) given the level before (rows), 256 x 256."""
    level = np.arange(LEVELS)
    if name == "impulse_noise":
        out = np.diag(np.full(LEVELS, 1.0 - amount))
        out[:, 0] += amount / 2
        out[:, -1] += amount / 2
        return out
    if name == "shot_noise":
        return _shot(amount)
    scale = np.full(LEVELS, 255.0 * amount) if name == "gaussian_noise" else level * amount
    edges = (level[None, 1:] - level[:, None]) / np.maximum(scale, 1e-9)[:, None]
    below = torch.special.ndtr(
        torch.from_numpy(edges)
    ).numpy()  # level k is reached from k on: the rest is cut off
    return np.diff(below, axis=1, prepend=0.0, append=1.0)


def _shot(rate: float) -> NDArray[np.float64]:
    """Poisson counts of mean level / 255 * rate, scaled back to levels and cut off."""
    top = int(np.ceil(rate))  # this many photons or more are white
    counts = np.arange(top)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, top + 1)))])[:top]
    mean = np.arange(LEVELS)[1:, None] / 255.0 * rate
    chance = np.exp(counts * np.log(mean) - mean - log_factorial)
    reached = (counts / rate * 255).astype(np.intp)
    out = np.zeros((LEVELS, LEVELS))
    out[0, 0] = 1.0
    for count, level in enumerate(reached.tolist()):
        out[1:, level] += chance[:, count]
    out[:, -1] += np.maximum(1.0 - out.sum(1), 0.0)
    return out


@lru_cache(maxsize=32)
def alias_table(name: str, amount: float) -> NDArray[np.uint32]:
    """256 slots for each level: with the threshold's chance the slot's own level, else another one."""
    left = probabilities(name, amount)
    left *= LEVELS / left.sum(1, keepdims=True)
    rows = np.arange(LEVELS)
    threshold = np.full((LEVELS, LEVELS), 2**24 - 1, dtype=np.uint32)
    other = np.tile(rows.astype(np.uint32), (LEVELS, 1))
    low, high = left.copy(), left.copy()  # the same numbers; a slot that is settled leaves both searches
    for _ in range(LEVELS - 1):
        poor, rich = low.argmin(1), high.argmax(1)
        share = np.clip(low[rows, poor], 0.0, 1.0)
        threshold[rows, poor] = np.minimum(np.rint(share * 2**24), 2**24 - 1)
        other[rows, poor] = rich
        remaining = low[rows, rich] - (1.0 - share)
        low[rows, rich] = high[rows, rich] = remaining
        low[rows, poor], high[rows, poor] = np.inf, -np.inf
    table: NDArray[np.uint32] = (threshold << np.uint32(8) | other).ravel()
    table.flags.writeable = False
    return table
