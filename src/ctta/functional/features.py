"""Features: contrast between them, and predictions by vote of their nearest neighbours."""

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


def neighbour_vote(
    features: Tensor, bank: Tensor, probabilities: Tensor, *, count: int, chunk: int = 64
) -> Tensor:
    """Mean probabilities of the `count` entries nearest by cosine: N x D, M x D, M x C -> N x C.

    Features and bank have rows of unit length. `chunk` queries are compared at a time, which bounds the memory.

    >>> vote = neighbour_vote(torch.eye(2), torch.eye(2), torch.tensor([[0.9, 0.1], [0.2, 0.8]]), count=1)
    >>> vote.argmax(1)
    tensor([0, 1])
    """
    votes = [
        probabilities[(part @ bank.T).topk(min(count, len(bank)), dim=1).indices].mean(1)
        for part in torch.split(features, chunk)
    ]
    return torch.cat(votes)
