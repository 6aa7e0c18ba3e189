"""Augmentations in batched tensor operations, driven by the generator of the adapter that uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ctta.augment.adacontrast import StrongView
from ctta.augment.base import CUSTOM, Augmentation
from ctta.augment.cotta import Cotta
from ctta.errors import AugmentError

__all__ = ["CUSTOM", "NAMED", "Augmentation", "Cotta", "StrongView", "choose"]

NAMED: dict[str, Augmentation] = {item.name: item for item in (Cotta(), Cotta(soft=True), StrongView())}
"""The augmentations a saved adapter finds again by name."""


def choose(augment: Augmentation | Callable[[Tensor], Tensor] | str | None, default: str = "cotta") -> Any:
    """Read the argument `augment=`: a name, one of ours, any callable, or None for the default of the method.

    >>> choose(None).name, choose("cotta-soft").name
    ('cotta', 'cotta-soft')
    """
    if augment is None:
        return NAMED[default]
    if isinstance(augment, str) and augment in NAMED:
        return NAMED[augment]
    if callable(augment):
        return augment
    names = ", ".join(f'"{name}"' for name in NAMED)
    raise AugmentError(
        f"Expected `augment` to be a callable from a batch to a batch or one of {names}, but got {augment!r}."
    )
