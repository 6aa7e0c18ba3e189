"""The base of our own optimisers: torch.optim's interface, one group of parameters, one rule for all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer


class Rule(Optimizer):
    """An optimiser of one group that also tells the learning rate each tensor had (`rates`, in their order)."""

    options: ClassVar[dict[str, Any]] = {}
    """What can be given by name, and what it is otherwise."""
    shared: ClassVar[tuple[str, ...]] = ()
    """Entries of the group that are state: numbers that belong to all tensors together."""

    def __init__(self, params: Iterable[Tensor], **given: Any) -> None:
        unknown = given.keys() - self.options.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} takes {', '.join(self.options)}, but got {sorted(unknown)}.")
        super().__init__(params, {**self.options, **given})
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
