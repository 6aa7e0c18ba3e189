"""Brightness, saturation, contrast, elastic transform, pixelation, with the operations of the published data."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctta.corruptions.filters import SLACK, cut, look_up, smooth, to_bytes, to_levels, working_dtype
from ctta.corruptions.geometry import bilinear, box_resize
from ctta.corruptions.random import Draws

FINEST = 32.0
"""The published data were warped on a grid of 1/32 pixel."""


def brightness(x: Tensor, amount: float) -> Tensor:
    """Raise the value of HSV: N x 3 x H x W bytes -> bytes."""
    if working_dtype(x) == torch.float32:
        # every channel keeps its share of the largest: what holds for the least holds for the one between too,
        # but for the last bit of the arithmetic on the hue
        table, largest = _tables(1.0, 0.0, amount)[1].numpy(), x.numpy().max(1, keepdims=True)
        return torch.from_numpy(look_up(table, largest, x.numpy()))
    return _recolour(x, 1.0, 0.0, amount)


def saturate(x: Tensor, factor: float, offset: float) -> Tensor:
    """Scale and raise the saturation of HSV: N x 3 x H x W bytes -> bytes."""
    return _recolour(x, factor, offset, 0.0)


def _recolour(x: Tensor, factor: float, offset: float, lift: float) -> Tensor:
    """Change saturation and value of HSV in float64, whose rounding decides levels: N x 3 x H x W bytes -> bytes.

    Which channel is largest, between or least stays as it was. What becomes of the largest and the least depends
    on these two bytes alone and is looked up; only the one between takes arithmetic on the hue.
    """
    high, low = x.amax(1), x.amin(1)
    largest, least = x == high[:, None], x == low[:, None]
    largest[:, 1:] &= (high != low)[:, None]  # a grey that is given a saturation turns red
    pair = high.to(torch.int32).mul_(256).add_(low).flatten()
    top, bottom = (
        table.index_select(0, pair).view(high.shape)[:, None] for table in _tables(factor, offset, lift)
    )
    u = x.to(torch.float64).div_(255)
    value = u.amax(1)
    chroma = value - u.amin(1)
    distance = _distance_to_largest(u, chroma, largest)
    saturation, value = _changed(chroma, value, factor, offset, lift)
    between = to_bytes((1.0 - distance.mul_(saturation)).mul_(value))[:, None]
    return torch.where(largest, top, torch.where(least, bottom, between))


def _changed(chroma: Tensor, value: Tensor, factor: float, offset: float, lift: float) -> tuple[Tensor, Tensor]:
    """Saturation and value after the change, of chroma (largest minus least) and value before it."""
    saturation = chroma / value.masked_fill(value == 0, 1.0)
    return saturation.mul_(factor).add_(offset).clamp_(0.0, 1.0), (value + lift).clamp_(0.0, 1.0)


@lru_cache(maxsize=16)
def _tables(factor: float, offset: float, lift: float) -> tuple[Tensor, Tensor]:
    """What becomes of the largest and of the least byte, for each pair of them, 256 x 256, flat."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    before = levels[:, None].expand(256, 256)
    saturation, value = _changed(before - levels, before, factor, offset, lift)
    return to_bytes(value).flatten(), to_bytes((1.0 - saturation).mul_(value)).flatten()


def _distance_to_largest(u: Tensor, chroma: Tensor, largest: Tensor) -> Tensor:
    """How far the channel between lies from the largest, in units of the chroma, N x H x W in [0, 1].

    Computed by way of the hue, as a fraction of a turn, for the sake of its rounding.
    """
    red, green, blue = u.unbind(1)
    by_blue, by_green = largest[:, 2], largest[:, 1]  # of two that are both largest, the later one decides
    ahead = torch.where(by_blue, red, torch.where(by_green, blue, green))
    ahead -= torch.where(by_blue, green, torch.where(by_green, red, blue))
    start = torch.where(by_blue, 4.0, torch.where(by_green, 2.0, 0.0))
    hue = ahead.div_(chroma.masked_fill(chroma == 0, 1.0)).add_(start).div_(6.0)
    hue += (hue < 0).to(hue.dtype)  # it lies above -1/6, so that this is the remainder of 1
    hue.mul_(6.0)
    sector = hue.floor()
    part = hue.sub_(sector)
    # in every other sector the channel between rises with the hue, in the rest it falls
    return torch.where(sector.to(torch.uint8).bitwise_and_(1).bool(), part, 1.0 - part)


