"""The mathematics of the methods as pure functions of tensors."""

from ctta.functional.features import info_nce, neighbour_vote
from ctta.functional.fisher import fisher_weights
from ctta.functional.losses import (
    FilteredEntropy,
    complementary_classes,
    consistency,
    diversity,
    filtered_entropy,
    negative_learning,
    pseudo_label_loss,
    soft_cross_entropy,
    softmax_entropy,
    symmetric_cross_entropy,
    uniform_kl,
)
from ctta.functional.sensitivity import deviation, gradient_score, importance, moving_average, sensitivity

__all__ = [
    "FilteredEntropy",
    "complementary_classes",
    "consistency",
    "deviation",
    "diversity",
    "filtered_entropy",
    "fisher_weights",
    "gradient_score",
    "importance",
    "info_nce",
    "moving_average",
    "negative_learning",
    "neighbour_vote",
    "pseudo_label_loss",
    "sensitivity",
    "soft_cross_entropy",
    "softmax_entropy",
    "symmetric_cross_entropy",
    "uniform_kl",
]
