"""Normalisation as part of the model, so that every adapter sees images in [0, 1]."""

from __future__ import annotations

import torch
from torch import Tensor, nn

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Normalise(nn.Module):
    """(x - mean) / std per channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...] = IMAGENET_MEAN, std: tuple[float, ...] = IMAGENET_STD) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise images, N x C x H x W."""
        return (x - self.mean) / self.std


class Normalised(nn.Module):
    """A model behind its normalisation: images in [0, 1] in, logits out. Keys: `normalize.*`, `model.*`."""

    def __init__(self, model: nn.Module, normalise: Normalise | None = None) -> None:
        super().__init__()
        self.normalize = normalise or Normalise()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.model(self.normalize(x))  # type: ignore[no-any-return]
