"""Registering a method: what is checked when the class is entered."""

from dataclasses import dataclass

import pytest

import ctta
from ctta.methods import Method, find, register, setting

pytestmark = pytest.mark.usefixtures("registry_as_it_was")


@dataclass(frozen=True)
class MySettings:
    lr: float = setting(0.1, "Step size.")


def test_a_preset_with_an_unknown_setting_is_refused_when_the_method_is_entered():
    with pytest.raises(ctta.SettingError, match="no setting `lrr`"):

        @register("mine", paper="none", year=2000, presets={"x": {"lrr": 1}})
        class Mine(Method[MySettings]):
            """Nothing."""


def test_variants_need_a_setting_to_choose_them():
    with pytest.raises(ctta.SettingError, match="no setting `variant`"):

        @register("mine", paper="none", year=2000, variants={"x": {"lr": 1}})
        class Mine(Method[MySettings]):
            """Nothing."""


def test_settings_must_be_named():
    with pytest.raises(ctta.SettingError, match="Say which settings Mine takes"):

        @register("mine", paper="none", year=2000)
        class Mine(Method):
            """Nothing."""


def test_a_taken_name_is_refused_but_the_same_class_may_be_entered_again():
    with pytest.raises(ctta.SettingError, match=r"`tent` is taken by ctta.methods.tent.Tent"):

        @register("tent", paper="none", year=2000)
        class Mine(Method[MySettings]):
            """Nothing."""

    for year in (2000, 2001):  # as a notebook cell run twice

        @register("mine", paper="none", year=year)
        class Again(Method[MySettings]):
            """Nothing."""

    assert find("mine").year == 2001
