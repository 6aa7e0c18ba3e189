"""Where data files live, and files that are either whole and verified or not there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ctta._core import files
from ctta.errors import DataError

Progress = Callable[[str, int, int | None], None]
"""Called as progress(what, done, total): bytes for files, images for corruptions; total None when unknown."""

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


def cache_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return the data folder (not created here): the argument, else $CTTA_DATA, else the platform's cache."""
    if folder is not None:
        return Path(folder).expanduser()
    if chosen := os.environ.get("CTTA_DATA"):
        return Path(chosen).expanduser()
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "ctta"
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).expanduser() / "ctta"
    return Path.home() / ".cache" / "ctta"


def make_folder(folder: Path) -> Path:
    """Create a folder with its parents, or say why it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"Could not create the folder {folder}: {error.strerror or error}. "
            "Choose another data folder with --cache or the environment variable CTTA_DATA."
        ) from error
    return folder


@contextlib.contextmanager
def atomic(target: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Write a file of the data folder whole or not at all (`atomic`), with an error that helps."""
    make_folder(target.parent)
    try:
        with files.atomic(target, durable=durable) as file:
            yield file
    except OSError as error:
        raise DataError(
            f"Could not write {target}: {error.strerror or error}. Nothing was left under that name; "
            "make room or choose another data folder with --cache or CTTA_DATA."
        ) from error


@contextlib.contextmanager
def locked(target: Path, progress: Progress = silent) -> Iterator[bool]:
    """Be the only process that brings a file; yields whether another one did so meanwhile.

    The system lets the lock go when its owner ends, however it ends, so that a dead owner holds nobody up. Where
    there are no such locks (Windows, some network disks) nobody waits.
    """
    path = target.with_name(f".{target.name}.lock")
    handle, waited = _lock(path, target, progress)
    try:
        yield waited
    finally:
        path.unlink(missing_ok=True)  # before it is let go: who waits for it finds that its file is gone
        os.close(handle)


def _lock(path: Path, target: Path, progress: Progress) -> tuple[int, bool]:
    """Open and lock a file; if its name was removed meanwhile, once more, as the next may hold another one."""
    waited = False
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise DataError(
                f"Could not write in {path.parent}: {error.strerror or error}. Make room or choose another data "
                "folder with --cache or CTTA_DATA."
            ) from error
        try:
            if not _flock(handle, wait=False):
                progress(f"waiting for another process that brings {target.name}", 0, None)
                waited = _flock(handle, wait=True)
            if _is_named(handle, path):
                return handle, waited
        except BaseException:  # Ctrl-C while waiting
            os.close(handle)
            raise
        os.close(handle)
        waited = True


def _flock(handle: int, *, wait: bool) -> bool:
    """Lock an open file; False if another process holds it and we are not to wait."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # a disk without locks
        return True
    return True


def _is_named(handle: int, path: Path) -> bool:
    """Whether the open file still has its name."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def write_bytes(target: Path, data: bytes) -> None:
    """Write a small file atomically."""
    with atomic(target) as file:
        file.write(data)


def hash_file(path: Path, names: tuple[str, ...] = ("md5",), progress: Progress = silent) -> dict[str, str]:
    """Return the hex digests of a whole file, read once."""
    digests = {name: hashlib.new(name, usedforsecurity=False) for name in names}
    total, done = path.stat().st_size, 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            for digest in digests.values():
                digest.update(block)
            done += len(block)
            progress(f"checking {path.name.removesuffix('.part')}", done, total)
    return {name: digest.hexdigest() for name, digest in digests.items()}


def mismatch(path: Path, known: Digests, progress: Progress = silent) -> str | None:
    """Return how a file differs from what is known of it ("expected ..., got ..."), or None when nothing does."""
    size = path.stat().st_size
    if known.size is not None and size != known.size:
        state = "it is cut short" if size < known.size else "it is another file"
        return f"expected {known.size:,} bytes, got {size:,}: {state}"
    names = tuple(name for name in ("md5", "sha256") if getattr(known, name) is not None)
    found = hash_file(path, names, progress) if names else {}
    for name in names:
        expected = getattr(known, name)
        if found[name] != expected:
            return f"expected {name.upper()} {expected}, got {found[name]}: it is damaged or another file"
    return None


def verify(path: Path, known: Digests, cure: str, progress: Progress = silent) -> None:
    """Refuse a file that is missing or differs from what is known of it."""
    if not path.is_file():
        raise DataError(f"There is no file {path}. {cure}")
    if problem := mismatch(path, known, progress):
        raise DataError(f"{path}: {problem}. {cure}")
