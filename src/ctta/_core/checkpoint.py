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

from ctta._core import files
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
    header = _header(source, labels["ctta"])
    try:
        return _as_in_memory(tensors, header.pop("memory", [[key, None] for key in tensors])), header
    except (TypeError, ValueError) as error:
        raise StateError(
            f"{source} does not say how its tensors lie in memory ({error}): use another copy."
        ) from error


def require(header: Mapping[str, Any], kinds: Mapping[str, type], source: str | os.PathLike[str]) -> None:
    """Refuse a header that lacks an entry, or has one of another kind."""
    for name, kind in kinds.items():
        if type(header.get(name)) is not kind:
            raise StateError(
                f"{source} was not written by Adapter.save(): expected `{name}` in its header to be a "
                f"{kind.__name__}, but got {header.get(name)!r:.80}."
            )


def _header(source: Path, text: str) -> dict[str, Any]:
    """Read the header of a file; one of a newer format, or that is none, is refused."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StateError(f"{source} has a header that is not JSON ({error}): use another copy.") from error
    found = header.get("format") if isinstance(header, dict) else None
    if type(found) is not int:
        raise StateError(f"{source} has a header without a format, which no ctta writes: use another copy.")
    if found > FORMAT:
        raise StateError(f"{source} has format {found}, this version reads up to {FORMAT}: install a newer ctta.")
    return dict(header)


def _strides(value: Tensor) -> list[int] | None:
    """How a tensor lies in memory; None for the usual order, and for one with gaps."""
    usual = value.stride() == torch.empty(value.shape, device="meta").stride()
    if usual or not _is_dense(value.shape, value.stride()):
        return None
    return list(value.stride())


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Tell whether elements with these strides fill their memory, without gap or overlap."""
    filled = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if stride != filled:
            return False
        filled *= size
    return all(0 <= stride <= filled for stride in strides)


def _as_in_memory(tensors: Mapping[str, Tensor], memory: Any) -> dict[str, Tensor]:
    """Return tensors in the order and with the strides they had when they were written."""
    wanted = dict(memory)
    if wanted.keys() != tensors.keys():
        raise ValueError("it speaks of other tensors")
    return {key: _with_strides(tensors[key], strides) for key, strides in wanted.items()}


def _with_strides(value: Tensor, strides: Any) -> Tensor:
    if strides is None:
        return value
    if not all(type(stride) is int for stride in strides) or not _is_dense(value.shape, strides):
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
