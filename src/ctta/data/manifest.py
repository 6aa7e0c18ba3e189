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

    @classmethod
    def of(cls, folder: Path) -> Manifest | None:
        """Read the folder's manifest, None if it has none."""
        path = folder / NAME
        if not path.is_file():
            return None
        with parsing(f"{path} is not a manifest of `ctta data make`", f"Delete {folder} and make it again."):
            data = json.loads(path.read_bytes())
            files = {str(name): Made(**made) for name, made in data.pop("files").items()}
            found = cls(**{**data, "severities": tuple(data["severities"]), "files": files})
            found._check()
        return found

    def _check(self) -> None:
        """Refuse values that no manifest of ours has."""
        numbers = (self.images, self.seed, *self.severities)
        texts = [self.dataset, self.source, self.version]
        texts += [text for made in self.files.values() for text in (made.md5, made.state)]
        if not all(type(number) is int for number in numbers) or not all(isinstance(text, str) for text in texts):
            raise ValueError("a value of another type")
        if self.images < 1 or not self.severities or not set(self.severities) <= {1, 2, 3, 4, 5}:
            raise ValueError(f"{self.images} images, severities {self.severities}")
        if len(set(self.severities)) < len(self.severities):
            raise ValueError("a severity twice")
        if wrong := next((name for name in self.files if not PLAIN.fullmatch(name)), None):
            raise ValueError(f"the file name {wrong!r}")

    def write(self, folder: Path) -> None:
        """Write the manifest atomically."""
        write_bytes(folder / NAME, json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True).encode() + b"\n")

    def holding(self, files: dict[str, Made]) -> Manifest:
        """Return a manifest of these files too."""
        return dataclasses.replace(self, files={**self.files, **files})

    @property
    def plan(self) -> str:
        """What decides the pixels, in words."""
        severities = ",".join(map(str, self.severities))
        return (
            f"{self.dataset}, {self.images:,} images, severities {severities}, seed {self.seed}, "
            f"clean images {self.source}"
        )
