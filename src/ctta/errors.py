"""Every exception ctta raises.

CttaError
├── SettingError, InputError, AugmentError, StateError, DataError, StoreError, ConformanceError
├── ModelError
│   └── UnsupportedModelError
└── NonFiniteError: raised inside a step to have it undone, callers of an adapter never see it
"""

from __future__ import annotations


class CttaError(Exception):
    """Base of every error ctta raises on purpose."""


class SettingError(CttaError, ValueError):
    """A method, preset, variant or setting does not exist or does not fit."""


class InputError(CttaError, ValueError):
    """A batch was refused before it could change anything."""


class ModelError(CttaError, RuntimeError):
    """The model failed on a batch, or does not map a batch to logits."""


class UnsupportedModelError(ModelError):
    """The method cannot adapt this model: it lacks the layers the method needs."""


class AugmentError(CttaError, ValueError):
    """An augmentation cannot take the batch, or returned something unusable."""


class StateError(CttaError, RuntimeError):
    """Saved state is missing, damaged, or belongs to another model, method or version."""


class DataError(CttaError, RuntimeError):
    """A data file or download is missing, damaged, or not what it should be."""


class StoreError(CttaError, RuntimeError):
    """A store of results cannot be read or written."""


class ConformanceError(CttaError, AssertionError):
    """A method breaks one of the promises `ctta.checks` tests."""


class NonFiniteError(CttaError, ArithmeticError):
    """Something in this step is NaN or infinite: the adapter undoes the step and reports why."""
