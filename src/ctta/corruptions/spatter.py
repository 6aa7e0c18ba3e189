"""Spatter: drops of water that bend the light at their edges, or of mud that hides the image.

The water's relief comes from the edges of the drops: an edge detector, the distance to the next edge, equalised
and embossed. Steps are those of OpenCV (Canny, chamfer distance, histogram equalisation), on all images at once.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ctta.corruptions.filters import gauss, to_bytes
from ctta.corruptions.random import Draws

WATER = (175 / 255, 238 / 255, 238 / 255)
MUD = (63 / 255, 42 / 255, 20 / 255)
EMBOSS = ((-2.0, -1.0, 0.0), (-1.0, 1.0, 1.0), (0.0, 1.0, 2.0))
FARTHEST = 20.0
CHAMFER = ((0, 1, 1.0), (1, 0, 1.0), (1, 1, 1.4), (1, 2, 2.1969), (2, 1, 2.1969))
"""Steps (down, right) and their lengths."""


def spatter(
    x: Tensor, mean: float, spread: float, sigma: float, threshold: float, strength: float, mud: bool, draws: Draws
) -> Tensor:
    """Spatter the image: N x 3 x H x W bytes -> bytes."""
    layer = torch.from_numpy(draws.normal((1, *x.shape[2:]))).double().mul_(spread).add_(mean)
    layer = gauss(layer, sigma)
    layer.masked_fill_(layer < threshold, 0.0)
    u, colour = x.double().div_(255), torch.tensor(MUD if mud else WATER, dtype=torch.float64).view(1, 3, 1, 1)
    if mud:
        cover = gauss((layer > threshold).double(), strength)
        cover.masked_fill_(cover < 0.8, 0.0)
        return to_bytes(u * (1 - cover) + cover * colour)
    drops = layer * relief(to_bytes(layer).squeeze(1))[:, None]
    most = drops.amax((1, 2, 3), keepdim=True)
    drops = drops / most.masked_fill(most == 0, 1.0) * strength
    return to_bytes(u + drops * colour)


def relief(layer: Tensor) -> Tensor:
    """The relief of drops, N x H x W bytes -> float64, whole numbers 0..255."""
    distance = edge_distance(edges(layer)).clamp_(max=FARTHEST)
    smoothed = _box(distance).floor_()
    flat = equalise(smoothed.to(torch.uint8)).double()
    kernel = torch.tensor(EMBOSS, dtype=torch.float64)[None, None]
    raised = F.conv2d(F.pad(flat[:, None], (1, 1, 1, 1), mode="reflect"), kernel)[:, 0]  # whole numbers: exact
    return _box(raised.clamp_(0, 255)).round_()


def _box(x: Tensor) -> Tensor:
    """Mean over 3 x 3, mirrored at the border without repeating the edge."""
    height, width = x.shape[1:]
    padded = F.pad(x[:, None], (1, 1, 1, 1), mode="reflect")[:, 0]
    across = padded[:, :, :width] + padded[:, :, 1 : width + 1] + padded[:, :, 2:]
    return (across[:, :height] + across[:, 1 : height + 1] + across[:, 2:]).div_(9)


def edges(layer: Tensor, low: int = 50, high: int = 150) -> Tensor:
    """Canny's edges of byte planes, N x H x W booleans: ridges above `high`, and what joins them."""
    height, width = layer.shape[1:]
    sobel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
    padded = F.pad(layer[:, None].float(), (1, 1, 1, 1), mode="replicate")
    slopes = F.conv2d(padded, torch.stack([sobel, sobel.T])[:, None]).to(torch.int32)  # whole numbers: exact
    slope_x, slope_y = slopes.unbind(1)
    size = slope_x.abs() + slope_y.abs()
    around = F.pad(size, (1, 1, 1, 1))

    def at(down: int, sideways: int) -> Tensor:
        return around[:, 1 + down : 1 + down + height, 1 + sideways : 1 + sideways + width]

    # compare along the gradient: across below 22.5 degrees, down above 67.5, else diagonally
    flat = (slope_y.abs() << 15) < slope_x.abs() * 13573  # tan(22.5 degrees) in 15 binary places
    steep = (slope_y.abs() << 15) > slope_x.abs() * (13573 + (2 << 15))
    same = (slope_x ^ slope_y) >= 0
    before = torch.where(flat, at(0, -1), torch.where(steep, at(-1, 0), torch.where(same, at(-1, -1), at(-1, 1))))
    after = torch.where(flat, at(0, 1), torch.where(steep, at(1, 0), torch.where(same, at(1, 1), at(1, -1))))
    straight = flat | steep
    ridge = (size > low) & (size > before) & torch.where(straight, size >= after, size > after)
    found = ridge & (size > high)
    while True:
        grown = F.max_pool2d(found[:, None].float(), 3, 1, 1)[:, 0].bool() & ridge
        if torch.equal(grown, found):
            return found
        found = grown


def edge_distance(found: Tensor) -> Tensor:
    """Distance of each pixel to the next edge on chamfer steps, N x H x W float64; beyond 20 it is only large."""
    height, width = found.shape[1:]
    distance = torch.where(found, 0.0, 1e4).double()
    moves = {(a * down, b * right, length) for down, right, length in CHAMFER for a in (1, -1) for b in (1, -1)}
    while True:
        around = F.pad(distance, (2, 2, 2, 2), value=1e4)
        nearer = distance.clone()
        for down, right, length in moves:
            neighbour = around[:, 2 + down : 2 + down + height, 2 + right : 2 + right + width]
            torch.minimum(nearer, neighbour + length, out=nearer)
        if bool(((nearer == distance) | (nearer > FARTHEST)).all()):
            return nearer
        distance = nearer


def equalise(x: Tensor) -> Tensor:
    """Spread the levels of each byte plane, N x H x W, so that all are as frequent as they can be."""
    out = np.empty_like(x.numpy())
    for row, plane in enumerate(x.numpy()):
        count = np.bincount(plane.ravel(), minlength=256)
        first = int(np.flatnonzero(count)[0])
        above = (np.cumsum(count) - count[first]).clip(0)
        scale = np.float32(255.0) / np.float32(max(plane.size - count[first], 1))
        levels = np.rint(above * scale).clip(0, 255) if count[first] < plane.size else np.full(256, first)
        out[row] = levels.astype(np.uint8)[plane]
    return torch.from_numpy(out)
