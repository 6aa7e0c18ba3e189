"""Diversity of the predictions for a batch: the mean prediction should not collapse onto few classes."""

from __future__ import annotations

from torch import Tensor

__all__ = ["diversity"]


def diversity(logits: Tensor, *, eps: float = 1e-8) -> Tensor:
    """Negative entropy of the mean prediction p, sum_c p_c log(p_c + eps): N x C -> scalar.

    >>> import torch
    >>> round(diversity(torch.zeros(3, 4)).item(), 4)  # -log 4
    -1.3863
    """
    mean = logits.softmax(1).mean(0)
    return (mean * (mean + eps).log()).sum()
