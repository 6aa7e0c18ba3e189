"""CIFAR-10-C and CIFAR-100-C: one .npy file a corruption, the severities one below the other.

Official files hold 50,000 images, rows (s-1)*10000 to s*10000 being severity s in test-set order, and `labels.npy`
repeats the 10,000 labels five times. Folders made by `ctta data make` may hold fewer; their manifest says what.

A file is mapped into memory for one read and let go again, so that reading a whole benchmark needs the memory of
one batch; its size is checked before each read, since a mapped file that shrank would kill the process.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from ctta._core.files import parsing
from ctta.corruptions import CORRUPTIONS, EXTRA
from ctta.data import sniff
from ctta.data.cache import Place, find_folder
from ctta.data.dataset import Dataset, Indices, Labels, MissingError, Pixels, require_uint8
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
        count, severities = (made.images, made.severities) if made else (FULL, SEVERITIES)
        self.path = folder / f"{corruption}.npy"
        name = "cifar100-c" if "100" in folder.name else "cifar10-c"
        self._cure = f"Get the official files with: ctta data get {name}; or make them with: ctta data make {name}"
        if severity not in severities:
            has = ", ".join(map(str, severities))
            raise MissingError(f"{folder} has the severities {has}, not {severity}. {self._cure}")
        if not self.path.is_file():
            known = (*CORRUPTIONS, *EXTRA)
            hint = suggestion(corruption, known) if corruption not in known else ""
            raise MissingError(f"There is no file {self.path}.{hint} {self._cure}")
        self.name = f"{folder.name.lower()}/{corruption}/{severity}"
        self.start = severities.index(severity) * count
        self.shape = (count * len(severities), 32, 32, 3)
        self.offset: int = load_npy(self.path, self.shape, self._cure).offset
        labels = load_npy(folder / "labels.npy", self.shape[:1], self._cure)
        self.labels: Labels = labels[:count].astype(np.int64)

    def images(self, indices: Indices) -> Pixels:
        """Return the chosen images, N x 32 x 32 x 3, 8-bit RGB."""
        rows = self.rows(indices) + self.start
        return np.array(load_npy(self.path, self.shape, self._cure)[rows])  # a copy: the map ends here

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of the shape, the labels and 64 blocks of 4 kB spread evenly over this severity's pixels.

        Another dataset, draw, seed or order gives another hash. A few damaged bytes between the blocks do not:
        `ctta data verify` reads every byte.
        """
        sha = hashlib.sha256(f"{len(self)}|32|32|3|u1|".encode())
        sha.update(self.labels.tobytes())
        first, size = self.offset + self.start * 3072, len(self) * 3072
        with self.path.open("rb") as file:
            for k in range(SAMPLES):
                file.seek(first + (size - min(SAMPLE, size)) * k // (SAMPLES - 1))
                sha.update(file.read(min(SAMPLE, size)))
        return sha.hexdigest()


def cifar10_c(corruption: str, severity: int = 5, root: Place = None) -> CifarC:
    """Open one domain of CIFAR-10-C, by default from the data cache (official files first, then made ones)."""
    return CifarC(find_folder("CIFAR-10-C", "labels.npy", root), corruption, severity)


def cifar100_c(corruption: str, severity: int = 5, root: Place = None) -> CifarC:
    """Open one domain of CIFAR-100-C, by default from the data cache (official files first, then made ones)."""
    return CifarC(find_folder("CIFAR-100-C", "labels.npy", root), corruption, severity)


def load_npy(path: Path, shape: tuple[int, ...], cure: str) -> np.memmap[Any, np.dtype[np.uint8]]:
    """Map a file into memory that is exactly a uint8 array of that shape."""
    sniff.require(path, "npy", cure)
    with parsing(f"{path}: the .npy file is cut short or its header is damaged", cure):
        mapped: np.memmap[Any, np.dtype[np.uint8]] = np.load(path, mmap_mode="r", allow_pickle=False)
        expected, size = mapped.offset + mapped.size, path.stat().st_size
    require_uint8(path, shape, mapped.shape, mapped.dtype if mapped.flags.c_contiguous else "column-major", cure)
    if size != expected:
        raise DataError(f"{path}: expected {expected:,} bytes, got {size:,}: the file is too long. {cure}")
    return mapped
