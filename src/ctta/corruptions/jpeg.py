"""JPEG, 4:2:0, there and back without the file between: what the IJG's libjpeg 9 makes of an image, bit for bit.

The published data were made with that library, which halves and doubles the colour planes inside the cosine
transform (16 samples to 8 coefficients and back). Pillow's libjpeg-turbo does so outside: on 200 CIFAR-10 images
34 to 48 % of its values differ, by one level on average and by up to 83, and the published MD5 is missed. So only
the quantisation steps come from Pillow. Entropy coding loses nothing and is left out.

A transform in one direction is a matrix of whole numbers followed by a rounding shift. The products are computed
in floating point wide enough for them to be exact, so that the result does not depend on how they are grouped.
"""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ctta.corruptions.filters import cut, times, working_dtype

BITS = 13
"""Binary places of the transform's coefficients."""

# where the library's coefficients, sums of rounded constants, differ by one from the rounded cosine:
# (frequency, sample, difference); the second half of the samples follows by symmetry
OFF_8 = ((1, 2, 1), (3, 1, 1), (3, 2, 1), (5, 0, 1), (5, 1, 1), (5, 2, 1), (6, 1, -1), (6, 2, 1))
OFF_16_FORWARD = ((1, 7, -1), (5, 2, 1), (6, 3, -1), (6, 4, 1), (7, 3, 1), (7, 4, 1))
OFF_16_INVERSE = (
    (2, 2, 1), (2, 5, -1), (3, 6, 1), (5, 2, 1), (5, 5, -1), (6, 0, -1), (6, 7, 1), (7, 3, 1),
)  # fmt: skip


def jpeg_compression(x: Tensor, quality: int) -> Tensor:
    """Compress and decompress: N x 3 x H x W bytes -> bytes."""
    if working_dtype(x) == torch.float32:
        return compressed(x, quality)
    height, width = x.shape[2:]
    planes = x.float()  # up to the first half of the transform, numbers stay within the 24 bits of float32
    if height % 16 or width % 16:  # the last row and column go on to the end of the block
        planes = F.pad(planes, (0, -width % 16, 0, -height % 16), mode="replicate")
    red, green, blue = planes.unbind(1)
    luma = _shift(19595 * red + 38470 * green + 7471 * blue, 16)
    chroma_blue = _shift(32768 * blue - 11058 * red - 21710 * green - 1, 16)  # about 0
    chroma_red = _shift(32768 * red - 27439 * green - 5329 * blue - 1, 16)
    luma = _code(luma.sub_(128), steps(False, quality), 8).add_(128)
    chroma_blue, chroma_red = _code(torch.cat([chroma_blue, chroma_red]), steps(True, quality), 16).chunk(2)
    apart = 91881 * chroma_red, -22553 * chroma_blue - 46802 * chroma_red, 116130 * chroma_blue
    out = torch.stack([_shift(part, 16).add_(luma) for part in apart], 1)
    return cut(out[:, :, :height, :width].clamp(0, 255))


def compressed(x: Tensor, quality: int) -> Tensor:
    """The same in float32 for large images, N x 3 x H x W bytes -> bytes, several times as fast.

    Sums are not exact and the transforms round only where they end: here and there a value comes out on the other
    side, and now and then a coefficient with its block.
    """
    height, width = x.shape[2:]
    if height % 16 or width % 32:
        x = F.pad(x.float(), (0, -width % 32, 0, -height % 16), mode="replicate")
    planes = times(_colours(), x.float().flatten(2)).round_().view(x.shape)
    luma = _code_fast(planes[:, 0].sub(128), False, quality, 8).add_(128.5)  # to the nearest level
    chroma_blue, chroma_red = _code_fast(planes[:, 1:], True, quality, 16).unbind(1)
    red, green, blue = planes.unbind(1)
    torch.add(luma, chroma_red, alpha=1.402, out=red)
    torch.add(luma, chroma_red, alpha=-0.714136, out=green).add_(chroma_blue, alpha=-0.344136)
    torch.add(luma, chroma_blue, alpha=1.772, out=blue)
    return cut(planes.clamp_(0, 255)[:, :, :height, :width])


@lru_cache(maxsize=1)
def _colours() -> Tensor:
    """Luma, chroma of blue and chroma of red, both about 0, from red, green and blue."""
    luma = np.array([0.299, 0.587, 0.114])
    blue, red = (0.5 / (1 - luma[k]) * (np.eye(3)[k] - luma) for k in (2, 0))
    return torch.from_numpy(np.stack([luma, blue, red])).float()


