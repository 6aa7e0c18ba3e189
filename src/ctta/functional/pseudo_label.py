"""The loss of a model's own answer, as if that answer were right (LAW)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def pseudo_label_nll(logits: Tensor) -> Tensor:
    """Negative log-likelihood of the class with the largest logit, -log p_y^: N x C -> N.

    >>> import torch
    >>> round(pseudo_label_nll(torch.zeros(1, 4)).exp().item(), 4)
    4.0
    """
    return F.cross_entropy(logits, logits.argmax(1), reduction="none")
