"""Declared state: a method says once, in its class body, what it keeps from batch to batch.

::

    class Palm(Method[PalmSettings]):
        average: dict[str, Tensor] = per_tensor("Moving average of the sensitivity.")
        temperature: float = scalar(lambda m: m.settings.temperature, "The temperature in force.")

Declared names are ordinary attributes of the method, which it can start anew, save, load, copy, move and undo
(`ctta._core.state`). `init` is called with the method, when it is built. `check` is called with the method once a
saved state was loaded, and says whether it can be gone on from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Init = Callable[[Any], Any]
Check = Callable[[Any], bool]


@dataclass(frozen=True)
class Kept:
    """One declared piece of state: what kind it is, what it is for, how it starts, and whether it is sound."""

    kind: Literal["per tensor", "scalar", "buffer", "network", "generator"]
    help: str
    init: Init
    check: Check | None = None


def per_tensor(help: str) -> Any:
    """Declare a dict from parameter name to tensor; it starts empty."""
    return Kept("per tensor", help, lambda _: {})


def scalar(init: Init | float | str | bool | None, help: str, *, check: Check | None = None) -> Any:
    """Declare a value that JSON can hold, of the type its annotation names."""
    return Kept("scalar", help, init if callable(init) else lambda _: init, check)


def buffer(init: Init, help: str, *, check: Check | None = None) -> Any:
    """Declare one tensor, or None until there is one."""
    return Kept("buffer", help, init, check)


def network(init: Init, help: str) -> Any:
    """Declare a second network (a teacher, an anchor), usually a copy of the source model."""
    return Kept("network", help, init)


def generator(init: Init, help: str) -> Any:
    """Declare a random generator (`ctta._core.rng.Rng`)."""
    return Kept("generator", help, init)
