"""Datasets of image files: ImageNet-C, Tiny-ImageNet-C, any folder with one subfolder a class."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ctta._core.files import parsing
from ctta.data.cache import Place, find_folder
from ctta.data.dataset import Dataset, Indices, Labels, MissingError, Pixels
from ctta.data.pixels import CHOICES, Preprocessing, read_image
from ctta.errors import DataError
from ctta.settings import suggestion

SUFFIXES = {".jpeg", ".jpg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}
IDS_NAME = "imagenet_test_image_ids.txt"
IDS_MD5 = "8de8bbba2cf05cb54190e49247375985"
"""MD5 of the official list of 5,000 images, line ends as \\n and none at the end."""
LISTED = re.compile(r"[^/<.\0][^/\0]*/[^/.\0][^/\0]*")
"""A line of a list of images: CLASS/NAME, neither of them hidden."""
SAMPLES = 64
TINY_LIST = "val_annotations.txt"
"""Beside the folder `images` of Tiny-ImageNet's validation set: a line an image, name and class first."""


class ImageFolder(Dataset):
    """Files `root/CLASS/NAME`, read when asked for. A class's number is its rank among the sorted class names.

    `places` says where the files are below `root`, if not at their names.
    """

    def __init__(
        self,
        root: Path,
        files: Sequence[str],
        classes: Sequence[str],
        name: str,
        preprocessing: Preprocessing = "as-is",
        places: Sequence[str] | None = None,
    ) -> None:
        if preprocessing not in CHOICES:
            hint = suggestion(preprocessing, CHOICES)
            raise DataError(f"There is no preprocessing `{preprocessing}`.{hint} Known: {', '.join(CHOICES)}.")
        self.root, self.files, self.classes = root, list(files), sorted(classes)
        self.name, self.preprocessing = name, preprocessing
        self.paths = [root / place for place in places or files]
        rank = {wnid: number for number, wnid in enumerate(self.classes)}
        self.labels: Labels = np.array([rank[file.split("/")[0]] for file in files], np.int64)

    def images(self, indices: Indices) -> Pixels:
        """Return the chosen images, N x H x W x 3, 8-bit RGB. They must be of one size."""
        paths = [self.paths[i] for i in self.rows(indices)]
        found = [read_image(path, self.preprocessing) for path in paths]
        for path, image in zip(paths, found, strict=True):
            if image.shape != found[0].shape:
                (height, width, _), (rows, columns, _) = found[0].shape, image.shape
                raise DataError(
                    f"{path}: expected {width} x {height} pixels like those before it, got {columns} x {rows}. "
                    'Use preprocessing="resize256-crop224" to bring all to one size.'
                )
        return np.stack(found) if found else np.zeros((0, 0, 0, 3), np.uint8)

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of names, labels, sizes and preprocessing, and of the whole content of 64 files spread evenly.

        A changed byte in another file that leaves its size alone goes unnoticed.
        """
        sha = hashlib.sha256(f"{self.preprocessing}|{len(self)}|".encode())
        sha.update(self.labels.tobytes())
        with parsing(f"A file of {self.root} cannot be read", "Get or unpack the dataset again."):
            for file, path in zip(self.files, self.paths, strict=True):
                sha.update(f"{file}|{path.stat().st_size}|".encode())
            for k in sorted({(len(self) - 1) * k // (SAMPLES - 1) for k in range(SAMPLES)}) if self.paths else ():
                sha.update(self.paths[k].read_bytes())
        return sha.hexdigest()


def image_folder(root: str | os.PathLike[str], preprocessing: Preprocessing = "as-is") -> ImageFolder:
    """Open any folder with one subfolder a class, or Tiny-ImageNet's `val`; files in sorted order."""
    base, places = Path(root).expanduser(), None
    if (base / TINY_LIST).is_file():
        files = _tiny_validation(base / TINY_LIST)
        classes = sorted({file.split("/")[0] for file in files})
        places = [f"images/{file.split('/')[1]}" for file in files]
    else:
        files, classes = _listed(base, "Put the images of each class into a subfolder.")
    return ImageFolder(base, files, classes, base.name, preprocessing, places)


def imagenet_c(
    corruption: str,
    severity: int = 5,
    root: Place = None,
    *,
    ids: Place = None,
    every: bool = False,
    classes: Sequence[str] | None = None,
    preprocessing: Preprocessing = "as-is",
) -> ImageFolder:
    """Open one domain of ImageNet-C with the 5,000 images of the benchmark, in the list's order.

    `ids` is the list file (else that of an installed robustbench is used); `every` takes all files of the folder
    instead. The papers disagree on preprocessing: PALM reads the files "as-is", CoTTA and RobustBench use
    "resize256-crop224". `classes` (the names of the 1000 class folders) is needed when the folder lacks some.
    """
    listed = None if every else functools.partial(read_ids, ids)
    return _domain("ImageNet-C", corruption, severity, root, classes, 1000, preprocessing, listed)


def tiny_imagenet_c(
    corruption: str, severity: int = 5, root: Place = None, *, classes: Sequence[str] | None = None
) -> ImageFolder:
    """Open one domain of Tiny-ImageNet-C: 10,000 images of 64 x 64 pixels, 200 classes."""
    return _domain("Tiny-ImageNet-C", corruption, severity, root, classes, 200)


