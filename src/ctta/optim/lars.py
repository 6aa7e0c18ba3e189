"""LARS: a learning rate for each tensor from the norms of the tensor and its gradient (You et al., 2017)."""

from __future__ import annotations

import torch
from torch import Tensor


def lars_rate(
    parameter: Tensor,
    gradient: Tensor,
    lr: float,
    *,
    weight_decay: float = 0.0,
    trust: float = 1e-3,
    skip_1d: bool = False,
    eps: float = 1e-9,
) -> Tensor:
    """Learning rate of one tensor, lr * trust ||w|| / (||g|| + wd ||w|| + eps): any shape -> scalar.

    It is plain `lr` where either norm is 0, and with `skip_1d` for tensors of fewer than two dimensions.

    >>> lars_rate(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0]), 1.0)
    tensor(0.0025)
    """
    whole = parameter.new_full((), lr)
    if skip_1d and parameter.dim() < 2:
        return whole
    w, g = torch.linalg.vector_norm(parameter), torch.linalg.vector_norm(gradient)
    return torch.where((w > 0) & (g > 0), lr * trust * w / (g + weight_decay * w + eps), whole)


def lars(
    parameter: Tensor,
    gradient: Tensor,
    lr: float,
    velocity: Tensor | None,
    *,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    trust: float = 1e-3,
    skip_1d: bool = False,
    eps: float = 1e-9,
) -> tuple[Tensor, Tensor]:
    """Return the new parameter and the new velocity; `velocity` is None before the first step.

    The rate is part of the velocity, as in the paper. `skip_1d` leaves biases and the scales of norm layers to
    plain momentum without weight decay, as most implementations do.

    >>> lars(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0]), 1.0, None)[0]
    tensor([3.0000, 3.9950])
    """
    rate = lars_rate(parameter, gradient, lr, weight_decay=weight_decay, trust=trust, skip_1d=skip_1d, eps=eps)
    if weight_decay and not (skip_1d and parameter.dim() < 2):
        gradient = gradient + weight_decay * parameter
    velocity = rate * gradient if velocity is None else momentum * velocity + rate * gradient
    return parameter - velocity, velocity
