"""Files that are either complete or not there."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ctta.errors import StoreError


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
