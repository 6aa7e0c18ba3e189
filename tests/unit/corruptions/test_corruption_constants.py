"""Every constant of every corruption against the published generators, written out a second time."""

import re

import pytest

from ctta.corruptions import CORRUPTIONS, EXTRA
from ctta.corruptions.constants import CONSTANTS, ELASTIC_UNIT, OVERLAY_SCALE
from ctta.corruptions.overlays import PHOTOS
from ctta.corruptions.spatter import MUD, WATER

PROFILES = ("cifar", "imagenet", "tiny-imagenet")
PUBLISHED = """
gaussian_noise | .04 .06 .08 .09 .10 | .08 .12 .18 .26 .38 | .04 .08 .12 .15 .18
shot_noise | 500 250 100 75 50 | 60 25 12 5 3 | 250 100 50 30 15
impulse_noise | .01 .02 .03 .05 .07 | .03 .06 .09 .17 .27 | .01 .02 .05 .08 .14
defocus_blur
  | (.3,.4)(.4,.5)(.5,.6)(1,.2)(1.5,.1)
  | (3,.1)(4,.5)(6,.5)(8,.5)(10,.5)
  | (.5,.6)(1,.1)(1.5,.1)(2.5,.01)(3,.1)
glass_blur
  | (.05,1,1)(.25,1,1)(.4,1,1)(.25,1,2)(.4,1,2)
  | (.7,1,2)(.9,2,1)(1,2,3)(1.1,3,2)(1.5,4,2)
  | (.1,1,1)(.5,1,1)(.6,1,2)(.7,2,1)(.9,2,2)
motion_blur
  | (6,1)(6,1.5)(6,2)(8,2)(9,2.5)
  | (10,3)(15,5)(15,8)(15,12)(20,15)
  | (10,1)(10,1.5)(10,2)(10,2.5)(12,3)
zoom_blur
  | (1.06,.01)(1.11,.01)(1.16,.01)(1.21,.01)(1.26,.01)
  | (1.11,.01)(1.16,.01)(1.21,.02)(1.26,.02)(1.31,.03)
  | (1.06,.01)(1.11,.01)(1.16,.01)(1.21,.01)(1.26,.01)
snow
  | (.1,.2,1,.6,8,3,.95)(.1,.2,1,.5,10,4,.9)(.15,.3,1.75,.55,10,4,.9)
    (.25,.3,2.25,.6,12,6,.85)(.3,.3,1.25,.65,14,12,.8)
  | (.1,.3,3,.5,10,4,.8)(.2,.3,2,.5,12,4,.7)(.55,.3,4,.9,12,8,.7)
    (.55,.3,4.5,.85,12,8,.65)(.55,.3,2.5,.85,12,12,.55)
  | (.1,.2,1,.6,8,3,.8)(.1,.2,1,.5,10,4,.8)(.15,.3,1.75,.55,10,4,.7)
    (.25,.3,2.25,.6,12,6,.65)(.3,.3,1.25,.65,14,12,.6)
frost
  | (1,.2)(1,.3)(.9,.4)(.85,.4)(.75,.45)
  | (1,.4)(.8,.6)(.7,.7)(.65,.7)(.6,.75)
  | (1,.3)(.9,.4)(.8,.45)(.75,.5)(.7,.55)
fog
  | (.2,3)(.5,3)(.75,2.5)(1,2)(1.5,1.75)
  | (1.5,2)(2,2)(2.5,1.7)(2.5,1.5)(3,1.4)
  | (.4,3)(.7,3)(1,2.5)(1.5,2)(2,1.75)
brightness | .05 .1 .15 .2 .3 | .1 .2 .3 .4 .5 | .1 .2 .3 .4 .5
contrast | .75 .5 .4 .3 .15 | .4 .3 .2 .1 .05 | .4 .3 .2 .1 .05
elastic_transform
  | (0,0,.08)(.05,.2,.07)(.08,.06,.06)(.1,.04,.05)(.1,.03,.03)
  | (2,.7,.1)(2,.08,.2)(.05,.01,.02)(.07,.01,.02)(.12,.01,.02)
  | (0,0,.08)(.05,.3,.06)(.1,.08,.06)(.1,.03,.03)(.16,.03,.02)
pixelate | .95 .9 .85 .75 .65 | .6 .5 .4 .3 .25 | .9 .8 .7 .6 .5
jpeg_compression | 80 65 58 50 40 | 25 18 15 10 7 | 65 58 50 40 25
speckle_noise | .06 .1 .12 .16 .2 | .15 .2 .35 .45 .6 | .15 .2 .25 .3 .35
gaussian_blur | .4 .6 .7 .8 1 | 1 2 3 4 6 | .5 .75 1 1.25 1.5
spatter
  | (.62,.1,.7,.7,.5,0)(.65,.1,.8,.7,.5,0)(.65,.3,1,.69,.5,0)(.65,.1,.7,.69,.6,1)(.65,.1,.5,.68,.6,1)
  | (.65,.3,4,.69,.6,0)(.65,.3,3,.68,.6,0)(.65,.3,2,.68,.5,0)(.65,.3,1,.65,1.5,1)(.67,.4,1,.65,1.5,1)
  | (.62,.1,.7,.7,.6,0)(.65,.1,.8,.7,.6,0)(.65,.3,1,.69,.6,0)(.65,.1,.7,.68,.6,1)(.65,.1,.5,.67,.6,1)
saturate | (.3,0)(.1,0)(1.5,0)(2,.1)(2.5,.2) | (.3,0)(.1,0)(2,0)(5,.1)(20,.2) | (.3,0)(.1,0)(2,0)(5,.1)(30,.2)
"""


