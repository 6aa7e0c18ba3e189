"""DSS: continual test-time adaptation by dynamic sample selection (Wang et al., WACV 2024), our reconstruction.

The authors published no code, and what is known of the method is its outline: CoTTA's student and teacher, a
threshold that moves with the teacher's confidence and parts the samples of high from those of low quality, and
positive and negative learning on both kinds. Everything else here is our choice, and every choice is a setting.
Do not compare its numbers with the published ones digit by digit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ctta._core.kept import scalar
from ctta._core.registry import register
from ctta._core.teacher import TEACHER_PRESETS, MeanTeacher, TeacherSettings
from ctta.functional import complementary_classes, negative_learning
from ctta.settings import setting


@dataclass(frozen=True)
class DssSettings(TeacherSettings):
    """Settings of DSS (our reconstruction); what it shares with CoTTA has CoTTA's defaults."""

    tau_momentum: float = setting(
        0.999, "Share of the old threshold in the new one; 0.9 follows within ten batches.", low=0.0, high=1.0
    )
    neg: float | None = setting(
        None,
        "Classes the teacher gives less than this probability are ruled out (None: 1 / classes).",
        low=0.0,
        high=1.0,
    )
    nl_high: float = setting(1.0, "Weight of negative learning on samples of high quality.", low=0.0)
    lam_n: float = setting(1.0, "Weight of negative learning.", low=0.0, aka=("lambda_n", "lam", "lambda"))


@register(
    "dss",
    paper="Continual Test-Time Domain Adaptation via Dynamic Sample Selection (our reconstruction)",
    year=2024,
    cost=36.0,
    confidence="low",
    presets=TEACHER_PRESETS,
)
class Dss(MeanTeacher[DssSettings]):
    """Our reconstruction of DSS: CoTTA that learns sure samples, and unlearns classes ruled out."""

    tau: float | None = scalar(
        None,
        "Confidence threshold; it starts from 1 / classes at the first batch.",
        check=lambda m: m.tau is None or 0 <= m.tau <= 1,
    )

    def objective(self, logits: Tensor, target: Tensor) -> Tensor:
        """Positive learning on samples of high quality plus weighted negative learning on all."""
        s, classes = self.settings, target.shape[1]
        probabilities = target.softmax(1)
        confidence = probabilities.amax(1)
        before = 1.0 / classes if self.tau is None else self.tau
        self.tau = s.tau_momentum * before + (1.0 - s.tau_momentum) * confidence.mean().item()
        high = confidence >= self.tau
        positive = torch.where(high, self.agreement(logits, target), 0.0).mean()
        ruled_out = complementary_classes(probabilities, 1.0 / classes if s.neg is None else s.neg)
        negative = (torch.where(high, s.nl_high, 1.0) * negative_learning(logits, ruled_out)).mean()
        total = positive + s.lam_n * negative
        self.note_losses({"positive": positive, "negative": negative, "total": total})
        self.note(kept=high.sum())
        self.note_in_words(f"confidence threshold {self.tau:.4f}")
        return total
