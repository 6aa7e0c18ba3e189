"""Frost overlays: drawn from their statistics, or read from the folder with the original photos.

The benchmark lays photos of frosted glass over the images. Where the photos come from is not known, so none are
shipped. Gaussian random fields with the mean, deviation and power spectrum of each photo take their place.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from ctta._core.files import parsing
from ctta.errors import DataError

Sheet = NDArray[np.uint8]

CONTRAST = 0.75
"""Deviation of a field relative to the photo's: a field is spread more evenly, and full contrast is too hard."""
OWN_SHARE = 0.15
"""How much each channel has of its own."""
KEY = 0x0F0057


class Photo(NamedTuple):
    """What is known of one photo: size in pixels, mean and deviation in levels, power ~ frequency^-slope."""

    file: str
    height: int
    width: int
    mean: tuple[int, int, int]
    deviation: tuple[int, int, int]
    slope: float
    number: int


PHOTOS = (
    Photo("frost1.png", 600, 900, (78, 149, 166), (27, 16, 15), 1.62, 1),
    Photo("frost2.png", 315, 560, (201, 205, 214), (21, 22, 23), 1.06, 2),
    Photo("frost3.png", 315, 560, (201, 205, 214), (21, 22, 23), 1.06, 2),  # the same picture as frost2
    Photo("frost4.jpg", 350, 527, (138, 153, 166), (29, 29, 30), 0.27, 4),
    Photo("frost5.jpg", 495, 660, (112, 123, 135), (44, 43, 42), 1.13, 5),
)


@lru_cache(maxsize=8)
def overlays(scale: float, height: int, width: int, folder: Path | None) -> tuple[Sheet, ...]:
    """The five overlays, 3 x rows x columns, at a scale of the photos but larger than height x width."""
    photos = [] if folder is None else [_read(folder / photo.file) for photo in PHOTOS]
    sizes = [sheet.shape[1:] for sheet in photos] or [(photo.height, photo.width) for photo in PHOTOS]
    # at the smallest every overlay leaves a piece some room to move
    scale = max(scale, *(max((height + 1) / rows, (width + 1) / columns) for rows, columns in sizes))
    if not photos:
        return tuple(
            _synthesise(photo, round(photo.height * scale), round(photo.width * scale)) for photo in PHOTOS
        )
    return tuple(photos if scale == 1.0 else (_resize(sheet, scale) for sheet in photos))


@lru_cache(maxsize=16)
def _synthesise(photo: Photo, height: int, width: int) -> Sheet:
    generator = Generator(Philox(key=KEY, counter=[0, 0, 0, photo.number]))
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    frequency[0, 0] = np.inf  # no mean: it is added below

    def field() -> NDArray[np.float64]:
        noise = np.fft.rfft2(generator.standard_normal((height, width)))
        out = np.fft.irfft2(noise * frequency ** (-photo.slope / 2), s=(height, width))
        return np.asarray(out / out.std())

    shared, levels = field(), zip(photo.mean, photo.deviation, strict=True)
    channels = [mean + CONTRAST * deviation * (shared + OWN_SHARE * field()) for mean, deviation in levels]
    return np.stack(channels).clip(0, 255).astype(np.uint8)


def _read(path: Path) -> Sheet:
    if not path.is_file():
        names = ", ".join(photo.file for photo in PHOTOS)
        raise DataError(f"Expected the frost photos {names} in {path.parent}, but {path.name} is not there.")
    import PIL.Image

    broken = parsing(f"Expected a picture in {path}, but it cannot be read", "Use another copy.")
    with broken, PIL.Image.open(path, formats=("PNG", "JPEG")) as image:
        return np.ascontiguousarray(np.asarray(image.convert("RGB")).transpose(2, 0, 1))


def _resize(sheet: Sheet, scale: float) -> Sheet:
    """Bilinear, half-pixel centres, without smoothing first."""
    out = sheet.astype(np.float64)
    for dim in (1, 2):
        size = sheet.shape[dim]
        position = ((np.arange(round(size * scale)) + 0.5) / scale - 0.5).clip(0, size - 1)
        low = np.floor(position).astype(np.intp)
        part = (position - low).reshape([-1 if d == dim else 1 for d in range(3)])
        out = out.take(low, dim) * (1 - part) + out.take(np.minimum(low + 1, size - 1), dim) * part
    return np.rint(out).astype(np.uint8)
