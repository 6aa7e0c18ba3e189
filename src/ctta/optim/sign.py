"""The first step of a new Adam, in closed form.

The official PALM and LAW code builds a new Adam for every batch. At its first step the bias corrections
cancel: m^ = g and sqrt(v^) = |g|, whatever the betas. What remains is descent by the sign of the gradient.
"""

from __future__ import annotations

from torch import Tensor


def sign_step(
    parameter: Tensor,
    gradient: Tensor,
    lr: Tensor | float,
    *,
    weight_decay: float = 0.0,
    eps: float = 1e-8,
) -> Tensor:
    """Return theta - lr * g / (|g| + eps), where g = gradient + weight_decay * theta.

    `lr` is a number, or a tensor that broadcasts to the parameter (one rate per element).

    >>> import torch
    >>> sign_step(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([20.0, -0.3, 0.0]), lr=0.25)
    tensor([0.7500, 1.2500, 1.0000])
    """
    if weight_decay:
        gradient = gradient + weight_decay * parameter
    return parameter - lr * (gradient / (gradient.abs() + eps))
