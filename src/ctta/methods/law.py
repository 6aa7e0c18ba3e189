"""LAW: layer-wise auto-weighting for non-stationary test-time adaptation (Park et al., WACV 2024).

Each batch first asks how much each tensor matters to the model's own answers: the squared gradient of the
pseudo-label loss is added to a running Fisher information, and its root mean square, scaled to [0, 1] over all
tensors, becomes the tensor's share of the learning rate. One Adam step on entropy plus consistency follows.

`variant="official"` is the authors' code: the gradient of the update before leaks into the Fisher information,
which is that of the batch mean, and Adam is new for every batch (a sign step). `variant="paper"` is their
description read literally. `variant="palm-repo"` multiplies lambda by the number of classes twice, which is what
the weights 0.1, 1.0 and 10.0 times C of the PALM repository come to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ctta._core.kept import per_tensor
from ctta._core.moments import AdamMemory
from ctta._core.registry import register
from ctta.functional import consistency, fisher_weights, pseudo_label_loss, softmax_entropy
from ctta.optim import sign_step
from ctta.settings import setting


@dataclass(frozen=True)
class LawSettings:
    """Settings of LAW; the defaults are the official CIFAR-10-C settings."""

    variant: Literal["official", "paper", "palm-repo"] = setting(
        "official", "The authors' code, their description read literally, or the copy in the PALM repository."
    )
    lr: float = setting(1e-3, "Learning rate of the largest layer weight.", low=0.0, aka=("learning_rate",))
    tau: float = setting(1.0, "Power that sharpens (above 1) or flattens the layer weights.", low=0.0)
    lam: float = setting(
        0.01,
        "Weight lambda of the consistency loss; 0 skips the augmented view.",
        low=0.0,
        aka=("lambda", "lambda_", "consistency_coef"),
    )
    lam_scale: Literal["classes", "one", "classes-squared"] = setting(
        "classes", "Multiply lam by the number of classes, by 1, or by the number of classes twice."
    )
    weight_decay: float = setting(0.0, "Weight decay added to the gradient.", low=0.0, aka=("wd",))

    grad_leak: bool = setting(
        True, "Whether the gradient of the last update is added to the one the Fisher information is made of."
    )
    fim: Literal["batch-mean", "per-sample"] = setting(
        "batch-mean",
        "Square the gradient of the batch mean, or average squared gradients of samples (a backward pass each).",
    )
    accumulate: float = setting(
        1.0, "Factor on the Fisher information before a batch is added: 1 never forgets.", low=0.0, high=1.0
    )
    unit: Literal["tensor", "module"] = setting(
        "tensor", "Whether a layer weight belongs to a tensor or to all tensors of its module."
    )
    adam_state: Literal["fresh", "persistent"] = setting(
        "fresh", "A new Adam every batch (a sign step) or one that keeps its moments.", aka=("adam",)
    )
    steps: int = setting(1, "Repetitions of the whole procedure per batch.", low=1)


PUBLISHED = {
    "cifar10-c": {"lr": 1e-3, "tau": 1.0},
    "cifar100-c": {"lr": 5e-5, "tau": 0.6},
    "imagenet-c": {"lr": 2e-4, "tau": 1.0},
}
PAPER = {"grad_leak": False, "fim": "per-sample", "unit": "module", "adam_state": "persistent", "lam_scale": "one"}


@register(
    "law",
    paper="Layer-wise Auto-Weighting for Non-Stationary Test-Time Adaptation",
    year=2024,
    needs={"conv or norm layers"},
    cost=8.0,
    confidence="high",
    presets={
        **PUBLISHED,
        "embedded": {"lr": 1e-3, "tau": 1.0},
        "embedded-long": {"lr": 5e-4, "tau": 1.0},
        **{f"palm-repo-{name}": {"variant": "palm-repo", **preset} for name, preset in PUBLISHED.items()},
    },
    variants={"official": {}, "paper": PAPER, "palm-repo": {"lam_scale": "classes-squared"}},
)
class Law(AdamMemory[LawSettings]):
    """Weight each layer's learning rate by the Fisher information of its pseudo-labels."""

    adapts = "conv-norm"

    fisher: dict[str, Tensor] = per_tensor("Accumulated Fisher information G, as its tensor.")
    leaked: dict[str, Tensor] = per_tensor("Gradient of the last update, where it leaks into the next batch.")

    def step(self, x: Tensor) -> Tensor:
        """Weight the layers, update; return the logits before the (last) update."""
        for _ in range(self.settings.steps):
            logits = self.forward(x)
            self.update_fisher(logits)
            self.update(logits, self.layer_weights(), x)
        return logits

    def update_fisher(self, logits: Tensor) -> None:
        """Add the squared gradient of the pseudo-label loss to what was gathered before."""
        s = self.settings
        nll = pseudo_label_loss(logits, reduction="none")
        losses = nll if s.fim == "per-sample" else [nll.mean()]
        total: dict[str, Tensor] = {}
        for loss in losses:
            for name, gradient in self.gradients(loss, retain_graph=True).items():
                score = gradient + self.leaked[name] if name in self.leaked else gradient
                total[name] = total.get(name, 0.0) + score.square()
        for name, value in total.items():
            self.fisher[name] = s.accumulate * self.fisher.get(name, 0.0) + value / len(losses)
        self.require_finite("Fisher information", self.fisher)
        unused = sorted(self.adapted.keys() - self.fisher.keys())
        self.note(notes=(f"not used by the model: {', '.join(unused)}",) if unused else ())

    def layer_weights(self) -> dict[str, float]:
        """Share of the learning rate for each tensor the model uses, from 0 to just under 1."""
        sums = dict(zip(self.fisher, torch.stack([g.sum() for g in self.fisher.values()]), strict=True))
        units: dict[str, list[str]] = {}
        for name in self.fisher:
            unit = name.rpartition(".")[0] if self.settings.unit == "module" else name
            units.setdefault(unit, []).append(name)
        means = [
            torch.stack([sums[name] for name in names]).sum() / sum(self.adapted[name].numel() for name in names)
            for names in units.values()
        ]
        weights: list[float] = fisher_weights(torch.stack(means).sqrt(), self.settings.tau).tolist()
        if not any(weights):
            self.note_in_words("all layers matter alike: nothing moves")
        return {name: weight for names, weight in zip(units.values(), weights, strict=True) for name in names}

    def update(self, logits: Tensor, weights: dict[str, float], x: Tensor) -> None:
        """Move each tensor down the gradient of the objective at its own learning rate."""
        s = self.settings
        gradients = self.gradients(self.objective(logits, x))
        # a tensor that only the view reaches matters to no answer
        rates = {name: s.lr * weights.get(name, 0.0) for name in gradients}
        if s.adam_state == "persistent":
            moved = self.adam(gradients, rates, weight_decay=s.weight_decay)
        else:
            moved = {
                name: sign_step(self.value(name), gradients[name], rate, weight_decay=s.weight_decay)
                for name, rate in rates.items()
                if rate > 0
            }
        self.move(moved)
        self.leaked = gradients if s.grad_leak else {}
        self.note(
            importance={name: weights.get(name, 0.0) for name in self.adapted},
            learning_rates={name: rates.get(name, 0.0) for name in self.adapted},
            shares={"moved": self.share(name for name, rate in rates.items() if rate > 0)},
        )

    def objective(self, logits: Tensor, x: Tensor) -> Tensor:
        """Mean entropy plus weighted consistency with an augmented view."""
        entropy = total = softmax_entropy(logits).mean()
        losses = {"entropy": entropy}
        if self.settings.lam > 0:
            losses["consistency"] = consistency(logits, self.forward(self.view(x)))
            total = entropy + self.coefficient(logits.shape[1]) * losses["consistency"]
        losses["total"] = total
        self.note_losses(losses)
        return total

    def coefficient(self, classes: int) -> float:
        """Weight of the consistency loss for this number of classes."""
        power = {"one": 0, "classes": 1, "classes-squared": 2}[self.settings.lam_scale]
        return self.settings.lam * float(classes**power)
