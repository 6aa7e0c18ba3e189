"""Dtypes and autocast: where half precision may be used and where it may not."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def wide(tensor: Tensor) -> Tensor:
    """Return the tensor in float32 or wider: constants like 1e-8 and small steps do not survive half precision."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def autocast_on(device_type: str) -> bool:
    """Tell whether the caller runs under autocast for this kind of device."""
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Suspend the caller's autocast, for work that must not be rounded."""
    return torch.autocast(device_type, enabled=False) if autocast_on(device_type) else nullcontext()
