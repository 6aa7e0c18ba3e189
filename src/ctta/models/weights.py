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
    loaded = _parse(source)
    if isinstance(loaded, Mapping) and isinstance(loaded.get("state_dict"), Mapping):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, Mapping) or not all(
        isinstance(name, str)
        and isinstance(value, Tensor)
        and (value.layout, value.is_quantized, value.is_meta) == (torch.strided, False, False)
        for name, value in loaded.items()
    ):
        raise DataError(
            f"{source}: expected a state dict of tensors, got a {type(loaded).__name__} of other things."
        )
    return strip_prefixes(dict(loaded))


def _parse(source: Path) -> Any:
    kind = "safetensors" if source.suffix == ".safetensors" else "torch"
    with parsing(f"{source} is not a complete {kind} file", "Fetch it again."):
        if kind == "safetensors":
            from safetensors.torch import load_file

            return load_file(source)
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
        rest = [key for key in state if not {key, key.removeprefix(PREFIXES[0])} & NORMALISERS]
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
    refused = f"{origin} does not fit {type(model).__name__}: "
    missing, unknown = sorted(own.keys() - given.keys()), sorted(given.keys() - own.keys())
    if missing or unknown:
        absent, extra = missing[:3] or "nothing", unknown[:3] or "nothing"
        raise DataError(f"{refused}missing {absent} ({len(missing)}), unknown {extra} ({len(unknown)}).")
    for key, value in given.items():
        if value.shape != own[key].shape:
            found, expected = tuple(value.shape), tuple(own[key].shape)
            raise DataError(f"{refused}{key} has shape {found}, expected {expected}.")
    model.load_state_dict(given)


def weight_hash(model: nn.Module) -> str:
    """First 16 hex digits of the SHA-256 of a model's state dict: its identity in every result."""
    return digest(model.state_dict())[:16]