def _code_fast(planes: Tensor, chroma: bool, quality: int, size: int) -> Tensor:
    """Transform, quantise and transform back planes about 0, N x ... x H x W, in blocks of size x size."""
    images, width = len(planes), planes.shape[-1]
    there, back, wide_there, wide_back = _matrices(size)
    step, share = _scales(chroma, quality, width // size)
    rows = times(there, planes.reshape(-1, size, width)).view(images, -1, len(wide_there))
    coefficients = times(None, rows, wide_there).round_().view(-1, len(step))
    whole = coefficients.mul_(share).round_().mul_(step).view(images, -1, len(wide_back))
    columns = times(None, whole, wide_back).view(-1, 8, width)
    return times(back, columns).round_().clamp_(-128, 127).view(planes.shape)


@lru_cache(maxsize=16)
def _scales(chroma: bool, quality: int, blocks: int) -> tuple[Tensor, Tensor]:
    """Steps of a row of blocks, flat, and what takes coefficients scaled up by 8 to multiples of the steps.

    A little more than that, so that halves, which are common here, go away from 0.
    """
    step = torch.from_numpy(np.tile(steps(chroma, quality), blocks).ravel()).double()
    return step.float(), ((1 + 1e-6) / 8 / step).float()


@lru_cache(maxsize=4)
def _matrices(size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Transforms of columns, 8 x size and size x 8, and of rows, transposed and for two blocks side by side."""
    there, back = transforms(size)
    there, back = there * 8**0.5 / (size * 2**BITS), back / (8**0.5 * 2**BITS)
    pair = torch.eye(2, dtype=there.dtype)  # wider products run faster
    wide = torch.kron(pair, 8 * there.T.contiguous()), torch.kron(pair, back.T.contiguous())
    return there.float(), back.float(), wide[0].float(), wide[1].float()


@lru_cache(maxsize=32)
def steps(chroma: bool, quality: int) -> NDArray[np.int64]:
    """Quantisation steps at a quality from 1 to 100, 8 x 8, as every JPEG library writes them into its files."""
    import PIL.Image

    file = io.BytesIO()
    PIL.Image.new("RGB", (8, 8)).save(file, "JPEG", quality=quality)
    with PIL.Image.open(file) as written:
        return np.array(written.quantization[int(chroma)]).reshape(8, 8)  # type: ignore[attr-defined]


@lru_cache(maxsize=4)
def transforms(size: int) -> tuple[Tensor, Tensor]:
    """Cosine transforms of `size` samples to 8 coefficients, 8 x size, and back, size x 8."""
    sample, frequency = np.arange(size), np.arange(8)[:, None]
    waves = np.cos(np.pi * frequency * (2 * sample + 1) / (2 * size)) * np.where(frequency, np.sqrt(2), 1)
    there = np.rint(waves * 2**BITS)
    back = there.copy()
    offs = ((there, OFF_8), (back, OFF_8)) if size == 8 else ((there, OFF_16_FORWARD), (back, OFF_16_INVERSE))
    for matrix, off in offs:
        for row, column, difference in off:
            matrix[row, column] += difference
            matrix[row, size - 1 - column] += difference if row % 2 == 0 else -difference
    return torch.from_numpy(there), torch.from_numpy(back.T.copy())


def _code(plane: Tensor, table: NDArray[np.int64], size: int) -> Tensor:
    """Transform, quantise and transform back planes about 0, N x H x W, in blocks of size x size."""
    count, height, width = plane.shape
    there, back = transforms(size)
    step = torch.from_numpy(table.astype(np.float32))
    rows = _shift(plane.reshape(-1, size) @ there.T.float(), BITS - 2).double()
    rows = rows.view(-1, size, width // size * 8)
    extra = 2 if size == 16 else 0  # a transform of twice the size in both directions has four times the sum
    coefficients = _shift(there @ rows, BITS + 2 + extra).float().view(-1, 8, width // size, 8)
    wide = (step * 8)[:, None, :]  # the transform is scaled up by 8
    whole = coefficients.abs().add_((wide / 2).floor()).div_(wide).floor_().mul_(step[:, None, :])
    whole.copysign_(coefficients)
    columns = _shift(back @ whole.double().view(-1, 8, width // size * 8), BITS - 2)
    out = _shift(columns.view(-1, 8) @ back.T, BITS + 2 + 3)
    return out.view(count, height, width).clamp_(-128, 127).float()


def _shift(x: Tensor, bits: int) -> Tensor:
    """Divide by 2^bits and round, halves up."""
    return x.mul_(0.5**bits).add_(0.5).floor_()
