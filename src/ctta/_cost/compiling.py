"""torch.compile for the network of a method: on where it works, plain where it does not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

from torch import nn

from ctta.errors import ModelError

T = TypeVar("T")


def is_compiled(model: nn.Module) -> bool:
    """Tell whether calls of the model go through torch.compile. A copy of a compiled model does not."""
    return model._compiled_call_impl is not None


def run_compiled(model: nn.Module, call: Callable[[], T]) -> T:
    """Make a call with the model compiled; the first one compiles.

    A model that cannot be compiled (no C++ compiler, code that torch.compile does not understand) runs as it is
    from then on, with a warning: `call` raises ModelError only where the plain model does too.
    """
    if is_compiled(model):
        return call()
    model.compile()
    try:
        return call()
    except ModelError as error:
        model._compiled_call_impl = None
        result = call()
        model._compiled_call_impl = model._call_impl  # plain from now on, and not tried again
        reason = " ".join(str(error.__cause__ or error).split("\n")[:2])  # the rest is advice on debugging
        warnings.warn(
            f"torch.compile cannot compile {type(model).__name__}, which runs without it: {reason}", stacklevel=2
        )
        return result
