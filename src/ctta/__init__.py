"""ctta: continual test-time adaptation for PyTorch classifiers."""

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
    "list_methods",
    "load",
]
