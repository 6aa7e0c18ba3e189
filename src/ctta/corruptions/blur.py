"""Defocus, glass, motion, zoom and Gaussian blur."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctta.corruptions.filters import correlate, disk, gauss, to_bytes, to_levels, working_dtype
from ctta.corruptions.geometry import motion, zoomed
from ctta.corruptions.random import Draws


def gaussian_blur(x: Tensor, sigma: float) -> Tensor:
    """Gaussian of `sigma` pixels: N x 3 x H x W bytes -> bytes."""
    if working_dtype(x) == torch.float32:
        return to_levels(gauss(x.float(), sigma))
    return to_bytes(gauss(x.double().div_(255), sigma))


def defocus_blur(x: Tensor, radius: float, sigma: float) -> Tensor:
    """A disk with a soft edge: N x 3 x H x W bytes -> bytes."""
    return correlate(x, disk(radius, sigma))


def glass_blur(x: Tensor, sigma: float, delta: int, rounds: int, draws: Draws) -> Tensor:
    """Blur, let pixels take the colour of a random neighbour, blur: N x 3 x H x W bytes -> bytes."""
    height, width = x.shape[2:]
    steps = draws.below((2 * delta) ** 2, (rounds, height - 2 * delta, width - 2 * delta))
    source = np.arange(x[:, 0].numel())
    for number in range(rounds):
        source = source.take(taken_from(steps[:, number], delta, height, width))
    blurred = gaussian_blur(x, sigma).numpy()
    moved = np.stack([blurred[:, k].take(source).reshape(-1, height, width) for k in range(3)], 1)
    return gaussian_blur(torch.from_numpy(moved), sigma)


def taken_from(steps: NDArray[np.uint16], delta: int, height: int, width: int) -> NDArray[np.int64]:
    """Which pixel's old colour each pixel ends up with in one round: places in N x H x W, flat.

    `steps`, N x rows x columns, number the neighbours: 2 delta (down + delta) + right + delta, both from -delta to
    delta - 1. The round visits the pixels from the last to the first, and a pixel copies its neighbour as it finds
    it: with the new colour if the neighbour was visited before. So the new colour is found by following the copies
    back to a pixel that had its old colour still.
    """
    down, right = (part - delta for part in np.divmod(np.arange((2 * delta) ** 2), 2 * delta))
    inside = (slice(None), slice(delta + 1, height - delta + 1), slice(delta + 1, width - delta + 1))
    moves = np.zeros((len(steps), height, width), dtype=np.int64)
    moves[inside] = (down * width + right).take(steps)
    source = np.arange(moves.size) + moves.ravel()
    if delta == 1:  # no step leads to a pixel visited before
        return source
    renewed = moves.ravel() > 0
    result, open_ends = source.copy(), np.flatnonzero(renewed)
    while len(open_ends):
        neighbours = result.take(open_ends)
        result[open_ends] = source.take(neighbours)
        open_ends = open_ends[renewed.take(neighbours)]
    return result


def motion_blur(x: Tensor, radius: int, sigma: float, draws: Draws) -> Tensor:
    """Motion at an angle within 45 degrees of the horizontal: N x 3 x H x W bytes -> bytes."""
    return motion(x, radius, sigma, draws.unit(1)[:, 0] * 90 - 45)


def zoom_blur(x: Tensor, stop: float, step: float) -> Tensor:
    """The mean of the image and its enlargements: N x 3 x H x W bytes -> bytes.

    Enlarged, rounded to float32 and summed there, one after the other.
    """
    height, width = x.shape[2:]
    factors = np.arange(1, stop, step).tolist()
    if working_dtype(x) == torch.float32:
        levels = x.float().contiguous(memory_format=torch.channels_last)
        total = levels.clone()
        for factor in factors:
            total += zoomed(levels, factor, height, width) if factor > 1 else levels
        return to_levels(total.div_(len(factors) + 1))
    first = x.float().div_(255)
    exact = first.double()
    total = first.new_zeros(*x.shape[:2], width, height)  # turned as `zoomed` leaves it
    for factor in factors:
        total += zoomed(exact, factor, height, width).transpose(2, 3).float()
    return to_bytes(total.transpose(2, 3).add(first).div_(len(factors) + 1))
