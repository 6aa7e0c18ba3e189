"""Tent: fully test-time adaptation by entropy minimisation (Wang et al., ICLR 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ctta._core.moments import Descent, DescentSettings
from ctta._core.registry import register
from ctta.functional import softmax_entropy


@dataclass(frozen=True)
class TentSettings(DescentSettings):
    """Settings of Tent; the defaults are the published CIFAR settings."""


@register(
    "tent",
    paper="Tent: Fully Test-Time Adaptation by Entropy Minimization",
    year=2021,
    needs={"norm layers"},
    cost=2.0,
    confidence="high",
    presets={
        "cifar10-c": {"lr": 1e-3},
        "cifar100-c": {"lr": 1e-3},
        "imagenet-c": {"lr": 2.5e-4, "optimizer": "sgd"},
        "embedded": {"lr": 1e-3},
        "embedded-long": {"lr": 5e-4},
        # the learning rates in the configuration files of the PALM repository, not those of its table
        "palm-repo-cifar10-c": {"lr": 1e-5},
        "palm-repo-cifar100-c": {"lr": 2e-5},
    },
)
class Tent(Descent[TentSettings]):
    """Minimise the mean prediction entropy over the scale and shift of the norm layers."""

    adapts = "norm"

    def step(self, x: Tensor) -> Tensor:
        """Take `steps` updates; return the logits before the last."""
        for _ in range(self.settings.steps):
            logits = self.forward(x)
            entropy = softmax_entropy(logits).mean()
            self.descend(self.gradients(entropy))
            self.note_losses({"entropy": entropy, "total": entropy})
        return logits
