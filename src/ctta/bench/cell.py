"""A cell: one method with its settings on one stream of one model, under one seed. Its key is its identity."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import itertools
import json
import math
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
from ctta.bench.resolve import BENCHMARKS, model_from, names_in, source_from
from ctta.errors import StateError
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
        **{name: facts[name] for name in ("method", "weights", "stream", "seed", "clean", "threads")},
        "settings": {k: v for k, v in facts["settings"].items() if v != defaults.get(k, missing)},
        "numbers": facts.get("numbers", 1),
        "precision": facts.get("precision", "full"),
        "files": list(facts["files"]),
    }


def key_of(identity: Mapping[str, Any]) -> str:
    """Return the key of a cell in a store: 16 hex digits of its identity."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Task:
    """A cell that can run: its key, its manifest, its size, its cost. Plain data, so that workers get it whole."""

    cell: Cell
    key: str
    manifest: dict[str, Any]
    batches: int
    passes: float
    """Forward passes of a batch that the cell is expected to cost."""

    @property
    def samples(self) -> int:
        """Images in its stream."""
        return int(self.manifest["samples"])

    def load(self) -> tuple[nn.Module, streams.Stream]:
        """Load model and stream; refuses what is not as it was when the cell got its key."""
        model, weights = _model(self.cell.model, self.cell.weights, _stamp(self.cell))
        stream = _stream(_words(self.cell))
        found = _facts(self.cell, weights, stream.hash)
        changed = [name for name in found if found[name] != self.manifest[name]]
        if changed:
            raise StateError(
                f"{self.cell.name} is not what was planned, for its {' and '.join(changed)} differ: they were "
                "changed meanwhile, or this machine has other code, weights or data. Run the same command again."
            )
        return model, stream


def prepare(cell: Cell) -> Task:
    """Find out what a cell is and give it its key. Two cells with equal keys would give equal rows."""
    check_precision(cell.precision)
    plan = _plan(_words(cell))
    manifest: dict[str, Any] = {
        **_facts(cell, _weights(cell.model, cell.weights, _stamp(cell)), plan["hash"]),
        **{name: getattr(cell, name) for name in ("method", "seed", "clean", "precision", "threads")},
        "label": cell.name,
        "cell": cell.to_dict(),
        "scenario": {"name": cell.scenario, **plan["options"]},
        "samples": plan["samples"],
        "torch": torch.__version__,
        "ctta": ctta.__version__,
        "machine": platform.machine(),
        "device": "cpu",
    }
    # forgetting: two passes over the clean images after every domain
    clean = 2 * math.ceil(cell.clean / cell.batch_size) * plan["stays"]
    passes = plan["batches"] * find(cell.method).cost + clean
    return Task(cell, key_of(identity(manifest)), manifest, plan["batches"], passes)


def _facts(cell: Cell, weights: str, stream: str) -> dict[str, Any]:
    """What of a cell's identity its words leave open: code and files may be others when its turn comes."""
    for file in cell.imports:
        _import(file, _written(file))
    entry = find(cell.method)
    settings = entry.resolve(cell.preset, cell.settings)
    model, source = cell.model.rpartition(":")[0], inspect.getsourcefile(entry.method)
    files = [Path(model)] if model.endswith(".py") else []
    if source and not Path(source).is_relative_to(Path(ctta.__file__).parent):
        files.append(Path(source))
    files += entry.method.files(settings)
    # the user's files that make model and method, and what it begins from: edited, another cell
    hashes = [hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files if file.is_file()]
    same = {"numbers": NUMBERS, "weights": weights, "stream": stream, "files": hashes}
    return {**same, "settings": dataclasses.asdict(settings)}


# ---------------------------------------------------------------- what neighbours share, kept for a while


def _written(file: str | None) -> tuple[int, int] | None:
    """Return when a file was written and its size: a stamp that changes with it."""
    path = Path(file) if file else None
    found = path.stat() if path and path.is_file() else None
    return (found.st_mtime_ns, found.st_size) if found else None


def _stamp(cell: Cell) -> tuple[Any, ...]:
    """Stamps of the files a model comes from."""
    return _written(cell.model.rpartition(":")[0]), _written(cell.weights)


@functools.lru_cache(maxsize=64)
def _import(file: str, _: Any) -> None:
    names_in(Path(file))


@functools.lru_cache(maxsize=2)
def _model(name: str, weights: str | None, _: Any) -> tuple[nn.Module, str]:
    # eval: a bare forward pass must not change the statistics the next cell starts from
    model = model_from(name, Path(weights) if weights else None).eval()
    return model, weight_hash(model)


@functools.lru_cache(maxsize=256)
def _weights(name: str, weights: str | None, stamp: Any) -> str:
    return _model(name, weights, stamp)[1]


def _words(cell: Cell) -> str:
    """The words of a cell that say which stream it runs on."""
    names = ("data", "scenario", "images", "batch_size", "severity", "corruptions", "profile")
    words = {name: getattr(cell, name) for name in names}
    seed = 0 if cell.data in BENCHMARKS else cell.seed  # a benchmark on disk is the same for every seed
    words |= {"stream": dict(cell.stream), "seed": seed, "clean": cell.clean > 0}
    return json.dumps(words, sort_keys=True)


@functools.lru_cache(maxsize=8)
def _stream(words: str) -> streams.Stream:
    chosen = json.loads(words)
    options = {name: chosen[name] for name in ("batch_size", "images")} | chosen["stream"]
    if isinstance(options.get("order"), str):
        options["order"] = streams.Order(options["order"])
    if chosen["corruptions"]:
        options["corruptions"] = chosen["corruptions"]
    if chosen["scenario"] != "gradual":
        options["severity"] = chosen["severity"]
    source = source_from(chosen["data"], chosen["profile"], chosen["seed"], chosen["clean"])
    return streams.make(chosen["scenario"], source, **options)


@functools.lru_cache(maxsize=256)
def _plan(words: str) -> dict[str, Any]:
    """What a plan must know of a stream."""
    stream = _stream(words)
    domains = stream.domain_of[stream.bounds[:-1]]
    stays = 1 if stream.name == "mixed" else 1 + sum(a != b for a, b in itertools.pairwise(domains))
    size = {"batches": len(stream), "samples": stream.samples, "stays": stays}
    return {**size, "hash": stream.hash, "options": stream.options}
