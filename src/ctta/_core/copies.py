"""Copies of networks, also of those that keep tensors from their last forward pass."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ctta.errors import ModelError

T = TypeVar("T")


class _WithoutGraph(TorchFunctionMode):
    """Has deepcopy copy tensors that belong to a graph, which torch refuses, as constants."""

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0].detach().clone()  # deepcopy itself writes it down as the copy of this tensor
        return func(*args, **(kwargs or {}))


def deep_copy(value: T, memo: dict[int, Any] | None = None) -> T:
    """Copy a value with all that it holds; tensors with a graph come without it."""
    with _WithoutGraph():
        return copy.deepcopy(value, memo)


def copy_network(model: nn.Module, advice: str) -> nn.Module:
    """Return a deep copy; a model that allows none is refused with the advice."""
    try:
        return deep_copy(model)
    except Exception as error:
        raise ModelError(f"{type(model).__name__} cannot be copied ({error}). {advice}.") from error
