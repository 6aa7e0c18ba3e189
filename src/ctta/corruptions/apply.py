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

from ctta.corruptions import blur, constants, digital, weather
from ctta.corruptions.constants import CONSTANTS, CORRUPTIONS, DETERMINISTIC, EXTRA, PROFILES, require_known
from ctta.corruptions.jpeg import jpeg_compression
from ctta.corruptions.noise import noise
from ctta.corruptions.random import Draws, key
from ctta.corruptions.spatter import spatter
from ctta.errors import InputError, SettingError

Images = TypeVar("Images", NDArray[np.uint8], Tensor)

SMALLEST = 16
PIXELS_AT_ONCE = 1 << 17
"""Pixels in one piece of work: at most some 50 MB with all that is kept beside them."""

FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    **{name: functools.partial(noise, name) for name in (*constants.GROUPS["noise"], "speckle_noise")},
    **{name: getattr(blur, name) for name in (*constants.GROUPS["blur"], "gaussian_blur")},
    **{name: getattr(weather, name) for name in ("snow", "frost", "fog")},
    **{name: getattr(digital, name) for name in ("brightness", "contrast", "elastic_transform", "pixelate")},
    "jpeg_compression": jpeg_compression,
    "spatter": spatter,
    "saturate": digital.saturate,
}
"""Each takes bytes N x 3 x H x W, its constants and, unless it is deterministic, draws; it returns new bytes."""


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
    require_known("corruption", name, (*CORRUPTIONS, *EXTRA))
    require_known("profile", profile, PROFILES)
    if isinstance(severity, bool) or severity not in constants.SEVERITIES:
        raise SettingError(f"Expected `severity` to be a whole number from 1 to 5, but got {severity!r}.")
    if workers < 1:
        raise SettingError(f"Expected `workers` to be a whole number of at least 1, but got {workers!r}.")
    planes = _to_planes(images)
    places = _to_indices(indices, len(planes))
    values = CONSTANTS[name][profile][int(severity) - 1]
    more: dict[str, tuple[Any, ...]] = {
        "frost": (constants.OVERLAY_SCALE[profile], Path(overlays) if overlays is not None else None),
        "elastic_transform": (constants.ELASTIC_UNIT[profile],),
    }
    code = key(int(seed), name, int(severity))
    given = planes.numpy()
    out = np.empty_like(given)  # in the memory layout of what came in
    at_once = max(1, PIXELS_AT_ONCE // (planes.shape[2] * planes.shape[3]))

    def work(start: int) -> None:
        part = slice(start, start + at_once)
        piece = given[part] if name == "pixelate" else np.ascontiguousarray(given[part])
        draws = () if name in DETERMINISTIC else (Draws(code, places[part]),)
        with torch.no_grad():
            made = FUNCTIONS[name](torch.from_numpy(piece), *values, *more.get(name, ()), *draws).numpy()
        for channel in range(3):  # several times as fast as in one go, where the layouts differ
            out[part, channel] = made[:, channel]

    starts = range(0, len(planes), at_once)
    if workers == 1 or len(starts) < 2:
        list(map(work, starts))
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, starts))
    return _like(torch.from_numpy(out), images)


def _to_planes(images: Any) -> Tensor:
    """Bytes N x 3 x H x W on the CPU, or a refusal."""
    given: Tensor = images
    if isinstance(images, np.ndarray):
        if images.dtype != np.uint8:
            raise InputError(
                f"Expected a uint8 array, N x H x W x 3, but got {images.dtype}: "
                "(images * 255).round().astype('uint8') if it lies in [0, 1]."
            )
        given = torch.from_numpy(np.require(images, requirements=["C", "W"]))
    elif not isinstance(images, Tensor):
        raise InputError(f"Expected images as a numpy array or a torch.Tensor, but got {type(images).__name__}.")
    is_bytes = given.dtype == torch.uint8
    if not is_bytes and not given.is_floating_point():
        raise InputError(f"Expected uint8 or floating images, but got {given.dtype}.")
    if given.dim() != 4 or given.shape[3 if is_bytes else 1] != 3:
        kind = "uint8 images as N x H x W x 3" if is_bytes else "floating images as N x 3 x H x W"
        turned = is_bytes and given.dim() == 4 and given.shape[1] == 3
        cure = " Channels come last in uint8 images." if turned else ""
        raise InputError(f"Expected {kind}, but got shape {tuple(given.shape)}.{cure}")
    planes = given.detach().cpu()
    planes = planes.permute(0, 3, 1, 2) if is_bytes else planes.float()
    height, width = planes.shape[2:]
    if min(height, width) < SMALLEST:
        raise InputError(f"Expected images of at least {SMALLEST} pixels a side, but got {height} x {width}.")
    if is_bytes:
        return planes
    if not bool(((planes >= 0) & (planes <= 1)).all()):  # NaN fails too
        raise InputError("Expected floating images in [0, 1], but some pixels lie outside or are not finite.")
    return (planes * 255).round_().to(torch.uint8)


def _to_indices(indices: Any, count: int) -> NDArray[np.int64]:
    places = np.arange(count) if indices is None else np.asarray(indices)
    if places.shape != (count,) or (count and not np.issubdtype(places.dtype, np.integer)):
        what = f"but got shape {places.shape} of {places.dtype}"
        raise InputError(f"Expected `indices` to be {count} whole numbers, one an image, {what}.")
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
