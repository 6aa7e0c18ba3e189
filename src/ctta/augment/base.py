"""What an augmentation of ours is."""

from __future__ import annotations

import torch
from torch import Tensor

CUSTOM = "custom"


class Augmentation:
    """A random map from a batch to a batch that draws only from the generator it is given."""

    @property
    def name(self) -> str:
        """What a saved adapter calls it. Those of `NAMED` are found again by name; others must be passed again."""
        return CUSTOM

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return an augmented copy of the images."""
        raise NotImplementedError
