"""Files that are either complete or not there, and foreign parsers that may meet a damaged one."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ctta.errors import CttaError, DataError, StoreError


@contextlib.contextmanager
def atomic(target: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the target's name when the block ends well, and vanishes when it does not.

    `durable` flushes it to disk first; off for folders of a million small images, where it would take days.
    """
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with temporary.open("xb") as file:  # not tempfile: its files are for their owner alone
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


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
    except Exception as error:  # no parser says all it may raise: numpy's header reader has a tokenizer's errors
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise kind(f"{what} ({reason}). {cure}") from error
