"""CoTTA's augmentation (Wang et al., CVPR 2022): what PALM and its peers compare their predictions under.

Colour jitter in random order, an affine map on the edge-padded image, a slight blur, a flip, a little noise.
Every random number but the noise is drawn once per call and shared by the whole batch, as in the official
code. Padding, affine map, flip and centre crop are one resampling here: the pixels a crop never shows are
never made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ctta.augment.base import CUSTOM, Augmentation

BLUR_RADIUS = 2
NOISE_STD = 0.005
LUMA = (0.2989, 0.587, 0.114)

Span = tuple[float, float]


@dataclass(frozen=True)
class Ranges:
    """The uniform ranges the random numbers come from; angle in degrees, sigma in pixels."""

    brightness: Span = (0.6, 1.4)
    contrast: Span = (0.7, 1.3)
    saturation: Span = (0.5, 1.5)
    hue: Span = (-0.06, 0.06)
    gamma: Span = (0.7, 1.3)
    angle: Span = (-15.0, 15.0)
    scale: Span = (0.9, 1.1)
    sigma: Span = (0.001, 0.5)


# in the order of the fields
SOFT = Ranges(
    (0.8, 1.2), (0.85, 1.15), (0.75, 1.25), (-0.03, 0.03), (0.85, 1.15), (-8.0, 8.0), (0.95, 1.05), (0.001, 0.25)
)


class Cotta(Augmentation):
    """The pipeline. `soft` narrows the ranges, `ranges` sets them.

    Images that are not RGB keep their saturation and hue.
    """

    refusal = (
        "The CoTTA augmentation takes images, N x C x H x W, but got shape {shape}. Pass `augment=` a function "
        "that suits these data, or do without views: `confidence=0` in CoTTA and DSS, `lam=0` elsewhere."
    )

    def __init__(self, *, soft: bool = False, ranges: Ranges | None = None) -> None:
        self.ranges = ranges or (SOFT if soft else Ranges())

    @property
    def name(self) -> str:
        """What a saved adapter calls it: its ranges decide."""
        return {Ranges(): "cotta", SOFT: "cotta-soft"}.get(self.ranges, CUSTOM)

    def view(self, x: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Return the view: the same draws for all images, but for the noise."""
        out = self.geometry(self.colours(x, generator), generator)
        noise = torch.randn(out.shape, generator=generator, dtype=out.dtype, device="cpu")
        return out.add_(noise.to(out.device), alpha=NOISE_STD).clamp_(0.0, 1.0)

    def colours(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Brightness, contrast, saturation, hue and gamma in a random order."""
        for index in torch.randperm(len(JITTER), generator=generator, device="cpu").tolist():
            jitter = JITTER[index]
            x = jitter(x, uniform(getattr(self.ranges, jitter.__name__), generator))
        return x

    def geometry(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Affine map of the edge-padded image, blur, centre crop, flip: N x C x H x W -> same shape."""
        height, width = x.shape[2:]
        angle = math.radians(uniform(self.ranges.angle, generator))
        shift_x = round(uniform((-width / 8, width / 8), generator))  # 1/16 of the padded width
        shift_y = round(uniform((-height / 8, height / 8), generator))
        scale = uniform(self.ranges.scale, generator)
        sigma = uniform(self.ranges.sigma, generator)
        flip = uniform((0.0, 1.0), generator) < 0.5

        # where each output pixel comes from, in pixels from the centre; a margin is left for the blur
        u, v = (
            torch.arange(-BLUR_RADIUS, size + BLUR_RADIUS, dtype=torch.float64, device="cpu") + (0.5 - size / 2)
            for size in (width, height)
        )
        du, dv = (-u if flip else u)[None, :] - shift_x, v[:, None] - shift_y
        from_x = (math.cos(angle) * du + math.sin(angle) * dv) / scale
        from_y = (math.cos(angle) * dv - math.sin(angle) * du) / scale

        grid = torch.stack([from_x / (width / 2), from_y / (height / 2)], dim=-1).to(x)
        warped = F.grid_sample(x, grid.expand(len(x), -1, -1, -1), padding_mode="border", align_corners=False)
        inside = coverage(from_x, width) * coverage(from_y, height)
        if bool((inside < 1).any()):  # on the CPU; only long, narrow images reach beyond their padding
            warped = warped * inside.to(x)
        return blur(warped, sigma)


def uniform(limits: Span, generator: torch.Generator) -> float:
    """Draw one number between two limits."""
    low, high = limits
    return low + (high - low) * torch.rand((), generator=generator, dtype=torch.float64, device="cpu").item()


def coverage(position: Tensor, size: int) -> Tensor:
    """How much of a bilinear sample lies within the image padded by half its size on each side, 0 to 1."""
    padded = size + 2 * (size // 2)
    pixel = position + (padded / 2 - 0.5)
    return (pixel + 1).clamp(0, 1) * (padded - pixel).clamp(0, 1)


def blur(x: Tensor, sigma: float) -> Tensor:
    """Gaussian blur with 5 x 5 taps; the result is smaller by two pixels on each side."""
    taps = [math.exp(-0.5 * (k / sigma) ** 2) for k in range(BLUR_RADIUS + 1)]
    total = taps[0] + 2 * sum(taps[1:])
    for dim in (2, 3):
        size = x.shape[dim] - 2 * BLUR_RADIUS
        out = x.narrow(dim, BLUR_RADIUS, size) * (taps[0] / total)
        for k in range(1, BLUR_RADIUS + 1):
            pair = x.narrow(dim, BLUR_RADIUS - k, size) + x.narrow(dim, BLUR_RADIUS + k, size)
            out.add_(pair, alpha=taps[k] / total)
        x = out
    return x


def gray(x: Tensor) -> Tensor:
    """Luminance, N x 1 x H x W; images that are not RGB: the mean of their channels."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    red, green, blue = x.unbind(1)
    return (LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue).unsqueeze(1)


def brightness(x: Tensor, factor: float | Tensor) -> Tensor:
    """Scale the image."""
    return (x * factor).clamp_(0.0, 1.0)


def contrast(x: Tensor, factor: float | Tensor) -> Tensor:
    """Scale the distance of each pixel to the image's mean luminance."""
    mean = gray(x).mean((1, 2, 3), keepdim=True)
    return (x * factor + mean * (1.0 - factor)).clamp_(0.0, 1.0)


def saturation(x: Tensor, factor: float | Tensor) -> Tensor:
    """Scale the distance of each pixel to its own luminance."""
    return (x * factor + gray(x) * (1.0 - factor)).clamp_(0.0, 1.0) if x.shape[1] == 3 else x


def gamma(x: Tensor, exponent: float) -> Tensor:
    """Raise the image to a power."""
    return x.clamp(1e-8, 1.0).pow_(exponent).clamp_(0.0, 1.0)


def hue(x: Tensor, turn: float | Tensor) -> Tensor:
    """Turn the hue by a fraction of the colour circle, one for all or N x ones."""
    if x.shape[1] != 3:
        return x
    turn = turn.view(-1, 1, 1) if isinstance(turn, Tensor) else turn
    red, green, blue = x.unbind(1)
    value = x.amax(1)
    chroma = value - x.amin(1)
    safe = torch.where(chroma == 0, 1.0, chroma)
    below = torch.where(value == green, (blue - red) / safe + 2.0, (red - green) / safe + 4.0)
    turned = torch.where(value == red, (green - blue) / safe, below) + 6.0 * turn  # in sixths of the circle
    places = (torch.remainder(turned + offset, 6.0) for offset in (5.0, 3.0, 1.0))
    parts = (torch.minimum(place, 4.0 - place).clamp_(0.0, 1.0) for place in places)
    return torch.stack([value - chroma * part for part in parts], dim=1)


JITTER = (brightness, contrast, saturation, hue, gamma)
