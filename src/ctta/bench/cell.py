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

NUMBERS = 1
"""Version of what decides the numbers of a row. Raise it by one whenever a change alters any of them.

That may be a method, a layer, a random generator, a corruption, the order of a stream, a reader of data, a
measurement, or the *default* of a setting. Rows of another version are never reused. When a number has changed,
tests in tests/golden fail.
"""


@dataclass(frozen=True)
class Cell:
    """What to run, in the words of the command line."""

    method: str
    model: str = "embedded:"
    weights: str | None = None
    data: str = "embedded"
    scenario: str = "continual"
    preset: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    images: int | None = None
    batch_size: int = 200
    severity: int = 5
    corruptions: tuple[str, ...] | None = None
    stream: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the scenario: `order`, `kind`, `concentration`, `passes`, `first`."""
    clean: int = 0
    """Clean images on which forgetting is measured after every domain; 0: not measured."""
    profile: str | None = None
    """Constants of the corruptions: cifar, tiny-imagenet or imagenet; None: those that fit the images."""
    precision: str = "full"
    """`bf16`: adapter, unit of cost and forgetting all run under bfloat16 autocast."""
    threads: int = 1
    """CPU threads it runs with: they decide the last bits of a sum, so they belong to what it is."""
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


def identity(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes a cell this cell and no other, from its manifest or any mapping with the same names.

    Plain data of plain data: nothing is loaded, so rows kept in a file get their key without being run. Of the
    settings only those count that are not the method's defaults: a setting added later with a default that changes
    nothing leaves every key as it is, and whoever changes a default raises `NUMBERS`. What 0.1 kept, which wrote
    down neither `numbers` nor the precision `full`, was computed as version 1.
    """
    defaults = {item.name: item.default for item in find(facts["method"]).settings}
    missing = object()
    return {
        "numbers": facts.get("numbers", 1),
        "method": facts["method"],
        "settings": {k: v for k, v in facts["settings"].items() if v != defaults.get(k, missing)},
        "weights": facts["weights"],
        "stream": facts["stream"],
        "seed": facts["seed"],
        "clean": facts["clean"],
        "precision": facts.get("precision", "full"),
        "threads": facts["threads"],
        "files": list(facts["files"]),
    }


def key_of(identity: Mapping[str, Any]) -> str:
    """Return the key of a cell in a store: 16 hex digits of its identity."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def prepare(cell: Cell) -> Prepared:
    """Load what a cell needs and give it its key. Two cells with equal keys would give equal rows."""
    check_precision(cell.precision)
    for file in cell.imports:
        names_in(Path(file))
    model = _model(cell.model, cell.weights)
    stream = _stream(
        cell.data,
        cell.scenario,
        cell.images,
        cell.batch_size,
        cell.severity,
        cell.corruptions,
        json.dumps(dict(cell.stream), sort_keys=True),
        0 if cell.data in BENCHMARKS else cell.seed,  # a benchmark on disk is the same for every seed
        clean=cell.clean > 0,
        profile=cell.profile,
    )
    settings = find(cell.method).resolve(cell.preset, cell.settings)
    manifest: dict[str, Any] = {
        "numbers": NUMBERS,
        "method": cell.method,
        "settings": dataclasses.asdict(settings),
        "weights": _weight_hash(cell.model, cell.weights),
        "stream": stream.hash,
        "seed": cell.seed,
        "clean": cell.clean,
        "precision": cell.precision,
        "threads": cell.threads,
        "files": _own_files(cell, settings),
        "label": cell.name,
        "cell": cell.to_dict(),
        "scenario": {"name": cell.scenario, **stream.options},
        "samples": stream.samples,
        "torch": torch.__version__,
        "ctta": ctta.__version__,
        "machine": platform.machine(),
        "device": "cpu",
    }
    return Prepared(cell, model, stream, manifest, key_of(identity(manifest)))


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
    scenario: str,
    images: int | None,
    batch_size: int,
    severity: int,
    corruptions: tuple[str, ...] | None,
    options: str,
    seed: int,
    clean: bool,
    profile: str | None,
) -> streams.Stream:
    chosen: dict[str, Any] = {"batch_size": batch_size, "images": images, **json.loads(options)}
    if isinstance(chosen.get("order"), str):
        chosen["order"] = streams.Order(chosen["order"])
    if corruptions:
        chosen["corruptions"] = list(corruptions)
    if scenario != "gradual":
        chosen["severity"] = severity
    return streams.make(scenario, source_from(data, profile, seed, clean), **chosen)
