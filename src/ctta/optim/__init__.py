"""Update rules as functions that return new values: they change nothing, so a step can be refused."""

from ctta.optim.adafactor import (
    AdafactorState,
    adafactor,
    adafactor_rate,
    torch_adafactor,
    torch_adafactor_rate,
)
from ctta.optim.adam import AdamState, adam
from ctta.optim.autolr import depth_factors
from ctta.optim.lars import lars, lars_rate
from ctta.optim.prodigy import ProdigyState, prodigy
from ctta.optim.sgd import sgd
from ctta.optim.sign import sign_step
from ctta.optim.torch_step import OptimizerState, torch_optimizer, torch_step

__all__ = [
    "AdafactorState",
    "AdamState",
    "OptimizerState",
    "ProdigyState",
    "adafactor",
    "adafactor_rate",
    "adam",
    "depth_factors",
    "lars",
    "lars_rate",
    "prodigy",
    "sgd",
    "sign_step",
    "torch_adafactor",
    "torch_adafactor_rate",
    "torch_optimizer",
    "torch_step",
]
