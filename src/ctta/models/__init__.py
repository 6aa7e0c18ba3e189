"""Source models: architectures, checkpoint formats, and explicit sources of weights."""

from ctta.models.normalise import Normalise, Normalised
from ctta.models.resnet import CifarResNet, ResNet
from ctta.models.resnext import ResNeXt29
from ctta.models.weights import read_weights, weight_hash
from ctta.models.wrn import WideResNet
from ctta.models.zoo import build, load

__all__ = [
    "CifarResNet",
    "Normalise",
    "Normalised",
    "ResNeXt29",
    "ResNet",
    "WideResNet",
    "build",
    "load",
    "read_weights",
    "weight_hash",
]
