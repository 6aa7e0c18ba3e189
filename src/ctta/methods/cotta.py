"""CoTTA: continual test-time domain adaptation (Wang, Fink, Van Gool and Dai, CVPR 2022).

`adapter.model` is the student; the teacher, whose answer is returned, is `adapter.method.teacher`. `predict`
and `freeze()` answer as the teacher does, over views where the anchor is unsure. Averaging is done only where
it is needed, as in the official ImageNet code (the official CIFAR code computes both answers and drops one).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ctta._core.registry import register
from ctta._core.teacher import TEACHER_PRESETS, MeanTeacher, TeacherSettings


@dataclass(frozen=True)
class CottaSettings(TeacherSettings):
    """Settings of CoTTA; the defaults are the published CIFAR-10-C settings."""


@register(
    "cotta",
    paper="Continual Test-Time Domain Adaptation",
    year=2022,
    cost=36.0,
    confidence="high",
    presets=TEACHER_PRESETS,
)
class Cotta(MeanTeacher[CottaSettings]):
    """Follow a weight-averaged teacher that averages its views; restore random weights to the source."""

    def objective(self, logits: Tensor, target: Tensor) -> Tensor:
        """Mean (symmetric) cross-entropy to the teacher."""
        loss = self.agreement(logits, target).mean()
        self.note_losses({self.settings.loss: loss, "total": loss})
        return loss
