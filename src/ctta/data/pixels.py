"""Image files, read and written by Pillow."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ctta._core.files import parsing
from ctta.data import sniff

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]
Preprocessing = Literal["as-is", "resize256-crop224", "resize64"]
"""as-is: the file's own pixels (PALM). resize256-crop224: shorter side to 256, centre 224 (CoTTA, RobustBench, and
how ImageNet-C was made). resize64: both sides to 64 (how Tiny-ImageNet-C was made)."""

CHOICES: tuple[Preprocessing, ...] = get_args(Preprocessing)
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF")
"""What a picture may be, whatever its name: Pillow has readers that run other programs."""

LARGEST = 89_000_000
"""Pixels of the largest image read: 270 MB, where Pillow begins to warn."""

CURE = "Replace the file: get or unpack the dataset again."


def read_image(path: Path, preprocessing: Preprocessing = "as-is", cure: str = CURE) -> Pixels:
    """Return an image file as H x W x 3, 8-bit RGB, preprocessed."""
    data = sniff.read_bytes(path, cure, "an image")
    with parsing(f"{path}: a damaged or unknown image file", cure):
        if sniff.sniff(data) == "png":
            with _open(data) as image:
                image.verify()  # the checksums, which reading pixels passes over
        with _open(data) as image:
            return np.array(preprocess(image.convert("RGB"), preprocessing), np.uint8)


def _open(data: bytes) -> Image:
    """Open an image, refusing a size that only a damaged or hostile file has, before memory is taken for it."""
    import PIL.Image

    image = PIL.Image.open(io.BytesIO(data), formats=FORMATS)
    _bearable(*image.size)
    return image


def preprocess(image: Image, preprocessing: Preprocessing) -> Image:
    """Resize and crop a Pillow image as torchvision's Resize and CenterCrop do."""
    from PIL.Image import Resampling

    if preprocessing == "as-is":
        return image
    if preprocessing == "resize64":
        return image.resize((64, 64), Resampling.BILINEAR)
    width, height = image.size
    # torchvision truncates the longer side
    size = (256, int(256 * height / width)) if width <= height else (int(256 * width / height), 256)
    _bearable(*size)  # a damaged file may be a thousand times as long as it is wide
    left, top = round((size[0] - 224) / 2), round((size[1] - 224) / 2)
    return image.resize(size, Resampling.BILINEAR).crop((left, top, left + 224, top + 224))


def _bearable(width: int, height: int) -> None:
    if width * height > LARGEST:
        raise ValueError(f"{width} x {height} pixels are more than {LARGEST:,}")


def jpeg_bytes(image: Pixels) -> bytes:
    """Encode H x W x 3 as ImageNet-C was saved: JPEG, quality 85, optimised tables, 4:2:0."""
    import PIL.Image

    buffer = io.BytesIO()
    PIL.Image.fromarray(image).save(buffer, format="JPEG", quality=85, optimize=True, subsampling="4:2:0")
    return buffer.getvalue()
