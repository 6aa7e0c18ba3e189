"""PALM: Pushing Adaptive Learning Rate Mechanisms for CTTA (Maharana, Zhang and Guo, AAAI 2025).

Each batch goes through two stages. Stage one backpropagates the divergence between the prediction and the
uniform distribution (Eq. 1-2) and selects the tensors whose gradient norm Z is at most eta. Stage two turns
the sensitivity of the selected tensors (Eq. 4) and its moving average (Eq. 5) into a deviation (Eq. 6), an
importance (Eq. 7) and a learning rate (Eq. 8); one step on filtered entropy plus consistency (Eq. 11) follows.

The paper and its official code differ in many places. `variant="official"` is the code that made the
published numbers, `variant="paper"` the equations read literally, `variant="paper-eta-c"` the equations
with eta / classes, so that the first batch selects what the code selects. Each difference is also a setting.

For ablations `selection` exchanges stage one (which tensors) and `lr_scheme` stage two (how fast): see
`ctta.methods.palm.schemes` for optimisers in the place of PALM's learning rates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ctta._core.kept import per_tensor, scalar
from ctta._core.layers import Group, to_host, wide
from ctta._core.precision import bf16_pays, bf16_where_it_pays
from ctta._core.registry import register
from ctta._cost.checkpointing import checkpointed
from ctta._cost.compiling import is_compiled, run_compiled
from ctta._cost.deep_graph import DeepGraph
from ctta.errors import SettingError
from ctta.functional import (
    consistency,
    filtered_entropy,
    gradient_score,
    importances,
    pseudo_label_loss,
    sensitivity,
    uniform_kl,
)
from ctta.methods.palm.schemes import STEP_OF_PALM, TORCH, OptimizerMemory, require_scheme
from ctta.optim import depth_factors, sign_step
from ctta.settings import setting

DEFAULT_SHARE = 0.05
SMALLEST_VIEW = 32
FAST: dict[str, Any] = {"precision": "bf16"}
"""What speed="fast" stands for; docs/speed.md has what was tried."""


@dataclass(frozen=True)
class PalmSettings:
    """Settings of PALM; the defaults are the official CIFAR-10-C settings."""

    variant: Literal["official", "paper", "paper-eta-c"] = setting(
        "official", "Published code, equations read literally, or equations with eta / classes."
    )

    # the paper's own hyper-parameters
    lr: float = setting(5e-4, "Base learning rate, the paper's kappa.", low=0.0, aka=("kappa", "learning_rate"))
    alpha: float = setting(0.5, "Weight of the current batch in the sensitivity average.", low=0.0, high=1.0)
    temperature: float = setting(
        50.0, "Smoothing T of the logits in the selection loss.", above=0.0, aka=("T", "temp")
    )
    eta: float | Literal["auto"] = setting(
        1.0,
        'Select tensors whose gradient norm is at most this; "auto" finds it on the first batch.',
        aka=("threshold", "thresh"),
    )
    adapt_share: float | None = setting(
        None,
        f'Share of the adaptable parameters that eta="auto" aims at (None: {DEFAULT_SHARE:g}).',
        above=0.0,
        high=1.0,
    )
    lam: float = setting(
        0.01,
        "Weight lambda of the consistency loss; 0 skips the augmented view.",
        low=0.0,
        aka=("lambda", "lambda_"),
    )
    weight_decay: float = setting(0.0, "Weight decay added to the gradient.", low=0.0, aka=("wd",))
    entropy_margin: float = setting(0.4, "Entropy below which a sample counts.", low=0.0)

    # stage one: selection
    selection: Literal["uniform", "pseudo-label", "none"] = setting(
        "uniform",
        "Loss whose gradients select: KL to uniform, cross-entropy with the predicted class, or none (every "
        'tensor is adapted; what a `lr_scheme` other than "palm" implies).',
    )
    pl_temperature: float = setting(1.0, "Smoothing of the logits in the pseudo-label selection.", above=0.0)
    target_scale: Literal["ones", "uniform"] = setting(
        "ones", "Target of the selection loss: ones (gradients classes times larger) or 1/classes."
    )
    kl_direction: Literal["u||p", "p||u"] = setting("u||p", "KL(u||p) as in Eq. 2, or KL(p||u) as in Eq. 1.")
    batch_reduction: Literal["mean", "sum"] = setting("mean", "Selection loss over the batch.")
    score_unit: Literal["tensor", "module"] = setting(
        "tensor", "Whether Z belongs to a tensor or is summed over the tensors of its module."
    )
    select_cmp: Literal["<=", "<"] = setting("<=", "How Z is compared with eta.")
    eta_scale: Literal["one", "classes"] = setting("one", 'Divide eta by 1 or by the number of "classes".')
    temperature_schedule: Literal["constant", "grow"] = setting(
        "constant", "Keep T, or raise it whenever a batch selects more parameters than the one before."
    )
    temperature_growth: float = setting(1.1, "Factor on T when it grows.", low=1.0)
    modules: Literal["conv-norm", "conv", "norm", "all"] = setting(
        "conv-norm", "Layers whose parameters may be adapted."
    )

    # stage two: learning rates
    lr_scheme: Literal["palm", "fixed", "autolr", "lars", "prodigy", "adafactor"] | str = setting(
        "palm",
        'What sets the learning rates: PALM, nothing ("fixed"), the depth of a layer ("autolr"), or another '
        'optimiser, also "torch:NAME" for a class of torch.optim.',
        aka=("optimizer", "scheme"),
    )
    scheme_lr: float | Literal["kappa", "default"] = setting(
        "default",
        'Learning rate of a `lr_scheme` other than "palm": a number, `lr` ("kappa"), or the optimiser\'s default '
        "(fixed and autolr: kappa; adafactor: its relative step).",
        low=0.0,
    )
    optimizer_state: Literal["persistent", "fresh"] = setting(
        "persistent", "Whether an optimiser given as `lr_scheme` lasts, or is made anew for every batch."
    )
    lars_skip_1d: bool = setting(False, "Leave tensors of one dimension to plain momentum in LARS.")
    adafactor_convention: Literal["huggingface", "torch"] = setting(
        "huggingface", "Whose Adafactor: relative steps, or a learning rate that caps them."
    )
    granularity: Literal["tensor", "element"] = setting(
        "tensor", "One learning rate per tensor (its mean importance) or per element."
    )
    unselected_lr: Literal["stale", "zero"] = setting(
        "stale", "Tensors not selected now keep their last learning rate, or are frozen."
    )
    shat_update: Literal["selected", "all"] = setting(
        "selected", "Which tensors update their sensitivity average."
    )
    shat_init: Literal["zero", "first"] = setting("zero", "Sensitivity average before the first selection.")
    eps: float = setting(1e-8, "Added to numerator and denominator of the importance.", above=0.0)

    # the update
    adam_state: Literal["fresh", "persistent"] = setting(
        "fresh", "A new Adam every batch (a sign step) or one that keeps its moments."
    )
    frozen_moments: Literal["update", "skip"] = setting(
        "update", "Whether a persistent Adam updates the moments of frozen tensors."
    )
    margin_unit: Literal["nats", "log-classes"] = setting(
        "nats", "entropy_margin in nats, or as a fraction of log(classes)."
    )
    margin_cmp: Literal["<", "<="] = setting("<", "How an entropy is compared with the margin.")
    entropy_reduction: Literal["kept", "batch"] = setting(
        "kept", "Average the entropy over the kept samples or over the batch."
    )
    empty_filter: Literal["consistency", "skip"] = setting(
        "consistency", "With no sample kept: step on consistency alone, or do not step."
    )
    consistency_scale: Literal["classes", "one"] = setting("classes", "Multiply lam by the number of classes.")
    consistency_detach: Literal["none", "clean", "view"] = setting(
        "none", "Where the gradient of the consistency loss is stopped."
    )
    consistency_samples: Literal["all", "kept"] = setting("all", "Samples the consistency loss averages over.")
    bn_mode: Literal["batch", "source"] = setting("batch", "Statistics BatchNorm normalises with.")
    forward_order: Literal["early", "late"] = setting(
        "late", "Augmented forward before stage one, or after it (less time and memory, same result)."
    )
    returned_logits: Literal["before", "after"] = setting("before", "Return the logits before or after the step.")
    steps: int = setting(1, "Repetitions of the whole procedure per batch.", low=1)
    anchor: float = setting(
        0.0,
        "Share of its distance from the source weights that a tensor gives back in every step it takes: it can "
        "never be further away than its rate divided by this. Not in the paper; for long streams.",
        low=0.0,
        high=1.0,
        aka=("restore", "source_pull"),
    )

    # what it costs
    speed: Literal["exact", "fast"] = setting(
        "exact",
        "Every number in full, or convolutions in bfloat16 where the processor has it, at a small price in error.",
    )
    refresh: int = setting(
        1, "Stage one and new learning rates every so many batches; selection and rates stay in between.", low=1
    )
    view_every: int = setting(1, "Consistency loss in every so many batches; entropy alone in between.", low=1)
    view_share: float = setting(
        1.0,
        f"Share of the batch that the consistency loss looks at, evenly spread, at least {SMALLEST_VIEW} images.",
        above=0.0,
        high=1.0,
    )
    precision: Literal["full", "bf16"] = setting(
        "full",
        "Numbers that convolutions and matrix products of a step work with: the model's own, or bfloat16 where "
        "the processor is faster with it (elsewhere full). Weights, losses, rates and `predict` stay full.",
    )
    memory: Literal["normal", "low", "lowest"] = setting(
        "normal",
        "Keep both passes for the update, one and the deep part of the other (the rest of it is run again), or "
        "one and only the ends of its blocks (all are run again); same result.",
    )
    compile: bool = setting(
        False,
        "Run the network through torch.compile: the first batch takes long, and whether the others gain depends "
        "on the machine (see docs/speed.md).",
    )

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other, schemes that do not exist, a second base rate for PALM."""
        if self.compile and self.memory == "lowest":
            raise SettingError(
                'Expected either compile=True or memory="lowest", but got both: torch.compile does not see blocks '
                'that are run again. memory="low" goes with it.'
            )
        require_scheme(self.lr_scheme)
        if self.lr_scheme == "palm" and not isinstance(self.scheme_lr, str):
            raise SettingError(
                f"Expected `scheme_lr` with a `lr_scheme` other than palm, but got scheme_lr={self.scheme_lr!r}: "
                "the base rate of PALM is `lr`."
            )
        if self.adapt_share is not None and self.eta != "auto":
            raise SettingError(
                f"Expected either `eta` or `adapt_share`, but got eta={self.eta!r} and "
                f'adapt_share={self.adapt_share!r}: leave one out (adapt_share goes with eta="auto").'
            )

    @staticmethod
    def implied(given: Mapping[str, Any]) -> dict[str, Any]:
        """Who asks for a share asks for the eta that gives it; who asks for another scheme, for all tensors."""
        values: dict[str, Any] = {"eta": "auto"} if given.get("adapt_share") is not None else {}
        if given.get("speed") == "fast":
            values |= FAST
        return values if given.get("lr_scheme", "palm") == "palm" else {**values, "selection": "none"}


