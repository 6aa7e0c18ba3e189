"""Learning from what a sample is not: lower the probability of classes a teacher rules out (DSS)."""

from __future__ import annotations

import torch
from torch import Tensor


def complementary_classes(probabilities: Tensor, threshold: float) -> Tensor:
    """Which classes are ruled out: those below the threshold, and always the least likely: N x C -> booleans.

    >>> complementary_classes(torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25]]), 0.2)
    tensor([[False, False,  True],
            [False, False,  True]])
    """
    least = torch.zeros_like(probabilities, dtype=torch.bool).scatter_(
        1, probabilities.argmin(1, keepdim=True), True
    )
    return (probabilities < threshold) | least


def negative_learning(logits: Tensor, classes: Tensor, eps: float = 1e-8) -> Tensor:
    """Mean of -log(1 - p_c + eps) over the classes ruled out (N x C booleans): N x C -> N.

    >>> negative_learning(torch.zeros(1, 4), torch.tensor([[False, True, True, False]])).neg().exp()
    tensor([0.7500])
    """
    terms = -(1.0 - logits.softmax(1) + eps).log()
    return torch.where(classes, terms, 0.0).sum(1) / classes.sum(1).clamp(min=1)
