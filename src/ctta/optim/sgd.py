"""Gradient descent with momentum, one tensor at a time (as torch.optim.SGD)."""

from __future__ import annotations

from torch import Tensor


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

    >>> import torch
    >>> moved, velocity = sgd(torch.tensor([1.0]), torch.tensor([1.0]), 0.1, None)
    >>> moved  # the first Nesterov step is 1.9 times lr
    tensor([0.8100])
    """
    if weight_decay:
        gradient = gradient + weight_decay * parameter
    velocity = gradient.clone() if velocity is None else momentum * velocity + gradient
    direction = gradient + momentum * velocity if nesterov else velocity
    return parameter - lr * direction, velocity
