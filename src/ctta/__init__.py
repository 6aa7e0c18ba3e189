"""ctta: continual test-time adaptation for PyTorch classifiers."""

import importlib
from typing import TYPE_CHECKING, Any

from ctta._version import __version__
from ctta.adapt import Adapter, adapt, load
from ctta.errors import (
    AugmentError,
    ConformanceError,
    CttaError,
    DataError,
    InputError,
    ModelError,
    SettingError,
    StateError,
    UnsupportedModelError,
)
from ctta.inputs import RangeWarning
from ctta.methods import MethodEntry, list_methods
from ctta.report import Report

__all__ = [
    "Adapter",
    "AugmentError",
    "ConformanceError",
    "CttaError",
    "DataError",
    "InputError",
    "MethodEntry",
    "ModelError",
    "RangeWarning",
    "Report",
    "SettingError",
    "StateError",
    "UnsupportedModelError",
    "__version__",
    "adapt",
    "corrupt",
    "list_methods",
    "load",
]

_LAZY = {"checks", "corruptions", "data", "models", "streams"}
"""Packages that are imported when they are first used, as `ctta.models`."""

if TYPE_CHECKING:
    from ctta.corruptions import corrupt


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"ctta.{name}")
    if name == "corrupt":
        return importlib.import_module("ctta.corruptions").corrupt
    raise AttributeError(f"module 'ctta' has no attribute {name!r}")
