"""Copies of networks, also of those that keep tensors from their last forward pass."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from ctta.errors import ModelError


def copy_network(model: nn.Module, advice: str) -> nn.Module:
    """Return a deep copy; a model that allows none is refused with the advice."""
    try:
        return copy.deepcopy(model, cached_tensors(model))
    except (RuntimeError, TypeError) as error:
        raise ModelError(f"{type(model).__name__} cannot be copied ({error}). {advice}.") from error


def cached_tensors(model: nn.Module) -> dict[int, Any]:
    """Detached copies of tensors that modules keep from a forward pass, which deepcopy alone would refuse."""
    return {
        id(value): value.detach().clone()
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }
