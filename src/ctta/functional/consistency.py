"""Consistency between the predictions for a batch and for its augmented view (PALM, L^const)."""

from __future__ import annotations

import torch
from torch import Tensor

from ctta.functional.cross_entropy import soft_cross_entropy

__all__ = ["consistency"]


def consistency(logits: Tensor, view_logits: Tensor, *, samples: Tensor | None = None) -> Tensor:
    """Cross-entropy L^const = -sum_c p(l_c) log p(l^_c), averaged over the batch: N x C, N x C -> scalar.

    The gradient flows through both arguments; detach one to stop it there. `samples` (N booleans) restricts
    the average; with none of them set the loss is 0 with a zero gradient.

    >>> round(consistency(torch.zeros(2, 4), torch.zeros(2, 4)).exp().item(), 4)
    4.0
    >>> consistency(torch.zeros(2, 4), torch.zeros(2, 4), samples=torch.tensor([False, False]))
    tensor(0.)
    """
    cross_entropy = soft_cross_entropy(view_logits, logits)
    if samples is None:
        return cross_entropy.mean()
    return torch.where(samples, cross_entropy, 0.0).sum() / samples.sum().clamp(min=1)
