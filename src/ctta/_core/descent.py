"""Adam or sgd, whichever the settings name, with its memory as declared state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeVar

from torch import Tensor

from ctta._core.moments import AdamMemory, SgdMemory


class DescentSettings(Protocol):
    """The settings a step reads."""

    @property
    def lr(self) -> float:
        """Step size."""

    @property
    def optimizer(self) -> Literal["adam", "sgd"]:
        """What turns a gradient into a step."""

    @property
    def momentum(self) -> float:
        """Momentum of sgd, first beta of adam."""

    @property
    def nesterov(self) -> bool:
        """Whether sgd looks ahead."""

    @property
    def weight_decay(self) -> float:
        """Weight decay added to the gradient."""


S = TypeVar("S", bound=DescentSettings)


class Descent(AdamMemory[S], SgdMemory[S]):
    """A method that moves all its tensors at one learning rate."""

    def descend(self, gradients: Mapping[str, Tensor]) -> None:
        """Move every tensor that has a gradient."""
        s = self.settings
        rates = dict.fromkeys(gradients, s.lr)
        if s.optimizer == "adam":
            moved = self.adam(gradients, rates, beta1=s.momentum, weight_decay=s.weight_decay)
        else:
            moved = self.sgd(
                gradients, s.lr, momentum=s.momentum, nesterov=s.nesterov, weight_decay=s.weight_decay
            )
        self.move(moved)
        self.note(
            learning_rates={name: rates.get(name, 0.0) for name in self.adapted},
            shares={"moved": self.share(moved)},
        )
