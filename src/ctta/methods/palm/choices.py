"""Settings of PALM: what the paper names, where its code does something else, and what a step may cost.

The paper and its official code differ in many places. `variant="official"` is the code that made the published
numbers, `variant="paper"` the equations read literally, `variant="paper-eta-c"` the equations with eta / classes,
so that the first batch selects what the code selects. Each difference is also a setting; docs/palm.md lists them,
and the differences that changed nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ctta.errors import SettingError
from ctta.optim import find_optimizer
from ctta.settings import setting

DEFAULT_SHARE = 0.05
FAST: dict[str, Any] = {"refresh": 3}
"""What speed="fast" implies beside bfloat16; docs/speed.md has what was tried."""
STEP_OF_PALM = ("palm", "fixed", "autolr")
"""Schemes that change the learning rates and keep PALM's step."""
PAPER: dict[str, Any] = {
    "divergence": "uniform",
    "granularity": "element",
    "unselected_lr": "zero",
    "optimizer_state": "persistent",
    "weight_decay": 0.0,
    "margin_unit": "log-classes",
    "entropy_reduction": "batch",
    "consistency_scale": "one",
}
"""The equations read literally."""
VARIANTS: dict[str, dict[str, Any]] = {
    "official": {},
    "paper": PAPER,
    "paper-eta-c": {**PAPER, "eta_scale": "classes"},
}
PRESETS: dict[str, dict[str, Any]] = {
    "cifar10-c": {"lr": 5e-4, "alpha": 0.5, "temperature": 50.0, "eta": 1.0, "lam": 0.01},
    "cifar100-c": {"lr": 5e-4, "alpha": 0.9, "temperature": 100.0, "eta": 0.5, "lam": 0.01, "weight_decay": 5e-4},
    "imagenet-c": {"lr": 5e-5, "alpha": 0.5, "temperature": 1000.0, "eta": 0.3, "lam": 0.01},
    "embedded": {"lr": 1e-3, "alpha": 0.5, "temperature": 50.0, "eta": 1.5, "lam": 0.01},
    "embedded-long": {"lr": 5e-4, "alpha": 0.5, "temperature": 50.0, "eta": 1.5, "lam": 0.01},
}
DIVERGENCES: dict[str, dict[str, Any]] = {
    "ones": {"target_scale": "ones"},
    "uniform": {"target_scale": "uniform"},
    "p||u": {"target_scale": "ones", "direction": "p||u"},
    "sum": {"target_scale": "ones", "reduction": "sum"},
}
"""What the choices of `divergence` are for `uniform_kl`."""


