"""What an augmentation of ours is, and how `augment=` is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ctta.errors import AugmentError


class Augmentation:
    """A random map from a batch to a batch that draws only from the generator it is given."""

    name: str
    """What a saved adapter calls it; `choose` finds it again by this name."""

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return an augmented copy of the images."""
        raise NotImplementedError


def choose(augment: Augmentation | Callable[[Tensor], Tensor] | str | None) -> Any:
    """Read the argument `augment=`: a name, one of ours, any callable, or None for the default.

    >>> choose(None).name, choose("cotta-soft").name
    ('cotta', 'cotta-soft')
    """
    from ctta.augment.cotta import Cotta

    named = {item.name: item for item in (Cotta(), Cotta(soft=True))}
    if augment is None:
        return named["cotta"]
    if isinstance(augment, str) and augment in named:
        return named[augment]
    if callable(augment):
        return augment
    names = ", ".join(f'"{name}"' for name in named)
    raise AugmentError(
        f"Expected `augment` to be a callable from a batch to a batch or one of {names}, but got {augment!r}."
    )
