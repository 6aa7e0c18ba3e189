"""Cross-entropy between two predictions, one way or both ways (CoTTA and its heirs)."""

from __future__ import annotations

from torch import Tensor


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy to another prediction, -sum_c p(t_c) log p(l_c): N x C, N x C -> N.

    Both are logits, and the gradient flows through both: detach the target where it is a constant.

    >>> import torch
    >>> round(soft_cross_entropy(torch.zeros(1, 4), torch.randn(1, 4)).exp().item(), 4)
    4.0
    """
    return -(target.softmax(1) * logits.log_softmax(1)).sum(1)


def symmetric_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean of the cross-entropies in both directions: N x C, N x C -> N.

    >>> import torch
    >>> a, b = torch.randn(2, 1, 4)
    >>> bool(torch.isclose(symmetric_cross_entropy(a, b), symmetric_cross_entropy(b, a)))
    True
    """
    return 0.5 * soft_cross_entropy(logits, target) + 0.5 * soft_cross_entropy(target, logits)
