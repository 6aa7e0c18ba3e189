"""Adam with coupled weight decay and descent with momentum, one tensor at a time (as in torch.optim)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class AdamState(NamedTuple):
    """First and second moment, shaped as the parameter, and the number of steps taken."""

    mean: Tensor
    square: Tensor
    step: int

    @classmethod
    def zero(cls, parameter: Tensor) -> AdamState:
        """Return the state before the first step."""
        return cls(torch.zeros_like(parameter), torch.zeros_like(parameter), 0)


def adam(
    parameter: Tensor,
    gradient: Tensor,
    lr: Tensor | float,
    state: AdamState,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    weight_decay: float = 0.0,
    eps: float = 1e-8,
) -> tuple[Tensor, AdamState]:
    """Return the new parameter and the new state; `lr` may hold one rate per element.

    >>> theta = torch.tensor([1.0, 1.0])
    >>> adam(theta, torch.tensor([5.0, -2.0]), 0.1, AdamState.zero(theta))[0]
    tensor([0.9000, 1.1000])
    """
    if weight_decay:
        gradient = gradient + weight_decay * parameter
    mean = torch.lerp(state.mean, gradient, 1 - beta1)
    square = beta2 * state.square + (1 - beta2) * gradient * gradient
    step = state.step + 1
    denominator = square.sqrt() / (1 - beta2**step) ** 0.5 + eps
    moved = parameter - lr * (mean / (1 - beta1**step)) / denominator
    return moved, AdamState(mean, square, step)


def sgd(
    parameter: Tensor,
    gradient: Tensor,
    lr: Tensor | float,
    velocity: Tensor | None,
    *,
    momentum: float = 0.9,
    nesterov: bool = True,
    weight_decay: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the new parameter and the new velocity; `velocity` is None before the first step.

    >>> moved, velocity = sgd(torch.tensor([1.0]), torch.tensor([1.0]), 0.1, None)
    >>> moved  # the first Nesterov step is 1.9 times lr
    tensor([0.8100])
    """
    if weight_decay:
        gradient = gradient + weight_decay * parameter
    velocity = gradient.clone() if velocity is None else momentum * velocity + gradient
    direction = gradient + momentum * velocity if nesterov else velocity
    return parameter - lr * direction, velocity
