"""Prediction entropy, and entropy over the samples that are sure enough (PALM, "Optimization")."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor


def softmax_entropy(logits: Tensor) -> Tensor:
    """Entropy of each prediction, H(l) = -sum_c p(l_c) log p(l_c), in nats: N x C -> N.

    Written with log_softmax, so that finite logits of any size give a finite entropy.

    >>> round(softmax_entropy(torch.zeros(1, 4)).exp().item(), 4)
    4.0
    >>> softmax_entropy(torch.tensor([[1000.0, 0.0]])).abs()
    tensor([0.])
    """
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


class FilteredEntropy(NamedTuple):
    """The filtered loss (a scalar) and which samples it kept (N booleans)."""

    loss: Tensor
    kept: Tensor


def filtered_entropy(
    logits: Tensor,
    margin: float,
    *,
    reduction: Literal["kept", "batch"] = "kept",
    compare: Literal["<", "<="] = "<",
) -> FilteredEntropy:
    """Entropy of the samples below a margin, the paper's L^entropy = 1[H(l) <= H_0] H(l).

    `reduction` "kept" averages over the kept samples (the official code), "batch" over all of them (the
    formula read literally). With nothing kept the loss is 0 with a zero gradient, never NaN.

    >>> logits = torch.tensor([[9.0, 0.0], [0.0, 0.0]])
    >>> filtered_entropy(logits, margin=0.4).kept
    tensor([ True, False])
    >>> filtered_entropy(logits, margin=0.0).loss
    tensor(0.)
    >>> kept, batch = (filtered_entropy(logits, 0.4, reduction=r).loss for r in ("kept", "batch"))
    >>> bool(torch.isclose(kept, 2 * batch))
    True
    """
    entropy = softmax_entropy(logits)
    kept = entropy <= margin if compare == "<=" else entropy < margin
    total = torch.where(kept, entropy, 0.0).sum()
    count = kept.sum().clamp(min=1) if reduction == "kept" else len(entropy)
    return FilteredEntropy(total / count, kept)
