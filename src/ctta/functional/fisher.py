"""Layer weights from the Fisher information (LAW): the more a layer matters to its own answers, the faster."""

from __future__ import annotations

import torch
from torch import Tensor

WEIGHT_EPS = 1e-8


def fisher_weights(values: Tensor, tau: float, eps: float = WEIGHT_EPS) -> Tensor:
    """Scale one value per layer to [0, 1) and raise it to tau: w = ((v - min) / (max - min + eps))^tau.

    The smallest gets 0 and the largest just under 1; values that are all equal give 0 everywhere.

    >>> fisher_weights(torch.tensor([1.0, 3.0, 5.0]), tau=1.0)
    tensor([0.0000, 0.5000, 1.0000])
    >>> fisher_weights(torch.tensor([2.0, 2.0]), tau=1.0)
    tensor([0., 0.])
    """
    low, high = torch.aminmax(values)
    return ((values - low) / (high - low + eps)) ** tau
