"""What an augmentation of ours is."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ctta.errors import AugmentError

CUSTOM = "custom"


class Augmentation:
    """A random map from a batch to a batch that draws only from the generator it is given.

    It takes images in [0, 1], N x C x H x W, or clips, N x C x D x H x W, whose frames share what an image draws.
    """

    refusal: ClassVar[str]
    """What is said of other shapes, which follow."""

    @property
    def name(self) -> str:
        """What a saved adapter calls it. Those of `NAMED` are found again by name; others must be passed again."""
        return CUSTOM

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return an augmented copy in [0, 1], of the same shape and dtype."""
        if images.dim() not in (4, 5):
            raise AugmentError(self.refusal.format(shape=tuple(images.shape)))
        exact = images if images.dtype in (torch.float32, torch.float64) else images.float()
        if images.dim() == 4:
            return self.view(exact.clamp(0.0, 1.0), len(images), generator).to(images.dtype)
        frames = exact.transpose(1, 2).flatten(0, 1)
        view = self.view(frames.clamp(0.0, 1.0), len(images), generator).to(images.dtype)
        return view.view(len(images), -1, *view.shape[1:]).transpose(1, 2)

    def view(self, x: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Augment float images that nobody else holds; `count` of them, or clips of as many frames each."""
        raise NotImplementedError