def contrast(x: Tensor, factor: float) -> Tensor:
    """Shrink the distance of each value to its channel's mean: N x 3 x H x W bytes -> bytes."""
    dtype = working_dtype(x)
    if dtype == torch.float32:
        mean = x.numpy().sum((2, 3), keepdims=True, dtype=np.uint32) / x[0, 0].numel()
        shift = torch.from_numpy((mean * (1 - factor) + SLACK).astype(np.float32))
        return cut(x.to(dtype).mul_(factor).add_(shift))  # between the value and the mean: within 0..255
    u = x.to(dtype).div_(255)
    # pixel after pixel, with all images side by side: the order of the sum decides its last bit, and that
    # decides levels, for the result often falls on a whole number
    pixels = np.ascontiguousarray(u.flatten(2).flatten(0, 1).numpy().T)
    mean = torch.from_numpy(np.add.reduce(pixels, axis=0) / len(pixels)).view(*x.shape[:2], 1, 1)
    return to_bytes(u.sub_(mean).mul_(factor).add_(mean))


def elastic_transform(x: Tensor, alpha: float, sigma: float, shift: float, unit: float, draws: Draws) -> Tensor:
    """Warp by a random affine map, then along a smooth random field: N x 3 x H x W bytes -> bytes."""
    height, width = x.shape[2:]
    pixels = unit * min(height, width)
    dtype = working_dtype(x)
    rows, columns = torch.arange(height, dtype=dtype)[:, None], torch.arange(width, dtype=dtype)[None, :]
    back = torch.from_numpy(affine_back(draws.unit(6) * 2 - 1, shift * pixels, height, width))
    back = back.to(dtype)[:, :, :, None, None]
    from_x, from_y = (columns * back[:, k, 0] + rows * back[:, k, 1] + back[:, k, 2] for k in (0, 1))
    grid_x, grid_y = ((place * FINEST + 0.5).floor_().div_(FINEST).float() for place in (from_x, from_y))
    warped = bilinear(x.float(), grid_y, grid_x, repeat_edge=False)
    if alpha:
        fields = torch.from_numpy(draws.uniform((2, height, width), stream=1))
        moves = smooth(fields, sigma * pixels).mul_(alpha * pixels)
        warped = bilinear(warped, moves[:, 1] + rows.float(), moves[:, 0] + columns.float(), repeat_edge=True)
    return to_levels(warped)


def affine_back(draws: NDArray[np.float64], shift: float, height: int, width: int) -> NDArray[np.float64]:
    """Affine maps from the warped image to the image, N x 2 x 3 for (x, y, 1), from N x 6 draws in [-1, 1).

    Three points of the image move by up to `shift` pixels each way.
    """
    side = min(height, width) // 3
    x, y = width // 2, height // 2
    points = np.array([(x + side, y + side), (x + side, y - side), (x - side, y - side)], dtype=np.float32)
    moved = points + (draws * shift).reshape(-1, 3, 2).astype(np.float32)
    homogeneous = np.concatenate([moved, np.ones_like(moved[:, :, :1])], axis=2).astype(np.float64)
    solved = np.linalg.solve(homogeneous, np.broadcast_to(points.astype(np.float64), moved.shape))
    return np.asarray(solved.transpose(0, 2, 1))


def pixelate(x: Tensor, factor: float) -> Tensor:
    """Shrink and enlarge with a box filter: N x 3 x H x W bytes -> bytes."""
    height, width = x.shape[2:]
    return box_resize(box_resize(x, int(height * factor), int(width * factor)), height, width)
