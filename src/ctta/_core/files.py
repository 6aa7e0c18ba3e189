"""Files that are either complete or not there, and foreign parsers that may meet a damaged one."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ctta.errors import CttaError, DataError, StoreError

_HOST = re.sub(r"[^A-Za-z0-9]+", "_", socket.gethostname())[:24]


@contextlib.contextmanager
def atomic(target: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the target's name when the block ends well, and vanishes when it does not.

    A file that is replaced passes its mode on, a link stays and its target is replaced. `durable` flushes the file
    to disk first and removes what killed writers of the same target left; off for folders of a million small
    images, where it would take days.
    """
    target = Path(os.path.realpath(target))
    there = None
    with contextlib.suppress(FileNotFoundError):
        there = target.stat()
    if there is not None and not stat.S_ISREG(there.st_mode):
        raise OSError(errno.EINVAL, "it is there and not an ordinary file", str(target))
    if durable:
        _sweep(target)
    temporary = target.with_name(f".{target.name}.{_HOST}-{os.getpid()}-{uuid.uuid4().hex[:12]}.tmp")
    try:
        with temporary.open("xb") as file:  # not tempfile: its files are for their owner alone
            if there is not None:
                os.chmod(temporary, stat.S_IMODE(there.st_mode))
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _sweep(target: Path) -> None:
    """Remove temporary files for this target whose writer, a process of this host, is no more."""
    if os.name != "posix":  # elsewhere asking for a process would end it
        return
    name = re.compile(rf"\.{re.escape(target.name)}\.{_HOST}-(\d+)-[0-9a-f]{{12}}\.tmp")
    with contextlib.suppress(OSError):  # a folder that may not be listed, a file another process took away
        for entry in os.listdir(target.parent):
            found = name.fullmatch(entry)
            if found and not _is_running(int(found[1])):
                (target.parent / entry).unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (OSError, OverflowError) as error:
        return not isinstance(error, ProcessLookupError)  # of others we may know nothing
    return True


def write(path: Path, data: bytes) -> Path:
    """Write a file of results, with the folders above it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as file:
            file.write(data)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}. Name another place.") from error
    return path


@contextlib.contextmanager
def parsing(what: str, cure: str, kind: type[CttaError] = DataError) -> Iterator[None]:
    """Turn whatever a foreign parser raises on a damaged file into one typed error: "WHAT (REASON). CURE"."""
    try:
        yield
    except CttaError:
        raise
    except Exception as error:  # noqa: BLE001 - no parser says all it may raise: numpy's has a tokenizer's errors
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        # contextlib takes a RuntimeError caused by a StopIteration for that StopIteration, and lets it through
        cause = None if isinstance(error, StopIteration) else error
        raise kind(f"{what} ({reason}). {cure}") from cause
