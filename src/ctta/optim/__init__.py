"""Update rules as functions that return new values: they change nothing, so a step can be refused."""

from ctta.optim.adam import AdamState, adam
from ctta.optim.sgd import sgd
from ctta.optim.sign import sign_step

__all__ = ["AdamState", "adam", "sgd", "sign_step"]
