"""The mathematics of the methods as pure functions of tensors, one idea a file."""

from ctta.functional.consistency import consistency
from ctta.functional.contrast import info_nce
from ctta.functional.diversity import diversity
from ctta.functional.entropy import FilteredEntropy, filtered_entropy, softmax_entropy
from ctta.functional.neighbours import neighbour_vote
from ctta.functional.pseudo_label import pseudo_label_loss
from ctta.functional.sensitivity import (
    deviation,
    gradient_score,
    importance,
    moving_average,
    sensitivity,
)
from ctta.functional.uniform_kl import uniform_kl

__all__ = [
    "FilteredEntropy",
    "consistency",
    "deviation",
    "diversity",
    "filtered_entropy",
    "gradient_score",
    "importance",
    "info_nce",
    "moving_average",
    "neighbour_vote",
    "pseudo_label_loss",
    "sensitivity",
    "softmax_entropy",
    "uniform_kl",
]
