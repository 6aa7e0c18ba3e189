"""The base of our own optimisers: torch.optim's interface, one group of parameters, one rule for all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

Values = Iterable[Tensor]


class Rule(Optimizer):
    """An optimiser of one group that also tells the learning rate each tensor had (`rates`, in their order)."""

    shared: ClassVar[tuple[str, ...]] = ()
    """Entries of the group that are state: numbers that belong to all tensors together."""

    def __init__(self, params: Values, options: dict[str, Any]) -> None:
        super().__init__(params, options)
        self.rates: list[Tensor | float] = []

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every tensor that has a gradient."""
        found = [parameter for parameter in self.param_groups[0]["params"] if parameter.grad is not None]
        self.rates = self.move_all(found, [parameter.grad for parameter in found])

    def move_all(self, parameters: list[Tensor], gradients: list[Tensor]) -> list[Tensor | float]:
        """Move the tensors; returns their rates. One after the other, unless they depend on each other."""
        return [self.move(*pair) for pair in zip(parameters, gradients, strict=True)]

    @abstractmethod
    def move(self, parameter: Tensor, gradient: Tensor) -> Tensor | float:
        """Move one tensor; returns its rate."""
