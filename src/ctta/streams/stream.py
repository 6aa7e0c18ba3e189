"""A stream: a fixed plan of batches over a source. Any batch can be made alone, so any stream can be resumed."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ctta.data import to_batch
from ctta.streams.sources import Domain, Images, Indices, Source


@dataclass(frozen=True)
class Batch:
    """One batch: images float32 N x 3 x H x W in [0, 1], labels N, and the domain of each sample."""

    index: int
    images: Tensor
    labels: Tensor
    domains: tuple[Domain, ...]
    reset: bool
    """Whether the scenario asks for a reset of the adapter before this batch."""

    @property
    def domain(self) -> str:
        """Name of the domain, or "mixed" where the batch holds several."""
        names = {domain.name for domain in self.domains}
        return next(iter(names)) if len(names) == 1 else "mixed"


@dataclass(frozen=True)
class Stream:
    """A plan over a source. Sample t is image `index_of[t]` in domain `domains[domain_of[t]]`."""

    name: str
    source: Source
    domains: tuple[Domain, ...]
    domain_of: npt.NDArray[np.int32] = field(repr=False)
    index_of: Indices = field(repr=False)
    bounds: Indices = field(repr=False)
    """Batch k holds the samples bounds[k] .. bounds[k + 1] - 1."""
    resets: frozenset[int] = frozenset()
    """Batches before which the adapter starts anew."""
    options: dict[str, Any] = field(default_factory=dict)
    """What the scenario was asked for, in words for a reader."""

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def samples(self) -> int:
        """Number of images in the whole stream."""
        return len(self.index_of)

    @functools.cached_property
    def hash(self) -> str:
        """Hex digits that change when any batch could."""
        domains = [(d.corruption, d.severity) for d in self.domains]
        text = json.dumps([self.source.hash, domains, sorted(self.resets)], sort_keys=True)
        sha = hashlib.sha256(text.encode())
        for array in (self.domain_of, self.index_of, self.bounds):
            sha.update(np.ascontiguousarray(array).tobytes())
        return sha.hexdigest()[:16]

    def __getitem__(self, k: int) -> Batch:
        """Make batch k, whatever was made before."""
        if not 0 <= k < len(self):
            raise IndexError(f"Expected a batch from 0 to {len(self) - 1}, but got {k}.")
        part = slice(int(self.bounds[k]), int(self.bounds[k + 1]))
        which, indices = self.domain_of[part], self.index_of[part]
        return Batch(
            index=k,
            images=to_batch(self._pixels(which, indices)),
            labels=torch.from_numpy(self.source.labels[indices]),
            domains=tuple(self.domains[d] for d in which),
            reset=k in self.resets,
        )

    def _pixels(self, which: npt.NDArray[np.int32], indices: Indices) -> Images:
        kinds = np.unique(which)
        if len(kinds) == 1:
            return self.source.images(self.domains[kinds[0]], indices)
        parts = {d: self.source.images(self.domains[d], indices[which == d]) for d in kinds}
        first = next(iter(parts.values()))
        images = np.empty((len(indices), *first.shape[1:]), dtype=np.uint8)
        for d, pixels in parts.items():
            images[which == d] = pixels
        return images

    def __iter__(self) -> Iterator[Batch]:
        return self.resume(0)

    def resume(self, k: int) -> Iterator[Batch]:
        """Batches from k on: the same, bit for bit, as those of an uninterrupted pass."""
        return (self[index] for index in range(k, len(self)))
