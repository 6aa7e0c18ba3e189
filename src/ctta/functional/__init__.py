"""The mathematics of the methods as pure functions of tensors, one idea a file."""

from ctta.functional.consistency import consistency
from ctta.functional.contrast import info_nce
from ctta.functional.cross_entropy import soft_cross_entropy, symmetric_cross_entropy
from ctta.functional.diversity import diversity
from ctta.functional.entropy import FilteredEntropy, filtered_entropy, softmax_entropy
from ctta.functional.fisher import fisher_weights
from ctta.functional.negative_learning import complementary_classes, negative_learning
from ctta.functional.neighbours import neighbour_vote
from ctta.functional.pseudo_label import pseudo_label_loss
from ctta.functional.sensitivity import (
    deviation,
    gradient_score,
    importance,
    importances,
    moving_average,
    sensitivity,
)
from ctta.functional.uniform_kl import uniform_kl

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
    "importances",
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
