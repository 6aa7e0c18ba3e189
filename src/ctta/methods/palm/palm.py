"""PALM: Pushing Adaptive Learning Rate Mechanisms for CTTA (Maharana, Zhang and Guo, AAAI 2025).

Each batch goes through two stages. Stage one backpropagates the divergence between the prediction and the
uniform distribution (Eq. 1-2) and selects the tensors whose gradient norm Z is at most eta. Stage two turns
the sensitivity of the selected tensors (Eq. 4) and its moving average (Eq. 5) into a deviation (Eq. 6), an
importance (Eq. 7) and a learning rate (Eq. 8); one step on filtered entropy (Eq. 9) plus consistency (Eq. 10-11)
follows. Beside this file: settings (choices.py), other learning rates (schemes.py), what a pass costs (cost.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from ctta import functional as F
from ctta._core.kept import per_tensor, scalar
from ctta._core.layers import Group, to_host, wide
from ctta._core.precision import bf16_pays
from ctta._core.registry import register
from ctta.methods.palm.choices import DIVERGENCES, PRESETS, STEP_OF_PALM, VARIANTS, threshold_for_share
from ctta.methods.palm.cost import Pass, backward
from ctta.methods.palm.schemes import Rates, Schemes
from ctta.optim import sign_step


@register(
    "palm",
    paper="PALM: Pushing Adaptive Learning Rate Mechanisms for Continual Test-Time Adaptation",
    year=2025,
    needs={"conv or norm layers"},
    cost=8.0,
    confidence="high",
    presets=PRESETS,
    variants=VARIANTS,
)
class Palm(Schemes):
    """Select uncertain tensors by gradient norm and set their learning rates by parameter sensitivity."""

    adapts = "conv-norm"

    average: dict[str, Tensor] = per_tensor("Moving average S^ of the sensitivity, as its tensor (Eq. 5).")
    importance: dict[str, Tensor] = per_tensor("Importance i in force: a scalar, or as its tensor (Eq. 7).")
    selected: list[str] = scalar(
        lambda _: [], "Tensors that stage one last selected.", check=lambda m: m.adapted.keys() >= set(m.selected)
    )
    ever_selected: list[str] = scalar(
        lambda _: [], "Tensors selected at least once.", check=lambda m: m.adapted.keys() >= set(m.ever_selected)
    )
    threshold: float | None = scalar(None, 'The eta that eta="auto" found on the first batch.')
    batches: int = scalar(0, "Batches since the reset, which `refresh` counts.", check=lambda m: m.batches >= 0)

    def adaptable(self) -> Group:
        """Conv and norm layers, unless the settings say otherwise."""
        return self.settings.modules

    def step(self, x: Tensor) -> Tensor:
        """Select, set the learning rates, update; return the logits from before the update."""
        s = self.settings
        due = self.batches % s.refresh == 0
        self.batches += 1
        every = s.optimizer_state == "persistent" and s.lr_scheme in STEP_OF_PALM  # tensors whose moments go on
        clean = Pass(self, x, self.adapted if due or every else self.importance)

        if s.selection == "none" and s.lr_scheme != "palm":
            self.selected = self.ever_selected = list(self.adapted)
            self.importance = self.ones(self.adapted)  # there is no stage one
        elif due:
            if s.selection == "pseudo-label":
                uncertainty = F.pseudo_label_loss(clean.logits)
            else:
                uncertainty = F.uniform_kl(clean.logits, s.temperature, **DIVERGENCES[s.divergence])  # Eq. 1
            gradients = self.gradients(uncertainty, retain_graph=True, checked=False)  # Eq. 2
            self.selected = self.select(gradients, clean.logits.shape[1])  # stage one: Z <= eta
            self.weigh(gradients)  # stage two: Eq. 4-7
            del gradients
        else:
            self.note_in_words("selection and learning rates of before")

        names = list(self.adapted if every else self.importance)  # the others cost nothing
        recorded = [] if s.consistency_detach == "view" else names
        view = Pass(self, self.view(x), recorded, second=True) if s.lam else None
        loss = self.objective(clean.leaf, view.leaf if view else None)  # Eq. 9-11
        gradients = backward(loss, [clean, view] if view else [clean], names)
        self.expect_finite("gradient", gradients)
        values, rates = self.descend(gradients)  # Eq. 8
        if s.anchor:
            values = {name: torch.lerp(value, wide(self.source[name]), s.anchor) for name, value in values.items()}
        self.move(values)
        self.note_step(values, rates)
        return Pass(self, x, ()).logits if s.returned_logits == "after" else clean.logits

    # ---------------------------------------------------------------- stage one: which tensors

    def select(self, gradients: Mapping[str, Tensor], classes: int) -> list[str]:
        """Names of the tensors with Z <= eta. Tensors the model never used are not candidates."""
        s = self.settings
        scores = dict(zip(gradients, to_host([F.gradient_score(g) for g in gradients.values()]), strict=True))
        if not all(map(math.isfinite, scores.values())):  # or finite, and their sum too large for a number
            self.require_finite("gradient", gradients)
        scale = classes if s.eta_scale == "classes" else 1
        eta = math.inf if s.selection == "none" else self.found_eta(scores) if s.eta == "auto" else s.eta / scale
        selected = [name for name, score in scores.items() if score <= eta]
        self.ever_selected = list(dict.fromkeys([*self.ever_selected, *selected]))
        self.note(
            scores=scores,
            eta=None if math.isinf(eta) else eta,
            temperature=1.0 if s.selection == "pseudo-label" else s.temperature,
        )
        if unused := sorted(self.adapted.keys() - gradients.keys()):
            self.note_in_words(f"not used by the model: {', '.join(unused)}")
        return selected

    def found_eta(self, scores: dict[str, float]) -> float:
        """Threshold of eta="auto": the one that selects the wanted share on the first batch."""
        if self.threshold is None:
            sizes = {name: self.adapted[name].numel() for name in scores}
            self.threshold = threshold_for_share(scores, sizes, self.settings.share * self.size)
        return self.threshold

    # ---------------------------------------------------------------- stage two: how fast

    def weigh(self, gradients: Mapping[str, Tensor]) -> None:
        """Importance of the selected tensors (Eq. 4-7)."""
        s, names = self.settings, self.selected
        if s.unselected_lr == "zero":
            self.importance = {}
        if s.lr_scheme != "palm" or not names:
            self.importance |= self.ones(names)
            return
        current = F.sensitivity([self.value(name) for name in names], [gradients[name] for name in names])  # Eq. 4
        start = torch.clone if s.average_init == "first" else torch.zeros_like
        before = [
            self.average[n] if n in self.average else start(new) for n, new in zip(names, current, strict=True)
        ]
        average = F.moving_average(before, current, s.alpha)  # Eq. 5
        found = F.importance(F.deviation(current, average), average)  # Eq. 6-7
        self.average |= zip(names, average, strict=True)
        rated = found if s.granularity == "element" else [i.mean() for i in found]
        self.importance |= zip(names, rated, strict=True)

    # ---------------------------------------------------------------- the update

    def objective(self, logits: Tensor, view: Tensor | None) -> Tensor:
        """Filtered entropy plus weighted consistency (Eq. 9-11)."""
        s, classes = self.settings, logits.shape[1]
        margin = s.entropy_margin * (math.log(classes) if s.margin_unit == "log-classes" else 1.0)
        total, kept = F.filtered_entropy(logits, margin, reduction=s.entropy_reduction)  # Eq. 9
        losses = {"entropy": total}
        if view is not None:
            losses["consistency"] = F.consistency(  # Eq. 10
                logits.detach() if s.consistency_detach == "clean" else logits,
                view.detach() if s.consistency_detach == "view" else view,
                samples=kept if s.consistency_samples == "kept" else None,
            )
            weight = s.lam * classes if s.consistency_scale == "classes" else s.lam
            total = total + weight * losses["consistency"]  # Eq. 11
        self.note_losses({**losses, "total": total}, kept, margin)
        return total

    def descend(self, gradients: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Rates]:
        """New values of the tensors that have an importance i, and their learning rates kappa * i (Eq. 8)."""
        s = self.settings
        if s.lr_scheme != "palm" or s.optimizer_state == "persistent":
            return self.other_step(gradients, self.importance)
        rates = {name: s.lr * self.importance[name] for name in gradients}
        return {
            name: sign_step(self.value(name), gradient, rates[name], weight_decay=s.weight_decay)
            for name, gradient in gradients.items()
        }, rates

    def note_step(self, moved: Collection[str], rates: Rates) -> None:
        """Report which tensors were selected and moved, their importance and their learning rates."""
        means = {name: i.mean() for name, i in self.importance.items()}
        used = {name: rate.mean() if isinstance(rate, Tensor) else rate for name, rate in rates.items()}
        groups = {"selected": self.selected, "moved": moved, "ever_selected": self.ever_selected}
        self.note(
            selected=tuple(self.selected),
            shares={what: self.share(names) for what, names in groups.items()},
            importance={name: means.get(name, 0.0) for name in self.adapted},
            learning_rates={name: used[name] if name in moved else 0.0 for name in self.adapted},
        )
        device = next(iter(self.adapted.values())).device.type
        if self.settings.speed == "fast" and not bf16_pays(device):
            self.note_in_words(f"full precision: this {device} is not faster with bfloat16")
