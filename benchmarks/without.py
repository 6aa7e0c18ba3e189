"""PALM with one of its savings taken back, each the same result for more time: rows of step_cost.py."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import ctta
from ctta.methods import register
from ctta.methods.palm.palm import Palm
from ctta.methods.palm.schemes import Rates
from ctta.optim import sign_step

ABOUT: dict[str, Any] = {"paper": "PALM without one saving", "year": 2025, "needs": {"conv or norm layers"}}


@register("palm-all-gradients", **ABOUT)
class AllGradients(Palm):
    """The update computes gradients of every tensor, moving or not: what a lasting Adam would need."""

    def descend(self, gradients: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Rates]:
        """Use those that have a rate, for sign steps."""
        rates = {name: self.settings.lr * i for name, i in self.importance.items()}
        return {name: sign_step(self.value(name), gradients[name], rate) for name, rate in rates.items()}, rates


@register("palm-tensor-by-tensor", **ABOUT)
class TensorByTensor(Palm):
    """Sensitivity, average and importance of one tensor after the other."""

    def weigh(self, gradients: Mapping[str, Tensor]) -> None:
        """Eq. 4-7 without grouped operations."""
        selected = self.selected
        for name in selected:
            self.selected = [name]
            super().weigh(gradients)
        self.selected = selected


@register("palm-new-adam", **ABOUT)
class NewAdam(Palm):
    """A new torch.optim.Adam for every batch in the place of its closed form."""

    def descend(self, gradients: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Rates]:
        """Build it, step, and take the values."""
        copies = {name: nn.Parameter(self.value(name).clone()) for name in gradients}
        rates = {name: self.settings.lr * float(self.importance[name]) for name in copies}
        for name, gradient in gradients.items():
            copies[name].grad = gradient
        torch.optim.Adam([{"params": [copies[name]], "lr": rate} for name, rate in rates.items()]).step()
        return {name: value.detach() for name, value in copies.items()}, rates


WITHOUT: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "all gradients": ("palm-all-gradients", {"optimizer_state": "persistent"}),
    "tensor by tensor": ("palm-tensor-by-tensor", {}),
    "new Adam": ("palm-new-adam", {}),
    "plain layout": ("palm", {}),
}
"""Rows by what they do instead: the method, and its settings."""


def contestant(row: str, model: nn.Module, x: Tensor, eta: float) -> Callable[[], object]:
    """One step of a row, as a call."""
    plain = row == "plain layout"  # a model adapted in place keeps its layout
    own = copy.deepcopy(model) if plain else model
    method, settings = WITHOUT[row]
    adapter = ctta.adapt(own, method, eta=eta, inplace=plain, **settings)
    return lambda: adapter(x)
