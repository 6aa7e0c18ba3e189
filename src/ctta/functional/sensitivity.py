"""Parameter sensitivity and the learning rate it gives (PALM, Eq. 4 to 7).

Notation of the paper: S sensitivity, S^ its moving average ("domain-level"), D^ deviation, i importance; the
learning rate of an element is kappa * i (Eq. 8). Everything is element by element, for many tensors at once:
grouped operations spare a device a small one for each tensor of a network.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

EPS = 1e-8
"""Keeps Eq. 7 defined where nothing was sensitive so far."""


def gradient_score(gradient: Tensor) -> Tensor:
    """Score of one tensor, Z = || gradient ||_1 (below Eq. 2): any shape -> scalar.

    >>> gradient_score(torch.tensor([[1.0, -2.0], [0.5, 0.0]]))
    tensor(3.5000)
    """
    return gradient.abs().sum()


def sensitivity(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
    """First-order change of the loss when an element is removed, S = |theta * gradient| (Eq. 4).

    >>> sensitivity([torch.tensor([2.0, 0.0])], [torch.tensor([-3.0, 5.0])])
    [tensor([6., 0.])]
    """
    return list(torch._foreach_abs(torch._foreach_mul(list(parameters), list(gradients))))


def moving_average(previous: Sequence[Tensor], current: Sequence[Tensor], alpha: float) -> list[Tensor]:
    """Domain-level sensitivity, S^ = alpha S + (1 - alpha) S^_previous (Eq. 5).

    >>> moving_average([torch.zeros(1)], [torch.tensor([4.0])], alpha=0.5)
    [tensor([2.])]
    """
    average = torch._foreach_mul(list(previous), 1.0 - alpha)
    torch._foreach_add_(average, list(current), alpha=alpha)
    return list(average)


def deviation(current: Sequence[Tensor], average: Sequence[Tensor]) -> list[Tensor]:
    """How far the batch is from what was seen, D^ = |S - S^| with the new average (Eq. 6).

    >>> deviation([torch.tensor([4.0])], [torch.tensor([1.0])])
    [tensor([3.])]
    """
    return list(torch._foreach_abs(torch._foreach_sub(list(current), list(average))))


def importance(difference: Sequence[Tensor], average: Sequence[Tensor], eps: float = EPS) -> list[Tensor]:
    """Factor on the base learning rate, i = (D^ + eps) / (S^ + eps) (Eq. 7).

    At most max(1, (1 - alpha) / alpha) when both come from the functions above.

    >>> importance([torch.tensor([3.0])], [torch.tensor([6.0])])
    [tensor([0.5000])]
    """
    found = torch._foreach_add(list(difference), eps)
    torch._foreach_div_(found, torch._foreach_add(list(average), eps))
    return list(found)
