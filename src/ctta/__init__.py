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
    StoreError,
    UnsupportedModelError,
)
from ctta.inputs import RangeWarning
from ctta.last import Report
from ctta.methods import MethodEntry, list_methods

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
    "StoreError",
    "UnsupportedModelError",
    "__version__",
    "adapt",
    "corrupt",
    "evaluate",
    "list_methods",
    "load",
]

_LAZY = {"allocator", "checks", "corruptions", "data", "models", "report", "streams"}
"""Packages that are imported when they are first used, as `ctta.models`."""

_LAZY_NAMES = {"corrupt": "corruptions", "evaluate": "evaluation"}
"""Functions that are imported when they are first used, and where they are."""

if TYPE_CHECKING:
    from ctta.corruptions import corrupt
    from ctta.evaluation import evaluate


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"ctta.{name}")
    if name in _LAZY_NAMES:
        return getattr(importlib.import_module(f"ctta.{_LAZY_NAMES[name]}"), name)
    raise AttributeError(f"module 'ctta' has no attribute {name!r}")