PAPER: dict[str, Any] = {
    "target_scale": "uniform",
    "granularity": "element",
    "unselected_lr": "zero",
    "adam_state": "persistent",
    "frozen_moments": "update",
    "weight_decay": 0.0,
    "margin_unit": "log-classes",
    "margin_cmp": "<=",
    "entropy_reduction": "batch",
    "consistency_scale": "one",
}


class View(NamedTuple):
    """An augmented view, its logits, which rows of the batch it shows (None: all), and its graph if in parts."""

    images: Tensor
    logits: Tensor
    rows: Tensor | None
    graph: DeepGraph | None = None

    def rows_of(self, values: Tensor) -> Tensor:
        """Return the rows of a tensor over the batch that the view shows."""
        return values if self.rows is None else values[self.rows]


@register(
    "palm",
    paper="PALM: Pushing Adaptive Learning Rate Mechanisms for Continual Test-Time Adaptation",
    year=2025,
    needs={"conv or norm layers"},
    cost=8.0,
    confidence="high",
    presets={
        "cifar10-c": {"lr": 5e-4, "alpha": 0.5, "temperature": 50.0, "eta": 1.0, "lam": 0.01},
        "cifar100-c": {
            "lr": 5e-4,
            "alpha": 0.9,
            "temperature": 100.0,
            "eta": 0.5,
            "lam": 0.01,
            "weight_decay": 5e-4,
        },
        "imagenet-c": {"lr": 5e-5, "alpha": 0.5, "temperature": 1000.0, "eta": 0.3, "lam": 0.01},
        "embedded": {"lr": 1e-3, "alpha": 0.5, "temperature": 50.0, "eta": 1.5, "lam": 0.01},
        "embedded-long": {"lr": 5e-4, "alpha": 0.5, "temperature": 50.0, "eta": 1.5, "lam": 0.01},
    },
    variants={"official": {}, "paper": PAPER, "paper-eta-c": {**PAPER, "eta_scale": "classes"}},
)
class Palm(OptimizerMemory[PalmSettings]):
    """Select uncertain tensors by gradient norm and set their learning rates by parameter sensitivity."""

    adapts = "conv-norm"

    shat: dict[str, Tensor] = per_tensor("Moving average S^ of the sensitivity, as its tensor (Eq. 5).")
    factor: dict[str, Tensor] = per_tensor("Importance i in force: a scalar, or as its tensor (Eq. 7).")
    ever_selected: list[str] = scalar(
        lambda _: [], "Tensors selected at least once.", check=lambda m: m.adapted.keys() >= set(m.ever_selected)
    )
    threshold: float | None = scalar(None, 'The eta that eta="auto" found on the first batch.')
    temperature: float = scalar(
        lambda m: m.settings.temperature, "Temperature T in force.", check=lambda m: m.temperature > 0
    )
    selection: list[str] = scalar(
        lambda _: [],
        "Tensors selected when stage one last ran.",
        check=lambda m: m.adapted.keys() >= set(m.selection),
    )
    passes: int = scalar(
        0,
        "Passes of the procedure since the reset, which `refresh` and `view_every` count.",
        check=lambda m: m.passes >= 0,
    )

    def adaptable(self) -> Group:
        """Conv and norm layers, unless the settings say otherwise."""
        return self.settings.modules

    def bn_mode(self) -> Literal["batch", "source"]:
        """Batch statistics, unless the settings say otherwise."""
        return self.settings.bn_mode

    def _collect(self) -> dict[str, nn.Parameter]:
        self.adapted = super()._collect()
        if self.settings.lr_scheme.startswith(TORCH):
            self.require_optimizer(self.settings.lr_scheme, self.scheme_lr, self.settings.weight_decay)
        return self.adapted

    def step(self, x: Tensor) -> Tensor:
        """Select, set the learning rates, update; return the logits before the (last) update."""
        s = self.settings
        first_compiled = s.compile and not is_compiled(self.model)
        start = perf_counter()
        for _ in range(s.steps):
            logits = self.adapt(x)
        if s.returned_logits == "after":
            with torch.no_grad():
                logits = self.run(x)
        if s.precision == "bf16" and not bf16_pays(x.device.type):
            self.note_in_words(f"full precision: this {x.device.type} is not faster with bfloat16")
        if first_compiled:
            self.note_in_words(f"compiling took {perf_counter() - start:.1f} s, this batch included")
        return logits

    def run(self, x: Tensor) -> Tensor:
        """Logits of the model for the batch, in bfloat16 or through torch.compile where the settings say so."""
        s = self.settings
        with bf16_where_it_pays(x.device.type) if s.precision == "bf16" else nullcontext():
            if not s.compile:
                return self.forward(x)
            return run_compiled(self.model, lambda: self.forward(x))

    def adapt(self, x: Tensor) -> Tensor:
        """One pass of the whole procedure; returns the logits it started from."""
        s = self.settings
        due, first, before = self.passes % s.refresh == 0, self.passes == 0, self.selection
        self.passes += 1
        with checkpointed(self.model) if s.memory == "lowest" else nullcontext():
            with self.graph_to(self.adapted if due else self.moving()):
                logits = self.run(x)
            view = self.look_again(x, self.adapted) if s.forward_order == "early" else None
            if s.selection == "none" and s.lr_scheme != "palm":
                self.take_all()
            elif due:
                gradients = self.uncertainty_gradients(logits)
                self.selection = self.select(gradients, classes=logits.shape[1])
                self.update_importance(gradients, self.selection)
                del gradients
            else:
                self.note(selected=tuple(self.selection))
                self.note_in_words("selection and learning rates of before")
            if view is None:
                view = self.look_again(x, self.moving())
            self.update(logits, view)
        if due and not first:
            self.update_temperature(before)
        return logits

    # ---------------------------------------------------------------- stage one: which tensors

    def uncertainty_gradients(self, logits: Tensor) -> dict[str, Tensor]:
        """Gradient of the selection loss, KL(softmax(l / T), u), for every tensor the model uses (Eq. 1-2)."""
        s = self.settings
        if s.selection == "pseudo-label":
            loss = pseudo_label_loss(logits, s.pl_temperature, reduction=s.batch_reduction)
            return self.gradients(loss, retain_graph=True, checked=False)
        loss = uniform_kl(
            logits,
            self.temperature,
            target_scale=s.target_scale,
            direction=s.kl_direction,
            reduction=s.batch_reduction,
        )
        return self.gradients(loss, retain_graph=True, checked=False)  # their scores show what is not finite

    def select(self, gradients: dict[str, Tensor], classes: int) -> list[str]:
        """Names of the tensors with Z <= eta. Tensors the model never used are not candidates."""
        s = self.settings
        scores = dict(zip(gradients, to_host([gradient_score(g) for g in gradients.values()]), strict=True))
        if not all(map(math.isfinite, scores.values())):  # or finite, and their sum too large for a number
            self.require_finite("gradient", gradients)
        if s.score_unit == "module":
            scores = _sum_over_modules(scores)
        eta = math.inf if s.selection == "none" else self.eta(scores, classes)
        if s.select_cmp == "<=":
            selected = [name for name, score in scores.items() if score <= eta]
        else:
            selected = [name for name, score in scores.items() if score < eta]
        self.ever_selected = list(dict.fromkeys([*self.ever_selected, *selected]))
        unused = sorted(self.adapted.keys() - gradients.keys())
        self.note(
            selected=tuple(selected),
            scores=scores,
            eta=None if math.isinf(eta) else eta,
            temperature=s.pl_temperature if s.selection == "pseudo-label" else self.temperature,
        )
        if unused:
            self.note_in_words(f"not used by the model: {', '.join(unused)}")
        return selected

    def take_all(self) -> None:
        """Select every tensor: there is no stage one, and every learning rate is the scheme's own."""
        self.selection = list(self.adapted)
        self.ever_selected = list(self.adapted)
        self.factor = self._ones(self.adapted)
        self.note(selected=tuple(self.selection))

    def eta(self, scores: dict[str, float], classes: int) -> float:
        """Threshold in force; the first batch fixes it for eta="auto"."""
        s = self.settings
        if s.eta != "auto":
            return s.eta / classes if s.eta_scale == "classes" else s.eta
        if self.threshold is None:
            sizes = {name: self.adapted[name].numel() for name in scores}
            share = DEFAULT_SHARE if s.adapt_share is None else s.adapt_share
            self.threshold = threshold_for_share(scores, sizes, share * self.size)
        return self.threshold

    def update_temperature(self, before: list[str]) -> None:
        """Raise T when more parameters are selected now than were before, if the schedule says so."""
        if self.settings.temperature_schedule == "grow" and self.share(self.selection) > self.share(before):
            self.temperature *= self.settings.temperature_growth

    # ---------------------------------------------------------------- stage two: how fast

    def update_importance(self, gradients: dict[str, Tensor], selected: list[str]) -> None:
        """Sensitivity, its average, deviation and importance of the selected tensors (Eq. 4-7)."""
        s = self.settings
        if s.unselected_lr == "zero":
            self.factor = {}
        if s.lr_scheme != "palm":
            self.factor.update(self._ones(selected))
            return
        names = list(gradients) if s.shat_update == "all" else selected
        values, found = [self.value(name) for name in names], [gradients[name] for name in names]
        before = [
            self.shat[name] if name in self.shat else self.first_average(value, gradient)
            for name, value, gradient in zip(names, values, found, strict=True)
        ]
        averages, ratios = importances(values, found, before, alpha=s.alpha, eps=s.eps)
        self.shat.update(zip(names, averages, strict=True))
        chosen = set(selected)
        for name, ratio in zip(names, ratios, strict=True):
            if name in chosen:
                self.factor[name] = ratio if s.granularity == "element" else ratio.mean()

    def first_average(self, value: Tensor, gradient: Tensor) -> Tensor:
        """Sensitivity average a tensor starts from."""
        return sensitivity(value, gradient) if self.settings.shat_init == "first" else torch.zeros_like(gradient)

    # ---------------------------------------------------------------- the update

    def moving(self) -> list[str]:
        """Names of the tensors whose gradient the update needs; the rest costs nothing."""
        s = self.settings
        all_moments = s.adam_state == "persistent" and s.frozen_moments == "update"
        return list(self.adapted if s.lr_scheme in STEP_OF_PALM and all_moments else self.factor)

    def look_again(self, x: Tensor, names: Iterable[str]) -> View | None:
        """Run an augmented view, with a graph to these tensors; None where the view carries no weight."""
        s = self.settings
        if s.lam == 0 or (self.passes - 1) % s.view_every:
            return None
        count = min(len(x), max(SMALLEST_VIEW, round(s.view_share * len(x))))
        rows = torch.linspace(0, len(x) - 1, count, device=x.device).long() if count < len(x) else None
        images = self.view(x if rows is None else x[rows])
        in_parts = s.memory == "low" and not s.compile  # a compiled pass cannot be stopped halfway
        recorded = s.consistency_detach != "view" and (in_parts or s.memory == "normal")
        wanted = tuple(names) if recorded else ()

        def run() -> Tensor:
            with self.graph_to(wanted):
                return self.run(images)

        graph = DeepGraph(self.model, run) if in_parts and wanted else None
        return View(images, run() if graph is None else graph.output, rows, graph)

    def graph_to(self, names: Iterable[str]) -> AbstractContextManager[None]:  # type: ignore[override]
        """Record the graph to some tensors only; to all of them where blocks are run again or compiled."""
        wanted = set(names)
        if self.settings.compile:  # every other set of tensors would be compiled anew
            return nullcontext() if wanted else torch.no_grad()
        return super().graph_to(self.adapted if wanted and self.settings.memory == "lowest" else wanted)

    def objective(self, logits: Tensor, view: View | None) -> Tensor | None:
        """Filtered entropy plus weighted consistency (Eq. 9-11), or None where there is nothing to do."""
        s = self.settings
        classes = logits.shape[1]
        margin = s.entropy_margin * (math.log(classes) if s.margin_unit == "log-classes" else 1.0)
        entropy, kept = filtered_entropy(logits, margin, reduction=s.entropy_reduction, compare=s.margin_cmp)
        losses = {"entropy": entropy}
        total = entropy
        if view is not None:
            clean = logits.detach() if s.consistency_detach == "clean" else logits
            agreement = consistency(
                view.rows_of(clean),
                view.logits.detach() if s.consistency_detach == "view" else view.logits,
                samples=view.rows_of(kept) if s.consistency_samples == "kept" else None,
            )
            weight = s.lam * classes if s.consistency_scale == "classes" else s.lam
            losses["consistency"] = agreement
            total = entropy + weight * agreement
        losses["total"] = total
        self.note_losses(losses, kept, margin)
        return None if s.empty_filter == "skip" and not kept.any() else total

    @property
    def kappa(self) -> float:
        """Base learning rate of PALM's own step."""
        return self.settings.lr if self.scheme_lr is None else self.scheme_lr

    @property
    def scheme_lr(self) -> float | None:
        """Learning rate of the scheme, None where it uses its own default."""
        s = self.settings
        if isinstance(s.scheme_lr, str):
            return s.lr if s.scheme_lr == "kappa" else None
        return s.scheme_lr

    def update(self, logits: Tensor, view: View | None) -> None:
        """Move every tensor that has a learning rate down the gradient of the objective."""
        gradients = self.update_gradients(logits, view)
        moved: dict[str, Tensor] = {}
        rates: dict[str, Tensor | float] = {}
        if gradients is not None:
            of_palm = self.settings.lr_scheme in STEP_OF_PALM
            moved, rates = self.descend(gradients) if of_palm else self.hand_over(gradients)
        self.move(self.anchored(moved))
        self._note_rates(moved, rates)

    def update_gradients(self, logits: Tensor, view: View | None) -> dict[str, Tensor] | None:
        """Gradient of the objective for the moving tensors, None where there is no objective.

        Cut at the logits, so that each network pass is backpropagated on its own and freed before the next.
        """
        names = self.moving()
        clean = logits.detach().requires_grad_()
        other = None if view is None else view._replace(logits=view.logits.detach().requires_grad_())
        total = self.objective(clean, other)
        if total is None:
            return None
        leaves = [clean] if other is None else [clean, other.logits]
        along, along_view = (*torch.autograd.grad(total, leaves, allow_unused=True), None)[:2]
        gradients = {} if along is None else self.gradients(logits, names, along=along, checked=False)
        if view is not None and along_view is not None and names:
            for name, gradient in self.view_gradients(view, along_view, names).items():
                gradients[name] = gradients[name] + gradient if name in gradients else gradient
        if self.settings.lr_scheme == "palm":
            self.expect_finite("gradient", gradients)
        else:  # other schemes look at numbers on the way
            self.require_finite("gradient", gradients)
        return gradients

    def view_gradients(self, view: View, along: Tensor, names: list[str]) -> dict[str, Tensor]:
        """Gradient through the view, which is run again where its graph was not kept."""
        logits = view.logits
        if self.settings.memory != "normal" and not (view.graph and view.graph.complete()):
            with self.graph_to(names):
                logits = self.run(view.images)
        return self.gradients(logits, names, along=along, checked=False)

    def descend(self, gradients: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor | float]]:
        """New values of the tensors that have an importance i, at learning rate kappa * i (Eq. 8).

        Beside them the rates that are not kappa * i, for the report.
        """
        s = self.settings
        rates = {name: self.kappa * factor for name, factor in self.factor.items()}
        if s.adam_state == "fresh":
            moved = {
                name: sign_step(self.value(name), gradient, rates[name], weight_decay=s.weight_decay)
                for name, gradient in gradients.items()
            }
        else:
            moved = self.adam(gradients, rates, weight_decay=s.weight_decay)
        return self.order_by_depth(moved) if s.lr_scheme == "autolr" else (moved, {})

    def anchored(self, moved: dict[str, Tensor]) -> dict[str, Tensor]:
        """Go back towards the source weights by the share `anchor`."""
        share = self.settings.anchor
        if not share:
            return moved
        return {name: torch.lerp(value, wide(self.source[name]), share) for name, value in moved.items()}

    def order_by_depth(self, moved: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor | float]]:
        """Scale the steps so that the relative change of the layers grows with depth (AutoLR)."""
        before = {name: self.value(name) for name in self.adapted if name in moved}
        factors = depth_factors(before, {name: moved[name] for name in before})
        scaled = {name: theta + factors[name] * (moved[name] - theta) for name, theta in before.items()}
        return scaled, {name: self.kappa * factor for name, factor in factors.items()}

    def hand_over(self, gradients: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor | float]]:
        """New values of the selected tensors from another optimiser, and the learning rates it had."""
        s = self.settings
        return self.optimise(
            s.lr_scheme,
            gradients,
            self.scheme_lr,
            fresh=s.optimizer_state == "fresh",
            weight_decay=s.weight_decay,
            skip_1d=s.lars_skip_1d,
            convention=s.adafactor_convention,
        )

    def _note_rates(self, moved: Iterable[str], rates: Mapping[str, Tensor | float]) -> None:
        """Report the importance of all tensors, and the rate of those that moved: kappa * i unless given."""
        factors = {name: factor.mean() for name, factor in self.factor.items()}
        rate = {name: rates.get(name, self.kappa * factors.get(name, 0.0)) for name in moved}
        self.note(
            shares={
                "selected": self.share(self.notes["selected"]),
                "moved": self.share(rate),
                "ever_selected": self.share(self.ever_selected),
            },
            importance={name: factors.get(name, 0.0) for name in self.adapted},
            learning_rates={name: rate.get(name, 0.0) for name in self.adapted},
        )

    def _ones(self, names: Iterable[str]) -> dict[str, Tensor]:
        return {name: wide(self.source[name]).new_ones(()) for name in names}


