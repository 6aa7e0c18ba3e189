"""The note beside data we made: from what, how much of it, and what each file is worth."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from ctta._core.files import parsing
from ctta.data.cache import write_bytes

NAME = "ctta-made.json"
PLAIN = re.compile(r"\w{1,100}(\.npy|/[1-5])")
"""Names of files and folders that `make` fills."""


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
    with parsing(f"{path} is not a manifest of `ctta data make`", f"Delete {folder} and make it again."):
        data = json.loads(path.read_bytes())
        files = {str(name): Made(**made) for name, made in data.pop("files").items()}
        found = Manifest(**{**data, "severities": tuple(data["severities"]), "files": files})
        _check(found)
    return found


def _check(manifest: Manifest) -> None:
    """Refuse values that no manifest of ours has."""
    numbers = (manifest.images, manifest.seed, *manifest.severities)
    texts = [manifest.dataset, manifest.source, manifest.version]
    texts += [text for made in manifest.files.values() for text in (made.md5, made.state)]
    if not all(type(number) is int for number in numbers) or not all(isinstance(text, str) for text in texts):
        raise ValueError("a value of another type")
    if manifest.images < 1 or not manifest.severities or not set(manifest.severities) <= {1, 2, 3, 4, 5}:
        raise ValueError(f"{manifest.images} images, severities {manifest.severities}")
    if len(set(manifest.severities)) < len(manifest.severities):
        raise ValueError("a severity twice")
    if wrong := next((name for name in manifest.files if not PLAIN.fullmatch(name)), None):
        raise ValueError(f"the file name {wrong!r}")


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest atomically."""
    write_bytes(folder / NAME, json.dumps(dataclasses.asdict(manifest), indent=1, sort_keys=True).encode() + b"\n")