@dataclass(frozen=True)
class PalmSettings:
    """Settings of PALM; the defaults are the official CIFAR-10-C settings."""

    variant: Literal["official", "paper", "paper-eta-c"] = setting(
        "official", "Published code, equations read literally, or equations with eta / classes."
    )
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
    selection: Literal["uniform", "pseudo-label", "none"] = setting(
        "uniform",
        "Loss whose gradients select: KL to uniform, cross-entropy with the predicted class, or none (every "
        'tensor is adapted; what a `lr_scheme` other than "palm" implies).',
    )
    lr_scheme: Literal["palm", "fixed", "autolr", "lars", "prodigy", "adafactor"] | str = setting(
        "palm",
        'What sets the learning rates: PALM, nothing ("fixed"), the depth of a layer ("autolr"), or another '
        'optimiser, also "torch:NAME" for a class of torch.optim.',
        aka=("optimizer", "scheme"),
    )
    anchor: float = setting(
        0.0,
        "Share of its distance from the source weights that a tensor gives back in every step it takes: it can "
        "never be further away than its rate divided by this. Not in the paper; for long streams.",
        low=0.0,
        high=1.0,
        aka=("restore", "source_pull"),
    )

    # where paper and code differ, or the paper says nothing
    divergence: Literal["ones", "uniform", "p||u", "sum"] = setting(
        "ones",
        "Selection loss: KL(u||p) with a vector of ones for u (all is classes times larger), with 1/classes as in "
        "Eq. 2, KL(p||u) as in Eq. 1 (classes times larger), or that with ones, summed over the batch.",
        group="difference",
    )
    eta_scale: Literal["one", "classes"] = setting(
        "one", 'Divide eta by 1 or by the number of "classes".', group="difference"
    )
    granularity: Literal["tensor", "element"] = setting(
        "tensor", "One learning rate per tensor (its mean importance) or per element.", group="difference"
    )
    unselected_lr: Literal["stale", "zero"] = setting(
        "stale", "Tensors not selected now keep their last learning rate, or are frozen.", group="difference"
    )
    average_init: Literal["zero", "first"] = setting(
        "zero", "Sensitivity average before the first selection: 0 or the first sensitivity.", group="difference"
    )
    scheme_lr: float | Literal["kappa", "default"] = setting(
        "default",
        'Learning rate of a `lr_scheme` other than "palm": a number, `lr` ("kappa"), or the optimiser\'s default '
        "(fixed and autolr: kappa; adafactor: its relative step).",
        low=0.0,
        group="difference",
    )
    optimizer_state: Literal["fresh", "persistent"] = setting(
        "fresh",
        "A new Adam every batch (a sign step) or one that keeps its moments. A `lr_scheme` with a step of its own "
        "implies that it lasts.",
        group="difference",
    )
    margin_unit: Literal["nats", "log-classes"] = setting(
        "nats", "entropy_margin in nats, or as a fraction of log(classes).", group="difference"
    )
    entropy_reduction: Literal["kept", "batch"] = setting(
        "kept", "Average the entropy over the kept samples or over the batch.", group="difference"
    )
    consistency_scale: Literal["classes", "one"] = setting(
        "classes", "Multiply lam by the number of classes.", group="difference"
    )
    consistency_detach: Literal["none", "clean", "view"] = setting(
        "none", "Where the gradient of the consistency loss is stopped.", group="difference"
    )
    consistency_samples: Literal["all", "kept"] = setting(
        "all", "Samples the consistency loss averages over.", group="difference"
    )
    modules: Literal["conv-norm", "conv", "norm", "all"] = setting(
        "conv-norm", "Layers whose parameters may be adapted.", group="difference"
    )
    bn_mode: Literal["batch", "source"] = setting(
        "batch", "Statistics BatchNorm normalises with.", group="difference"
    )
    returned_logits: Literal["before", "after"] = setting(
        "before", "Return the logits before or after the step.", group="difference"
    )

    # what a step costs
    speed: Literal["exact", "fast"] = setting(
        "exact",
        "Every number in full; or stage one in every third batch only, and convolutions and matrix products in "
        "bfloat16 where the processor is faster with it, at a small price in error.",
        group="cost",
    )
    refresh: int = setting(
        1,
        "Stage one and new learning rates every so many batches; selection and rates stay in between.",
        low=1,
        group="cost",
    )
    memory: Literal["normal", "low", "lowest"] = setting(
        "normal",
        "Keep both passes for the update, one and the deep part of the other (the other layers run again), or "
        "one and only the ends of its blocks (all run again); same result.",
        group="cost",
    )

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other, schemes that do not exist, a second base rate for PALM."""
        if self.lr_scheme not in STEP_OF_PALM:
            find_optimizer(self.lr_scheme, beside=STEP_OF_PALM)
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

    @property
    def share(self) -> float:
        """Share of the adaptable parameters that eta="auto" aims at."""
        return DEFAULT_SHARE if self.adapt_share is None else self.adapt_share

    @staticmethod
    def implied(given: Mapping[str, Any]) -> dict[str, Any]:
        """Who asks for a share asks for the eta that gives it; another scheme takes all tensors and lasts."""
        values: dict[str, Any] = {"eta": "auto"} if given.get("adapt_share") is not None else {}
        if given.get("speed") == "fast":
            values |= FAST
        scheme = given.get("lr_scheme", "palm")
        if scheme != "palm":
            values["selection"] = "none"
        if scheme not in STEP_OF_PALM:
            values["optimizer_state"] = "persistent"
        return values


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