def _domain(
    benchmark: str,
    corruption: str,
    severity: int,
    root: Place,
    classes: Sequence[str] | None,
    expected: int,
    preprocessing: Preprocessing = "as-is",
    listed: Callable[[], list[str]] | None = None,
) -> ImageFolder:
    """Open CORRUPTION/SEVERITY of a benchmark, with all images or the listed ones."""
    name, inside = benchmark.lower(), f"{corruption}/{severity}"
    cure = f"Get it with: ctta data get {name}"
    above = find_folder(benchmark, inside, root)
    folder = above / inside
    if not folder.is_dir():
        near = above if above.is_dir() else above.parent
        hint = suggestion(corruption, _subfolders(near)) if near.is_dir() else ""
        raise MissingError(f"There is no folder {folder}.{hint} {cure}")
    files, found = (listed(), _subfolders(folder)) if listed else _listed(folder, cure)
    known = found if classes is None else list(classes)
    # a class's number is its rank among all classes, so that none may be missing
    if classes is None and len(found) != expected:
        raise DataError(
            f"{folder}: expected {expected} class folders, got {len(found)}. Without all of them the class "
            "numbers would be wrong: unpack the archive again, or give the full list with classes=."
        )
    if missing := sorted(set(found) - set(known)):
        raise DataError(f"{folder}: the class folder {missing[0]} is not among the classes given.")
    if listed:
        _require_files(folder, files, cure)
    return ImageFolder(folder, files, known, f"{name}/{inside}", preprocessing)


def read_ids(path: Place = None) -> list[str]:
    """Read a list of images, one `CLASS/NAME` a line; by default the one in an installed robustbench."""
    source = Path(path).expanduser() if path is not None else _robustbench_ids()
    cure = f"Give the file {IDS_NAME} of RobustBench (pip install robustbench brings it)."
    if not source.is_file():
        raise DataError(f"There is no list of images {source}. {cure}")
    with parsing(f"{source}: expected a list of image names", cure):
        lines = source.read_text("ascii").split()
    wrong = next((line for line in lines if not LISTED.fullmatch(line)), None)
    if wrong is not None or not lines:
        raise DataError(f"{source}: expected one `CLASS/NAME.JPEG` a line, got {wrong or 'nothing'}. {cure}")
    digest = hashlib.md5("\n".join(lines).encode(), usedforsecurity=False).hexdigest()
    if source.name == IDS_NAME and digest != IDS_MD5:
        raise DataError(
            f"{source}: expected the official list (MD5 {IDS_MD5}), got {len(lines):,} lines, MD5 {digest}: it is "
            f"cut short or changed. {cure} An own list needs another file name."
        )
    return lines


def _robustbench_ids() -> Path:
    spec = importlib.util.find_spec("robustbench")
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            f"ImageNet-C is judged on a list of 5,000 images. Give the file ({IDS_NAME} of RobustBench) as ids, "
            "or `pip install robustbench`, which brings it; every=True takes all 50,000."
        )
    base = Path(next(iter(spec.submodule_search_locations)))
    return next(iter(sorted(base.rglob(IDS_NAME))), base / "helper_files" / IDS_NAME)


def _listed(folder: Path, cure: str) -> tuple[list[str], list[str]]:
    """List image files (sorted `CLASS/NAME`) and classes."""
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}. {cure}")
    classes = _subfolders(folder)
    files = []
    for name in classes:
        with os.scandir(folder / name) as items:
            found = [item.name for item in items if Path(item.name).suffix.lower() in SUFFIXES]
        files += [f"{name}/{file}" for file in sorted(found) if not file.startswith(".")]
    if not files:
        raise DataError(f"{folder} holds no images: expected one subfolder a class with image files. {cure}")
    return files, classes


def _tiny_validation(path: Path) -> list[str]:
    """Read Tiny-ImageNet's list of validation images as sorted `CLASS/NAME`; every one must be there."""
    cure = "Unpack the archive of Tiny-ImageNet again."
    with parsing(f"{path} cannot be read", cure):
        lines = [line.split("\t") for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]
    wrong = next((line for line in lines if len(line) < 2 or not line[1] or "/" in line[0] + line[1]), None)
    if wrong is not None or not lines:
        got = "nothing" if wrong is None else repr("\t".join(wrong)[:60])
        raise DataError(f"{path}: expected `NAME<tab>CLASS...` a line, got {got}. {cure}")
    _require_files(path.with_name("images"), [line[0] for line in lines], cure)
    return sorted(f"{wnid}/{name}" for name, wnid, *_ in lines)


def _subfolders(folder: Path) -> list[str]:
    with os.scandir(folder) as items:
        return sorted(item.name for item in items if item.is_dir() and not item.name.startswith("."))


def _require_files(folder: Path, files: list[str], cure: str) -> None:
    with parsing(f"{folder}: a name that no disk takes", cure):
        missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise DataError(
            f"{folder}: {len(missing):,} of {len(files):,} listed images are missing, first {missing[0]}. {cure}"
        )
