"""`check`: read what is in the cache and compare it with what is published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ctta.data import catalogue
from ctta.data.cache import Digests, Place, Watcher, cache_folder, mismatch, silent
from ctta.data.catalogue import Archive, Entry
from ctta.data.get import present
from ctta.data.manifest import Manifest


@dataclass(frozen=True)
class Check:
    """What `check` found of one file: ok, missing, damaged, or unchecked (there, but no checksum is published)."""

    path: Path
    state: str
    detail: str = ""


def check(name: str | Entry, cache: Place = None, progress: Watcher = silent) -> list[Check]:
    """Read every file of a dataset or checkpoint and compare it with what is published."""
    entry = catalogue.find(name) if isinstance(name, str) else name
    root, results = cache_folder(cache), []
    for part in entry.parts:
        # the way that is there, or was begun; else the first, whose files are then missing
        ways = [a for a in part if present((a,), root)] or [a for a in part if begun(a, root)] or list(part)
        archive, folder = ways[0], root / ways[0].folder
        results += [_check_file(folder / path, known, progress) for path, known in archive.members.items()]
        if not archive.members:
            results += _check_folders(archive, folder, progress)
    return results


def begun(archive: Archive, root: Path) -> bool:
    """Whether anything of an archive is there."""
    return any((root / archive.folder / path).exists() for path in archive.members or ("",))


def _check_file(path: Path, known: Digests, progress: Watcher) -> Check:
    if not path.is_file():
        return Check(path, "missing")
    if problem := mismatch(path, known, progress):
        return Check(path, "damaged", problem)
    return Check(path, "ok") if known.checksum else Check(path, "unchecked", "no checksum is published")


def _check_folders(archive: Archive, root: Path, progress: Watcher) -> list[Check]:
    """Count the images of each corruption and severity: the same number everywhere, and none empty."""
    counts: dict[Path, int] = {}
    for done, corruption in enumerate(archive.corruptions):
        for folder in (root / corruption / str(severity) for severity in range(1, 6)):
            sizes = [f.stat().st_size for f in folder.glob("*/*") if f.is_file() and not f.name.startswith(".")]
            counts[folder] = -1 if 0 in sizes else len(sizes)
        progress(f"counting {archive.folder}", done + 1, len(archive.corruptions))
    return [_counted(folder, count, max(counts.values())) for folder, count in counts.items()]


def _counted(folder: Path, count: int, most: int) -> Check:
    if not folder.is_dir():
        return Check(folder, "missing")
    if count < most or count <= 0:
        detail = "an image is empty" if count < 0 else f"expected {most:,} images like its siblings, got {count:,}"
        return Check(folder, "damaged", detail)
    return Check(folder, "unchecked", f"{count:,} images; no checksum of single images is published")


def check_made(folder: Path, progress: Watcher = silent) -> list[Check]:
    """Compare a folder that `ctta data make` filled with its manifest; nothing if it has none."""
    results = []
    if made := Manifest.of(folder):
        for name, file in made.files.items():
            if file.md5:
                found = _check_file(folder / name, Digests(md5=file.md5), progress)
            else:
                found = _counted(folder / name, sum(1 for _ in (folder / name).glob("*/*.JPEG")), made.images)
            results.append(Check(found.path, found.state, found.detail or file.state))
    return results
