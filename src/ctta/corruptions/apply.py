"""`corrupt`: check what came in, work through it in pieces of bounded size, give back the same kind."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctta.corruptions.blur import defocus_blur, gaussian_blur, glass_blur, motion_blur, zoom_blur
from ctta.corruptions.colour import brightness, contrast, saturate
from ctta.corruptions.constants import (
    CONSTANTS,
    CORRUPTIONS,
    ELASTIC_UNIT,
    EXTRA,
    OVERLAY_SCALE,
    PROFILES,
    SEVERITIES,
)
from ctta.corruptions.digital import elastic_transform, pixelate
from ctta.corruptions.jpeg import jpeg_compression
from ctta.corruptions.noise import noise
from ctta.corruptions.random import Draws, key
from ctta.corruptions.spatter import spatter
from ctta.corruptions.weather import fog, frost, snow
from ctta.errors import InputError, SettingError
from ctta.settings import suggestion

Images = TypeVar("Images", NDArray[np.uint8], Tensor)
Corruption = Callable[[Tensor, Draws], Tensor]

SMALLEST = 16
PIXELS_AT_ONCE = 1 << 17
"""Pixels in one piece of work: at most some 50 MB with all that is kept beside them."""


def corrupt(
    images: Images,
    name: str,
    severity: int = 5,
    *,
    profile: str = "cifar",
    seed: int = 0,
    indices: Sequence[int] | NDArray[np.integer[Any]] | Tensor | None = None,
    overlays: str | os.PathLike[str] | None = None,
    workers: int = 1,
) -> Images:
    """Return a corrupted copy of a batch.

    `images`: bytes N x H x W x 3 (numpy or torch), or a float tensor N x 3 x H x W in [0, 1], which is rounded to
    bytes first; the result is of the same kind. `severity` 1 to 5 and `profile` choose the strength. `indices`
    are the places of the images in their data set (0 to N - 1 unless given): they and `seed` decide every random
    draw. `overlays` is the folder with the original frost photos; without it frost draws its own. `workers`
    threads share the work.
    """
    _check_choice("corruption", name, (*CORRUPTIONS, *EXTRA))
    _check_choice("profile", profile, PROFILES)
    severity = _check_severity(severity)
    if workers < 1:
        raise SettingError(f"Expected `workers` to be a whole number of at least 1, but got {workers!r}.")
    planes = _to_planes(images)
    places = _to_indices(indices, len(planes))
    apply = _bind(name, severity, profile, Path(overlays) if overlays is not None else None)
    code = key(int(seed), name, severity)
    given = planes.numpy()
    out = np.empty_like(given)  # in the memory layout of what came in
    at_once = max(1, PIXELS_AT_ONCE // (planes.shape[2] * planes.shape[3]))

    def work(start: int) -> None:
        part = slice(start, start + at_once)
        with torch.no_grad():
            piece = given[part] if name == "pixelate" else np.ascontiguousarray(given[part])
            made = apply(torch.from_numpy(piece), Draws(code, places[part])).numpy()
        for channel in range(3):  # several times as fast as in one go, where the layouts differ
            out[part, channel] = made[:, channel]

    starts = range(0, len(planes), at_once)
    if workers == 1 or len(starts) < 2:
        list(map(work, starts))
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, starts))
    return _like(torch.from_numpy(out), images)


def _bind(name: str, severity: int, profile: str, folder: Path | None) -> Corruption:
    """The corruption with its constants."""
    values = CONSTANTS[name][profile][severity - 1]
    values = values if isinstance(values, tuple) else (values,)
    if name in _FIXED:
        fixed = _FIXED[name]
        return lambda x, draws: fixed(x, *values)
    if name == "frost":
        values = (*values, OVERLAY_SCALE[profile], folder)
    elif name == "elastic_transform":
        values = (*values, ELASTIC_UNIT[profile])
    drawn = _DRAWN.get(name) or functools.partial(noise, name=name)
    return lambda x, draws: drawn(x, *values, draws=draws)


_FIXED: dict[str, Callable[..., Tensor]] = {
    "defocus_blur": defocus_blur,
    "zoom_blur": zoom_blur,
    "gaussian_blur": gaussian_blur,
    "brightness": brightness,
    "contrast": contrast,
    "saturate": saturate,
    "pixelate": pixelate,
    "jpeg_compression": jpeg_compression,
}
_DRAWN: dict[str, Callable[..., Tensor]] = {
    "glass_blur": glass_blur,
    "motion_blur": motion_blur,
    "snow": snow,
    "frost": frost,
    "fog": fog,
    "elastic_transform": elastic_transform,
    "spatter": spatter,
}
"""Those that are neither fixed nor here are noises."""


def _check_choice(what: str, given: object, known: tuple[str, ...]) -> None:
    if given not in known:
        hint = suggestion(given, known) if isinstance(given, str) else ""
        raise SettingError(f"There is no {what} {given!r}.{hint} Known: {', '.join(known)}.")


def _check_severity(severity: Any) -> int:
    if isinstance(severity, bool) or severity not in SEVERITIES:
        raise SettingError(f"Expected `severity` to be a whole number from 1 to 5, but got {severity!r}.")
    return int(severity)


def _to_planes(images: Any) -> Tensor:
    """Bytes N x 3 x H x W on the CPU, or a refusal."""
    if isinstance(images, np.ndarray):
        if images.dtype != np.uint8:
            raise InputError(
                f"Expected a uint8 array, N x H x W x 3, but got {images.dtype}: "
                "(images * 255).round().astype('uint8') if it lies in [0, 1]."
            )
        return _channels_first(torch.from_numpy(np.require(images, requirements=["C", "W"])))
    if not isinstance(images, Tensor):
        raise InputError(f"Expected images as a numpy array or a torch.Tensor, but got {type(images).__name__}.")
    if images.dtype == torch.uint8:
        return _channels_first(images)
    if not images.is_floating_point():
        raise InputError(f"Expected uint8 or floating images, but got {images.dtype}.")
    if images.dim() != 4 or images.shape[1] != 3:
        raise InputError(f"Expected floating images as N x 3 x H x W, but got shape {tuple(images.shape)}.")
    _check_size(*images.shape[2:])
    exact = images.detach().cpu().float()
    if not bool(((exact >= 0) & (exact <= 1)).all()):  # NaN fails too
        raise InputError("Expected floating images in [0, 1], but some pixels lie outside or are not finite.")
    return (exact * 255).round_().to(torch.uint8)


def _channels_first(images: Tensor) -> Tensor:
    shape = tuple(images.shape)
    if len(shape) != 4 or shape[3] != 3:
        cure = " Channels come last in uint8 images." if len(shape) == 4 and shape[1] == 3 else ""
        raise InputError(f"Expected uint8 images as N x H x W x 3, but got shape {shape}.{cure}")
    _check_size(*shape[1:3])
    return images.detach().cpu().permute(0, 3, 1, 2)


def _check_size(height: int, width: int) -> None:
    if min(height, width) < SMALLEST:
        raise InputError(f"Expected images of at least {SMALLEST} pixels a side, but got {height} x {width}.")


def _to_indices(indices: Any, count: int) -> NDArray[np.int64]:
    if indices is None:
        return np.arange(count)
    places = np.asarray(indices)
    if places.shape != (count,) or (count and not np.issubdtype(places.dtype, np.integer)):
        raise InputError(
            f"Expected `indices` to be {count} whole numbers, one an image, "
            f"but got shape {places.shape} of {places.dtype}."
        )
    if count and int(places.min()) < 0:
        raise InputError(f"Expected `indices` of at least 0, but got {int(places.min())}.")
    return places.astype(np.int64)


def _like(planes: Tensor, images: Images) -> Images:
    """The planes in the kind, layout, dtype and device of what came in."""
    if isinstance(images, np.ndarray):
        return np.ascontiguousarray(planes.permute(0, 2, 3, 1).numpy())
    if images.dtype == torch.uint8:
        return planes.permute(0, 2, 3, 1).contiguous().to(images.device)
    return planes.contiguous().float().div_(255).to(images)
