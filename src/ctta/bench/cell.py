"""A cell: one method with its settings on one stream of one model, under one seed. Its key is its identity."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.resources
import inspect
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ctta
from ctta import streams
from ctta._core.precision import check_precision
from ctta.adapter import Adapter
from ctta.bench.resolve import BENCHMARKS, model_from, names_in, source_from
from ctta.methods import find
from ctta.models import weight_hash

CODE = ("functional", "_core", "methods", "optim", "augment", "corruptions", "streams", "models")
"""Packages whose code decides the numbers of a row; with a few single files they are its code version."""


@dataclass(frozen=True)
class Cell:
    """What to run, in the words of the command line."""

    method: str
    model: str = "embedded:"
    weights: str | None = None
    data: str = "embedded"
    setting: str = "continual"
    preset: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    images: int | None = None
    batch_size: int = 200
    severity: int = 5
    corruptions: tuple[str, ...] | None = None
    stream: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the setting: `order`, `kind`, `concentration`, `passes`, `first`."""
    clean: int = 0
    """Clean images on which forgetting is measured after every domain; 0: not measured."""
    precision: str = "full"
    """`bf16`: adapter, unit of cost and forgetting all run under bfloat16 autocast."""
    label: str = ""
    """What tables call it (default: the method)."""
    imports: tuple[str, ...] = ()
    """Python files that register further methods."""

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.label or self.method

    def to_dict(self) -> dict[str, Any]:
        """Return the cell as plain data, for a file or another process."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Cell:
        """Return the cell `to_dict` was made from."""
        lists = {name: tuple(data[name]) for name in ("corruptions", "imports") if data.get(name) is not None}
        return cls(**{**data, **lists})


@dataclass(frozen=True)
class Prepared:
    """A cell with everything it needs in memory."""

    cell: Cell
    model: nn.Module
    stream: streams.Stream
    manifest: dict[str, Any]
    key: str

    def adapter(self) -> Adapter:
        """Make the adapter the cell begins with."""
        cell = self.cell
        return ctta.adapt(self.model, cell.method, preset=cell.preset, seed=cell.seed, **cell.settings)


def prepare(cell: Cell) -> Prepared:
    """Load what a cell needs and give it its key. Two cells with equal keys would give equal rows."""
    check_precision(cell.precision)
    for file in cell.imports:
        names_in(Path(file))
    model = _model(cell.model, cell.weights)
    stream = _stream(
        cell.data,
        cell.setting,
        cell.images,
        cell.batch_size,
        cell.severity,
        cell.corruptions,
        json.dumps(dict(cell.stream), sort_keys=True),
        0 if cell.data in BENCHMARKS else cell.seed,  # a benchmark on disk is the same for every seed
        clean=cell.clean > 0,
    )
    settings = find(cell.method).resolve(cell.preset, cell.settings)
    identity: dict[str, Any] = {
        "weights": _weight_hash(cell.model, cell.weights),
        "stream": stream.hash,
        "method": cell.method,
        "settings": dataclasses.asdict(settings),
        "seed": cell.seed,
        "clean": cell.clean,
        "code": code_version(),
        "files": _own_files(cell, settings),
    }
    if cell.precision != "full":  # what ran in full has the keys it always had
        identity["precision"] = cell.precision
    manifest = {
        **identity,
        "label": cell.name,
        "cell": cell.to_dict(),
        "setting": {"name": cell.setting, **stream.settings},
        "samples": stream.samples,
        "torch": torch.__version__,
        "ctta": ctta.__version__,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "device": "cpu",
    }
    key = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16]
    return Prepared(cell, model, stream, manifest, key)


@functools.cache
def code_version() -> str:
    """Version of ctta and a hash of the code that decides the numbers."""
    root = importlib.resources.files("ctta")
    sha = hashlib.sha256()
    base = Path(str(root))
    files = [file for package in CODE for file in sorted((base / package).rglob("*.py"))]
    for file in [*files, base / "adapter.py", base / "bench" / "evaluation.py", base / "_core" / "inputs.py"]:
        sha.update(f"{file.relative_to(base)}|".encode())
        sha.update(file.read_bytes())
    return f"{ctta.__version__}+{sha.hexdigest()[:12]}"


def _own_files(cell: Cell, settings: Any) -> list[str]:
    """Hashes of the user's files that make model and method, and of what it begins from: edited, another cell."""
    package = Path(str(importlib.resources.files("ctta")))
    model, _, _ = cell.model.rpartition(":")
    method = find(cell.method).method
    source = inspect.getsourcefile(method)
    files = [Path(model)] if model.endswith(".py") else []
    if source and not Path(source).is_relative_to(package):
        files.append(Path(source))
    files += method.files(settings)
    return [hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files if file.is_file()]


@functools.lru_cache(maxsize=2)
def _model(name: str, weights: str | None) -> nn.Module:
    # eval: a bare forward pass must not change the statistics the next cell starts from
    return model_from(name, Path(weights) if weights else None).eval()


@functools.lru_cache(maxsize=8)
def _weight_hash(name: str, weights: str | None) -> str:
    return weight_hash(_model(name, weights))


@functools.lru_cache(maxsize=4)
def _stream(
    data: str,
    setting: str,
    images: int | None,
    batch_size: int,
    severity: int,
    corruptions: tuple[str, ...] | None,
    options: str,
    seed: int,
    clean: bool,
) -> streams.Stream:
    chosen: dict[str, Any] = {"batch_size": batch_size, "images": images, **json.loads(options)}
    if isinstance(chosen.get("order"), str):
        chosen["order"] = streams.Order(chosen["order"])
    if corruptions:
        chosen["corruptions"] = list(corruptions)
    if setting != "gradual":
        chosen["severity"] = severity
    return streams.make(setting, source_from(data, None, seed, clean), **chosen)
