"""Adam and SGD whose moments last from batch to batch, as declared state for methods that want it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from torch import Tensor

from ctta._core.kept import per_tensor, scalar
from ctta._core.method import Method
from ctta.optim import AdamState, adam, sgd
from ctta.settings import setting

S = TypeVar("S")


class AdamMemory(Method[S]):
    """A method that can take Adam steps; each tensor counts its own updates."""

    mean: dict[str, Tensor] = per_tensor("First moment of Adam.")
    square: dict[str, Tensor] = per_tensor("Second moment of Adam.")
    updates: dict[str, int] = scalar(
        lambda _: {},
        "Adam updates of each tensor since the reset.",
        check=lambda m: (
            m.updates.keys() <= m.mean.keys() & m.square.keys() and all(count > 0 for count in m.updates.values())
        ),
    )

    def adam(
        self,
        gradients: Mapping[str, Tensor],
        rates: Mapping[str, Tensor | float],
        *,
        beta1: float = 0.9,
        weight_decay: float = 0.0,
    ) -> dict[str, Tensor]:
        """Update the moments of every tensor with a gradient; return new values for those with a rate."""
        moved: dict[str, Tensor] = {}
        for name, gradient in gradients.items():
            theta, lr = self.value(name), rates.get(name, 0.0)
            before = AdamState.zero(theta)
            if name in self.updates:
                before = AdamState(self.mean[name], self.square[name], self.updates[name])
            value, after = adam(theta, gradient, lr, before, beta1=beta1, weight_decay=weight_decay)
            self.mean[name], self.square[name], self.updates[name] = after
            if name in rates:
                moved[name] = value
        return moved


class SgdMemory(Method[S]):
    """A method that can take steps of gradient descent with momentum."""

    velocity: dict[str, Tensor] = per_tensor("Velocity of sgd.")

    def sgd(
        self,
        gradients: Mapping[str, Tensor],
        lr: float,
        *,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> dict[str, Tensor]:
        """Update the velocity of every tensor with a gradient; return their new values."""
        options: dict[str, Any] = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        moved: dict[str, Tensor] = {}
        for name, gradient in gradients.items():
            before = self.velocity.get(name)
            moved[name], self.velocity[name] = sgd(self.value(name), gradient, lr, before, **options)
        return moved


@dataclass(frozen=True)
class DescentSettings:
    """Settings of a method that moves all its tensors alike."""

    lr: float = setting(1e-3, "Step size.", low=0.0, aka=("learning_rate",))
    optimizer: Literal["adam", "sgd"] = setting("adam", "What turns a gradient into a step.")
    momentum: float = setting(0.9, "Momentum of sgd, first beta of adam.", low=0.0, below=1.0)
    nesterov: bool = setting(True, "Whether sgd looks ahead (Nesterov).")
    weight_decay: float = setting(0.0, "Weight decay added to the gradient.", low=0.0, aka=("wd",))
    steps: int = setting(1, "Updates per batch; the answer before the last one is returned.", low=1)


D = TypeVar("D", bound=DescentSettings)


class Descent(AdamMemory[D], SgdMemory[D]):
    """A method that moves all its tensors at one learning rate, by Adam or sgd as the settings say."""

    def descend(self, gradients: Mapping[str, Tensor]) -> None:
        """Move every tensor that has a gradient."""
        s = self.settings
        if s.optimizer == "adam":
            rates = dict.fromkeys(gradients, s.lr)
            moved = self.adam(gradients, rates, beta1=s.momentum, weight_decay=s.weight_decay)
        else:
            look: dict[str, Any] = {"momentum": s.momentum, "nesterov": s.nesterov}
            moved = self.sgd(gradients, s.lr, **look, weight_decay=s.weight_decay)
        self.move(moved)
        self.note_moved(moved, s.lr)
