"""Whole runs in one precision: what they say is what they are computed in."""

import pytest
import torch

from ctta._core.precision import PRECISIONS, autocast_on, in_precision, mark
from ctta.errors import SettingError


def product():
    return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


def test_bf16_rounds_products_though_the_processor_may_not_gain_by_it(monkeypatch):
    monkeypatch.setattr("ctta._core.precision.bf16_pays", lambda device: False)
    with in_precision("bf16", "cpu"):
        assert product() == torch.bfloat16
    assert product() == torch.float32


def test_full_means_full_under_the_callers_autocast_which_is_back_afterwards():
    with torch.autocast("cpu", torch.bfloat16):
        with in_precision("full", "cpu"):
            assert product() == torch.float32
        assert product() == torch.bfloat16
    assert not autocast_on("cpu")


@pytest.mark.parametrize("name", ["fp16", "BF16", "", None])
def test_an_unknown_precision_is_refused_with_the_choices(name):
    with pytest.raises(SettingError) as caught:
        in_precision(name, "cpu")
    assert str(caught.value) == f"Expected a precision of full or bf16, but got {name!r}."


def test_only_what_is_not_in_full_is_marked():
    assert [mark(name) for name in PRECISIONS] == ["", " (bf16)"]
