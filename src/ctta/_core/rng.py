"""A random generator that is copied, pickled and saved with the adapter that owns it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ctta.errors import StateError

BORROWED = threading.RLock()
"""Held by whoever has torch's global generators, of which a process has one each, to himself."""


class Rng:
    """A seeded CPU generator: one seed gives one run on every device; global random state is not touched."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator("cpu").manual_seed(seed)

    def state(self) -> Tensor:
        """Return the generator's state, a vector of bytes."""
        return self.generator.get_state()

    def restore(self, state: Tensor) -> None:
        """Continue from a state that `state` returned."""
        try:
            self.generator.set_state(state.cpu())
        except (RuntimeError, TypeError) as error:
            raise StateError(f"This is not the state of a random generator: {error}.") from error

    def __getstate__(self) -> dict[str, Any]:
        return {"state": self.state()}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.generator = torch.Generator("cpu")
        self.restore(saved["state"])

    def __deepcopy__(self, memo: dict[int, Any]) -> Rng:
        twin = Rng.__new__(Rng)
        twin.__setstate__(self.__getstate__())
        memo[id(self)] = twin
        return twin

    @contextlib.contextmanager
    def lend(self, device: torch.device) -> Iterator[None]:
        """Seed the global generators with a draw from this one for a while: dropout knows no other.

        Afterwards the random state of the CPU and of the device is as before. Others who borrow them this way
        wait meanwhile; code in other threads that draws from them unasked gets other numbers, and changes ours.
        """
        seed = int(torch.randint(2**62, (), generator=self.generator, device="cpu"))
        accelerated = device.type not in ("cpu", "meta")
        with BORROWED, torch.random.fork_rng(devices=[device] if accelerated else [], device_type=device.type):
            torch.default_generator.manual_seed(seed)
            if accelerated:
                torch.get_device_module(device).manual_seed(seed)
            yield
