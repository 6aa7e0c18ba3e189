"""One method with its settings on one network, and what the checks ask of it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import ctta
from ctta._core.registry import MethodEntry
from ctta._core.state import network_tensors
from ctta.adapter import Adapter
from ctta.checks.networks import MODEL_NEEDS, Network

SIZES = (6, 6, 4, 6)


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
    def plain(self) -> list[Tensor]:
        """Logits of a new adapter on the whole stream: what most promises compare with."""
        return run(self.adapter(), self.stream())

    def stream(self, sizes: tuple[int, ...] = SIZES, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """Return a short stream for the network."""
        return self.network.stream(sizes, dtype)


def run(adapter: Adapter, stream: Iterable[Tensor]) -> list[Tensor]:
    """Adapt through a stream; the logits of each batch."""
    return [adapter(x) for x in stream]


def snapshot(adapter: Adapter) -> dict[str, Tensor]:
    """Everything that could change: the adapter's state and every tensor of its model."""
    model = {f"whole/{name}": value.detach().clone() for name, value in network_tensors(adapter.model).items()}
    return {**adapter.state_dict(), **model}


def same_logits(one: list[Tensor], other: list[Tensor], why: str) -> None:
    """Fail unless two runs agree bit for bit."""
    assert len(one) == len(other), why
    for index, (a, b) in enumerate(zip(one, other, strict=True)):
        assert torch.equal(a, b), f"{why}: batch {index} differs by {(a - b).abs().max():.3g}"


def same_tensors(one: Mapping[str, Tensor], other: Mapping[str, Tensor], why: str) -> None:
    """Fail unless two sets of tensors agree bit for bit."""
    assert one.keys() == other.keys(), f"{why}: {sorted(one.keys() ^ other.keys())[:3]}"
    for name, value in one.items():
        assert torch.equal(value, other[name]), f"{why}: {name} differs"


def same_memory(one: Mapping[str, Tensor], other: Mapping[str, Tensor], why: str) -> None:
    """Fail unless two sets of tensors come in one order and lie in memory alike: sums over them round the same."""
    assert list(one) == list(other), f"{why}: tensors in another order"
    for name, value in one.items():
        assert value.stride() == other[name].stride(), f"{why}: {name} lies in memory in another way"
