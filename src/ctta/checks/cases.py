"""One method with its settings on one network, and what the checks ask of it."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import ctta
from ctta._core.registry import MethodEntry
from ctta._core.state import network_tensors
from ctta.adapter import Adapter
from ctta.checks.networks import MODEL_NEEDS, Network

SIZES = (6, 6, 4, 6)
Tensors = Mapping[str, Tensor]


class Trial:
    """One undisturbed run, with what was there before, in the middle (after two batches) and after it.

    The checks share it: they look at it, or go on from copies of its adapters.
    """

    def __init__(self, case: Case) -> None:
        stream, before = case.stream(), global_random_state()
        self.model = case.network.make().train()
        self.held = copies(network_tensors(self.model))
        self.adapter = case.adapter(self.model)
        self.new = snapshot(self.adapter)
        self.logits = run(self.adapter, stream[:2])
        self.begun, self.state = copy.deepcopy(self.adapter), self.adapter.state_dict()
        self.logits += run(self.adapter, stream[2:])
        after = global_random_state()
        self.touched = [name for name, state in before.items() if state != after[name]]


@dataclass(frozen=True)
class Case:
    """One method with its settings on one network."""

    entry: MethodEntry
    network: Network
    settings: Mapping[str, Any]

    @property
    def supported(self) -> bool:
        """Whether the network has what the method says it needs."""
        return self.entry.needs & MODEL_NEEDS <= self.network.meets

    def adapter(
        self, model: nn.Module | None = None, *, seed: int = 3, dtype: torch.dtype = torch.float32, **more: Any
    ) -> Adapter:
        """Make a new adapter, around a new copy of the network unless a model is given."""
        model = self.network.make(dtype) if model is None else model
        return ctta.adapt(model, self.entry.name, seed=seed, **{**self.settings, **more})

    @functools.cached_property
    def trial(self) -> Trial:
        """The undisturbed run that most promises compare with."""
        return Trial(self)

    @property
    def plain(self) -> list[Tensor]:
        """Logits of a new adapter on the whole stream."""
        return self.trial.logits

    def begun(self) -> Adapter:
        """Return an adapter that has seen two batches."""
        return copy.deepcopy(self.trial.begun)

    def stream(self, sizes: tuple[int, ...] = SIZES, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """Return a short stream for the network."""
        return self.network.stream(sizes, dtype)


def run(adapter: Adapter, stream: Iterable[Tensor]) -> list[Tensor]:
    """Adapt through a stream; the logits of each batch."""
    return [adapter(x) for x in stream]


def copies(tensors: Tensors) -> dict[str, Tensor]:
    """Copy tensors as they are now."""
    return {name: value.detach().clone() for name, value in tensors.items()}


def snapshot(adapter: Adapter) -> dict[str, Tensor]:
    """Everything that could change: the adapter's state and every tensor of its model."""
    model = copies(network_tensors(adapter.model))
    return {**adapter.state_dict(), **{f"whole/{name}": value for name, value in model.items()}}


def global_random_state() -> dict[str, object]:
    """States of the generators that a process has one each of."""
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": str(np.random.get_state()),
        "python": random.getstate(),
    }


def same_logits(one: list[Tensor], other: list[Tensor], why: str) -> None:
    """Fail unless two runs agree bit for bit."""
    for index, (a, b) in enumerate(zip(one, other, strict=True)):
        assert torch.equal(a, b), f"{why}: batch {index} differs by {(a - b).abs().max():.3g}"


def same_tensors(one: Tensors, other: Tensors, why: str) -> None:
    """Fail unless two sets of tensors agree bit for bit."""
    assert one.keys() == other.keys(), f"{why}: {sorted(one.keys() ^ other.keys())[:3]}"
    for name, value in one.items():
        assert torch.equal(value, other[name]), f"{why}: {name} differs"
