"""PALM with one of its savings taken back, each the same result for more time: rows of step_cost.py."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import ctta
from ctta.functional import importances
from ctta.methods import register
from ctta.methods.palm.palm import Palm, View

ABOUT: dict[str, Any] = {"paper": "PALM without one saving", "year": 2025, "needs": {"conv or norm layers"}}


@register("palm-all-gradients", **ABOUT)
class AllGradients(Palm):
    """The update computes gradients of every tensor, moving or not."""

    def moving(self) -> list[str]:
        """All of them."""
        return list(self.adapted)

    def descend(self, gradients: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor | float]]:
        """Use those that have a rate."""
        return super().descend({name: gradients[name] for name in self.factor if name in gradients})


@register("palm-one-backward", **ABOUT)
class OneBackward(Palm):
    """The objective is backpropagated through both passes at once, and through the losses."""

    def update_gradients(self, logits: Tensor, view: View | None) -> dict[str, Tensor] | None:
        """One call of autograd, as in a plain implementation."""
        total = self.objective(logits, view)
        return None if total is None else self.gradients(total, self.moving())


@register("palm-tensor-by-tensor", **ABOUT)
class TensorByTensor(Palm):
    """Sensitivity, average and importance of one tensor after the other."""

    def update_importance(self, gradients: dict[str, Tensor], selected: list[str]) -> None:
        """Eq. 4-7 without grouped operations."""
        s = self.settings
        for name in selected:
            value, gradient = self.value(name), gradients[name]
            before = self.shat[name] if name in self.shat else self.first_average(value, gradient)
            (average,), (ratio,) = importances([value], [gradient], [before], alpha=s.alpha, eps=s.eps)
            self.shat[name], self.factor[name] = average, ratio.mean()


@register("palm-new-adam", **ABOUT)
class NewAdam(Palm):
    """A new torch.optim.Adam for every batch in the place of its closed form."""

    def descend(self, gradients: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor | float]]:
        """Build it, step, and take the values."""
        copies = {name: nn.Parameter(self.value(name).clone()) for name in gradients}
        groups = [{"params": [copies[name]], "lr": self.kappa * float(self.factor[name])} for name in copies]
        for name, gradient in gradients.items():
            copies[name].grad = gradient
        torch.optim.Adam(groups).step()
        return {name: value.detach() for name, value in copies.items()}, {}


WITHOUT: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "all gradients": ("palm-all-gradients", {}),
    "one backward": ("palm-one-backward", {}),
    "tensor by tensor": ("palm-tensor-by-tensor", {}),
    "new Adam": ("palm-new-adam", {}),
    "view first": ("palm", {"forward_order": "early"}),
    "plain layout": ("palm", {}),
}
"""Rows by what they do instead: the method, and its settings."""


def contestant(row: str, model: nn.Module, x: Tensor, eta: float) -> Callable[[], object]:
    """One step of a row, as a call."""
    method, settings = WITHOUT[row]
    plain = row == "plain layout"  # a model adapted in place keeps its layout
    own = copy.deepcopy(model) if plain else model
    adapter = ctta.adapt(own, method, eta=eta, inplace=plain, **settings)
    return lambda: adapter(x)
