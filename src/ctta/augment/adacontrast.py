"""The strong view of AdaContrast (Chen et al., CVPR 2022), the MoCo-v2 recipe without its crop.

Colour jitter in random order, grey, blur and flip, each image with draws of its own. The published views are made
by PIL on 8-bit images; here the same operations work on floats without rounding, and the blur is a true Gaussian
of standard deviation `radius`, which PIL approaches by repeated box blurs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ctta.augment.base import CUSTOM, Augmentation
from ctta.augment.cotta import Span, brightness, contrast, gray, hue, saturation

CUT_OFF = 4.0
"""Where the Gaussian ends, in standard deviations."""

JITTER = (brightness, contrast, saturation, hue)


class ViewDraws(NamedTuple):
    """What was drawn for each image, all on the CPU."""

    jittered: Tensor  # whether its colours are jittered, N booleans
    order: Tensor  # which jitter comes first, second, ...: N x 4 indices into `JITTER`
    factors: Tensor  # by how much, N x 4, in the order of `JITTER`
    grey: Tensor  # whether it turns grey, N booleans
    blurred: Tensor  # whether it is blurred, N booleans
    radius: Tensor  # standard deviation of the blur in pixels, N
    flipped: Tensor  # whether it is flipped left to right, N booleans


@dataclass(frozen=True)
class StrongView(Augmentation):
    """The view, with one draw for all frames of a clip.

    `jitter_chance` and the other chances are probabilities, the rest are uniform ranges; `radius` is in pixels.
    Images that are not RGB keep their saturation and hue, and are not turned grey.
    """

    refusal = (
        "The views of AdaContrast are of images, N x C x H x W, but got shape {shape}. Pass `augment=` a function "
        "that suits these data."
    )
    jitter_chance: float = 0.8
    brightness: Span = (0.6, 1.4)
    contrast: Span = (0.6, 1.4)
    saturation: Span = (0.6, 1.4)
    hue: Span = (-0.1, 0.1)
    grey_chance: float = 0.2
    blur_chance: float = 0.5
    radius: Span = (0.1, 2.0)
    flip_chance: float = 0.5

    @property
    def name(self) -> str:
        """What a saved adapter calls it: its numbers decide."""
        return "adacontrast" if self == StrongView() else CUSTOM

    def view(self, x: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Return the view; the frames of a clip share its draw."""
        draws = self.draw(count, generator)
        frames = len(x) // max(count, 1)
        return self.apply(x, ViewDraws(*(drawn.repeat_interleave(frames, 0) for drawn in draws)))

    def draw(self, count: int, generator: torch.Generator) -> ViewDraws:
        """Draw for a number of images."""

        def rand(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, dtype=torch.float64, device="cpu")

        limits = torch.tensor([self.brightness, self.contrast, self.saturation, self.hue], dtype=torch.float64)
        low, high = limits.unbind(1)
        smallest, largest = self.radius
        return ViewDraws(
            jittered=rand(count) < self.jitter_chance,
            order=rand(count, len(JITTER)).argsort(1),
            factors=low + (high - low) * rand(count, len(JITTER)),
            grey=rand(count) < self.grey_chance,
            blurred=rand(count) < self.blur_chance,
            radius=smallest + (largest - smallest) * rand(count),
            flipped=rand(count) < self.flip_chance,
        )

    def apply(self, x: Tensor, draws: ViewDraws) -> Tensor:
        """Change the images, N x C x H x W, in place."""
        for place in draws.order.unbind(1):  # in each place an image has one jitter: four times the work of one
            for index, jitter in enumerate(JITTER):
                chosen = draws.jittered & (place == index)
                change(x, chosen, jitter, draws.factors[chosen, index].view(-1, 1, 1, 1).to(x))
        if x.shape[1] == 3:
            change(x, draws.grey, gray)
        change(x, draws.blurred, blur, draws.radius[draws.blurred], math.ceil(CUT_OFF * self.radius[1]))
        return flip(x, draws.flipped)


def change(x: Tensor, chosen: Tensor, apply: Callable[..., Tensor], *how: Any) -> None:
    """Apply something to some images of a batch, in place; `chosen` are N booleans on the CPU."""
    rows = chosen.nonzero()[:, 0].to(x.device)
    if len(rows):
        x[rows] = apply(x[rows], *how)


def flip(x: Tensor, chosen: Tensor) -> Tensor:
    """Flip some images or clips left to right; `chosen` are N booleans."""
    return torch.where(chosen.to(x.device).view(-1, *[1] * (x.dim() - 1)), x.flip(-1), x)


def blur(x: Tensor, sigma: Tensor, reach: int) -> Tensor:
    """Blur images in [0, 1] by Gaussians, `sigma` (N) in pixels; the edge goes on beyond the border."""
    height, width = x.shape[2:]
    rows = blur_matrices(sigma, height, reach).to(x)[:, None]
    columns = rows if width == height else blur_matrices(sigma, width, reach).to(x)[:, None]
    return (rows @ x @ columns.mT).clamp_(0.0, 1.0)  # rounding may leave the range


def blur_matrices(sigma: Tensor, size: int, reach: int) -> Tensor:
    """Blur along one axis as matrices, N x size x size, whose rows hold the weights of each output pixel."""
    offsets = torch.arange(-reach, reach + 1)
    taps = torch.exp(-0.5 * (offsets / sigma[:, None]) ** 2)
    taps = (taps / taps.sum(1, keepdim=True))[:, None].expand(-1, size, -1)
    places = (torch.arange(size)[:, None] + offsets).clamp_(0, size - 1).expand(len(sigma), -1, -1)
    return torch.zeros(len(sigma), size, size, dtype=sigma.dtype).scatter_add_(2, places, taps)
