"""The methods, one file each, and what is needed to write another."""

from ctta._core.kept import Kept, buffer, generator, network, per_tensor, scalar
from ctta._core.method import Method
from ctta._core.registry import MethodEntry, find, list_methods, register
from ctta._core.state import State
from ctta.settings import setting

__all__ = [
    "Kept",
    "Method",
    "MethodEntry",
    "State",
    "buffer",
    "find",
    "generator",
    "list_methods",
    "network",
    "per_tensor",
    "register",
    "scalar",
    "setting",
]
