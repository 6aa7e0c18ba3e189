"""Image files through Pillow, an optional extra; PNG files of plain RGB are read without it."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ctta._core.files import parsing
from ctta.data import png, sniff
from ctta.errors import DataError

Pixels = NDArray[np.uint8]
Preprocessing = Literal["as-is", "resize256-crop224", "resize64"]
"""as-is: the file's own pixels (PALM). resize256-crop224: shorter side to 256, centre 224 (CoTTA, RobustBench, and
how ImageNet-C was made). resize64: both sides to 64 (how Tiny-ImageNet-C was made)."""

CHOICES: tuple[Preprocessing, ...] = ("as-is", "resize256-crop224", "resize64")


def pillow() -> Any:
    """Import Pillow's Image module, or say how to install it."""
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise DataError('Reading and writing image files needs Pillow: pip install "ctta[images]"') from error


def read_image(path: Path, preprocessing: Preprocessing = "as-is") -> Pixels:
    """Return an image file as H x W x 3, 8-bit RGB, preprocessed."""
    cure = "Replace the file: get or unpack the dataset again."
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}. {cure}") from error
    kind = sniff.sniff(data[: sniff.HEAD])
    if kind in ("html", "lfs", "empty", "zeros", "text"):
        raise DataError(f"{path}: expected an image, got {sniff.SPOKEN[kind]}. {cure}")
    if kind == "png" and preprocessing == "as-is" and data[24:29] == b"\x08\x02\x00\x00\x00":
        return png.read_png(path, cure)
    image_module = pillow()
    with parsing(f"{path}: a damaged or unknown image file", cure), image_module.open(io.BytesIO(data)) as image:
        _bearable(*image.size)
        ready = preprocess(image.convert("RGB"), preprocessing)
        return np.asarray(ready, np.uint8)


def preprocess(image: Any, preprocessing: Preprocessing) -> Any:
    """Resize and crop a Pillow image as torchvision's Resize and CenterCrop do."""
    bilinear = pillow().Resampling.BILINEAR
    if preprocessing == "resize64":
        return image.resize((64, 64), bilinear)
    if preprocessing == "resize256-crop224":
        width, height = image.size
        scale = 256 / min(width, height)
        # torchvision truncates the longer side
        size = (256, int(256 * height / width)) if width <= height else (int(256 * width / height), 256)
        _bearable(*size)  # a damaged file may be a thousand times as long as it is wide
        if scale != 1:
            image = image.resize(size, bilinear)
        width, height = image.size
        left, top = round((width - 224) / 2), round((height - 224) / 2)
        return image.crop((left, top, left + 224, top + 224))
    return image


def _bearable(width: int, height: int) -> None:
    """Refuse a size that only a damaged or hostile file has, before memory is taken for it."""
    if width * height > png.LARGEST:
        raise ValueError(f"{width} x {height} pixels are more than {png.LARGEST:,}")


def jpeg_bytes(image: Pixels) -> bytes:
    """Encode H x W x 3 as ImageNet-C was saved: JPEG, quality 85, optimised tables, 4:2:0."""
    buffer = io.BytesIO()
    pillow().fromarray(image).save(buffer, format="JPEG", quality=85, optimize=True, subsampling="4:2:0")
    return buffer.getvalue()
