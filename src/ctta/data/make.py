"""Make CIFAR-10-C, CIFAR-100-C, ImageNet-C or Tiny-ImageNet-C from clean images, in the official layout.

Every file appears only when it is whole; what is there from the same plan is not made again, so an interrupted run
goes on where it stopped. Pixels depend on (seed, corruption, severity, image number) alone.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ctta import corruptions
from ctta._version import __version__
from ctta.corruptions import CORRUPTIONS, DETERMINISTIC, EXTRA
from ctta.data import catalogue
from ctta.data.cache import Place, Watcher, atomic, cache_folder, make_folder, silent
from ctta.data.cifar import cifar10, cifar100
from ctta.data.cifar_c import FULL, SEVERITIES
from ctta.data.dataset import Dataset, Pixels
from ctta.data.folders import ImageFolder, image_folder, read_ids
from ctta.data.manifest import Made, Manifest
from ctta.data.pixels import jpeg_bytes
from ctta.errors import DataError
from ctta.settings import suggestion

ALL = CORRUPTIONS + EXTRA
REPRODUCIBLE = (*DETERMINISTIC, "labels")
"""Files without random draws: whoever makes them can compare the bytes with the published ones."""

NAMES = ("cifar10-c", "cifar100-c", "imagenet-c", "tiny-imagenet-c")
CHUNK = {"cifar": 1000, "tiny-imagenet": 250, "imagenet": 25}
"""Images corrupted at once: enough to be fast, few enough to be small in memory."""

HEADER = 128
"""Bytes before the data of a .npy file of these shapes."""

Corrupt = Callable[..., Pixels]


@dataclass(frozen=True)
class MadeFile:
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
    overlays: Place = None

    def __post_init__(self) -> None:
        if wrong := [name for name in self.corruptions if name not in ALL]:
            hint = suggestion(wrong[0], ALL)
            raise DataError(f"There is no corruption `{wrong[0]}`.{hint} Known: {', '.join(ALL)}.")
        if not self.severities or not set(self.severities) <= set(SEVERITIES):
            raise DataError(f"Severities are 1 to 5, got {', '.join(map(str, self.severities)) or 'none'}.")
        if tuple(sorted(set(self.severities))) != self.severities:
            raise DataError("Give each severity once, in rising order: the files are laid out that way.")
        if self.images is not None and self.images < 1:
            raise DataError(f"Expected at least one image, got {self.images}.")

    def apply(
        self, corrupt: Corrupt, images: Pixels, key: str, severity: int, profile: str, numbers: NDArray[np.int64]
    ) -> Pixels:
        """Corrupt some images, whose numbers in the whole set decide the draws."""
        overlays = {} if self.overlays is None else {"overlays": self.overlays}
        made = corrupt(images, key, severity, profile=profile, seed=self.seed, indices=numbers, **overlays)
        if made.shape != images.shape or made.dtype != np.uint8:
            got = f"{made.dtype} of {made.shape}"
            raise DataError(f"The corruption {key} returned {got}, expected uint8 of {images.shape}.")
        return made


def make(
    name: str,
    plan: Plan | None = None,
    *,
    cache: Place = None,
    clean: Place = None,
    out: Place = None,
    ids: Place = None,
    progress: Watcher = silent,
    corrupt: Corrupt | None = None,
) -> list[MadeFile]:
    """Make a benchmark by name: cifar10-c, cifar100-c, imagenet-c or tiny-imagenet-c.

    `clean` is the folder of clean images (for CIFAR by default the data cache), `out` the folder to fill (else
    made/NAME in the cache), `ids` a list that picks images of an ImageNet folder. `corrupt` stands in for
    `ctta.corruptions.corrupt`.
    """
    plan, corrupt = plan or Plan(), corrupt or corruptions.corrupt
    if name not in NAMES:
        raise DataError(f"`{name}` cannot be made.{suggestion(name, NAMES)} What can: {', '.join(NAMES)}.")
    folder = cache_folder(cache) / "made" / catalogue.find(name).folder if out is None else Path(out).expanduser()
    if name.startswith("cifar"):
        source = (cifar10 if name == "cifar10-c" else cifar100)(cache if clean is None else clean)
        return make_arrays(name, source, folder, plan, catalogue.published_md5s(name), corrupt, progress)
    if clean is None:
        raise DataError(
            f"{name} is made from a folder of clean images, one subfolder a class: give it with --clean FOLDER."
        )
    pictures = image_folder(clean, "resize256-crop224" if name == "imagenet-c" else "resize64")
    numbers = _chosen(pictures, None if ids is None else read_ids(ids))[: plan.images]
    return make_pictures(name, pictures, folder, plan, numbers, corrupt, progress)


def make_arrays(
    name: str,
    clean: Dataset,
    folder: Path,
    plan: Plan,
    published: dict[str, str],
    corrupt: Corrupt,
    progress: Watcher = silent,
) -> list[MadeFile]:
    """Make one .npy file a corruption and labels.npy, as CIFAR-10-C has them."""
    count = min(plan.images or len(clean), len(clean))
    rows, results = count * len(plan.severities), []
    note = _begin(folder, Manifest(name, count, plan.severities, plan.seed, clean.hash, __version__), "*.npy")
    whole = count == FULL == len(clean) and plan.severities == SEVERITIES
    for key in ("labels", *plan.corruptions):
        path, shape = folder / f"{key}.npy", (rows,) if key == "labels" else (rows, 32, 32, 3)
        there = path.name in note.files and path.is_file() and path.stat().st_size == HEADER + int(np.prod(shape))
        if not there:
            md5 = _write_npy(path, shape, _blocks(key, clean, count, plan, corrupt, progress))
            state = "official" if published.get(key) == md5 else _state(key, "differs")
            note.files[path.name] = Made(md5, state if whole else "partial")
            note.write(folder)
        results.append(MadeFile(path, note.files[path.name].state, there))
    return results


def _state(key: str, deterministic: str) -> str:
    """What a file is worth that does not carry a published MD5."""
    return deterministic if key in REPRODUCIBLE else "fresh draw"


def _blocks(
    key: str, clean: Dataset, count: int, plan: Plan, corrupt: Corrupt, progress: Watcher
) -> Iterator[Pixels]:
    """Yield the rows of one file, severities in order, in chunks; nothing happens until they are taken."""
    for place, severity in enumerate(plan.severities):
        if key == "labels":
            yield clean.labels[:count].astype(np.uint8)
            continue
        for start in range(0, count, CHUNK["cifar"]):
            numbers = np.arange(start, min(start + CHUNK["cifar"], count))
            yield plan.apply(corrupt, clean.images(numbers), key, severity, "cifar", numbers)
            progress(f"making {key}", place * count + int(numbers[-1]) + 1, count * len(plan.severities))


def make_pictures(
    name: str,
    clean: ImageFolder,
    folder: Path,
    plan: Plan,
    numbers: NDArray[np.int64],
    corrupt: Corrupt,
    progress: Watcher = silent,
) -> list[MadeFile]:
    """Make CORRUPTION/SEVERITY/CLASS/NAME.JPEG files, as ImageNet-C has them."""
    source = hashlib.sha256("\n".join(clean.files[i] for i in numbers).encode()).hexdigest()
    note = _begin(folder, Manifest(name, len(numbers), plan.severities, plan.seed, source, __version__), "*/[1-5]")
    pairs = [(key, severity) for key in plan.corruptions for severity in plan.severities]
    profile, fresh, done = name.removesuffix("-c"), set(), 0
    for start in range(0, len(numbers), CHUNK[profile]):
        part = numbers[start : start + CHUNK[profile]]
        pixels: Pixels | None = None
        for key, severity in pairs:
            targets = [(folder / key / str(severity) / clean.files[i]).with_suffix(".JPEG") for i in part]
            if todo := [k for k, target in enumerate(targets) if not target.is_file()]:
                pixels = clean.images(part) if pixels is None else pixels
                made = plan.apply(corrupt, pixels[todo], key, severity, profile, part[todo])
                for k, image in zip(todo, made, strict=True):
                    with atomic(targets[k], durable=False) as file:
                        file.write(jpeg_bytes(image))
                fresh.add((key, severity))
            done += len(part)
            progress(f"making {name}", done, len(numbers) * len(pairs))
    states = {(key, severity): _state(key, "same procedure") for key, severity in pairs}
    note.files.update({f"{key}/{severity}": Made("", state) for (key, severity), state in states.items()})
    note.write(folder)
    return [MadeFile(folder / p[0] / str(p[1]), state, p not in fresh) for p, state in states.items()]


def _chosen(clean: ImageFolder, ids: Sequence[str] | None) -> NDArray[np.int64]:
    """Return the numbers of the images to make: their places in the whole sorted folder, which never shift."""
    if ids is None:
        return np.arange(len(clean))
    place = {file.rpartition(".")[0]: number for number, file in enumerate(clean.files)}
    if missing := [name for name in ids if name.rpartition(".")[0] not in place]:
        raise DataError(f"{clean.root} lacks {len(missing):,} of {len(ids):,} listed images, first {missing[0]}.")
    return np.array([place[name.rpartition(".")[0]] for name in ids], np.int64)


def _begin(folder: Path, wanted: Manifest, pattern: str) -> Manifest:
    """Open the folder for this plan: a new one, or one that the same plan began."""
    make_folder(folder)
    found = Manifest.of(folder)
    if found is None:
        if next(iter(folder.glob(pattern)), None) is not None:
            raise DataError(
                f"{folder} holds files that `ctta data make` did not make. Choose another folder with --out."
            )
        wanted.write(folder)
    elif found.plan != wanted.plan:
        raise DataError(
            f"{folder} was made with another plan ({found.plan}) than this one ({wanted.plan}). "
            "Delete it, or choose another folder with --out."
        )
    return found or wanted


def _write_npy(path: Path, shape: tuple[int, ...], blocks: Iterable[Pixels]) -> str:
    """Stream blocks into a .npy file (version 1.0, as the official ones) and return its MD5."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": shape})
    digest = hashlib.md5(head.getvalue(), usedforsecurity=False)
    with atomic(path) as file:
        file.write(head.getvalue())
        for block in blocks:
            data = np.ascontiguousarray(block).tobytes()
            file.write(data)
            digest.update(data)
    return digest.hexdigest()
