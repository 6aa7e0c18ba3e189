"""Where the images of a stream come from: a set of labelled images that exists in many domains."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ctta.corruptions import corrupt
from ctta.data import Arrays, Dataset, read_sample

Indices = npt.NDArray[np.int64]
Images = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Domain:
    """One kind of shift at one severity; severity 0 is the clean images."""

    corruption: str
    severity: int = 5

    @property
    def name(self) -> str:
        """Name of the domain: the corruption, and its severity where there is one."""
        return f"{self.corruption}-{self.severity}" if self.severity else self.corruption

    def __str__(self) -> str:
        return self.name


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
        self.name = clean.name
        self.labels: Indices = clean.labels
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
        made: Images = corrupt(
            chosen,
            domain.corruption,
            domain.severity,
            profile=self.profile,
            seed=self.seed,
            indices=self.numbers[indices],
        )
        return made


def embedded(seed: int = 0) -> Corrupted:
    """The 1,000 CIFAR-10 test images that come with the package, in any domain.

    Numbered as in the test set, so their pixels are those of `ctta data make cifar10-c` with the same seed.
    """
    sample = read_sample()
    return Corrupted(Arrays(sample.images, sample.labels, "embedded"), seed=seed, numbers=sample.numbers)


CLEAN = Domain("clean", 0)
"""The domain without any shift."""