def threshold_for_share(scores: dict[str, float], sizes: dict[str, int], wanted: float) -> float:
    """Threshold that selects as near as possible to `wanted` parameters, and at least one tensor.

    It lies between the last score selected and the first one not, in the middle of their logarithms, so that
    the next batch, whose scores differ a little, selects much the same.

    >>> threshold_for_share({"a": 1.0, "b": 4.0, "c": 64.0}, {"a": 10, "b": 10, "c": 80}, wanted=20)
    16.0
    """
    levels = sorted(set(scores.values()))
    total, reached = 0, []
    for level in levels:
        total += sum(sizes[name] for name, score in scores.items() if score == level)
        reached.append(total)
    best = min(range(len(levels)), key=lambda k: abs(reached[k] - wanted))
    last = levels[best]
    following = levels[best + 1] if best + 1 < len(levels) else 4.0 * last
    middle = math.sqrt(last) * math.sqrt(following) if last > 0 else following / 2
    return max(last, min(middle, math.nextafter(following, 0.0)))  # rounding must not cross either score


def _sum_over_modules(scores: dict[str, float]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for name, score in scores.items():
        module = name.rpartition(".")[0]
        totals[module] = totals.get(module, 0.0) + score
    return {name: totals[name.rpartition(".")[0]] for name in scores}
