"""Predictions by vote of the nearest neighbours in a bank of features."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["neighbour_vote"]


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
