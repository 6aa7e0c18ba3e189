"""Brightness, saturation and contrast, with the operations of the published data in their order."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ctta.corruptions.filters import SLACK, cut, look_up, to_bytes, working_dtype


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
