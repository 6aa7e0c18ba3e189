"""Prodigy: Adam that estimates its own step size (Mishchenko and Defazio, 2024).

One number d, shared by all tensors, estimates how far the solution is from the start; it multiplies the learning
rate, which is meant to stay at 1. So all tensors take a step together, unlike in the other files here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ProdigyState:
    """What lasts from step to step; the tensors are shaped as their parameters.

    `start` is where each parameter was before its first step, `mean` and `square` are the moments of d times the
    gradient, `travel` and `numerator` the two running sums from which d is estimated, `largest` the largest
    estimate so far.
    """

    start: Mapping[str, Tensor]
    mean: Mapping[str, Tensor]
    square: Mapping[str, Tensor]
    travel: Mapping[str, Tensor]
    d: float
    largest: float
    numerator: float = 0.0
    step: int = 0

    @classmethod
    def zero(cls, parameters: Mapping[str, Tensor], d0: float = 1e-6) -> ProdigyState:
        """Return the state before the first step."""
        zeros = {name: torch.zeros_like(value) for name, value in parameters.items()}
        return cls(dict(parameters), zeros, zeros, zeros, d0, d0)


def prodigy(
    parameters: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    lr: float,
    state: ProdigyState,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    beta3: float | None = None,
    d0: float = 1e-6,
    d_coef: float = 1.0,
    growth_rate: float = math.inf,
    weight_decay: float = 0.0,
    decoupled: bool = True,
    bias_correction: bool = False,
    eps: float = 1e-8,
) -> tuple[dict[str, Tensor], ProdigyState]:
    """Return the new parameters and the new state; tensors without a gradient stay out of both sums.

    `beta3` is sqrt(beta2) unless given. Gradients that were all 0 so far move nothing. Waits for the device once.

    >>> theta = {"w": torch.ones(2, dtype=torch.float64)}
    >>> moved, state = prodigy(theta, {"w": theta["w"] * 7}, 1.0, ProdigyState.zero(theta))
    >>> (theta["w"] - moved["w"]) * 1e6  # the first step is 3.16e-6 for every element
    tensor([3.1623, 3.1623], dtype=torch.float64)
    """
    beta3 = math.sqrt(beta2) if beta3 is None else beta3
    d, step = state.d, state.step + 1
    rate = d * lr
    if bias_correction:
        rate *= math.sqrt(1 - beta2**step) / (1 - beta1**step)
    mean, square, travel = dict(state.mean), dict(state.square), dict(state.travel)
    sums = []
    for name in gradients:
        gradient, theta = gradients[name], parameters[name]
        if weight_decay and not decoupled:
            gradient = gradient + weight_decay * theta
        mean[name] = beta1 * mean[name] + (d * (1 - beta1)) * gradient
        square[name] = beta2 * square[name] + (d * d * (1 - beta2)) * gradient * gradient
        travel[name] = beta3 * travel[name] + (d / d0 * rate) * gradient
        sums.append(torch.stack([(gradient * (state.start[name] - theta)).sum(), travel[name].abs().sum()]))
    gains, travels = torch.stack(sums, 1).tolist() if sums else ([], [])
    gain, denominator = math.fsum(gains), math.fsum(travels)
    numerator = beta3 * state.numerator + d / d0 * rate * gain
    if denominator == 0:
        after = ProdigyState(state.start, mean, square, travel, d, state.largest, numerator, state.step)
        return {name: parameters[name] for name in gradients}, after
    estimate = d_coef * numerator / denominator
    largest = max(state.largest, estimate)
    d = min(largest, (max(d, estimate) if d == d0 else d) * growth_rate)
    moved = {}
    for name in gradients:
        theta = parameters[name]
        if weight_decay and decoupled:
            theta = theta * (1 - weight_decay * rate)
        moved[name] = theta - rate * mean[name] / (square[name].sqrt() + d * eps)
    return moved, ProdigyState(state.start, mean, square, travel, d, largest, numerator, step)
