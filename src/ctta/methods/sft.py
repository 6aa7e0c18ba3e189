"""SFT: surgical fine-tuning of the first stage (Lee et al., ICLR 2023), continual and without labels as in PALM.

Surgical fine-tuning trains one block of a network on labelled target data. The PALM paper compares with a
continual version of its own making: the first stage moves down PALM's objective (entropy of the sure samples plus
consistency with an augmented view) at one fixed learning rate. `variant="palm-repo"` is the code that made the
published rows; `variant="original"` takes from the authors of SFT what can be had without labels: the stem moves
too, Adam with weight decay, source statistics in eval mode.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ctta._core.layers import NORM, collect
from ctta._core.moments import Descent, DescentSettings
from ctta._core.registry import register
from ctta.errors import UnsupportedModelError
from ctta.functional import consistency, filtered_entropy
from ctta.models.stages import STEM, find_stages
from ctta.settings import setting


@dataclass(frozen=True)
class SftSettings(DescentSettings):
    """Settings of SFT; the defaults are those of the PALM repository for CIFAR."""

    variant: Literal["palm-repo", "original"] = setting(
        "palm-repo", "The PALM repository's baseline, or the original's choices as far as they need no labels."
    )
    scope: Literal["first-stage", "stem-and-first-stage"] = setting(
        "first-stage", "What moves: the first stage alone, or the stem too.", aka=("block",)
    )
    stages: str = setting(
        "", "Names of the stages in order, where the model is of no known family.", many=True, aka=("stage",)
    )
    optimizer: Literal["sgd", "adam"] = setting("sgd", "What turns a gradient into a step.")
    lam: float = setting(
        0.01,
        "Weight lambda of the consistency loss; 0 skips the augmented view.",
        low=0.0,
        aka=("lambda", "lambda_"),
    )
    consistency_scale: Literal["one", "classes"] = setting("one", "Multiply lam by 1 or by the number of classes.")
    entropy_margin: float = setting(0.4, "Entropy below which a sample counts.", low=0.0, aka=("margin",))
    margin_unit: Literal["log-classes", "nats"] = setting(
        "log-classes", "entropy_margin as a fraction of log(classes), or in nats."
    )
    bn_mode: Literal["batch", "source"] = setting("batch", "Statistics BatchNorm normalises with.", aka=("bn",))
    mode: Literal["eval", "train"] = setting(
        "eval", "Whether dropout and its like are active in the forward passes of a step (predict: never)."
    )


ORIGINAL = {"scope": "stem-and-first-stage", "optimizer": "adam", "weight_decay": 1e-4, "bn_mode": "source"}


@register(
    "sft",
    paper="Surgical Fine-Tuning Improves Adaptation to Distribution Shifts",
    year=2023,
    needs={"named stages"},
    cost=4.6,
    confidence="high",
    presets={
        "cifar10-c": {"lr": 1e-3},
        "cifar100-c": {"lr": 1e-3},
        "imagenet-c": {"lr": 5e-4},
        "embedded": {"lr": 2e-2},
        "embedded-long": {"lr": 1e-2},
    },
    variants={"palm-repo": {}, "original": ORIGINAL},
)
class Sft(Descent[SftSettings]):
    """Fine-tune the first stage on the entropy of sure samples and consistency with an augmented view."""

    adapts = "conv-norm"

    def step(self, x: Tensor) -> Tensor:
        """Take `steps` updates; return the logits before the last."""
        for _ in range(self.settings.steps):
            view = self.view(x) if self.settings.lam > 0 else None
            with self.layers_in_mode(x.device):
                logits = self.forward(x)
                seen = None if view is None else self.forward(view)
            self.descend(self.gradients(self.objective(logits, seen)))
        return logits

    def objective(self, logits: Tensor, view: Tensor | None) -> Tensor:
        """Entropy of the samples below the margin, plus weighted consistency; notes both."""
        s, classes = self.settings, logits.shape[1]
        margin = s.entropy_margin * (math.log(classes) if s.margin_unit == "log-classes" else 1.0)
        entropy, kept = filtered_entropy(logits, margin)
        losses, total = {"entropy": entropy}, entropy
        if view is not None:
            losses["consistency"] = consistency(logits, view)
            total = (
                entropy + (s.lam * classes if s.consistency_scale == "classes" else s.lam) * losses["consistency"]
            )
        self.note_losses(losses | {"total": total}, kept, margin)
        return total

    @contextlib.contextmanager
    def layers_in_mode(self, device: torch.device) -> Iterator[None]:
        """Dropout and its like as `mode` says; they draw from a seed that comes from the adapter's generator.

        Norm layers stay in eval mode: their statistics are the matter of `bn_mode`.
        """
        if self.settings.mode == "eval":
            yield
            return
        was = {module: module.training for module in self.model.modules()}
        try:
            for module in was:
                module.training = not isinstance(module, NORM)
            with self.rng.lend(device):
                yield
        finally:
            for module, training in was.items():
                module.training = training

    def _collect(self) -> dict[str, nn.Parameter]:
        """Convolution and norm parameters of the first stage, with the stem's where the scope says so."""
        found = find_stages(self.model, self.settings.stages)
        wanted = {found.stages[0].name, *([STEM] if self.settings.scope == "stem-and-first-stage" else [])}
        layers = collect(self.model, "conv-norm").items()
        if adapted := {name: value for name, value in layers if found.block_of(name).stage in wanted}:
            return adapted
        raise UnsupportedModelError(
            f"SFT adapts the convolution and norm layers of the first stage, and {found.stages[0].name} of "
            f"{type(self.model).__name__} has none: name another with `stages=`."
        )
