"""Losses of predictions without labels: how sure, how alike, how far from uniform, how many classes."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


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
) -> FilteredEntropy:
    """Entropy of the samples below a margin, the paper's L^entropy = 1[H(l) <= H_0] H(l) (Eq. 9).

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
    kept = entropy < margin
    total = torch.where(kept, entropy, 0.0).sum()
    count = kept.sum().clamp(min=1) if reduction == "kept" else len(entropy)
    return FilteredEntropy(total / count, kept)


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


def pseudo_label_loss(
    logits: Tensor, temperature: float = 1.0, *, reduction: Literal["mean", "sum", "none"] = "mean"
) -> Tensor:
    """Cross-entropy -log softmax(l / T) of the class with the largest logit: N x C -> scalar, or N.

    >>> round(pseudo_label_loss(torch.tensor([[0.0, 0.0], [3.0, 0.0]])).item(), 4)  # (log 2 + log(1 + e^-3)) / 2
    0.3709
    """
    return F.cross_entropy(logits / temperature, logits.detach().argmax(1), reduction=reduction)


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy to another prediction, -sum_c p(t_c) log p(l_c): N x C, N x C -> N.

    Both are logits, and the gradient flows through both: detach the target where it is a constant.

    >>> round(soft_cross_entropy(torch.zeros(1, 4), torch.randn(1, 4)).exp().item(), 4)
    4.0
    """
    return -(target.softmax(1) * logits.log_softmax(1)).sum(1)


def symmetric_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean of the cross-entropies in both directions: N x C, N x C -> N.

    >>> a, b = torch.randn(2, 1, 4)
    >>> bool(torch.isclose(symmetric_cross_entropy(a, b), symmetric_cross_entropy(b, a)))
    True
    """
    return 0.5 * soft_cross_entropy(logits, target) + 0.5 * soft_cross_entropy(target, logits)


def consistency(logits: Tensor, view_logits: Tensor, *, samples: Tensor | None = None) -> Tensor:
    """Cross-entropy L^const = -sum_c p(l_c) log p(l^_c), averaged over the batch: N x C, N x C -> scalar.

    The gradient flows through both arguments; detach one to stop it there. `samples` (N booleans) restricts
    the average; with none of them set the loss is 0 with a zero gradient.

    >>> round(consistency(torch.zeros(2, 4), torch.zeros(2, 4)).exp().item(), 4)
    4.0
    >>> consistency(torch.zeros(2, 4), torch.zeros(2, 4), samples=torch.tensor([False, False]))
    tensor(0.)
    """
    cross_entropy = soft_cross_entropy(view_logits, logits)
    if samples is None:
        return cross_entropy.mean()
    return torch.where(samples, cross_entropy, 0.0).sum() / samples.sum().clamp(min=1)


def diversity(logits: Tensor, *, eps: float = 1e-8) -> Tensor:
    """Negative entropy of the mean prediction p, sum_c p_c log(p_c + eps): N x C -> scalar.

    >>> round(diversity(torch.zeros(3, 4)).item(), 4)  # -log 4
    -1.3863
    """
    mean = logits.softmax(1).mean(0)
    return (mean * (mean + eps).log()).sum()


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
