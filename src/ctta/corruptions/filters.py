"""Filters on batches of planes, N x C x H x W.

Products and sums are rounded one by one, never fused or reordered: a pixel is the same in every batch, and the
published bytes come out where a value falls on the edge between two levels.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

FEW_TAPS = 24
KERNEL_BITS = 30
EXACT_UP_TO = 64
SLACK = 5e-4
BLOCK = 1 << 15
"""Values looked up at once: what belongs to them stays in the processor's cache."""


def to_bytes(x: Tensor) -> Tensor:
    """Values in [0, 1] to 0..255, cut off rather than rounded, as the benchmark does."""
    return cut(x.clamp(0.0, 1.0).mul_(255))


def to_levels(x: Tensor) -> Tensor:
    """Values in 0..255 to bytes, cut off; in float32 a level missed by rounding alone still counts as reached."""
    return cut((x + SLACK if x.dtype == torch.float32 else x).clamp(0.0, 255.0))


def cut(x: Tensor) -> Tensor:
    """Values that lie in 0..255 to bytes; numpy turns a vector of them at a time, torch one by one."""
    return torch.from_numpy(x.numpy().astype(np.uint8))


def look_up(table: NDArray[np.uint8], row: NDArray[np.uint8], column: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """What a table, 256 x 256, flat, has for two bytes, in pieces that stay in the processor's cache."""
    place = row.astype(np.uint16) << np.uint16(8) | column.astype(np.uint16)
    flat = place.ravel()
    out = np.empty(flat.shape, dtype=np.uint8)
    for start in range(0, len(flat), BLOCK):
        part = slice(start, start + BLOCK)
        table.take(flat[part].astype(np.intp), out=out[part], mode="clip")
    return out.reshape(place.shape)


def working_dtype(x: Tensor) -> torch.dtype:
    """Float64 for images up to 64 pixels a side, where published bytes are to be met, else float32.

    Larger published images were compressed again after the corruption, which hides the last bit anyway.
    """
    return torch.float64 if max(x.shape[-2:]) <= EXACT_UP_TO else torch.float32


def gaussian_taps(sigma: float, truncate: float = 4.0) -> NDArray[np.float64]:
    """Weights of a Gaussian from its centre outwards, radius + 1 of them, normalised over both sides."""
    radius = int(truncate * sigma + 0.5)
    places = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 / (sigma * sigma) * places**2) if radius else np.ones(1)
    half: NDArray[np.float64] = (weights / weights.sum())[radius:]
    return half


