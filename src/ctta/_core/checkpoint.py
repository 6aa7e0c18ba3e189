"""Files that hold an adapter: safetensors with a JSON header, written atomically, verified when read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ctta._core.files import atomic, parsing
from ctta.errors import StateError

FORMAT = 1


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], header: dict[str, Any]) -> None:
    """Write tensors and a header as one file that is either complete or not there.

    The header also says in which order the tensors came and how each lies in memory, which safetensors does not
    keep: sums over them round differently in another order.
    """
    from safetensors.torch import save

    owned = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    memory = [[key, _strides(value)] for key, value in tensors.items()]
    text = json.dumps({**header, "format": FORMAT, "memory": memory}, sort_keys=True)
    write_bytes(path, save(owned, {"ctta": text, "sha256": digest(owned, text)}))


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file whole or not at all, with an error that helps."""
    target = Path(path)
    try:
        with atomic(target) as file:
            file.write(data)
    except OSError as error:
        raise StateError(
            f"Could not write {target}: {error.strerror or error}. The file that was there before, if any, "
            "is unchanged."
        ) from error


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the header of a file that `write` made, after checking every byte of both."""
    from safetensors import safe_open

    source, cure = Path(path), "Use another copy."
    if not source.is_file():
        raise StateError(f"There is no file {source}.")
    expected = "Expected a file written by Adapter.save()."
    with (
        parsing(f"{source} is not a complete adapter file", expected, StateError),
        safe_open(source, "pt") as file,
    ):
        labels = file.metadata() or {}
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    if "ctta" not in labels:
        raise StateError(f"{source} is a safetensors file, but not one written by Adapter.save().")
    if labels.get("sha256") != digest(tensors, labels["ctta"]):
        raise StateError(f"{source} is damaged: its content does not match its checksum. {cure}")
    with parsing(f"{source} has a header that is not JSON", cure, StateError):
        header = json.loads(labels["ctta"])
    found = header.get("format") if isinstance(header, dict) else None
    if type(found) is not int:
        raise StateError(f"{source} has a header without a format, which no ctta writes: use another copy.")
    if found > FORMAT:
        raise StateError(f"{source} has format {found}, this version reads up to {FORMAT}: install a newer ctta.")
    with parsing(f"{source} does not say how its tensors lie in memory", cure, StateError):
        memory = dict(header.pop("memory", [[key, None] for key in tensors]))
        if memory.keys() != tensors.keys():
            raise ValueError("it speaks of other tensors")
        return {key: _with_strides(tensors[key], strides) for key, strides in memory.items()}, header


def require(header: Mapping[str, Any], kinds: Mapping[str, type], source: str | os.PathLike[str]) -> None:
    """Refuse a header that lacks an entry, or has one of another kind."""
    for name, kind in kinds.items():
        if type(header.get(name)) is not kind:
            raise StateError(
                f"{source} was not written by Adapter.save(): expected `{name}` in its header to be a "
                f"{kind.__name__}, but got {header.get(name)!r:.80}."
            )


def _strides(value: Tensor) -> list[int] | None:
    """How a tensor lies in memory; None for the usual order, and for one with gaps."""
    usual = value.stride() == torch.empty(value.shape, device="meta").stride()
    return None if usual or not _is_dense(value.shape, value.stride()) else list(value.stride())


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Tell whether elements with these strides fill their memory, without gap or overlap: torch keeps those."""
    lying = torch.empty_strided(shape, strides, device="meta")
    return lying.stride() == torch.empty_like(lying).stride()


def _with_strides(value: Tensor, strides: Any) -> Tensor:
    if strides is None:
        return value
    if not _is_dense(value.shape, strides):
        raise ValueError(f"strides {strides!r} do not fit the shape {tuple(value.shape)}")
    return torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)


def digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """SHA-256 over names, shapes, dtypes and bytes of tensors, and over a text."""
    sha = hashlib.sha256(text.encode())
    for key in sorted(tensors):
        value = tensors[key].detach().to_dense().cpu().contiguous()
        sha.update(f"{key}|{tuple(value.shape)}|{value.dtype}|".encode())
        sha.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()
