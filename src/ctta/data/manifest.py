"""The note beside data we made: from what, how much of it, and what each file is worth."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

from ctta.data.cache import write_bytes
from ctta.errors import DataError

NAME = "ctta-made.json"


@dataclass(frozen=True)
class Made:
    """One file: its MD5 and state.

    official      the published MD5: byte for byte the benchmark's file
    fresh draw    a random corruption: same procedure, other draws (the original was unseeded)
    differs       a deterministic corruption whose bytes are not the published ones
    partial       fewer images or severities than the benchmark, so that no MD5 is published
    """

    md5: str
    state: str


@dataclass(frozen=True)
class Manifest:
    """How a folder of corrupted images was made; `images` a severity, `source` the hash of the clean images."""

    dataset: str
    images: int
    severities: tuple[int, ...]
    seed: int
    source: str
    version: str
    files: dict[str, Made] = field(default_factory=dict)

    def same_plan(self, other: Manifest) -> bool:
        """Whether two manifests ask for the same pixels."""
        plain = {"files": {}, "version": ""}
        return dataclasses.replace(self, **plain) == dataclasses.replace(other, **plain)  # type: ignore[arg-type]

    def plan(self) -> str:
        """Say in words what was made."""
        severities = ",".join(map(str, self.severities))
        return (
            f"{self.images:,} images, severities {severities}, seed {self.seed}, clean images {self.source[:12]}"
        )


def read(folder: Path) -> Manifest | None:
    """Return the folder's manifest, None if it has none."""
    path = folder / NAME
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_bytes())
        files = {str(name): Made(**made) for name, made in data.pop("files").items()}
        return Manifest(**{**data, "severities": tuple(data["severities"]), "files": files})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not a manifest of `ctta data make` ({error}). Delete {folder} and make it again."
        ) from error


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest atomically."""
    write_bytes(folder / NAME, json.dumps(dataclasses.asdict(manifest), indent=1, sort_keys=True).encode() + b"\n")
