"""Where data files live, and files that are either whole and verified or not there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from ctta._core import files
from ctta.errors import DataError

Watcher = Callable[[str, int, int | None], None]
"""Called as watcher(what, done, total): bytes for files, images for corruptions; total None when unknown."""

Place = str | os.PathLike[str] | None
"""A file or folder that a user may name."""

BLOCK = 1 << 20


def silent(what: str, done: int, total: int | None) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class Digests:
    """What is known beforehand of a file: any of size in bytes, MD5 and SHA-256 in hex."""

    size: int | None = None
    md5: str | None = None
    sha256: str | None = None

    @property
    def checksum(self) -> bool:
        """Whether a checksum is known, so that a wrong byte cannot pass."""
        return self.md5 is not None or self.sha256 is not None


def cache_folder(folder: Place = None) -> Path:
    """Return the data folder (not created here): the argument, else $CTTA_DATA, else the platform's cache."""
    if folder is None:
        folder = os.environ.get("CTTA_DATA") or None
    if folder is not None:
        return Path(folder).expanduser()
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "ctta"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ctta"


def find_folder(name: str, inside: str, root: Place = None) -> Path:
    """Return the folder of a benchmark: the given one if it holds that file, else NAME or made/NAME below it."""
    base = cache_folder(root)
    places = (base, base / name, base / "made" / name)
    return next((folder for folder in places if (folder / inside).exists()), base / name)


@contextlib.contextmanager
def writing(what: str, kept: str = "") -> Iterator[None]:
    """Turn a disk that refuses into one sentence: "Could not WHAT: ...", and where to go instead."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"Could not {what}: {error.strerror or error}{kept}; make room or choose another data folder with "
            "--cache or the environment variable CTTA_DATA."
        ) from error


def make_folder(folder: Path) -> None:
    """Create a folder with its parents, or say why it cannot be."""
    with writing(f"create the folder {folder}"):
        folder.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def atomic(target: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Write a file of the data folder whole or not at all (`files.atomic`), with an error that helps."""
    make_folder(target.parent)
    refused = writing(f"write {target}", ". Nothing was left under that name")
    with refused, files.atomic(target, durable=durable) as file:
        yield file


@contextlib.contextmanager
def locked(target: Path, progress: Watcher = silent) -> Iterator[bool]:
    """Be the only process that brings a file; yields whether another one did so meanwhile.

    The system lets the lock go when its owner ends, however it ends, so that a dead owner holds nobody up. Where
    there are no such locks (Windows, some network disks) nobody waits.
    """
    path, waited = target.with_name(f".{target.name}.lock"), False
    while True:
        with writing(f"write in {path.parent}"):
            file = open(path, "ab")  # noqa: SIM115 - closed below, when the lock may go
        with file:
            if not _flock(file, wait=False):
                progress(f"waiting for another process that brings {target.name}", 0, None)
                waited = _flock(file, wait=True)
            if _is_named(file, path):
                try:
                    yield waited
                finally:
                    path.unlink(missing_ok=True)  # before it is let go: who waits for it finds its file gone
                return
        waited = True  # the name was removed meanwhile: once more, as the next may hold another file


def _flock(file: BinaryIO, *, wait: bool) -> bool:
    """Lock an open file; False if another process holds it and we are not to wait."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # a disk without locks
        return True
    return True


def _is_named(file: BinaryIO, path: Path) -> bool:
    """Whether the open file still has its name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


class Sum:
    """Size and checksum of bytes as they pass, to be compared with what is known of them."""

    def __init__(self, known: Digests) -> None:
        self.known, self.size = known, 0
        self.name = "md5" if known.sha256 is None else "sha256"
        self.digest = hashlib.new(self.name, usedforsecurity=False)

    def add(self, block: bytes) -> None:
        """Count a block."""
        self.size += len(block)
        self.digest.update(block)

    def problem(self) -> str | None:
        """Return how the bytes differ ("expected ..., got ..."), or None when nothing does."""
        size, value, found = self.known.size, getattr(self.known, self.name), self.digest.hexdigest()
        if size is not None and size != self.size:
            state = "it is cut short" if self.size < size else "it is another file"
            return f"expected {size:,} bytes, got {self.size:,}: {state}"
        if value not in (None, found):
            return f"expected {self.name.upper()} {value}, got {found}: it is damaged or another file"
        return None


def mismatch(path: Path, known: Digests, progress: Watcher = silent) -> str | None:
    """Return how a file differs from what is known of it, or None. A file of another size is not read."""
    sums, total = Sum(known), path.stat().st_size
    if not known.checksum or known.size not in (None, total):
        sums.size = total
        return sums.problem()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            sums.add(block)
            progress(f"checking {path.name.removesuffix('.part')}", sums.size, total)
    return sums.problem()


def place(source: IO[bytes], target: Path, known: Digests, what: str, cure: str, *, durable: bool = True) -> None:
    """Copy a stream to a file that gets its name only if the bytes are the known ones."""
    sums = Sum(known)
    with atomic(target, durable=durable) as file:
        while block := source.read(BLOCK):
            file.write(block)
            sums.add(block)
        if problem := sums.problem():
            raise DataError(f"{what}: {problem}. {cure}")
