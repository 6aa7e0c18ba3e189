"""Reading weight files of any origin into a model, strictly, and naming them by their hash."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ctta._core.checkpoint import digest
from ctta._core.files import parsing
from ctta.errors import DataError

PREFIXES = ("module.", "model.")
NORMALISERS = {"mu", "sigma", "mean", "std", "normalize.mean", "normalize.std"}
"""Names under which checkpoints may carry the constants of their input normalisation."""


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Return the state dict in a file: safetensors, or a torch file of plain tensors (weights_only).

    Takes `['state_dict']` where there is one, and strips the prefixes "module." and "model.".
    """
    source = Path(path)
    if not source.is_file():
        raise DataError(f"There is no weight file {source}.")
    with source.open("rb") as file:
        head = file.read(512)
    if head.lstrip()[:1] == b"<":
        raise DataError(f"{source}: expected a checkpoint, got a web page. Delete it and fetch it again.")
    loaded = _read_safetensors(source) if source.suffix == ".safetensors" else _read_torch(source)
    if isinstance(loaded, Mapping) and isinstance(loaded.get("state_dict"), Mapping):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, Mapping) or not all(map(_is_entry, loaded.items())):
        raise DataError(
            f"{source}: expected a state dict of tensors, got a {type(loaded).__name__} of other things."
        )
    return strip_prefixes(dict(loaded))


def _is_entry(entry: tuple[object, object]) -> bool:
    """Whether it is a name with a plain tensor, as every entry of a state dict of ours."""
    name, value = entry
    if not isinstance(name, str) or not isinstance(value, Tensor):
        return False
    return value.layout == torch.strided and not value.is_quantized and not value.is_meta


def _read_safetensors(source: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    with parsing(f"{source} is not a complete safetensors file", "Fetch it again."):
        return load_file(source)


def _read_torch(source: Path) -> Any:
    with parsing(f"{source} is not a complete torch file", "Fetch it again."):
        try:
            return torch.load(source, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise DataError(
                f"{source} holds more than tensors, and running what it holds is not safe ({str(error)[:200]}). "
                "Save its state dict alone: torch.save(checkpoint['state_dict'], path)."
            ) from error


def strip_prefixes(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove "module." and "model." from keys, where all keys (normalisation aside) carry them.

    >>> list(strip_prefixes({"module.model.fc.bias": torch.zeros(1)}))
    ['fc.bias']
    """
    for prefix in PREFIXES:
        rest = [
            key for key in state if key not in NORMALISERS and key.removeprefix(PREFIXES[0]) not in NORMALISERS
        ]
        if rest and all(key.startswith(prefix) for key in rest):
            state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def load_strictly(model: nn.Module, state: Mapping[str, Tensor], origin: str) -> None:
    """Load every key or none: names what is missing, unknown, or of another shape.

    Constants of the input normalisation are dropped (ours are part of the model), and BatchNorm counters, which
    old files lack, are filled with zero.
    """
    own = model.state_dict()
    given = {key: value for key, value in state.items() if key in own or key not in NORMALISERS}
    given |= {key: value for key, value in own.items() if key.endswith("num_batches_tracked") and key not in given}
    missing, unknown = sorted(own.keys() - given.keys()), sorted(given.keys() - own.keys())
    if missing or unknown:
        raise DataError(
            f"{origin} does not fit {type(model).__name__}: missing {missing[:3] or 'nothing'} ({len(missing)}), "
            f"unknown {unknown[:3] or 'nothing'} ({len(unknown)})."
        )
    for key, value in given.items():
        if value.shape != own[key].shape:
            raise DataError(
                f"{origin} does not fit {type(model).__name__}: {key} has shape {tuple(value.shape)}, expected "
                f"{tuple(own[key].shape)}."
            )
    model.load_state_dict(given)


def weight_hash(model: nn.Module) -> str:
    """First 16 hex digits of the SHA-256 of a model's state dict: its identity in every result."""
    return digest(model.state_dict())[:16]
