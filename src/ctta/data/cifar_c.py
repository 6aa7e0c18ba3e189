"""CIFAR-10-C and CIFAR-100-C: one .npy file a corruption, the severities one below the other.

Official files hold 50,000 images, rows (s-1)*10000 to s*10000 being severity s in test-set order, and `labels.npy`
repeats the 10,000 labels five times. Folders made by `ctta data make` may hold fewer; their manifest says what.

A file is mapped into memory for one read and let go again, so that reading a whole benchmark needs the memory of
one batch; its size is checked before each read, since a mapped file that shrank would kill the process.
"""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

import numpy as np

from ctta._core.files import parsing
from ctta.corruptions import CORRUPTIONS, EXTRA
from ctta.data import sniff
from ctta.data.cache import find_folder
from ctta.data.dataset import Dataset, Indices, Labels, MissingError, Pixels
from ctta.data.manifest import Manifest
from ctta.errors import DataError
from ctta.settings import suggestion

FULL = 10_000
SEVERITIES = (1, 2, 3, 4, 5)
SAMPLES, SAMPLE = 64, 4096
"""Blocks read for the hash, and the bytes of each."""


class CifarC(Dataset):
    """One corruption at one severity, 32 x 32 pixels, read from its file when asked for."""

    def __init__(self, folder: Path, corruption: str, severity: int) -> None:
        made = Manifest.of(folder)
        self.count = made.images if made else FULL
        self.severities = made.severities if made else SEVERITIES
        self.path = folder / f"{corruption}.npy"
        self._cure = _cure(folder)
        if severity not in self.severities:
            has = ", ".join(map(str, self.severities))
            raise MissingError(f"{folder} has the severities {has}, not {severity}. {self._cure}")
        if not self.path.is_file():
            known = (*CORRUPTIONS, *EXTRA)
            hint = suggestion(corruption, known) if corruption not in known else ""
            raise MissingError(f"There is no file {self.path}.{hint} {self._cure}")
        self.name = f"{folder.name.lower()}/{corruption}/{severity}"
        self.start = self.severities.index(severity) * self.count
        rows = self.count * len(self.severities)
        self.offset = check_npy(self.path, (rows, 32, 32, 3), self._cure)
        self.labels: Labels = _labels(folder / "labels.npy", rows, self._cure)[: self.count]

    def images(self, indices: Indices) -> Pixels:
        """Return the chosen images, N x 32 x 32 x 3, 8-bit RGB."""
        rows = self.rows(indices) + self.start
        check_npy(self.path, (self.count * len(self.severities), 32, 32, 3), self._cure)
        with parsing(f"{self.path} cannot be mapped into memory", self._cure):
            mapped: Pixels = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return np.array(mapped[rows])  # a copy: the map ends here

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of the shape, the labels and 64 blocks of 4 kB spread evenly over this severity's pixels.

        Another dataset, draw, seed or order gives another hash. A few damaged bytes between the blocks do not:
        `ctta data verify` reads every byte.
        """
        sha = hashlib.sha256(f"{self.count}|32|32|3|u1|".encode())
        sha.update(self.labels.tobytes())
        first, size = self.offset + self.start * 3072, self.count * 3072
        with self.path.open("rb") as file:
            for k in range(SAMPLES):
                file.seek(first + (size - min(SAMPLE, size)) * k // (SAMPLES - 1))
                sha.update(file.read(min(SAMPLE, size)))
        return sha.hexdigest()


def cifar10_c(corruption: str, severity: int = 5, root: str | os.PathLike[str] | None = None) -> CifarC:
    """Open one domain of CIFAR-10-C, by default from the data cache (official files first, then made ones)."""
    return CifarC(find_folder("CIFAR-10-C", "labels.npy", root), corruption, severity)


def cifar100_c(corruption: str, severity: int = 5, root: str | os.PathLike[str] | None = None) -> CifarC:
    """Open one domain of CIFAR-100-C, by default from the data cache (official files first, then made ones)."""
    return CifarC(find_folder("CIFAR-100-C", "labels.npy", root), corruption, severity)


def check_npy(path: Path, shape: tuple[int, ...], cure: str) -> int:
    """Refuse a file that is not exactly a uint8 array of that shape; return where its data begin, in bytes."""
    sniff.require(path, "npy", cure)
    with path.open("rb") as file:
        with parsing(f"{path}: the header of the .npy file is damaged", cure):
            old = np.lib.format.read_magic(file) == (1, 0)
            head = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
            found, fortran, dtype = head(file)
        begin, size = file.tell(), os.fstat(file.fileno()).st_size
    if found != shape or dtype != np.uint8 or fortran:
        raise DataError(f"{path}: expected uint8 of shape {shape}, got {dtype} of shape {found}. {cure}")
    expected = begin + int(np.prod(shape))
    if size != expected:
        state = "cut short" if size < expected else "too long"
        raise DataError(f"{path}: expected {expected:,} bytes, got {size:,}: the file is {state}. {cure}")
    return begin


def _labels(path: Path, rows: int, cure: str) -> Labels:
    check_npy(path, (rows,), cure)
    with parsing(f"{path}: the .npy file is damaged", cure):
        stored: Pixels = np.load(path, allow_pickle=False)
    return stored.astype(np.int64)


def _cure(folder: Path) -> str:
    name = "cifar100-c" if "100" in folder.name else "cifar10-c"
    return f"Get the official files with: ctta data get {name}; or make them with: ctta data make {name}"
