"""Make CIFAR-10-C, CIFAR-100-C, ImageNet-C or Tiny-ImageNet-C from clean images, in the official layout.

Every file appears only when it is whole; what is there from the same plan is not made again, so an interrupted run
goes on where it stopped. Pixels depend on (seed, corruption, severity, image number) alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ctta._version import __version__
from ctta.data import manifest as notes
from ctta.data.cache import Progress, atomic, cache_folder, make_folder, silent
from ctta.data.catalogue import BLUR, CIFAR_C_MD5, DIGITAL, EXTRAS, NOISE, REPRODUCIBLE, WEATHER
from ctta.data.cifar import cifar10, cifar100
from ctta.data.cifar_c import FULL, SEVERITIES
from ctta.data.dataset import Dataset, Pixels
from ctta.data.folders import ImageFolder, image_folder, read_ids
from ctta.data.manifest import Made, Manifest
from ctta.data.pixels import jpeg_bytes
from ctta.errors import DataError
from ctta.settings import suggestion

ALL = NOISE + BLUR + WEATHER + DIGITAL + EXTRAS
CHUNK = {"cifar": 1000, "tiny-imagenet": 250, "imagenet": 25}
"""Images corrupted at once: enough to be fast, few enough to be small in memory."""

HEADER = 128
"""Bytes before the data of a .npy file of these shapes."""

Corrupt = Callable[..., Pixels]


@dataclass(frozen=True)
class Result:
    """One file (or folder of images) made or found: its state as in `manifest.Made`, and whether it was there."""

    path: Path
    state: str
    there: bool = False


@dataclass(frozen=True)
class Plan:
    """What to make: names and severities, the seed, the number of images (all if None), frost photos if any."""

    corruptions: tuple[str, ...] = ALL
    severities: tuple[int, ...] = SEVERITIES
    seed: int = 0
    images: int | None = None
    overlays: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name in self.corruptions:
            if name not in ALL:
                raise DataError(
                    f"There is no corruption `{name}`.{suggestion(name, ALL)} Known: {', '.join(ALL)}."
                )
        if not self.severities or not set(self.severities) <= set(SEVERITIES):
            raise DataError(f"Severities are 1 to 5, got {', '.join(map(str, self.severities)) or 'none'}.")
        if tuple(sorted(set(self.severities))) != self.severities:
            raise DataError("Give each severity once, in rising order: the files are laid out that way.")
        if self.images is not None and self.images < 1:
            raise DataError(f"Expected at least one image, got {self.images}.")


def make(
    name: str,
    plan: Plan | None = None,
    *,
    cache: str | os.PathLike[str] | None = None,
    clean: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    ids: str | os.PathLike[str] | None = None,
    progress: Progress = silent,
    corrupt: Corrupt | None = None,
) -> list[Result]:
    """Make a benchmark by name: cifar10-c, cifar100-c, imagenet-c or tiny-imagenet-c.

    `clean` is the folder of clean images (for CIFAR by default the data cache), `out` the folder to fill (else
    made/NAME in the cache), `ids` a list that picks images of an ImageNet folder. `corrupt` stands in for
    `ctta.corruptions.corrupt`.
    """
    plan = plan or Plan()
    folders = {
        "cifar10-c": "CIFAR-10-C",
        "cifar100-c": "CIFAR-100-C",
        "imagenet-c": "ImageNet-C",
        "tiny-imagenet-c": "Tiny-ImageNet-C",
    }
    if name not in folders:
        raise DataError(f"`{name}` cannot be made.{suggestion(name, folders)} What can: {', '.join(folders)}.")
    target = Path(out).expanduser() if out is not None else cache_folder(cache) / "made" / folders[name]
    corrupt = corrupt or _corrupt()
    if name.startswith("cifar"):
        source = (cifar10 if name == "cifar10-c" else cifar100)(clean if clean is not None else cache)
        column = 0 if name == "cifar10-c" else 1
        published = {key: md5s[column] for key, md5s in CIFAR_C_MD5.items()}
        return make_arrays(name, source, target, plan, published, corrupt, progress)
    if clean is None:
        raise DataError(
            f"{name} is made from a folder of clean images, one subfolder a class: give it with --clean FOLDER."
        )
    profile = name.removesuffix("-c")
    pictures = image_folder(clean, "resize256-crop224" if profile == "imagenet" else "resize64")
    chosen = read_ids(ids) if ids is not None else None
    return make_pictures(name, pictures, target, plan, profile, corrupt, progress, chosen)


def _corrupt() -> Corrupt:
    from ctta.corruptions import corrupt

    return corrupt


def make_arrays(
    name: str,
    clean: Dataset,
    folder: Path,
    plan: Plan,
    published: dict[str, str],
    corrupt: Corrupt,
    progress: Progress = silent,
) -> list[Result]:
    """Make one .npy file a corruption and labels.npy, as CIFAR-10-C has them."""
    count = min(plan.images or len(clean), len(clean))
    note = _begin(folder, Manifest(name, count, plan.severities, plan.seed, clean.hash, __version__), "*.npy")
    whole = count == FULL == len(clean) and plan.severities == SEVERITIES
    labels = np.tile(clean.labels[:count].astype(np.uint8), len(plan.severities))
    rows = count * len(plan.severities)
    results = []

    def place(key: str, shape: tuple[int, ...], blocks: Iterable[Pixels]) -> None:
        nonlocal note
        path = folder / f"{key}.npy"
        there = path.name in note.files and path.is_file() and path.stat().st_size == HEADER + int(np.prod(shape))
        if not there:
            md5 = _write_npy(path, shape, blocks)
            made = Made(md5, _state(key, md5, published, whole=whole))
            note = dataclasses.replace(note, files={**note.files, path.name: made})
            notes.write(folder, note)
        results.append(Result(path, note.files[path.name].state, there))

    place("labels", (rows,), [labels])
    for key in plan.corruptions:
        place(key, (rows, 32, 32, 3), _corrupted(key, clean, count, plan, corrupt, progress))
    return results


def _corrupted(
    key: str, clean: Dataset, count: int, plan: Plan, corrupt: Corrupt, progress: Progress
) -> Iterator[Pixels]:
    """Yield the images of one corruption, severities in order, in chunks; nothing happens until they are taken."""
    size = CHUNK["cifar"]
    for place, severity in enumerate(plan.severities):
        for start in range(0, count, size):
            numbers = np.arange(start, min(start + size, count))
            yield _apply(corrupt, clean.images(numbers), key, severity, "cifar", plan, numbers)
            progress(f"making {key}", place * count + int(numbers[-1]) + 1, count * len(plan.severities))


def make_pictures(
    name: str,
    clean: ImageFolder,
    folder: Path,
    plan: Plan,
    profile: str,
    corrupt: Corrupt,
    progress: Progress = silent,
    ids: Sequence[str] | None = None,
) -> list[Result]:
    """Make CORRUPTION/SEVERITY/CLASS/NAME.JPEG files, as ImageNet-C has them."""
    numbers = _chosen(clean, ids)[: plan.images]
    source = hashlib.sha256("\n".join(clean.files[i] for i in numbers).encode()).hexdigest()
    note = _begin(folder, Manifest(name, len(numbers), plan.severities, plan.seed, source, __version__), "*/[1-5]")
    pairs = [(key, severity) for key in plan.corruptions for severity in plan.severities]
    done, total = 0, len(numbers) * len(pairs)
    fresh: set[tuple[str, int]] = set()
    for start in range(0, len(numbers), CHUNK[profile]):
        part = numbers[start : start + CHUNK[profile]]
        pixels: Pixels | None = None
        for key, severity in pairs:
            targets = [(folder / key / str(severity) / clean.files[i]).with_suffix(".JPEG") for i in part]
            todo = [k for k, target in enumerate(targets) if not target.is_file()]
            if todo:
                pixels = clean.images(part) if pixels is None else pixels
                made = _apply(corrupt, pixels[todo], key, severity, profile, plan, part[todo])
                for k, image in zip(todo, made, strict=True):
                    with atomic(targets[k], durable=False) as file:
                        file.write(jpeg_bytes(image))
                fresh.add((key, severity))
            done += len(part)
            progress(f"making {key} {severity}", done, total)
    state = {f"{key}/{severity}": Made("", _picture_state(key)) for key, severity in pairs}
    notes.write(folder, dataclasses.replace(note, files={**note.files, **state}))
    return [Result(folder / k / str(s), _picture_state(k), (k, s) not in fresh) for k, s in pairs]


def _chosen(clean: ImageFolder, ids: Sequence[str] | None) -> NDArray[np.int64]:
    """Return the numbers of the images to make: their places in the whole sorted folder, which never shift."""
    if ids is None:
        return np.arange(len(clean))
    place = {file.rpartition(".")[0]: number for number, file in enumerate(clean.files)}
    missing = [name for name in ids if name.rpartition(".")[0] not in place]
    if missing:
        raise DataError(f"{clean.root} lacks {len(missing):,} of {len(ids):,} listed images, first {missing[0]}.")
    return np.array([place[name.rpartition(".")[0]] for name in ids], np.int64)


def _apply(
    corrupt: Corrupt, images: Pixels, key: str, severity: int, profile: str, plan: Plan, numbers: NDArray[np.int64]
) -> Pixels:
    made = corrupt(images, key, severity, profile=profile, seed=plan.seed, indices=numbers, **_overlays(plan))
    if made.shape != images.shape or made.dtype != np.uint8:
        raise DataError(
            f"The corruption {key} returned {made.dtype} of {made.shape}, expected uint8 of {images.shape}."
        )
    return made


def _overlays(plan: Plan) -> dict[str, str | os.PathLike[str]]:
    return {} if plan.overlays is None else {"overlays": plan.overlays}


def _begin(folder: Path, wanted: Manifest, pattern: str) -> Manifest:
    """Open the folder for this plan: a new one, or one that the same plan began."""
    make_folder(folder)
    found = notes.read(folder)
    if found is not None and not found.same_plan(wanted):
        raise DataError(
            f"{folder} was made with another plan ({found.plan()}) than this one ({wanted.plan()}). "
            "Delete it, or choose another folder with --out."
        )
    if found is None and next(iter(folder.glob(pattern)), None) is not None:
        raise DataError(
            f"{folder} holds files that `ctta data make` did not make. Choose another folder with --out."
        )
    if found is None:
        notes.write(folder, wanted)
    return found or wanted


def _write_npy(path: Path, shape: tuple[int, ...], blocks: Iterable[Pixels]) -> str:
    """Stream blocks into a .npy file (version 1.0, as the official ones) and return its MD5."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": shape})
    digest, done = hashlib.md5(head.getvalue(), usedforsecurity=False), 0
    with atomic(path) as file:
        file.write(head.getvalue())
        for block in blocks:
            data = np.ascontiguousarray(block).tobytes()
            file.write(data)
            digest.update(data)
            done += len(block)
        if done != shape[0]:
            raise DataError(f"{path}: {done:,} of {shape[0]:,} rows were made.")
    return digest.hexdigest()


def _state(key: str, md5: str, published: dict[str, str], *, whole: bool) -> str:
    if not whole:
        return "partial"
    if published.get(key) == md5:
        return "official"
    return "differs" if key in REPRODUCIBLE else "fresh draw"


def _picture_state(key: str) -> str:
    return "same procedure" if key in REPRODUCIBLE else "fresh draw"
