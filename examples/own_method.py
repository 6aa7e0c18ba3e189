"""A method of your own in one file: entropy minimisation that is pulled back to the source weights.

Everything a user expects (reset, save, load, undo, copies, device moves, guards) follows from the declarations.
Run: python examples/own_method.py
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ctta.checks import check_method
from ctta.functional import softmax_entropy
from ctta.methods import Method, per_tensor, register, setting


@dataclass(frozen=True)
class AnchoredSettings:
    """What can be set; names, ranges, help and messages follow from here."""

    lr: float = setting(1e-3, "Step size.", low=0.0)
    pull: float = setting(0.01, "Share of the way back to the source after every step.", low=0.0, high=1.0)
    momentum: float = setting(0.9, "Share of the last direction that is kept.", low=0.0, high=1.0)


@register("anchored", paper="an example, not a paper", year=2026, needs={"norm layers"}, cost=3.0)
class Anchored(Method[AnchoredSettings]):
    """Minimise entropy over the norm layers, and lean back towards the source."""

    adapts = "norm"

    velocity: dict[str, Tensor] = per_tensor("Direction of the last step.")

    def step(self, x: Tensor) -> Tensor:
        """Return the logits; move the norm layers."""
        s = self.settings
        logits = self.forward(x)
        loss = softmax_entropy(logits).mean()
        moved = {}
        for name, gradient in self.gradients(loss).items():
            before = self.velocity.get(name, 0.0 * gradient)
            self.velocity[name] = s.momentum * before + gradient
            stepped = self.value(name) - s.lr * self.velocity[name]
            moved[name] = stepped.lerp(self.source[name], s.pull)
        self.move(moved)
        self.note(losses={"total": loss})
        return logits


if __name__ == "__main__":
    count = check_method("anchored")
    print(f"anchored keeps all of its {count} promises")
