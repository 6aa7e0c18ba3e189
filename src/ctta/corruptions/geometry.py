"""Moving pixels about: zoomed crops, motion along a line, bilinear sampling, box resizing."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ctta.corruptions.filters import cut, working_dtype

Floats = NDArray[np.float64]

NEGLIGIBLE = 1e-13


def crop_size(size: int, zoom: float) -> int:
    """How many pixels of a side a zoomed crop sees."""
    return math.ceil(size / zoom)


def centre(x: Tensor, height: int, width: int) -> Tensor:
    """The middle of ... x H x W, height x width."""
    top, left = (x.shape[-2] - height) // 2, (x.shape[-1] - width) // 2
    return x[..., top : top + height, left : left + width]


def zoomed(x: Tensor, zoom: float, height: int, width: int) -> Tensor:
    """Enlarge the middle of N x C x h x w bilinearly, corners on corners, and keep its middle, height x width."""
    crop = centre(x, crop_size(height, zoom), crop_size(width, zoom))
    if crop.dtype == torch.float32:
        size = round(crop.shape[2] * zoom), round(crop.shape[3] * zoom)
        return centre(F.interpolate(crop, size, mode="bilinear", align_corners=True), height, width)
    # picking rows copies runs of memory, picking columns single numbers: turning the image is cheaper
    turned = _stretch(crop, zoom, height).transpose(2, 3).contiguous()
    return _stretch(turned, zoom, width).transpose(2, 3)


def _stretch(x: Tensor, zoom: float, size: int) -> Tensor:
    before = x.shape[2]
    after = round(before * zoom)
    position = (np.arange(size) + (after - size) // 2) * ((before - 1) / (after - 1))
    low = np.minimum(np.floor(position), before - 1).astype(np.int64)
    part = torch.from_numpy(position - low).view(-1, 1).to(x.dtype)
    lower, upper = (x.index_select(2, torch.from_numpy(row)) for row in (low, np.minimum(low + 1, before - 1)))
    return lower.mul_(1.0 - part).add_(upper.mul_(part))


def motion(x: Tensor, radius: int, sigma: float, angles: Floats) -> Tensor:
    """Smear byte planes, N x C x H x W, along one direction each (degrees, x right, y down); bytes.

    One-sided Gaussian weights on whole-pixel steps; the edge pixel goes on beyond the border. The sum is rounded
    to 16 bits and cut to 8, as ImageMagick does.
    """
    steps, weights = motion_taps(radius, sigma, angles)
    order = np.argsort(angles, kind="stable")  # neighbours in angle share most steps: fewer, larger slices
    low, high = steps.min((0, 1)).tolist(), steps.max((0, 1)).tolist()
    dtype = working_dtype(x)
    planes = torch.from_numpy(x.numpy()[order]).to(dtype)
    padded = F.pad(planes, (-low[1], high[1], -low[0], high[0]), mode="replicate")
    out = torch.zeros_like(planes)
    (_smear_each if dtype == torch.float32 else _smear)(padded, steps[order] - low, weights.tolist(), out)
    result = np.empty(x.shape, dtype=np.uint8)
    result[order] = cut(out.add_(0.5 / 257)).numpy()  # what rounding to 16 bits and cutting to 8 comes to
    return torch.from_numpy(result)


def _smear(padded: Tensor, steps: NDArray[np.int64], weights: list[float], out: Tensor) -> None:
    """Add up the windows of many small images, every product and sum rounded by itself."""
    height, width = out.shape[2:]
    source, total = padded.numpy(), out.numpy()  # numpy takes less time over each of many small windows
    part = np.empty_like(total)
    for tap, weight in enumerate(weights):
        step = steps[:, tap]
        starts = [0, *(np.flatnonzero((step[1:] != step[:-1]).any(1)) + 1).tolist(), len(out)]
        for start, stop in itertools.pairwise(starts):
            row, column = step[start].tolist()
            window = source[start:stop, :, row : row + height, column : column + width]
            np.multiply(window, weight, out=part[start:stop])
        total += part


def _smear_each(padded: Tensor, steps: NDArray[np.int64], weights: list[float], out: Tensor) -> None:
    """Add up the windows of a few large images."""
    height, width = out.shape[2:]
    for image, path, total in zip(padded, steps.tolist(), out, strict=True):
        for (row, column), taps in itertools.groupby(zip(path, weights, strict=True), key=lambda tap: tap[0]):
            window = image[:, row : row + height, column : column + width]
            total.add_(window, alpha=sum(weight for _, weight in taps))


def motion_taps(radius: int, sigma: float, angles: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Steps (down, right) of every tap, N x taps x 2, and the weights of the taps, which sum to 1."""
    places = np.arange(2 * radius + 1)
    weights = np.exp(-(places**2) / (2.0 * sigma * sigma))
    weights /= weights.sum()
    places = places[weights > NEGLIGIBLE]
    turn = np.deg2rad(angles)[:, None]
    steps = np.stack([np.sin(turn) * places, np.cos(turn) * places], axis=2)
    return np.ceil(steps - 0.5).astype(np.int64), weights[: len(places)]


def bilinear(x: Tensor, rows: Tensor, columns: Tensor, *, repeat_edge: bool) -> Tensor:
    """Sample N x C x H x W (float32) at positions N x H x W (float32, pixels), mirrored at the border.

    With `repeat_edge` the edge pixel is mirrored too (symmetric), else not (reflect-101).
    """
    height, width = x.shape[2:]
    if repeat_edge:
        places = (2 * columns + 1) / width - 1, (2 * rows + 1) / height - 1
    else:
        places = columns * (2 / (width - 1)) - 1, rows * (2 / (height - 1)) - 1
    grid = torch.view_as_real(torch.complex(*places))  # faster than torch.stack
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=not repeat_edge)


def box_resize(x: Tensor, height: int, width: int) -> Tensor:
    """Resize byte planes by averaging the pixels under each output, rounded to bytes after each direction."""
    values = x.numpy()
    if height >= values.shape[2] and width >= values.shape[3]:  # one pixel under each output: the order is free
        rows, columns = _box_windows(values.shape[2], height)[0], _box_windows(values.shape[3], width)[0]
        return torch.from_numpy(values.take(columns, axis=3).take(rows, axis=2))
    for size in (width, height):  # rows are runs of memory, columns single bytes: turning the image is cheaper
        values = _box_rows(np.ascontiguousarray(values.transpose(0, 1, 3, 2)), size)
    return torch.from_numpy(values)


@lru_cache(maxsize=64)
def _box_windows(before: int, after: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Which pixels a box filter averages for each of `after` outputs: first pixel, and how many."""
    support, middle = max(before / after, 1.0) / 2, (np.arange(after) + 0.5) * (before / after)
    first = np.maximum((middle - support + 0.5).astype(np.int64), 0)
    last = np.minimum((middle + support + 0.5).astype(np.int64), before)
    return first, (last - first).astype(np.int32)


def _box_rows(values: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    first, count = _box_windows(values.shape[2], size)
    total = values.take(first, axis=2).astype(np.uint16)
    for k in range(1, int(count.max())):
        more = values.take(np.minimum(first + k, values.shape[2] - 1), axis=2)
        if count.min() <= k:
            more &= np.where(count > k, 255, 0).astype(np.uint8)[:, None]
        total += more.astype(np.uint16)
    weights = np.rint(2.0**22 / count).astype(np.uint32)  # Pillow's fixed-point weights: the rounding is its own
    mean = total.astype(np.uint32)
    mean *= weights[:, None]
    mean += np.uint32(1 << 21)
    mean >>= np.uint32(22)
    return mean.astype(np.uint8)
