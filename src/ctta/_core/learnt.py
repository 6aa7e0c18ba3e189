"""What a method learns of the source before deployment (EcoTTA: its meta networks), and the files that hold it.

A method never opens a file: it declares with `Learnt` which of its settings names one, and is built with the
tensors that were found there. A saved adapter brings them along.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ctta._core import checkpoint
from ctta.errors import StateError

EMBEDDED = "embedded:"
"""As the name of a file: what comes with the embedded model."""


@dataclass(frozen=True)
class Learnt:
    """Which setting names the file, what such files call themselves, and the one of the embedded model."""

    setting: str
    kind: str
    embedded: str

    def file(self, settings: Any) -> Path | None:
        """Return the file that settings name, if any."""
        name = getattr(settings, self.setting)
        if name == EMBEDDED:
            return Path(str(resources.files("ctta.models").joinpath(self.embedded)))
        return Path(name).expanduser() if name else None

    def read(self, settings: Any, model: nn.Module) -> dict[str, Tensor]:
        """Return what was learnt of this source model: nothing where the settings name no file.

        A file for another model is refused, but for the embedded one: presets name it whatever the model is.
        """
        path = self.file(settings)
        if path is None:
            return {}
        tensors, header = checkpoint.read(path)
        if header.get("kind") != self.kind:
            raise StateError(f"{path} holds no {self.kind}: see `ctta warmup --help`.")
        if header.get("source") == fingerprint(model):
            return tensors
        if getattr(settings, self.setting) == EMBEDDED:
            return {}
        raise StateError(
            f"{path} was made for another source model ({header.get('model')}, maybe the same architecture with "
            "other weights): make it for this one with `ctta warmup`."
        )

    def write(
        self, path: str | os.PathLike[str], tensors: Mapping[str, Tensor], source: str, header: dict[str, Any]
    ) -> None:
        """Write what was learnt of the source model with this fingerprint, whole or not at all."""
        checkpoint.write(path, tensors, {**header, "kind": self.kind, "source": source})


def fingerprint(model: nn.Module) -> str:
    """SHA-256 of a source model's state dict in float32: in which dtype it runs does not matter."""
    state = {k: v.float() if v.is_floating_point() else v for k, v in model.state_dict().items()}
    return checkpoint.digest(state)
