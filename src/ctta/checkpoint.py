"""Files that hold an adapter: safetensors with a JSON header, written atomically, verified when read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ctta import files
from ctta.errors import StateError

FORMAT = 1


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], header: dict[str, Any]) -> None:
    """Write tensors and a header as one file that is either complete or not there."""
    from safetensors.torch import save

    owned = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    text = json.dumps({**header, "format": FORMAT}, sort_keys=True)
    write_bytes(path, save(owned, {"ctta": text, "sha256": digest(owned, text)}))


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file whole or not at all, with an error that helps."""
    target = Path(path)
    try:
        with files.atomic(target) as file:
            file.write(data)
    except OSError as error:
        raise StateError(
            f"Could not write {target}: {error.strerror or error}. The file that was there before, if any, "
            "is unchanged."
        ) from error


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the header of a file that `write` made, after checking every byte of both."""
    from safetensors import SafetensorError, safe_open

    source = Path(path)
    if not source.is_file():
        raise StateError(f"There is no file {source}.")
    try:
        with safe_open(source, framework="pt") as file:
            labels = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError) as error:
        raise StateError(
            f"{source} is not a complete adapter file ({error}). Expected a file written by Adapter.save()."
        ) from error
    if "ctta" not in labels:
        raise StateError(f"{source} is a safetensors file, but not one written by Adapter.save().")
    if labels.get("sha256") != digest(tensors, labels["ctta"]):
        raise StateError(f"{source} is damaged: its content does not match its checksum. Use another copy.")
    header: dict[str, Any] = json.loads(labels["ctta"])
    if header.get("format", 0) > FORMAT:
        raise StateError(
            f"{source} has format {header['format']}, this version reads up to {FORMAT}: install a newer ctta."
        )
    return tensors, header


def digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """SHA-256 over names, shapes, dtypes and bytes of tensors, and over a text."""
    sha = hashlib.sha256(text.encode())
    for key in sorted(tensors):
        value = tensors[key].detach().to_dense().cpu().contiguous()
        sha.update(f"{key}|{tuple(value.shape)}|{value.dtype}|".encode())
        sha.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()
