"""What every dataset offers, and the one made of arrays."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ctta.errors import DataError, InputError

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]
Indices = Sequence[int] | NDArray[np.integer]


class MissingError(DataError):
    """A part of a dataset is not there at all, as opposed to damaged."""


class Dataset:
    """Labelled images, read when asked for. A dataset of your own gives `name`, `labels`, `hash` and `images`."""

    name: str
    """What the dataset is called: "cifar10-c/fog/5"."""
    labels: Labels
    """The class of every image, N."""

    @property
    def hash(self) -> str:
        """Identity of the content in hex: equal data have equal hashes wherever their files lie."""
        raise NotImplementedError

    def images(self, indices: Indices) -> Pixels:
        """Return the chosen images, N x H x W x 3, 8-bit RGB."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Indices) -> Tensor:
        """Return the chosen images as a model takes them: float32 in [0, 1], N x 3 x H x W."""
        return to_batch(self.images(indices))

    def rows(self, indices: Indices) -> NDArray[np.int64]:
        """Return the indices as an array, refusing what is not in the dataset."""
        found = np.asarray(indices)
        if found.size == 0:
            return np.zeros(0, np.int64)
        if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer):
            raise InputError(f"Expected a list of image numbers, got {found.dtype} of shape {found.shape}.")
        if found.min() < 0 or found.max() >= len(self):
            wrong = found[(found < 0) | (found >= len(self))][0]
            raise InputError(f"{self.name} has images 0 to {len(self) - 1}, there is no {wrong}.")
        return found.astype(np.int64)

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self):,} images>"


class Arrays(Dataset):
    """Images (N x H x W x 3, uint8) and labels (N) held in memory."""

    def __init__(self, images: ArrayLike, labels: ArrayLike, name: str = "arrays") -> None:
        pixels, classes = np.asarray(images), np.asarray(labels)
        if pixels.ndim != 4 or pixels.shape[3] != 3 or pixels.dtype != np.uint8:
            raise DataError(
                f"{name}: expected images as uint8 of shape N x H x W x 3, got {pixels.dtype} of shape "
                f"{pixels.shape}. Convert floats in [0, 1] with (255 * x).round().astype('uint8') and put the "
                "channels last."
            )
        if classes.shape != (len(pixels),) or not np.issubdtype(classes.dtype, np.integer):
            raise DataError(
                f"{name}: expected {len(pixels)} integer labels, got {classes.dtype} of shape {classes.shape}."
            )
        self.name, self.labels, self._pixels = name, classes.astype(np.int64), pixels

    def images(self, indices: Indices) -> Pixels:
        """Return the chosen images, N x H x W x 3, 8-bit RGB."""
        return self._pixels[self.rows(indices)]

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of every pixel and label."""
        sha = hashlib.sha256()
        for array in (self._pixels, self.labels):
            sha.update(f"{array.shape}|{array.dtype.str}|".encode())
            sha.update(np.ascontiguousarray(array).data)
        return sha.hexdigest()


def require_uint8(path: Path, expected: tuple[int, ...], shape: tuple[int, ...], dtype: object, cure: str) -> None:
    """Refuse a file whose array is not uint8 of the expected shape."""
    if shape != expected or dtype != np.uint8:
        raise DataError(f"{path}: expected uint8 of shape {expected}, got {dtype} of shape {shape}. {cure}")


def to_batch(images: Pixels) -> Tensor:
    """Turn 8-bit images N x H x W x 3 into float32 in [0, 1], N x 3 x H x W, as the benchmark does (x / 255).

    >>> to_batch(np.full((1, 2, 2, 3), 255, np.uint8)).mean().item()
    1.0
    """
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).float().div_(255)
