"""Snow, frost and fog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctta.corruptions.filters import look_up, to_bytes, to_levels, working_dtype
from ctta.corruptions.geometry import crop_size, motion, zoomed
from ctta.corruptions.overlays import overlays
from ctta.corruptions.random import Draws


def snow(
    x: Tensor,
    mean: float,
    spread: float,
    zoom: float,
    threshold: float,
    radius: int,
    sigma: float,
    keep: float,
    draws: Draws,
) -> Tensor:
    """Whiten the image and let flakes fall from both sides: N x 3 x H x W bytes -> bytes."""
    height, width = x.shape[2:]
    seen = crop_size(height, zoom), crop_size(width, zoom)  # flakes the zoom would cut off are not drawn
    layer = torch.from_numpy(draws.normal((1, *seen))).to(working_dtype(x)).mul_(spread).add_(mean)
    layer = zoomed(layer, zoom, height, width)
    layer = to_bytes(layer.masked_fill_(layer < threshold, 0.0))
    flakes = motion(layer, radius, sigma, draws.unit(1, stream=1)[:, 0] * 90 - 135)
    flakes = flakes.to(working_dtype(x)).div_(255)
    u = x.float().div_(255)
    red, green, blue = u.unbind(1)
    grey = (red * 0.299).add_(green * 0.587).add_(blue * 0.114)
    white = torch.maximum(u, grey.mul_(1.5).add_(0.5)[:, None]).mul_(1 - keep)
    return to_bytes(u.mul_(keep).add_(white) + flakes.add(flakes.flip((2, 3))))


def frost(
    x: Tensor, image_weight: float, frost_weight: float, scale: float, folder: Path | None, draws: Draws
) -> Tensor:
    """Add a random piece of one of five overlays: N x 3 x H x W bytes -> bytes."""
    height, width = x.shape[2:]
    sheets = overlays(scale, height, width, folder)
    pieces = np.empty(x.shape, dtype=np.uint8)
    for row, (which, down, right) in enumerate(draws.unit(3).tolist()):
        sheet = sheets[int(which * len(sheets))]
        top, left = int(down * (sheet.shape[1] - height)), int(right * (sheet.shape[2] - width))
        pieces[row] = sheet[:, top : top + height, left : left + width]
    mixed = image_weight * np.arange(256)[:, None] + frost_weight * np.arange(256)[None, :]
    table = mixed.clip(0, 255).astype(np.uint8).ravel()  # two bytes in, one out: no sum per pixel
    return torch.from_numpy(look_up(table, x.numpy(), pieces))


def fog(x: Tensor, strength: float, decay: float, draws: Draws) -> Tensor:
    """Blend with plasma, keeping the brightest level: N x 3 x H x W bytes -> bytes."""
    height, width = x.shape[2:]
    size = 1 << (max(height, width) - 1).bit_length()
    mist = plasma(draws.uniform((size * size - 1,)), size, decay)[:, None, :height, :width]
    if working_dtype(x) == torch.float32:
        most = torch.from_numpy(x.numpy().max((1, 2, 3), keepdims=True)).float().div_(255)
        share = most / (most + strength)
        return to_levels(x.float().mul_(share).add_(torch.from_numpy(mist) * (share * (255 * strength))))
    u = x.float().div_(255)
    most = u.amax((1, 2, 3), keepdim=True)
    return to_bytes(u.add_(torch.from_numpy(mist * np.float32(strength))).mul_(most).div_(most + strength))


def plasma(draws: NDArray[np.float32], size: int, decay: float) -> NDArray[np.float32]:
    """Diamond-square on a torus, scaled to [0, 1]: N x (size^2 - 1) draws in [-1, 1) -> N x size x size.

    Each scale fills the middles of the squares, then of their sides, with the mean of four neighbours and noise
    that shrinks by decay^2 from scale to scale.
    """
    height = np.zeros((len(draws), size, size), dtype=np.float32)
    used, step, wobble = 0, size, 100.0
    while step >= 2:
        half, count = step // 2, size // step
        middles, tops, sides = (
            draws[:, used + k * count**2 : used + (k + 1) * count**2].reshape(-1, count, count)
            * np.float32(wobble * wobble)
            for k in range(3)
        )
        corner = height[:, ::step, ::step]
        square = corner + rolled(corner, -1, axis=1)
        middle = (square + rolled(square, -1, axis=2)) / 4 + middles
        height[:, half::step, half::step] = middle
        across = middle + rolled(middle, 1, axis=1) + corner + rolled(corner, -1, axis=2)
        height[:, ::step, half::step] = across / 4 + tops
        along = middle + rolled(middle, 1, axis=2) + corner + rolled(corner, -1, axis=1)
        height[:, half::step, ::step] = along / 4 + sides
        used, step, wobble = used + 3 * count**2, half, wobble / decay
    height -= height.min((1, 2), keepdims=True)
    height /= height.max((1, 2), keepdims=True)
    return height


def rolled(x: NDArray[Any], shift: int, axis: int) -> NDArray[Any]:
    """np.roll of N x H x W along one dimension; with numpy's own fog takes a sixth longer."""
    parts = (x[:, -shift:], x[:, :-shift]) if axis == 1 else (x[:, :, -shift:], x[:, :, :-shift])
    return np.concatenate(parts, axis=axis)
