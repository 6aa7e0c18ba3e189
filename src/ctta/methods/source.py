"""Source: the model as it was trained, the line every method is measured against."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ctta._core.method import Method
from ctta._core.registry import register

BENCHMARKS = ("cifar10-c", "cifar100-c", "imagenet-c", "embedded")


@dataclass(frozen=True)
class SourceSettings:
    """There is nothing to set, here and in BN-1."""


@register(
    "source", paper="no adaptation", year=0, cost=1.0, confidence="high", presets={name: {} for name in BENCHMARKS}
)
class Source(Method[SourceSettings]):
    """Adapt nothing; BatchNorm uses its source statistics."""

    statistics = "source"

    def step(self, x: Tensor) -> Tensor:
        """Return the source model's logits."""
        return self.forward(x)
