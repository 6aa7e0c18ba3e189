"""How strong each corruption is: per profile, one entry for each of the severities 1 to 5.

The profiles are those of CIFAR-10/100-C, Tiny-ImageNet-C and ImageNet-C (Hendrycks & Dietterich, ICLR 2019), in
the order of the columns. A corruption is the same procedure in all profiles; only these numbers differ.
"""

from __future__ import annotations

import re
from collections.abc import Collection

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

_TABLE = """
gaussian_noise | .04 .06 .08 .09 .1 | .04 .08 .12 .15 .18 | .08 .12 .18 .26 .38
shot_noise | 500 250 100 75 50 | 250 100 50 30 15 | 60 25 12 5 3
impulse_noise | .01 .02 .03 .05 .07 | .01 .02 .05 .08 .14 | .03 .06 .09 .17 .27
speckle_noise | .06 .1 .12 .16 .2 | .15 .2 .25 .3 .35 | .15 .2 .35 .45 .6
gaussian_blur | .4 .6 .7 .8 1 | .5 .75 1 1.25 1.5 | 1 2 3 4 6
defocus_blur | .3,.4 .4,.5 .5,.6 1,.2 1.5,.1 | .5,.6 1,.1 1.5,.1 2.5,.01 3,.1 | 3,.1 4,.5 6,.5 8,.5 10,.5
glass_blur: sigma, farthest neighbour in pixels, rounds
  | .05,1,1 .25,1,1 .4,1,1 .25,1,2 .4,1,2
  | .1,1,1 .5,1,1 .6,1,2 .7,2,1 .9,2,2
  | .7,1,2 .9,2,1 1,2,3 1.1,3,2 1.5,4,2
motion_blur | 6,1 6,1.5 6,2 8,2 9,2.5 | 10,1 10,1.5 10,2 10,2.5 12,3 | 10,3 15,5 15,8 15,12 20,15
zoom_blur: stop and step of numpy.arange, whose rounding decides whether `stop` is among the zoom factors
  | 1.06,.01 1.11,.01 1.16,.01 1.21,.01 1.26,.01
  | 1.06,.01 1.11,.01 1.16,.01 1.21,.01 1.26,.01
  | 1.11,.01 1.16,.01 1.21,.02 1.26,.02 1.31,.03
snow: mean and deviation of the flakes, zoom, threshold, radius and sigma of their motion, share of the image kept
  | .1,.2,1,.6,8,3,.95 .1,.2,1,.5,10,4,.9 .15,.3,1.75,.55,10,4,.9 .25,.3,2.25,.6,12,6,.85 .3,.3,1.25,.65,14,12,.8
  | .1,.2,1,.6,8,3,.8 .1,.2,1,.5,10,4,.8 .15,.3,1.75,.55,10,4,.7 .25,.3,2.25,.6,12,6,.65 .3,.3,1.25,.65,14,12,.6
  | .1,.3,3,.5,10,4,.8 .2,.3,2,.5,12,4,.7 .55,.3,4,.9,12,8,.7 .55,.3,4.5,.85,12,8,.65 .55,.3,2.5,.85,12,12,.55
frost | 1,.2 1,.3 .9,.4 .85,.4 .75,.45 | 1,.3 .9,.4 .8,.45 .75,.5 .7,.55 | 1,.4 .8,.6 .7,.7 .65,.7 .6,.75
fog | .2,3 .5,3 .75,2.5 1,2 1.5,1.75 | .4,3 .7,3 1,2.5 1.5,2 2,1.75 | 1.5,2 2,2 2.5,1.7 2.5,1.5 3,1.4
brightness | .05 .1 .15 .2 .3 | .1 .2 .3 .4 .5 | .1 .2 .3 .4 .5
contrast | .75 .5 .4 .3 .15 | .4 .3 .2 .1 .05 | .4 .3 .2 .1 .05
elastic_transform: largest displacement, its sigma, largest shift of an anchor point; times ELASTIC_UNIT, pixels
  | 0,0,.08 .05,.2,.07 .08,.06,.06 .1,.04,.05 .1,.03,.03
  | 0,0,.08 .05,.3,.06 .1,.08,.06 .1,.03,.03 .16,.03,.02
  | 2,.7,.1 2,.08,.2 .05,.01,.02 .07,.01,.02 .12,.01,.02
pixelate | .95 .9 .85 .75 .65 | .9 .8 .7 .6 .5 | .6 .5 .4 .3 .25
jpeg_compression | 80 65 58 50 40 | 65 58 50 40 25 | 25 18 15 10 7
spatter: mean and deviation of the drops, their sigma, threshold, strength (water) or sigma (mud), 1 for mud
  | .62,.1,.7,.7,.5,0 .65,.1,.8,.7,.5,0 .65,.3,1,.69,.5,0 .65,.1,.7,.69,.6,1 .65,.1,.5,.68,.6,1
  | .62,.1,.7,.7,.6,0 .65,.1,.8,.7,.6,0 .65,.3,1,.69,.6,0 .65,.1,.7,.68,.6,1 .65,.1,.5,.67,.6,1
  | .65,.3,4,.69,.6,0 .65,.3,3,.68,.6,0 .65,.3,2,.68,.5,0 .65,.3,1,.65,1.5,1 .67,.4,1,.65,1.5,1
saturate | .3,0 .1,0 1.5,0 2,.1 2.5,.2 | .3,0 .1,0 2,0 5,.1 30,.2 | .3,0 .1,0 2,0 5,.1 20,.2
"""


def _numbers(cell: str) -> tuple[tuple[float, ...], ...]:
    """Severities 1 to 5 of a cell, each with the arguments of the corruption's function."""
    return tuple(tuple(float(n) if "." in n else int(n) for n in part.split(",")) for part in cell.split())


_ROWS = (re.split(r":.*\n| \|", row, maxsplit=1) for row in re.split(r"\n(?=\w)", _TABLE.strip()))
CONSTANTS = {
    name: dict(zip(PROFILES, map(_numbers, cells.strip(" |").split("|")), strict=True)) for name, cells in _ROWS
}
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
