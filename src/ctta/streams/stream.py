"""A stream: a fixed plan of batches over a source of labelled images that exists in many domains.

Any batch can be made alone, so any stream can be resumed.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ctta.corruptions import corrupt
from ctta.data import Arrays, Dataset, read_sample, to_batch

Indices = npt.NDArray[np.int64]
Images = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Domain:
    """One kind of shift at one severity; severity 0 is the clean images."""

    corruption: str
    severity: int = 5

    @property
    def name(self) -> str:
        """The corruption, and its severity where there is one."""
        return f"{self.corruption}-{self.severity}" if self.severity else self.corruption

    def __str__(self) -> str:
        return self.name


CLEAN = Domain("clean", 0)
"""The domain without any shift."""


class Source(Protocol):
    """Labelled images that can be had in any domain, each image under a fixed index."""

    @property
    def name(self) -> str:
        """What a report calls it."""

    @property
    def hash(self) -> str:
        """Hex digits that change when any pixel or label could."""

    @property
    def labels(self) -> Indices:
        """The label of every image."""

    def images(self, domain: Domain, indices: Indices) -> Images:
        """uint8 images, N x H x W x 3, of these indices in that domain."""


class Corrupted:
    """A dataset of clean images that are corrupted when they are asked for.

    Pixels are a function of (seed, domain, number) alone, so any slice, order or batch size gives the same. The
    number of an image is its place in the dataset, unless `numbers` says otherwise.
    """

    def __init__(
        self, clean: Dataset, *, profile: str = "cifar", seed: int = 0, numbers: Indices | None = None
    ) -> None:
        self.clean, self.profile, self.seed = clean, profile, seed
        self.name, self.labels = clean.name, clean.labels
        self.numbers = np.arange(len(clean)) if numbers is None else numbers

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 over the clean data, the numbers, profile and seed."""
        sha = hashlib.sha256(f"{self.clean.hash}|{self.profile}|{self.seed}|".encode())
        sha.update(np.ascontiguousarray(self.numbers).tobytes())
        return sha.hexdigest()[:16]

    def images(self, domain: Domain, indices: Indices) -> Images:
        """Images of these places in that domain."""
        chosen = self.clean.images(indices)
        if domain.severity == 0:
            return chosen
        options: dict[str, Any] = {"profile": self.profile, "seed": self.seed, "indices": self.numbers[indices]}
        return corrupt(chosen, domain.corruption, domain.severity, **options)


def embedded(seed: int = 0) -> Corrupted:
    """The 1,000 CIFAR-10 test images that come with the package, in any domain.

    Numbered as in the test set, so their pixels are those of `ctta data make cifar10-c` with the same seed.
    """
    sample = read_sample()
    return Corrupted(Arrays(sample.images, sample.labels, "embedded"), seed=seed, numbers=sample.numbers)


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
        return names.pop() if len(names) == 1 else "mixed"


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
        text = json.dumps([self.source.hash, domains, sorted(self.resets)])
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
        parts = [self.source.images(self.domains[d], indices[which == d]) for d in np.unique(which)]
        if len(parts) == 1:
            return parts[0]
        by_domain = np.argsort(which, kind="stable")
        return np.concatenate(parts)[np.argsort(by_domain)]

    def __iter__(self) -> Iterator[Batch]:
        return self.resume(0)

    def resume(self, k: int) -> Iterator[Batch]:
        """Batches from k on: the same, bit for bit, as those of an uninterrupted pass."""
        return (self[index] for index in range(k, len(self)))
