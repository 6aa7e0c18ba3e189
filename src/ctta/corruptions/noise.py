"""Noise that meets every value by itself: Gaussian, shot, impulse and speckle.

A value has 256 levels before and after, so the noise is a table: the probability of each level given each other.
A level is then drawn with one random word and one lookup (Walker's alias method), which is faster than drawing
normal or Poisson numbers and rounding them. Words have 32 bits for images up to 64 pixels a side and 16 beyond:
there the probabilities are multiples of 2^-16, which is finer than a picture's own counts.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctta.corruptions.filters import BLOCK, working_dtype
from ctta.corruptions.random import Draws

LEVELS = 256


def noise(name: str, x: Tensor, amount: float, draws: Draws) -> Tensor:
    """Pass every value of N x 3 x H x W bytes through the noise `name`."""
    values = x.numpy().reshape(-1)
    count = values.size // max(len(x), 1)
    words = (draws.bits(count) if working_dtype(x) == torch.float64 else draws.halves((count,))).reshape(-1)
    table = alias_table(name, amount, 8 * words.itemsize)
    upper = table.dtype.type(2 ** (8 * words.itemsize) - 256)
    out = np.empty_like(values)
    for start in range(0, values.size, BLOCK):
        part = slice(start, start + BLOCK)
        word = words[part]
        slot = word.astype(np.uint8)
        place = values[part].astype(np.uint16) << np.uint16(8)
        place |= slot.astype(np.uint16)
        entry = table.take(place.astype(np.intp), mode="clip")
        # the lowest 8 bits of an entry are the level taken from the threshold on, which is the rest
        other = entry.astype(np.uint8)
        slot ^= other  # np.where, without a branch per value
        slot *= word < (entry & upper)
        np.bitwise_xor(slot, other, out=out[part])
    return torch.from_numpy(out).view(x.shape)


def probabilities(name: str, amount: float) -> NDArray[np.float64]:
    """Probability of each level after the noise (columns) given the level before (rows), 256 x 256.

    `amount` is a deviation (of values in [0, 1], or relative to the value: speckle), the share of the values
    replaced (impulse) or the number of photons at full brightness (shot).
    """
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
    below = torch.special.ndtr(torch.from_numpy(edges)).numpy()  # level k is reached from k on, and cut off to
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
def alias_table(name: str, amount: float, bits: int = 32) -> NDArray[np.uint32 | np.uint16]:
    """256 slots for each level: with the threshold's chance the slot's own level, else another one.

    An entry has as many bits, 32 or 16, as the words it is compared with.
    """
    full = 2 ** (bits - 8)
    left = probabilities(name, amount)
    if bits == 16:  # to what 16 bits can say, without losing anything on the way
        left = np.diff(np.rint(np.cumsum(left, axis=1) * 2**bits), axis=1, prepend=0.0)
    left *= LEVELS / left.sum(1, keepdims=True)
    rows = np.arange(LEVELS)
    threshold = np.full((LEVELS, LEVELS), full - 1, dtype=np.uint32)
    other = np.tile(rows.astype(np.uint32), (LEVELS, 1))
    low, high = left.copy(), left.copy()  # the same numbers; a slot that is settled leaves both searches
    for _ in range(LEVELS - 1):
        poor, rich = low.argmin(1), high.argmax(1)
        share = np.clip(low[rows, poor], 0.0, 1.0)
        threshold[rows, poor] = np.minimum(np.rint(share * full), full - 1)
        other[rows, poor] = rich
        remaining = low[rows, rich] - (1.0 - share)
        low[rows, rich] = high[rows, rich] = remaining
        low[rows, poor], high[rows, poor] = np.inf, -np.inf
    table: NDArray[np.uint32 | np.uint16] = (threshold << np.uint32(8) | other).ravel()
    table = table.astype(np.uint32 if bits == 32 else np.uint16)
    table.flags.writeable = False
    return table
