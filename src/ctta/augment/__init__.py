"""Augmentations in batched tensor operations, driven by the generator of the adapter that uses them."""

from ctta.augment.base import Augmentation, choose
from ctta.augment.cotta import Cotta

__all__ = ["Augmentation", "Cotta", "choose"]
