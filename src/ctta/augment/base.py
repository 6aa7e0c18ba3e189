"""What an augmentation of ours is."""

from __future__ import annotations

import torch
from torch import Tensor


class Augmentation:
    """A random map from a batch to a batch that draws only from the generator it is given."""

    name: str = "custom"
    """What a saved adapter calls it. `choose` finds ours again by name; "custom" must be passed again."""

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return an augmented copy of the images."""
        raise NotImplementedError
