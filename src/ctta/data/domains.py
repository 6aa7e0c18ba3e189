"""A corrupted benchmark on disk as one source of images in many domains, as `ctta.streams` takes it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ctta.corruptions import CORRUPTIONS, EXTRA
from ctta.data.cache import Place
from ctta.data.cifar_c import cifar10_c, cifar100_c
from ctta.data.dataset import Dataset, Indices, Labels, MissingError, Pixels
from ctta.data.folders import imagenet_c, tiny_imagenet_c
from ctta.errors import DataError
from ctta.settings import suggestion


class Domains:
    """All domains of a benchmark: opened when first needed, every one with the same labels."""

    def __init__(self, name: str, opener: Callable[[str, int], Dataset], clean: Dataset | None = None) -> None:
        self.name, self._opener, self._clean = name, opener, clean
        self._opened: dict[tuple[str, int], Dataset] = {}

    def domain(self, corruption: str, severity: int) -> Dataset:
        """Return one domain; severity 0 is the clean images."""
        if severity == 0:
            if self._clean is None:
                raise DataError(f"{self.name} holds no clean images: give them with clean=.")
            return self._clean
        if (found := self._opened.get((corruption, severity))) is None:
            found = self._opener(corruption, severity)
            if self._opened and not np.array_equal(found.labels, self.labels):
                raise DataError(
                    f"{found.name} has other labels than {next(iter(self._opened.values())).name}: the files "
                    "are not of one benchmark. Check them with: ctta data verify"
                )
            self._opened[corruption, severity] = found
        return found

    def images(self, domain: Any, indices: Indices) -> Pixels:
        """Return the chosen images of a `ctta.streams.Domain`, N x H x W x 3, 8-bit RGB."""
        return self.domain(domain.corruption, domain.severity).images(indices)

    @functools.cached_property
    def labels(self) -> Labels:
        """The class of every image: the same in all domains."""
        found = next(itertools.chain(self._opened.values(), self._all()), None)
        return (found or self.domain(CORRUPTIONS[0], 5)).labels  # nothing is there: raises, saying how to get it

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of the hashes of all domains that are there."""
        sha = hashlib.sha256()
        for dataset in self._all():
            sha.update(f"{dataset.name.rsplit('/', 2)[1:]}|{dataset.hash}|".encode())
        return sha.hexdigest()

    def _all(self) -> Iterator[Dataset]:
        """Open every domain that is there; a damaged one is an error, a missing one was not asked for."""
        for corruption in CORRUPTIONS + EXTRA:
            for severity in (5, 4, 3, 2, 1):
                with contextlib.suppress(MissingError):
                    yield self.domain(corruption, severity)


OPENERS: dict[str, Callable[..., Dataset]] = {
    "cifar10-c": cifar10_c,
    "cifar100-c": cifar100_c,
    "imagenet-c": imagenet_c,
    "tiny-imagenet-c": tiny_imagenet_c,
}


def domains(name: str, root: Place = None, *, clean: Dataset | None = None, **options: Any) -> Domains:
    """Open a benchmark by name: cifar10-c, cifar100-c, imagenet-c or tiny-imagenet-c. Options go to its reader."""
    if name not in OPENERS:
        raise DataError(f"There is no benchmark `{name}`.{suggestion(name, OPENERS)} Known: {', '.join(OPENERS)}.")
    return Domains(name, lambda corruption, severity: OPENERS[name](corruption, severity, root, **options), clean)
