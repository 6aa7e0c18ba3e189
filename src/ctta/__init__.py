"""ctta: continual test-time adaptation for PyTorch classifiers."""

import importlib
from typing import TYPE_CHECKING, Any

from ctta._core.inputs import RangeWarning
from ctta._core.report import Report
from ctta._version import __version__
from ctta.adapter import Adapter, adapt, load
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
from ctta.methods import MethodEntry, list_methods

__all__ = [
    "Adapter", "AugmentError", "ConformanceError", "CttaError", "DataError", "InputError", "MethodEntry",
    "ModelError", "RangeWarning", "Report", "SettingError", "StateError", "StoreError", "UnsupportedModelError",
    "__version__", "adapt", "corrupt", "evaluate", "keep_freed_memory", "list_methods", "load",
]  # fmt: skip

_LAZY = {"checks", "corruptions", "data", "models", "report", "streams"}
"""Packages that are imported when they are first used, as `ctta.models`."""

_LAZY_NAMES = {"corrupt": "corruptions", "evaluate": "bench.evaluation", "keep_freed_memory": "_cost.allocator"}
"""Functions that are imported when they are first used, and where they are."""

if TYPE_CHECKING:
    from ctta._cost.allocator import keep_freed_memory
    from ctta.bench.evaluation import evaluate
    from ctta.corruptions import corrupt


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"ctta.{name}")
    if name in _LAZY_NAMES:
        return getattr(importlib.import_module(f"ctta.{_LAZY_NAMES[name]}"), name)
    raise AttributeError(f"module 'ctta' has no attribute {name!r}")
