"""Cross-entropy with the model's own answer as the label, the usual loss where there are no labels."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn import functional as F


def pseudo_label_loss(
    logits: Tensor, temperature: float = 1.0, *, reduction: Literal["mean", "sum", "none"] = "mean"
) -> Tensor:
    """Cross-entropy -log softmax(l / T) of the class with the largest logit: N x C -> scalar, or N.

    >>> import torch
    >>> round(pseudo_label_loss(torch.tensor([[0.0, 0.0], [3.0, 0.0]])).item(), 4)  # (log 2 + log(1 + e^-3)) / 2
    0.3709
    """
    return F.cross_entropy(logits / temperature, logits.detach().argmax(1), reduction=reduction)
