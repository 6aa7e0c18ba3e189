"""Contrast between features: a query belongs with its key and apart from a set of negatives (InfoNCE)."""

from __future__ import annotations

import torch
from torch import Tensor


def info_nce(
    query: Tensor, key: Tensor, negatives: Tensor, *, temperature: float, masked: Tensor | None = None
) -> Tensor:
    """Cross-entropy of picking each query's key among key and negatives: N x D, N x D, M x D -> N.

    All rows have unit length. `masked` (N x M booleans) leaves negatives out; a row without any has loss 0.

    >>> one, other = torch.eye(2)[:1], torch.eye(2)[1:]
    >>> round(info_nce(one, one, other, temperature=1.0).item(), 4)  # log(1 + exp(-1))
    0.3133
    >>> info_nce(one, one, other, temperature=1.0, masked=torch.tensor([[True]]))
    tensor([0.])
    """
    scaled = query / temperature
    agreement = (scaled * key).sum(1, keepdim=True)
    disagreement = scaled @ negatives.T
    if masked is not None:
        disagreement = disagreement.masked_fill(masked, -torch.inf)
    return torch.cat([agreement, disagreement], 1).logsumexp(1) - agreement[:, 0]
