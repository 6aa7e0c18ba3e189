"""A student that learns from its own moving average: what CoTTA and DSS share.

Three networks with one shape: the student (`method.model`, the only one with gradients), the teacher (a moving
average of the student, and the one whose answer is returned) and the anchor (the source model). The teacher
answers for the batch itself, or, where the anchor is unsure of it, with the mean logits over augmented views.
After each step the teacher follows, and a few random weights of the student return to their source values.

Random draws, in this order: the views, then (where `restore` > 0) the restore masks, for each adapted tensor in
the order of `named_parameters` one `torch.rand` of its shape in float32 on the CPU; elements below it return.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ctta._core.kept import network
from ctta._core.layers import wide
from ctta._core.method import Views
from ctta._core.moments import Descent, DescentSettings
from ctta.functional import soft_cross_entropy, symmetric_cross_entropy
from ctta.settings import setting


@dataclass(frozen=True)
class TeacherSettings(DescentSettings):
    """Settings of a student with a teacher; the defaults are CoTTA's for CIFAR-10-C."""

    loss: Literal["cross-entropy", "symmetric"] = setting(
        "cross-entropy", "Cross-entropy to the teacher, or the mean of both directions."
    )
    confidence: float = setting(
        0.92,
        "Average over views where the anchor's mean confidence is below this; 0 never does.",
        low=0.0,
        high=1.0,
        aka=("ap", "p_th", "anchor_threshold"),
    )
    views: int = setting(32, "Augmented views the teacher averages over.", low=1, aka=("N", "augmentations"))
    teacher_momentum: float = setting(
        0.999, "Share of the old teacher in the new one.", low=0.0, high=1.0, aka=("mt", "ema")
    )
    restore: float = setting(
        0.01, "Probability that a weight of the student is restored.", low=0.0, high=1.0, aka=("rst",)
    )
    parameters: Literal["weight-bias", "all"] = setting(
        "weight-bias", "Adapt parameters named weight or bias, or all (tokens, packed attention weights too)."
    )


TEACHER_PRESETS: dict[str, dict[str, Any]] = {
    "cifar10-c": {"lr": 1e-3, "confidence": 0.92, "restore": 0.01},
    "cifar100-c": {"lr": 1e-3, "confidence": 0.72, "restore": 0.01},
    "imagenet-c": {"lr": 0.01, "optimizer": "sgd", "loss": "symmetric", "confidence": 0.1, "restore": 0.001},
    "embedded": {"lr": 1e-3, "confidence": 0.92, "restore": 0.01},
}

S = TypeVar("S", bound=TeacherSettings)
Net = Callable[[Tensor], Tensor]


class Answer(NamedTuple):
    """The teacher's logits, N x classes, and the anchor's mean confidence if it was asked."""

    logits: Tensor
    confidence: float | None
    averaged: bool


def ask(teacher: Net, anchor: Net, view: Net, x: Tensor, s: TeacherSettings) -> Answer:
    """Ask the teacher: for the batch, or for views of it if the anchor's confidence is below the threshold.

    The views go through the teacher one by one, each normalised with its own statistics.
    """
    with torch.no_grad():
        confidence = anchor(x).softmax(1).amax(1).mean().item() if s.confidence > 0 else None
        if confidence is None or confidence >= s.confidence:
            return Answer(teacher(x), confidence, averaged=False)
        total = teacher(view(x))
        for _ in range(s.views - 1):
            total = total + teacher(view(x))
        return Answer(total / s.views, confidence, averaged=True)


class FrozenTeacher(nn.Module):
    """Teacher and anchor as one ordinary module that answers a batch as they did, always with the same views."""

    def __init__(self, teacher: nn.Module, anchor: nn.Module, view: Views, settings: TeacherSettings) -> None:
        super().__init__()
        self.teacher, self.anchor, self.view, self.settings = teacher, anchor, view, settings
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the teacher's logits, N x classes, without graph."""
        view = Views(self.view.augment, copy.deepcopy(self.view.rng))
        return ask(partial(_logits, self.teacher), partial(_logits, self.anchor), view, x, self.settings).logits


def _logits(net: nn.Module, x: Tensor) -> Tensor:
    return wide(net(x.clone()))


class MeanTeacher(Descent[S]):
    """A method whose student learns from a teacher; subclasses write `objective`."""

    adapts = "all"

    teacher: nn.Module = network(lambda m: m.copy_of_source(), "Moving average of the student; it answers.")
    anchor: nn.Module = network(lambda m: m.copy_of_source(), "The source model; it says how sure to be.")

    def objective(self, logits: Tensor, target: Tensor) -> Tensor:
        """Loss of the student's logits given the teacher's (a constant), both N x classes."""
        raise NotImplementedError

    def step(self, x: Tensor) -> Tensor:
        """Move student and teacher; return the teacher's logits before the (last) update."""
        for _ in range(self.settings.steps):
            answer = self.ask(x)
            self.note_answer(answer)
            self.descend(self.gradients(self.objective(self.forward(x), answer.logits)))
            self.update_teacher()
            self.restore()
        return answer.logits

    def predict(self, x: Tensor) -> Tensor:
        """Return the teacher's logits, over the views the next step would draw."""
        return self.ask(x).logits

    def answering(self) -> nn.Module:
        """Return the teacher."""
        return self.teacher

    def frozen(self) -> nn.Module:
        """Return the teacher with all it takes to answer."""
        return FrozenTeacher(self.teacher, self.anchor, self.view, self.settings)

    # ---------------------------------------------------------------- the parts of a step

    def ask(self, x: Tensor) -> Answer:
        """Ask the teacher, over views where the anchor is unsure."""
        teacher, anchor = (partial(self.forward, model=net) for net in (self.teacher, self.anchor))
        return ask(teacher, anchor, self.view, x, self.settings)

    def agreement(self, logits: Tensor, target: Tensor) -> Tensor:
        """Loss of each sample against the teacher, one way or both ways: N x C, N x C -> N."""
        one_way = self.settings.loss == "cross-entropy"
        return (soft_cross_entropy if one_way else symmetric_cross_entropy)(logits, target)

    def update_teacher(self) -> None:
        """Let the teacher follow the student: teacher <- m * teacher + (1 - m) * student."""
        followers = dict(self.teacher.named_parameters())
        with torch.no_grad():
            for name, parameter in self.adapted.items():
                follower = wide(followers[name])
                followers[name].copy_(torch.lerp(follower, wide(parameter), 1.0 - self.settings.teacher_momentum))

    def restore(self) -> None:
        """Return random weights of the student to their source values."""
        if self.settings.restore == 0:
            return
        with torch.no_grad():
            for name, parameter in self.adapted.items():
                mask = self.restore_mask(name, parameter.shape).to(parameter.device)
                parameter.copy_(torch.where(mask, self.source[name], parameter))

    def restore_mask(self, name: str, shape: torch.Size) -> Tensor:
        """Draw which elements of a tensor are restored, booleans of its shape."""
        draws = torch.rand(shape, generator=self.rng.generator, dtype=torch.float32, device="cpu")
        return draws < self.settings.restore

    def note_answer(self, answer: Answer) -> None:
        """Say in the report whether the teacher averaged, and why."""
        if answer.confidence is not None:
            how = f"teacher averaged {self.settings.views} views" if answer.averaged else "teacher used no views"
            self.note(notes=(f"{how}: anchor confidence {answer.confidence:.3f}",))
