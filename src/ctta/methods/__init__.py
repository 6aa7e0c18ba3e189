"""The methods, one file each, and what is needed to write another."""

from ctta.methods.base import Method
from ctta.methods.kept import Kept, buffer, generator, network, per_tensor, scalar
from ctta.methods.registry import MethodEntry, find, list_methods, register
from ctta.methods.state import State
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
