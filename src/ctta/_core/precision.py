"""Dtypes and autocast: where half precision may be used and where it may not."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch

from ctta.errors import SettingError

PRECISIONS = ("full", "bf16")  # what a whole run may be computed in


def autocast_on(device_type: str) -> bool:
    """Tell whether the caller runs under autocast for this kind of device."""
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Suspend the caller's autocast, for work that must not be rounded."""
    return torch.autocast(device_type, enabled=False) if autocast_on(device_type) else nullcontext()


@cache
def bf16_pays(device_type: str) -> bool:
    """Tell whether this machine multiplies bfloat16 numbers faster than float32 ones, not just somehow."""
    if device_type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    known = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    used = torch.backends.cpu.get_cpu_capability() == "AVX512"  # a process can be told to do without
    return device_type == "cpu" and used and any(has is not None and has() for has in known)


def bf16_where_it_pays(device_type: str) -> AbstractContextManager[object]:
    """Have convolutions and matrix products work in bfloat16 meanwhile, where that is faster (float64 stays)."""
    return torch.autocast(device_type, torch.bfloat16) if bf16_pays(device_type) else nullcontext()


def check_precision(precision: object) -> None:
    """Refuse what is not the name of a precision."""
    if precision not in PRECISIONS:
        raise SettingError(f"Expected a precision of {' or '.join(PRECISIONS)}, but got {precision!r}.")


def in_precision(precision: str, device_type: str) -> AbstractContextManager[object]:
    """Have all work done in a precision meanwhile, faster or not; in bf16 weights keep their dtype."""
    check_precision(precision)
    full = precision == "full"
    return without_autocast(device_type) if full else torch.autocast(device_type, torch.bfloat16)


def mark(precision: str) -> str:
    """What is put after a name to tell runs in another precision from those in full.

    >>> mark("full"), mark("bf16")
    ('', ' (bf16)')
    """
    return "" if precision == "full" else f" ({precision})"
