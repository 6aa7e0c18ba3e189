"""Source models: architectures, checkpoint formats, and explicit sources of weights."""

from ctta.models.networks import CifarResNet, Normalise, Normalised, ResNet, ResNeXt29, WideResNet
from ctta.models.stages import Stages, find_stages
from ctta.models.weights import read_weights, weight_hash
from ctta.models.zoo import build, load

__all__ = [
    "CifarResNet",
    "Normalise",
    "Normalised",
    "ResNeXt29",
    "ResNet",
    "Stages",
    "WideResNet",
    "build",
    "find_stages",
    "load",
    "read_weights",
    "weight_hash",
]