def gauss(x: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of the last two dimensions, cut off at 4 sigma; the edge pixel goes on beyond the border."""
    taps = gaussian_taps(sigma).tolist()
    radius = len(taps) - 1
    if radius == 0:
        return x.clone()
    for dim in (2, 3):
        size = x.shape[dim]
        padded = torch.cat([*[x.narrow(dim, 0, 1)] * radius, x, *[x.narrow(dim, size - 1, 1)] * radius], dim)
        x = x * taps[0]
        pair = torch.empty_like(x)
        for k in range(radius, 0, -1):  # from the outside inwards, the order the published data were summed in
            torch.add(padded.narrow(dim, radius - k, size), padded.narrow(dim, radius + k, size), out=pair)
            if x.dtype == torch.float32:
                x.add_(pair, alpha=taps[k])
            else:
                x += pair.mul_(taps[k])
    return x


@lru_cache(maxsize=32)
def disk(radius: float, sigma: float) -> NDArray[np.float32]:
    """A disk of sum 1, smoothed over 3 x 3 (radius up to 8) or 5 x 5; (2 r + 1) square, trimmed of zeros.

    The smoothing mirrors at the edge of a 17 x 17 grid, so that a disk that fills it gains a little weight.
    """
    reach, window = (8, 1) if radius <= 8 else (int(radius), 2)
    axis = np.arange(-reach, reach + 1)
    kernel = (axis[:, None] ** 2 + axis[None, :] ** 2 <= radius**2).astype(np.float32)
    kernel /= kernel.sum()
    places = np.arange(-window, window + 1)
    taps = np.exp(-0.5 * (places / sigma) ** 2)
    weights = (taps / taps.sum()).astype(np.float32)
    for dim in (1, 0):
        mirrored = np.pad(kernel, [(window, window) if d == dim else (0, 0) for d in (0, 1)], mode="reflect")
        parts = [mirrored.take(axis + reach + k, axis=dim) * weights[k] for k in range(len(weights))]
        kernel = np.sum(parts, axis=0, dtype=np.float32)
    kernel[kernel < 1e-12] = 0.0
    used = int(np.abs(np.argwhere(kernel) - reach).max())
    kernel = kernel[reach - used : reach + used + 1, reach - used : reach + used + 1]
    kernel.flags.writeable = False
    return kernel


def correlate(x: Tensor, kernel: NDArray[np.float32]) -> Tensor:
    """Correlate byte planes with a small square kernel, mirrored at the border without repeating the edge.

    N x C x H x W bytes -> bytes.
    """
    reach, dtype = len(kernel) // 2, working_dtype(x)
    planes = F.pad(x.to(dtype), [reach] * 4, mode="reflect")
    if np.count_nonzero(kernel) <= FEW_TAPS:
        if dtype == torch.float64:
            planes = planes.div_(255)
        total = torch.zeros(x.shape, dtype=dtype)
        part = torch.empty_like(total)
        for row, column in np.argwhere(kernel).tolist():
            window = planes[:, :, row : row + x.shape[2], column : column + x.shape[3]]
            total += torch.mul(window, float(kernel[row, column]), out=part)
        return to_levels(total) if dtype == torch.float32 else to_bytes(total)
    height, width = planes.shape[2:]
    step = 1 if dtype == torch.float64 else 64  # many factors of 2 are what the float32 transforms like best
    shape = _good_size(height, step), _good_size(width, step)
    product = torch.fft.rfft2(planes, s=shape).mul_(_spectrum(kernel.tobytes(), shape, dtype))
    out: Tensor = torch.fft.irfft(torch.fft.ifft(product, dim=2), n=shape[1])  # faster than irfft2
    out = out[:, :, 2 * reach : height, 2 * reach : width]
    if dtype == torch.float64:  # kernel and sum are multiples of 2^-30: half of that exceeds all rounding
        out = out + 0.5 ** (KERNEL_BITS + 1)
    return to_levels(out)


@lru_cache(maxsize=8)
def _spectrum(kernel: bytes, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Spectrum of a square float32 kernel, mirrored, in multiples of 2^-30."""
    values = np.frombuffer(kernel, dtype=np.float32)
    side = math.isqrt(len(values))
    rounded = np.rint(values[::-1].astype(np.float64) * 2**KERNEL_BITS) / 2**KERNEL_BITS
    spectrum: Tensor = torch.fft.rfft2(torch.from_numpy(rounded.reshape(side, side)), s=shape)
    return spectrum.to(dtype.to_complex())


def _good_size(size: int, step: int) -> int:
    """The next multiple of `step` whose only prime factors are 2, 3 and 5."""
    return next(n for n in itertools.count(size + -size % step, step) if pow(30, n.bit_length(), n) == 0)


@lru_cache(maxsize=32)
def smoothing_matrix(size: int, sigma: float) -> NDArray[np.float64]:
    """Gaussian cut off at 3 sigma with half-sample mirrored borders as a matrix, size x size."""
    taps = gaussian_taps(sigma, truncate=3.0)
    radius = len(taps) - 1
    matrix = np.zeros((size, size))
    rows = np.arange(size)
    for k in range(-radius, radius + 1):
        place = (rows + k) % (2 * size)
        np.add.at(matrix, (rows, np.minimum(place, 2 * size - 1 - place)), taps[abs(k)])
    return matrix


def smooth(fields: Tensor, sigma: float) -> Tensor:
    """Smooth fields in [-1, 1), ... x H x W float32, to about three digits; exact sums, whatever their order.

    With fields in multiples of 2^-10 every product is a multiple of 2^-23 and every sum about 1 at most, which
    float32 holds without rounding: the matrix products may group the terms as they like.
    """
    height, width = fields.shape[-2:]
    if min(height, width) > EXACT_UP_TO and max(height, width) < 3 * sigma:
        (up, down), (wide, narrow) = (_thin(size, sigma) for size in (height, width))
        small = times(down, fields.flatten(0, -3), narrow.T)
        return times(up, small, wide.T).view(fields.shape)
    for _ in range(2):  # across the rows, then, turned, across the columns
        fields = _banded(fields.mul(2.0**10).round_().mul_(2.0**-10), sigma).transpose(-1, -2).contiguous()
    return fields


@lru_cache(maxsize=8)
def _thin(size: int, sigma: float) -> tuple[Tensor, Tensor]:
    """The smoothing matrix as a product, size x rank and rank x size; a wide Gaussian has a low rank."""
    left, scale, right = torch.linalg.svd(torch.from_numpy(smoothing_matrix(size, sigma)))
    rank = int((scale > 2.0**-13).sum())
    return (left[:, :rank] * scale[:rank]).float(), right[:rank].float()


def times(left: Tensor | None, x: Tensor, right: Tensor | None = None) -> Tensor:
    """The product left @ matrix @ right for each of N matrices: of one shape, however many there are."""
    if left is not None:
        x = torch.bmm(left.expand(len(x), -1, -1), x)
    return x if right is None else torch.bmm(x, right.expand(len(x), -1, -1))


def _banded(x: Tensor, sigma: float, block: int = 32) -> Tensor:
    """Smooth along the rows' dimension: a product with a band, block by block, the weights multiples of 2^-13."""
    size, reach = x.shape[-2], math.ceil(3 * sigma) + 1
    matrix = torch.from_numpy((np.rint(smoothing_matrix(size, sigma) * 2**13) / 2**13).astype(np.float32))
    out = torch.empty_like(x)
    for start in range(0, size, block):
        rows, near = slice(start, start + block), slice(max(start - reach, 0), start + block + reach)
        out[..., rows, :] = matrix[rows, near] @ x[..., near, :]
    return out
