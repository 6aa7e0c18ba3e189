"""How far predictions are from uniform: the label-free loss of PALM's layer selection (Eq. 1 and 2)."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor


def uniform_kl(
    logits: Tensor,
    temperature: float = 1.0,
    *,
    target_scale: Literal["ones", "uniform"] = "uniform",
    direction: Literal["u||p", "p||u"] = "u||p",
    reduction: Literal["mean", "sum"] = "mean",
) -> Tensor:
    """Kullback-Leibler divergence between softmax(l / T) and the uniform distribution: N x C -> scalar.

    `direction` "u||p" is KL(u || p), whose gradient is Eq. 2 (mean cross-entropy over all classes) and what
    the official code computes; "p||u" is Eq. 1 as printed. The two agree for large T. `target_scale` "ones"
    multiplies by the number of classes: the official code's target is a vector of ones, not of 1/C.

    >>> import torch
    >>> uniform_kl(torch.zeros(2, 5))
    tensor(0.)
    >>> logits = torch.tensor([[2.0, 0.0, -1.0]])
    >>> bool(torch.isclose(uniform_kl(logits, target_scale="ones"), 3 * uniform_kl(logits)))
    True
    """
    log_p = (logits / temperature).log_softmax(1)
    classes = logits.shape[1]
    if direction == "u||p":
        divergence = -log_p.mean(1) - math.log(classes)
    else:
        divergence = (log_p.exp() * log_p).sum(1) + math.log(classes)
    total = divergence.mean() if reduction == "mean" else divergence.sum()
    return total * classes if target_scale == "ones" else total
