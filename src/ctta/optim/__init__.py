"""Update rules: what torch.optim does not have, and steps of any optimiser that change none of their arguments.

`adam` and `sgd` are torch.optim's steps as functions, because their state is declared and Adam takes one rate per
element (Eq. 7-8 of PALM), which torch.optim.Adam does not. `sign_step` is the first step of a new Adam.
"""

from ctta.optim.adafactor import Adafactor
from ctta.optim.autolr import depth_factors
from ctta.optim.descent import AdamState, adam, sgd
from ctta.optim.lars import Lars
from ctta.optim.prodigy import Prodigy
from ctta.optim.sign import sign_step
from ctta.optim.torch_step import (
    OptimizerState,
    Outcome,
    find_optimizer,
    optimizer_options,
    require_takes,
    torch_step,
)

__all__ = [
    "Adafactor",
    "AdamState",
    "Lars",
    "OptimizerState",
    "Outcome",
    "Prodigy",
    "adam",
    "depth_factors",
    "find_optimizer",
    "optimizer_options",
    "require_takes",
    "sgd",
    "sign_step",
    "torch_step",
]