def levels(text):
    """Severities 1 to 5 of a cell, each a tuple of numbers."""
    groups = re.findall(r"\(([^)]*)\)", text)
    if not groups:
        return tuple((float(number),) for number in text.split())
    return tuple(tuple(float(number) for number in group.split(",")) for group in groups)


def published():
    """The table by corruption and profile; a line that begins with a blank goes on with the row above."""
    rows = re.split(r"\n(?=\S)", PUBLISHED.strip())
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    return {name: dict(zip(PROFILES, map(levels, rest), strict=True)) for name, *rest in cells}


def test_the_fifteen_and_the_four_come_in_the_order_of_the_benchmark():
    assert list(published()) == [*CORRUPTIONS, *EXTRA]
    assert len(CORRUPTIONS) == 15
    assert set(CONSTANTS) == set(published())


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", sorted(published()))
def test_constants_of_every_severity_are_the_published_ones(name, profile):
    wanted = published()[name][profile]
    assert len(wanted) == 5
    for severity, (ours, theirs) in enumerate(zip(CONSTANTS[name][profile], wanted, strict=True), 1):
        assert ours == theirs, f"severity {severity}"


def test_overlays_are_shrunk_and_elastic_lengths_measured_as_published():
    assert OVERLAY_SCALE == {"cifar": 0.2, "imagenet": 1.0, "tiny-imagenet": 0.3}
    # the benchmark counts elastic lengths in images of 32, 244 (sic, of 224) and 64 pixels
    assert ELASTIC_UNIT == {"cifar": 32 / 32, "imagenet": 244 / 224, "tiny-imagenet": 64 / 64}


def test_the_frost_overlays_have_the_measured_sizes_colours_and_spectra():
    dark, grey = (600, 900, (78, 149, 166), (27, 16, 15), 1.62), (315, 560, (201, 205, 214), (21, 22, 23), 1.06)
    small, large = (350, 527, (138, 153, 166), (29, 29, 30), 0.27), (495, 660, (112, 123, 135), (44, 43, 42), 1.13)
    found = [(photo.height, photo.width, photo.mean, photo.deviation, photo.slope) for photo in PHOTOS]
    assert found == [dark, grey, grey, small, large]  # the second and the third are the same picture


def test_water_is_pale_turquoise_and_mud_is_brown():
    assert [round(255 * level, 9) for level in WATER] == [175, 238, 238]
    assert [round(255 * level, 9) for level in MUD] == [63, 42, 20]
