"""BN-1: batch statistics in place of the source statistics (Schneider et al., NeurIPS 2020)."""

from __future__ import annotations

from torch import Tensor

from ctta._core.method import Method
from ctta._core.registry import register
from ctta.methods.source import BENCHMARKS, SourceSettings


@register(
    "bn1",
    paper="Improving robustness against common corruptions by covariate shift adaptation",
    year=2020,
    cost=1.0,
    confidence="high",
    presets={name: {} for name in BENCHMARKS},
)
class Bn1(Method[SourceSettings]):
    """Normalise each batch with its own mean and variance; a model without BatchNorm is left as Source."""

    def step(self, x: Tensor) -> Tensor:
        """Return the logits under batch statistics."""
        return self.forward(x)
