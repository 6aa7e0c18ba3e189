"""The note beside data we made: from what, how much of it, and what each file is worth."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from ctta._core.files import parsing
from ctta.data.cache import atomic

NAME = "ctta-made.json"
PLAIN = re.compile(r"\w{1,100}(\.npy|/[1-5])")
"""Names of files and folders that `make` fills."""


@dataclass(frozen=True)
class Made:
    """One file: its MD5 (none for a folder of images) and what it is worth, one of `STATES`."""

    md5: str
    state: str


STATES = {
    "official": "the published MD5: byte for byte the benchmark's file",
    "fresh draw": "random corruption: same procedure, other draws than the published file",
    "differs": "deterministic, but not the published bytes",
    "partial": "fewer images or severities than the benchmark: nothing published to compare with",
    "same procedure": "deterministic; no checksum of single images is published",
}


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
        texts = [self.dataset, self.source, self.version]
        texts += [text for made in self.files.values() for text in (made.md5, made.state)]
        if not all(type(number) is int for number in (self.images, self.seed, *self.severities)):
            raise ValueError("a number is none")
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a text is none")
        once = set(self.severities)
        if self.images < 1 or not once or not once <= {1, 2, 3, 4, 5} or len(once) < len(self.severities):
            raise ValueError(f"{self.images} images, severities {self.severities}")
        if wrong := next((name for name in self.files if not PLAIN.fullmatch(name)), None):
            raise ValueError(f"the file name {wrong!r}")

    def write(self, folder: Path) -> None:
        """Write the manifest atomically."""
        with atomic(folder / NAME) as file:
            file.write(json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True).encode() + b"\n")

    @property
    def plan(self) -> str:
        """What decides the pixels, in words."""
        how = f"severities {','.join(map(str, self.severities))}, seed {self.seed}"
        return f"{self.dataset}, {self.images:,} images, {how}, clean images {self.source}"
