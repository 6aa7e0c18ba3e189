"""Elastic transform and pixelation."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctta.corruptions.filters import smooth, to_levels, working_dtype
from ctta.corruptions.geometry import bilinear, box_resize
from ctta.corruptions.random import Draws

FINEST = 32.0
"""The published data were warped on a grid of 1/32 pixel."""


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
