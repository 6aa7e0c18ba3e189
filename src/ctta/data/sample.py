"""The embedded sample: 1,000 real CIFAR-10 test images inside the package (see SAMPLE.md)."""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from ctta._core.files import parsing
from ctta.data.dataset import Arrays, Labels, Pixels
from ctta.errors import DataError

FILE = "sample.npz"
CURE = "Install ctta again."


@dataclass(frozen=True)
class Sample:
    """Images 1000 x 32 x 32 x 3, labels 1000 (100 a class), and each image's number in the CIFAR-10 test set."""

    images: Pixels
    labels: Labels
    numbers: NDArray[np.int64]


def embedded_sample() -> tuple[Pixels, Labels]:
    """Return the images (1000 x 32 x 32 x 3, uint8) and labels (1000) that come with the package."""
    return read_sample().images, read_sample().labels


def embedded_dataset() -> Arrays:
    """Return the embedded sample as a dataset."""
    return Arrays(*embedded_sample(), name="embedded")


@functools.cache
def read_sample() -> Sample:
    """Read the packaged file once; the arrays are read-only."""
    with parsing(f"The embedded sample {FILE} is damaged", CURE):
        data = resources.files("ctta.data").joinpath(FILE).read_bytes()
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            images = unpack(arrays["images"])
            labels, numbers = arrays["labels"].astype(np.int64), arrays["numbers"].astype(np.int64)
    if images.shape != (1000, 32, 32, 3) or labels.shape != (1000,):
        raise DataError(f"The embedded sample {FILE} has images of shape {images.shape}. {CURE}")
    for array in (images, labels, numbers):
        array.flags.writeable = False
    return Sample(images, labels, numbers)


def unpack(planes: Pixels) -> Pixels:
    """Undo the packing: planes R-G, G, B-G as differences to the left, 30 % smaller once zipped."""
    images = np.cumsum(planes, axis=3, dtype=np.uint8)
    images[:, [0, 2]] += images[:, 1:2]
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1))
