"""How strong each corruption is: per profile, one entry for each of the severities 1 to 5.

The profiles are those of CIFAR-10/100-C, Tiny-ImageNet-C and ImageNet-C (Hendrycks & Dietterich, ICLR 2019).
A corruption named here means the same procedure in all profiles; only these numbers differ.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ctta.errors import SettingError
from ctta.settings import suggestion

GROUPS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "extra": ("speckle_noise", "gaussian_blur", "spatter", "saturate"),
}

CORRUPTIONS = GROUPS["noise"] + GROUPS["blur"] + GROUPS["weather"] + GROUPS["digital"]
"""The fifteen that are reported, in the order of the benchmark."""

EXTRA = GROUPS["extra"]
"""The four that settings are chosen on."""

DETERMINISTIC = (
    *("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"),
    *("gaussian_blur", "saturate"),
)
"""Those without a random draw: made from CIFAR-10 they equal the published files byte for byte."""

PROFILES = ("cifar", "tiny-imagenet", "imagenet")
SEVERITIES = (1, 2, 3, 4, 5)

# fmt: off
_TABLE: dict[str, tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]] = {
    "gaussian_noise": (  # standard deviation, of values in [0, 1]
        (0.04, 0.06, 0.08, 0.09, 0.1),
        (0.04, 0.08, 0.12, 0.15, 0.18),
        (0.08, 0.12, 0.18, 0.26, 0.38),
    ),
    # photons at full brightness
    "shot_noise": ((500, 250, 100, 75, 50), (250, 100, 50, 30, 15), (60, 25, 12, 5, 3)),
    "impulse_noise": (  # share of the values replaced
        (0.01, 0.02, 0.03, 0.05, 0.07),
        (0.01, 0.02, 0.05, 0.08, 0.14),
        (0.03, 0.06, 0.09, 0.17, 0.27),
    ),
    # standard deviation relative to the value
    "speckle_noise": ((0.06, 0.1, 0.12, 0.16, 0.2), (0.15, 0.2, 0.25, 0.3, 0.35), (0.15, 0.2, 0.35, 0.45, 0.6)),
    # sigma, pixels
    "gaussian_blur": ((0.4, 0.6, 0.7, 0.8, 1), (0.5, 0.75, 1, 1.25, 1.5), (1, 2, 3, 4, 6)),
    "defocus_blur": (  # radius of the disk, sigma of its edge, pixels
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    ),
    "glass_blur": (  # sigma, farthest neighbour, rounds
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
        ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    ),
    "motion_blur": (  # radius, sigma, pixels
        ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
        ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    ),
    "zoom_blur": (  # zooms from 1: stop and step of numpy.arange, whose rounding decides whether `stop` is one
        ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    ),
    # mean and deviation of the flakes, zoom, threshold, radius and sigma of their motion, share of the image kept
    "snow": (
        ((0.1, 0.2, 1, 0.6, 8, 3, 0.95), (0.1, 0.2, 1, 0.5, 10, 4, 0.9), (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
         (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85), (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8)),
        ((0.1, 0.2, 1, 0.6, 8, 3, 0.8), (0.1, 0.2, 1, 0.5, 10, 4, 0.8), (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
         (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65), (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6)),
        ((0.1, 0.3, 3, 0.5, 10, 4, 0.8), (0.2, 0.3, 2, 0.5, 12, 4, 0.7), (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
         (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65), (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55)),
    ),
    "frost": (  # weights of the image and of the overlay
        ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
        ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    ),
    "fog": (  # strength, decay of the plasma from one scale to the next
        ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
        ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    ),
    # added to the value of HSV
    "brightness": ((0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5), (0.1, 0.2, 0.3, 0.4, 0.5)),
    # factor on the distance to the channel's mean
    "contrast": ((0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05), (0.4, 0.3, 0.2, 0.1, 0.05)),
    # largest displacement, its sigma, largest shift of an anchor point; times ELASTIC_UNIT, pixels
    "elastic_transform": (
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        ((0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)),
        ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)),
    ),
    # size relative to the image
    "pixelate": ((0.95, 0.9, 0.85, 0.75, 0.65), (0.9, 0.8, 0.7, 0.6, 0.5), (0.6, 0.5, 0.4, 0.3, 0.25)),
    "jpeg_compression": ((80, 65, 58, 50, 40), (65, 58, 50, 40, 25), (25, 18, 15, 10, 7)),  # quality, 1 to 100
    # mean and deviation of the drops, their sigma, threshold, strength (water) or sigma (mud), whether it is mud
    "spatter": (
        ((0.62, 0.1, 0.7, 0.7, 0.5, False), (0.65, 0.1, 0.8, 0.7, 0.5, False), (0.65, 0.3, 1, 0.69, 0.5, False),
         (0.65, 0.1, 0.7, 0.69, 0.6, True), (0.65, 0.1, 0.5, 0.68, 0.6, True)),
        ((0.62, 0.1, 0.7, 0.7, 0.6, False), (0.65, 0.1, 0.8, 0.7, 0.6, False), (0.65, 0.3, 1, 0.69, 0.6, False),
         (0.65, 0.1, 0.7, 0.68, 0.6, True), (0.65, 0.1, 0.5, 0.67, 0.6, True)),
        ((0.65, 0.3, 4, 0.69, 0.6, False), (0.65, 0.3, 3, 0.68, 0.6, False), (0.65, 0.3, 2, 0.68, 0.5, False),
         (0.65, 0.3, 1, 0.65, 1.5, True), (0.67, 0.4, 1, 0.65, 1.5, True)),
    ),
    "saturate": (  # factor on the saturation of HSV, and what is added to it
        ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
        ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    ),
}
# fmt: on
CONSTANTS = {name: dict(zip(PROFILES, rows, strict=True)) for name, rows in _TABLE.items()}
"""By corruption and profile, what each severity sets."""

OVERLAY_SCALE = {"cifar": 0.2, "tiny-imagenet": 0.3, "imagenet": 1.0}
"""Size of the frost overlays relative to the photos."""

ELASTIC_UNIT = {"cifar": 1.0, "tiny-imagenet": 1.0, "imagenet": 244 / 224}
"""Pixels that 1 stands for in the elastic constants, relative to the image; 244 is what the benchmark used."""


def require_known(what: str, given: object, known: Collection[str]) -> None:
    """Refuse a name that is not one of those known."""
    if given not in known:
        hint = suggestion(given, known) if isinstance(given, str) else ""
        raise SettingError(f"There is no {what} `{given}`.{hint} Known: {', '.join(known)}.")
