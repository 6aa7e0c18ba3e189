"""Prodigy: Adam that estimates its own step size (Mishchenko and Defazio, 2024).

One number d, shared by all tensors, estimates how far the solution is from the start; it multiplies the learning
rate, which is meant to stay at 1. So all tensors take a step together, unlike in the other files here.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from ctta.optim.base import Rule


class Prodigy(Rule):
    """Prodigy; tensors without a gradient stay out of both sums; gradients that were all 0 so far move nothing.

    Each tensor keeps its `start`, the moments `mean` and `square` of d times the gradient, and the running sum
    `travel`; all together `d`, the `largest` estimate so far and the running sum `numerator`. `beta3` is
    sqrt(beta2) unless given. Waits for the device once.

    >>> w = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    >>> w.grad = torch.full_like(w, 7.0)
    >>> Prodigy([w]).step()
    >>> (1 - w.detach()) * 1e6  # the first step is 3.16e-6 for every element
    tensor([3.1623, 3.1623], dtype=torch.float64)
    """

    options: ClassVar[dict[str, Any]] = {
        "lr": 1.0, "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.999, "beta3": None, "d0": 1e-6, "d_coef": 1.0,
        "growth_rate": math.inf, "decoupled": True, "bias_correction": False, "eps": 1e-8,
    }  # fmt: skip
    shared = ("d", "largest", "numerator", "steps")

    def move_all(self, parameters: list[Tensor], gradients: list[Tensor]) -> list[Tensor | float]:
        """Sum up what all tensors tell of the distance, estimate it, and move them."""
        g = self.param_groups[0]
        for key, value in {"d": g["d0"], "largest": g["d0"], "numerator": 0.0, "steps": 0.0}.items():
            g.setdefault(key, value)
        if g["beta3"] is None:
            g["beta3"] = math.sqrt(g["beta2"])
        rate = g["d"] * g["lr"]
        if g["bias_correction"]:
            rate *= math.sqrt(1 - g["beta2"] ** (g["steps"] + 1)) / (1 - g["beta1"] ** (g["steps"] + 1))
        sums = [self.gather(*pair, rate) for pair in zip(parameters, gradients, strict=True)]
        gains, travels = torch.stack(sums, 1).tolist() if sums else ([], [])
        g["numerator"] = g["beta3"] * g["numerator"] + g["d"] / g["d0"] * rate * math.fsum(gains)
        used: list[Tensor | float] = [g["d"] * g["lr"]] * len(parameters)
        if not any(travels):
            return used
        estimate = g["d_coef"] * g["numerator"] / math.fsum(travels)
        g["largest"] = max(g["largest"], estimate)
        g["d"] = min(g["largest"], (max(g["d"], estimate) if g["d"] == g["d0"] else g["d"]) * g["growth_rate"])
        g["steps"] += 1
        for parameter in parameters:
            state = self.state[parameter]
            if g["weight_decay"] and g["decoupled"]:
                parameter.mul_(1 - g["weight_decay"] * rate)
            parameter.sub_(rate * state["mean"] / (state["square"].sqrt() + g["d"] * g["eps"]))
        return used

    def gather(self, parameter: Tensor, gradient: Tensor, rate: float) -> Tensor:
        """Bring the running sums of one tensor up to date; returns its share of numerator and denominator."""
        g, state = self.param_groups[0], self.state[parameter]
        state.setdefault("start", parameter.clone())
        for key in ("mean", "square", "travel"):
            state.setdefault(key, torch.zeros_like(parameter))
        if g["weight_decay"] and not g["decoupled"]:
            gradient = gradient + g["weight_decay"] * parameter
        d, beta1, beta2 = g["d"], g["beta1"], g["beta2"]
        state["mean"] = beta1 * state["mean"] + (d * (1 - beta1)) * gradient
        state["square"] = beta2 * state["square"] + (d * d * (1 - beta2)) * gradient * gradient
        state["travel"] = g["beta3"] * state["travel"] + (d / g["d0"] * rate) * gradient
        return torch.stack([(gradient * (state["start"] - parameter)).sum(), state["travel"].abs().sum()])
