"""Parameter sensitivity and the learning rate it gives (PALM, Eq. 4 to 7). All element by element.

Notation of the paper: S sensitivity, S^ its moving average ("domain-level"), D^ deviation, i importance;
the learning rate of an element is kappa * i (Eq. 8).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def gradient_score(gradient: Tensor) -> Tensor:
    """Score of one tensor, Z = || gradient ||_1 (below Eq. 2): any shape -> scalar.

    >>> import torch
    >>> gradient_score(torch.tensor([[1.0, -2.0], [0.5, 0.0]]))
    tensor(3.5000)
    """
    return gradient.abs().sum()


def sensitivity(parameter: Tensor, gradient: Tensor) -> Tensor:
    """First-order change of the loss when an element is removed, S = |theta * gradient| (Eq. 4).

    >>> import torch
    >>> sensitivity(torch.tensor([2.0, 0.0]), torch.tensor([-3.0, 5.0]))
    tensor([6., 0.])
    """
    return (parameter * gradient).abs()


def moving_average(previous: Tensor | float, current: Tensor, alpha: float) -> Tensor:
    """Domain-level sensitivity, S^ = alpha S + (1 - alpha) S^_previous (Eq. 5).

    >>> import torch
    >>> moving_average(0.0, torch.tensor([4.0]), alpha=0.5)
    tensor([2.])
    """
    return alpha * current + (1.0 - alpha) * previous


def deviation(current: Tensor, average: Tensor) -> Tensor:
    """How far the batch is from what was seen, D^ = |S - S^| with the new average (Eq. 6).

    >>> import torch
    >>> deviation(torch.tensor([4.0]), torch.tensor([1.0]))
    tensor([3.])
    """
    return (current - average).abs()


def importance(difference: Tensor, average: Tensor, eps: float = 1e-8) -> Tensor:
    """Factor on the base learning rate, i = (D^ + eps) / (S^ + eps) (Eq. 7).

    At most max(1, (1 - alpha) / alpha) when both come from the functions above.

    >>> import torch
    >>> importance(torch.tensor([3.0]), torch.tensor([6.0]))
    tensor([0.5000])
    """
    return (difference + eps) / (average + eps)


def importances(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    averages: Sequence[Tensor],
    *,
    alpha: float,
    eps: float = 1e-8,
) -> tuple[list[Tensor], list[Tensor]]:
    """New averages S^ and importances i of many tensors in a few grouped operations (Eq. 4 to 7).

    `averages` are those of the batch before; none of the arguments changes.

    >>> new, i = importances([torch.tensor([2.0])], [torch.tensor([-3.0])], [torch.tensor([0.0])], alpha=0.5)
    >>> new, i
    ([tensor([3.])], [tensor([1.])])
    """
    if not parameters:
        return [], []
    current = torch._foreach_mul(list(parameters), list(gradients))  # Eq. 4
    torch._foreach_abs_(current)
    new = torch._foreach_mul(list(averages), 1.0 - alpha)  # Eq. 5
    torch._foreach_add_(new, current, alpha=alpha)
    torch._foreach_sub_(current, new)  # Eq. 6
    torch._foreach_abs_(current)
    torch._foreach_add_(current, eps)  # Eq. 7
    torch._foreach_div_(current, torch._foreach_add(new, eps))
    return list(new), list(current)
