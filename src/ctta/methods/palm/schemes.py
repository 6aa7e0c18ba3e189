"""Other learning rates than PALM's, for ablations, with all they keep from batch to batch as declared state.

"fixed" and "autolr" change the rates and keep PALM's step; "lars", "prodigy", "adafactor" and "torch:NAME" (any
optimiser of torch.optim) bring a step of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from ctta._core.kept import per_tensor, scalar
from ctta._core.layers import wide
from ctta._core.moments import AdamMemory
from ctta.errors import SettingError
from ctta.methods.palm.choices import STEP_OF_PALM, PalmSettings
from ctta.optim import (
    OptimizerState,
    Outcome,
    depth_factors,
    find_optimizer,
    optimizer_options,
    require_takes,
    sign_step,
    torch_step,
)

Rates = Mapping[str, Tensor | float]


class Schemes(AdamMemory[PalmSettings]):
    """A method that can take steps of another kind than PALM's."""

    slot_1: dict[str, Tensor] = per_tensor("First tensor the optimiser of `lr_scheme` keeps (see slot_names).")
    slot_2: dict[str, Tensor] = per_tensor("Second tensor the optimiser of `lr_scheme` keeps.")
    slot_3: dict[str, Tensor] = per_tensor("Third tensor the optimiser of `lr_scheme` keeps.")
    slot_4: dict[str, Tensor] = per_tensor("Fourth tensor the optimiser of `lr_scheme` keeps.")
    slot_names: list[str] = scalar(lambda _: [], "What the slots hold, in the optimiser's own words.")
    numbers: dict[str, dict[str, float]] = scalar(
        lambda _: {}, "Numbers the optimiser of `lr_scheme` keeps: of each tensor, and of all under no name."
    )

    def ones(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Importance 1 for each of these tensors."""
        return {name: wide(self.source[name]).new_ones(()) for name in names}

    def other_step(
        self, gradients: Mapping[str, Tensor], importance: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], Rates]:
        """Return new values of every tensor with a gradient, and the learning rates they had."""
        s = self.settings
        if s.lr_scheme != "palm":  # other schemes look at numbers on the way
            self.require_finite("gradient", gradients)
        if s.lr_scheme not in STEP_OF_PALM:
            outcome = self.optimise(gradients)
            return outcome.values, outcome.rates
        kappa = s.lr if isinstance(s.scheme_lr, str) else s.scheme_lr
        rates = {name: kappa * i for name, i in importance.items()}
        if s.optimizer_state == "persistent":
            moved = self.adam(gradients, rates, weight_decay=s.weight_decay)
        else:
            moved = {
                name: sign_step(self.value(name), gradient, rates[name], weight_decay=s.weight_decay)
                for name, gradient in gradients.items()
            }
        return self.order_by_depth(moved, kappa) if s.lr_scheme == "autolr" else (moved, rates)

    def order_by_depth(self, moved: Mapping[str, Tensor], kappa: float) -> tuple[dict[str, Tensor], Rates]:
        """Scale the steps so that the relative change of the layers grows with depth (AutoLR)."""
        before = {name: self.value(name) for name in self.adapted if name in moved}
        factors = depth_factors(before, {name: moved[name] for name in before})
        scaled = {name: theta + factors[name] * (moved[name] - theta) for name, theta in before.items()}
        return scaled, {name: kappa * factor for name, factor in factors.items()}

    def optimise(self, gradients: Mapping[str, Tensor]) -> Outcome:
        """Hand the gradients to the optimiser of `lr_scheme`; a fresh one starts anew and keeps nothing."""
        fresh = self.settings.optimizer_state == "fresh"
        values = {name: self.value(name) for name in gradients}
        before = OptimizerState({}, {}) if fresh else self.recall()
        outcome = torch_step(find_optimizer(self.settings.lr_scheme), values, gradients, self.options(), before)
        if not fresh:
            self.remember(outcome.state)
        return outcome

    def options(self) -> dict[str, float]:
        """Arguments of the optimiser of `lr_scheme`."""
        s = self.settings
        lr = {"default": None, "kappa": s.lr}[s.scheme_lr] if isinstance(s.scheme_lr, str) else s.scheme_lr
        return optimizer_options(find_optimizer(s.lr_scheme), lr, s.weight_decay)

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
            raise SettingError(f"This optimiser keeps {list(entries)} for a tensor; ctta has room for four.")
        self.slot_names = list(entries)
        for entry, slot in zip(entries, self._slots(), strict=False):
            slot.update({name: kept[entry] for name, kept in state.tensors.items() if entry in kept})
        self.numbers = state.numbers

    def _slots(self) -> tuple[dict[str, Tensor], ...]:
        return self.slot_1, self.slot_2, self.slot_3, self.slot_4

    def _collect(self) -> dict[str, nn.Parameter]:
        adapted = super()._collect()
        if self.settings.lr_scheme not in STEP_OF_PALM:
            shapes = {name: value.shape for name, value in adapted.items()}
            require_takes(find_optimizer(self.settings.lr_scheme), self.options(), shapes)
        return adapted
