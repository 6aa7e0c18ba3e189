"""Optimisers in place of PALM's learning rates, with all they keep from batch to batch as declared state.

The schemes "lars", "prodigy", "adafactor" and "torch:NAME" (any optimiser of torch.optim) bring a step of their
own. A scheme is a pure function of values, gradients and what it kept; `OptimizerMemory` holds that between
batches.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeVar

from torch import Tensor

from ctta._core.kept import per_tensor, scalar
from ctta._core.layers import wide
from ctta._core.moments import AdamMemory
from ctta.errors import SettingError
from ctta.optim import (
    AdafactorState,
    OptimizerState,
    ProdigyState,
    adafactor,
    adafactor_rate,
    lars,
    lars_rate,
    prodigy,
    torch_adafactor,
    torch_adafactor_rate,
    torch_optimizer,
    torch_step,
)
from ctta.optim.torch_step import require_takes, torch_options
from ctta.settings import suggestion

S = TypeVar("S")

STEP_OF_PALM = ("palm", "fixed", "autolr")  # these change the rates and keep PALM's step
OPTIMIZERS = ("lars", "prodigy", "adafactor")
TORCH = "torch:"
LARS_LR = 1e-3  # the usual default of implementations; the paper tunes it
OF_ALL = ""  # the key under which a scheme keeps numbers that belong to no tensor alone


class Outcome(NamedTuple):
    """New values, the learning rate each tensor had (for the report), and what the scheme keeps."""

    values: dict[str, Tensor]
    rates: dict[str, Tensor | float]
    state: OptimizerState


def require_scheme(name: str) -> None:
    """Refuse a scheme that does not exist."""
    if name.startswith(TORCH):
        torch_optimizer(name.removeprefix(TORCH))
    elif name not in STEP_OF_PALM + OPTIMIZERS:
        known = [*STEP_OF_PALM, *OPTIMIZERS]
        raise SettingError(
            f"There is no `lr_scheme` {name!r}.{suggestion(name, known)} "
            f'Known: {", ".join(known)}, and "torch:NAME" for a class of torch.optim.'
        )


class OptimizerMemory(AdamMemory[S]):
    """A method that can hand its gradients to an optimiser of another kind than Adam."""

    slot_1: dict[str, Tensor] = per_tensor("First tensor the optimiser of `lr_scheme` keeps (see slot_names).")
    slot_2: dict[str, Tensor] = per_tensor("Second tensor the optimiser of `lr_scheme` keeps.")
    slot_3: dict[str, Tensor] = per_tensor("Third tensor the optimiser of `lr_scheme` keeps.")
    slot_names: list[str] = scalar(lambda _: [], "What the slots hold, in the optimiser's own words.")
    numbers: dict[str, dict[str, float]] = scalar(
        lambda _: {}, "Numbers the optimiser of `lr_scheme` keeps: of each tensor, and of all under no name."
    )

    def optimise(
        self,
        scheme: str,
        gradients: Mapping[str, Tensor],
        lr: float | None,
        *,
        fresh: bool,
        weight_decay: float = 0.0,
        skip_1d: bool = False,
        convention: Literal["huggingface", "torch"] = "huggingface",
    ) -> tuple[dict[str, Tensor], dict[str, Tensor | float]]:
        """Return new values and rates of every tensor with a gradient; `lr` None is the optimiser's default.

        A `fresh` optimiser starts anew and keeps nothing.
        """
        values = {name: self.value(name) for name in gradients}
        before = OptimizerState({}, {}) if fresh else self.recall()
        if scheme == "lars":
            outcome = lars_scheme(values, gradients, before, lr, weight_decay, skip_1d=skip_1d)
        elif scheme == "prodigy":
            start = values if fresh else {name: wide(self.source[name]) for name in gradients}
            outcome = prodigy_scheme(values, gradients, before, lr, weight_decay, start=start)
        elif scheme == "adafactor":
            outcome = adafactor_scheme(values, gradients, before, lr, weight_decay, convention=convention)
        else:
            outcome = torch_scheme(values, gradients, before, lr, weight_decay, scheme.removeprefix(TORCH))
        if not fresh:
            self.remember(outcome.state)
        return outcome.values, outcome.rates

    def require_optimizer(self, scheme: str, lr: float | None, weight_decay: float) -> None:
        """Refuse an optimiser of torch.optim that cannot take the adapted tensors or these options."""
        kind = torch_optimizer(scheme.removeprefix(TORCH))
        shapes = {name: value.shape for name, value in self.adapted.items()}
        require_takes(kind, torch_options(kind, lr, weight_decay), shapes)

    def recall(self) -> OptimizerState:
        """What the optimiser kept, by tensor and by its own names."""
        tensors: dict[str, dict[str, Tensor]] = {}
        for entry, slot in zip(self.slot_names, self._slots(), strict=False):
            for name, tensor in slot.items():
                tensors.setdefault(name, {})[entry] = tensor
        return OptimizerState(tensors, self.numbers)

    def remember(self, state: OptimizerState) -> None:
        """Keep what the optimiser returned."""
        entries = dict.fromkeys([*self.slot_names, *(key for kept in state.tensors.values() for key in kept)])
        if len(entries) > len(self._slots()):
            raise SettingError(f"This optimiser keeps {list(entries)} for a tensor; ctta has room for three.")
        self.slot_names = list(entries)
        for entry, slot in zip(entries, self._slots(), strict=False):
            slot.update({name: kept[entry] for name, kept in state.tensors.items() if entry in kept})
        self.numbers = state.numbers

    def _slots(self) -> tuple[dict[str, Tensor], ...]:
        return self.slot_1, self.slot_2, self.slot_3


def lars_scheme(
    values: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    before: OptimizerState,
    lr: float | None,
    weight_decay: float,
    *,
    skip_1d: bool,
) -> Outcome:
    """One step of LARS on every tensor with a gradient."""
    lr = LARS_LR if lr is None else lr
    moved, rates, kept = {}, {}, dict(before.tensors)
    for name, gradient in gradients.items():
        velocity = before.tensors.get(name, {}).get("velocity")
        rates[name] = lars_rate(values[name], gradient, lr, weight_decay=weight_decay, skip_1d=skip_1d)
        moved[name], velocity = lars(
            values[name], gradient, lr, velocity, weight_decay=weight_decay, skip_1d=skip_1d
        )
        kept[name] = {"velocity": velocity}
    return Outcome(moved, dict(rates), OptimizerState(kept, {}))


def prodigy_scheme(
    values: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    before: OptimizerState,
    lr: float | None,
    weight_decay: float,
    *,
    start: Mapping[str, Tensor],
) -> Outcome:
    """One step of Prodigy on all tensors with a gradient together; `start` is where they were at first."""
    lr = 1.0 if lr is None else lr
    zero = ProdigyState.zero(start)

    def kept(entry: str, fallback: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: before.tensors.get(name, {}).get(entry, fallback[name]) for name in gradients}

    numbers = before.numbers.get(OF_ALL, {})
    state = ProdigyState(
        start=start,
        mean=kept("mean", zero.mean),
        square=kept("square", zero.square),
        travel=kept("travel", zero.travel),
        d=numbers.get("d", zero.d),
        largest=numbers.get("largest", zero.largest),
        numerator=numbers.get("numerator", zero.numerator),
        step=int(numbers.get("step", zero.step)),
    )
    moved, after = prodigy(values, gradients, lr, state, weight_decay=weight_decay)
    tensors = {
        name: {"mean": after.mean[name], "square": after.square[name], "travel": after.travel[name]}
        for name in gradients
    }
    totals = {"d": after.d, "largest": after.largest, "numerator": after.numerator, "step": after.step}
    rates: dict[str, Tensor | float] = dict.fromkeys(gradients, state.d * lr)
    return Outcome(moved, rates, OptimizerState({**before.tensors, **tensors}, {OF_ALL: totals}))


def adafactor_scheme(
    values: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    before: OptimizerState,
    lr: float | None,
    weight_decay: float,
    *,
    convention: Literal["huggingface", "torch"],
) -> Outcome:
    """One step of Adafactor on every tensor with a gradient."""
    moved: dict[str, Tensor] = {}
    rates: dict[str, Tensor | float] = {}
    tensors, numbers = dict(before.tensors), dict(before.numbers)
    for name, gradient in gradients.items():
        theta, kept = values[name], before.tensors.get(name)
        state = AdafactorState.zero(theta)
        if kept:
            state = AdafactorState(kept["square"], kept.get("columns"), int(numbers[name]["step"]))
        if convention == "torch":
            cap = 1e-2 if lr is None else lr
            rates[name] = torch_adafactor_rate(theta, state.step + 1, cap)
            moved[name], after = torch_adafactor(theta, gradient, state, cap, weight_decay=weight_decay)
        else:
            rates[name] = adafactor_rate(theta, state.step + 1, lr)
            moved[name], after = adafactor(theta, gradient, state, lr, weight_decay=weight_decay)
        tensors[name] = {"square": after.square}
        if after.columns is not None:
            tensors[name]["columns"] = after.columns
        numbers[name] = {"step": after.step}
    return Outcome(moved, rates, OptimizerState(tensors, numbers))


def torch_scheme(
    values: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    before: OptimizerState,
    lr: float | None,
    weight_decay: float,
    name: str,
) -> Outcome:
    """One step of an optimiser of torch.optim, with its default options beside rate and weight decay."""
    kind = torch_optimizer(name)
    options = torch_options(kind, lr, weight_decay)
    moved, after = torch_step(kind, values, gradients, options, before)
    rate = default_lr(name) if lr is None else lr
    return Outcome(moved, dict.fromkeys(gradients, rate), after)


def default_lr(name: str) -> float:
    """Learning rate an optimiser of torch.optim has when none is given.

    >>> default_lr("Adadelta")
    1.0
    """
    parameters = inspect.signature(torch_optimizer(name)).parameters
    return float(parameters["lr"].default)
