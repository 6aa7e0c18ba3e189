"""Settings: typed, ranged, refused with the accepted names."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

import ctta
from ctta.checks.networks import NETWORKS
from ctta.methods import find, list_methods
from ctta.settings import build, describe, setting


@dataclass(frozen=True)
class Example:
    rate: float = setting(0.1, "A rate.", low=0.0, high=1.0)
    size: int = setting(3, "A size.", low=1)
    warm: bool = setting(True, "A switch.")
    mode: Literal["a", "b"] = setting("a", "A choice.")
    level: float | Literal["auto"] = setting(1.0, "A number or auto.")
    share: float | None = setting(None, "Maybe.", above=0.0, high=1.0)
    label: str = setting("x", "A word.")
    positive: float = setting(1.0, "Above zero.", above=0.0)
    words: str = setting("", "Some words.", many=True)


def make(**values):
    return build(Example, values, owner="example")


def test_values_are_converted_to_their_declared_type():
    made = make(rate=1, size=np.int64(4), level=np.float32(0.5), share=1)
    assert made == Example(rate=1.0, size=4, level=0.5, share=1.0)
    assert type(made.rate) is float
    assert type(made.size) is int


def test_a_list_is_kept_as_one_string_where_many_words_are_meant():
    assert make(words=["a", "b"]).words == make(words=("a", "b")).words == make(words="a,b").words == "a,b"
    assert make(words=[2, 2, 4]).words == "2,2,4"
    assert make(words=[]).words == ""


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rate": -1}, "Expected `rate` to be a number in [0, 1], but got -1."),
        ({"rate": float("nan")}, "a number in [0, 1], but got nan"),
        ({"rate": True}, "a number in [0, 1], but got True"),
        ({"rate": "0.5"}, "a number in [0, 1], but got '0.5'"),
        ({"size": 0}, "a whole number of at least 1, but got 0"),
        ({"size": 1.5}, "a whole number of at least 1, but got 1.5"),
        ({"warm": 1}, "True or False, but got 1"),
        ({"mode": "c"}, 'to be "a" or "b", but got \'c\''),
        ({"level": "atuo"}, "Did you mean `auto`?"),
        ({"level": float("inf")}, 'a number or "auto", but got inf'),
        ({"share": 0.0}, "a number in (0, 1] or None, but got 0.0"),
        ({"label": 3}, "a string, but got 3"),
        ({"positive": 0}, "a number above 0, but got 0"),
        ({"words": [1.5]}, "a string with commas or a list, but got [1.5]"),
        ({"label": ["a"]}, "a string, but got ['a']"),
    ],
)
def test_impossible_values_are_refused_with_what_would_be_accepted(values, words):
    with pytest.raises(ctta.SettingError) as caught:
        make(**values)
    assert words in str(caught.value)


def test_an_unknown_setting_is_refused_with_a_guess_and_where_all_are_listed():
    with pytest.raises(ctta.SettingError) as caught:
        ctta.adapt(NETWORKS["bn2d"].make(), "palm", etta=1.0)
    text = str(caught.value)
    assert "palm has no setting `etta`. Did you mean `eta`?" in text
    assert "`ctta methods palm` lists all" in text
    assert len(text) < 120  # not fifty names


@pytest.mark.parametrize(
    ("tried", "meant"),
    [("kappa", "lr"), ("learning_rate", "lr"), ("T", "temperature"), ("lambda", "lam"), ("wd", "weight_decay")],
)
def test_names_people_may_try_are_answered_with_the_right_one(tried, meant):
    with pytest.raises(ctta.SettingError, match=f"no setting `{tried}`. Did you mean `{meant}`"):
        ctta.adapt(NETWORKS["bn2d"].make(), "palm", **{tried: 1})


def test_a_method_without_settings_says_so():
    with pytest.raises(ctta.SettingError, match="source has no setting `lr`. Accepted settings: none"):
        ctta.adapt(NETWORKS["bn2d"].make(), "source", lr=1.0)


def test_unknown_methods_presets_and_variants_are_refused_with_a_guess():
    model = NETWORKS["bn2d"].make()
    with pytest.raises(ctta.SettingError, match="no method `plam`. Did you mean `palm`"):
        ctta.adapt(model, "plam")
    with pytest.raises(ctta.SettingError, match="no preset `cifar10c`. Did you mean `cifar10-c`"):
        ctta.adapt(model, "palm", preset="cifar10c")
    with pytest.raises(ctta.SettingError, match="no variant `papers`. Did you mean `paper`"):
        ctta.adapt(model, "palm", variant="papers")
    with pytest.raises(ctta.SettingError, match="no variant"):
        ctta.adapt(model, "palm", variant=[1])
    with pytest.raises(ctta.SettingError, match="in \\[0, 1\\)"):
        ctta.adapt(model, "tent", momentum=1.0)
    with pytest.raises(ctta.SettingError, match="not a registered method"):
        ctta.adapt(model, int)


@pytest.mark.parametrize("seed", [-1, 1.5, True, "0", 2**63])
def test_a_seed_that_is_no_seed_is_refused(seed):
    with pytest.raises(ctta.SettingError, match="Expected `seed`"):
        ctta.adapt(NETWORKS["bn2d"].make(), "bn1", seed=seed)


def test_settings_are_described_as_plain_data():
    described = describe(Example)
    assert described.names == ("rate", "size", "warm", "mode", "level", "share", "label", "positive", "words")
    assert described["level"].choices == ("auto",)
    assert "rate" in described
    assert described[0] in described
    assert described[0].help == "A rate."
    with pytest.raises(KeyError):
        described["nothing"]


@pytest.mark.parametrize("entry", list_methods(), ids=lambda e: e.name)
def test_every_method_is_fully_described(entry):
    assert entry.paper
    assert entry.summary.endswith(".")
    assert {"cifar10-c", "cifar100-c", "imagenet-c", "embedded"} <= set(entry.presets)
    for item in entry.settings:
        assert len(item.help.split()) >= 2, item.name
        assert item.help.endswith((".", ").")), item.name
        assert item.accepts, item.name
        assert item.check(item.default) == item.default
    for name in entry.presets:
        entry.resolve(name, {})
    for name in entry.variants:
        entry.resolve(None, {"variant": name})
    for kept in entry.method.kept().values():
        assert kept.help.endswith("."), kept


def test_entries_are_frozen():
    entry = find("palm")
    with pytest.raises(AttributeError):
        entry.year = 1
    with pytest.raises(TypeError):
        entry.presets["cifar10-c"]["lr"] = 1
    assert [e.name for e in list_methods()][:2] == ["source", "bn1"]
