"""From a grid (datasets x models x scenarios x seeds x methods) to cells, and what they will cost.

A grid is written in the words of `ctta bench`, or as one YAML file with the same words as keys (docs/bench.md).
"""

from __future__ import annotations

import dataclasses
import itertools
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from ctta._core.files import parsing
from ctta._core.precision import PRECISIONS
from ctta.bench.cell import Cell, Task, prepare
from ctta.bench.resolve import names_in, read_value
from ctta.errors import SettingError
from ctta.methods import find
from ctta.settings import suggestion
from ctta.streams import SCENARIOS

PRESETS = {"cifar10": "cifar10-c", "cifar100": "cifar100-c"}
"""Presets of datasets that are not named like their preset."""

OPTIONS = {
    "order": set(SCENARIOS) - {"correlated"},
    "first": {"gradual"},
    "passes": {"recurring"},
    "kind": {"correlated"},
    "concentration": {"correlated"},
    "seed": {"correlated", "mixed"},
}
"""Further options of a stream, and the scenarios that take them."""


def tasks(cells: Iterable[Cell]) -> list[Task]:
    """Give cells their keys; a cell that is another one in other words is left out."""
    found: dict[str, Task] = {}
    for cell in cells:
        task = prepare(cell)
        found.setdefault(task.key, task)
    return list(found.values())


def from_yaml(path: Path, threads: int = 1, **words: Any) -> list[Cell]:
    """Cells of a YAML file; words given beside it replace those in it."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise SettingError(f"Could not read the grid {path}: {error.strerror or error}.") from error
    with parsing(f"{path} is not YAML", "Correct it.", SettingError):
        data = yaml.safe_load(text)
    if not isinstance(data, dict):
        got = reprlib.repr(data)
        raise SettingError(f"Expected {path} to hold keys and values (keys: {', '.join(KEYS)}), but got {got}.")
    return from_words({**data, **words}, owner=str(path), threads=threads)


def from_words(words: Mapping[str, Any], owner: str = "The grid", threads: int = 1) -> list[Cell]:
    """Cells of a grid: words separated by commas, or lists; what is None or left out has its default.

    Without `preset` every method takes the preset of the dataset where it has one; `none` takes the defaults.

    >>> [(cell.method, cell.seed) for cell in from_words({"methods": "source,bn1", "seeds": "0-1"})]
    [('source', 0), ('bn1', 0), ('source', 1), ('bn1', 1)]
    """
    read = read_words(words, owner)
    imports = tuple(map(str, read.pop("import", ())))
    for file in imports:
        names_in(Path(file))
    models = _models(read.pop("model", ["embedded:"]), read.pop("weights", None), owner)
    scenarios = read.pop("scenario", ["continual"])
    _known("scenario", scenarios, SCENARIOS, owner)
    stream = _stream_options(read.pop("stream", {}), scenarios, owner)
    names = read.pop("methods", ["source", "bn1", "tent", "palm"])
    methods = _methods(names, read.pop("set", {}), read.pop("preset", None), owner)
    datasets, seeds = read.pop("dataset", ["embedded"]), read.pop("seeds", [0])
    corruptions = tuple(read.pop("corruptions", ())) or None
    same = {**read, "corruptions": corruptions, "imports": imports, "threads": threads}
    # methods vary fastest: neighbours share model and stream, which are kept in memory
    return [
        _settled(Cell(**same, **method, **model, data=data, scenario=scenario, stream=stream[scenario], seed=seed))
        for data, model, scenario, seed, method in itertools.product(datasets, models, scenarios, seeds, methods)
    ]


def _settled(cell: Cell) -> Cell:
    """Fill in the preset and check the settings, before anything runs."""
    entry, fitting = find(cell.method), PRESETS.get(cell.data, cell.data)
    preset = cell.preset or (fitting if fitting in entry.presets else None)
    preset = None if preset == "none" else preset
    entry.resolve(preset, cell.settings)
    return dataclasses.replace(cell, preset=preset)


def _methods(
    names: Sequence[Any], sets: Mapping[str, Any], preset: str | None, owner: str
) -> list[dict[str, Any]]:
    """Return method, label, preset and settings of every entry of `methods`."""
    chosen: dict[str, dict[str, Any]] = {}
    for entry in names:
        given = _entry("method", entry, ("label", "preset", "set"), owner)
        method, own = given["method"], given.get("set", {})
        if not isinstance(own, Mapping):
            raise SettingError(f"{owner}: expected `set` of {method} to be {{SETTING: VALUE}}, but got {own!r}.")
        settings = {**sets.get(method, {}), **{name: read_value(value) for name, value in own.items()}}
        for label, values in _each(method, str(given.get("label", "")), settings):
            name = label or method
            one = {"method": method, "label": label, "preset": given.get("preset", preset), "settings": values}
            if chosen.setdefault(name, one) != one:
                raise SettingError(
                    f"{owner}: two different methods are called `{name}`: give one of them a `label`."
                )
    for name in sets.keys() - {one["method"] for one in chosen.values()}:
        raise SettingError(
            f"{owner} sets something of `{name}`, which is none of its methods: {', '.join(chosen)}."
        )
    return list(chosen.values())


def _each(method: str, label: str, settings: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return label and settings for every listed value: palm.lr=1e-3,2e-3 is two, each with a label of its own."""
    lists = {}
    for item in find(method).settings:
        value = settings.get(item.name)
        if isinstance(value, str) and "," in value and str not in item.types:
            value = value.split(",")
        if isinstance(value, list) and not item.many:
            lists[item.name] = [read_value(part) for part in value]
    for values in itertools.product(*lists.values()):
        named = dict(zip(lists, values, strict=True))
        words = [label or method, *(f"{name}={value}" for name, value in named.items())]
        yield " ".join(words) if lists else label, {**settings, **named}


def _models(entries: Sequence[Any], weights: str | None, owner: str) -> list[dict[str, Any]]:
    """Return name and weights of every entry of `model`."""
    if weights and len(entries) > 1:
        raise SettingError(
            f"{owner}: `weights` belongs to one model, but there are {len(entries)}. "
            "Give them in a YAML file: model: [{model: ARCH, weights: FILE}, ...]."
        )
    models = []
    for entry in entries:
        given = _entry("model", entry, ("weights",), owner)
        file = given.get("weights", weights if isinstance(entry, str) else None)
        models.append({"model": given["model"], "weights": None if file is None else str(file)})
    return models


def _entry(what: str, entry: Any, more: Sequence[str], owner: str) -> Mapping[str, Any]:
    """Read one model or method: its name, or a mapping that names it."""
    given: Mapping[str, Any] = {what: entry} if isinstance(entry, str) else entry
    _known(f"key of a {what}", given, (what, *more), owner)
    if not isinstance(given.get(what), str):
        rest = ", ".join(f"{key}: ..." for key in more)
        raise SettingError(f"{owner}: expected a {what}'s name, or {{{what}: NAME, {rest}}}, but got {entry!r}.")
    return given


def _stream_options(given: Mapping[str, Any], scenarios: Sequence[str], owner: str) -> dict[str, dict[str, Any]]:
    """Return the options of every scenario: each goes to those that take it."""
    _known("stream option", given, OPTIONS, owner)
    for name in given:
        if not OPTIONS[name] & set(scenarios):
            takers = ", ".join(sorted(OPTIONS[name]))
            raise SettingError(f"{owner}: `{name}` is an option of {takers}, not of {', '.join(scenarios)}.")
    return {
        scenario: {name: value for name, value in given.items() if scenario in OPTIONS[name]}
        for scenario in scenarios
    }


# ---------------------------------------------------------------- reading values; what does not fit: ValueError


def _require(right: bool) -> None:
    if not right:
        raise ValueError


def _list(value: Any, kinds: tuple[type, ...] = (str,)) -> list[Any]:
    """Read one entry, entries separated by commas, or a list of them."""
    if isinstance(value, str):
        value = [word.strip() for word in value.split(",") if word.strip()]
    entries = list(value) if isinstance(value, list | tuple) else [value]
    _require(bool(entries) and all(isinstance(entry, kinds) for entry in entries))
    return entries


def _seeds(value: Any) -> list[int]:
    """Read numbers and ranges.

    >>> _seeds("0-2,7"), _seeds(3), _seeds([1, 2])
    ([0, 1, 2, 7], [3], [1, 2])
    """
    numbers: list[int] = []
    for part in _list(value, (str, int)):
        first, dash, last = str(part).strip().partition("-")
        _require(first.isdigit() and (not dash or last.isdigit()))  # True and -1 are no digits either
        span = range(int(first), int(last or first) + 1)
        _require(bool(span))
        numbers += span
    return list(dict.fromkeys(numbers))


def _pairs(value: Any) -> dict[str, Any]:
    """Read NAME=VALUE words or a mapping."""
    if not isinstance(value, Mapping):
        value = dict(text.split("=", 1) for text in _list(value))  # a word without = is no pair
    return {str(name): read_value(item) for name, item in value.items()}


def _set(value: Any) -> dict[str, dict[str, Any]]:
    """Read settings by method from "palm.lr=1e-3" words, {palm.lr: 1e-3} or {palm: {lr: 1e-3}}."""
    out: dict[str, dict[str, Any]] = {}
    for place, item in _pairs(value).items():
        method, dot, name = place.partition(".")
        _require(bool(method) and bool(name if dot else isinstance(item, Mapping)))
        out.setdefault(method, {}).update({name: item} if dot else _pairs(item))
    return out


def _whole(value: Any, low: int, high: int = 2**62) -> int:
    number = read_value(value)
    _require(type(number) is int and low <= number <= high)
    return int(number)


def _text(value: Any, known: Sequence[str] = ()) -> str:
    _require(isinstance(value, str | Path) and bool(str(value)) and (not known or value in known))
    return str(value)


_count = partial(_whole, low=1)
_entries = partial(_list, kinds=(str, Mapping))
COUNT = "a whole number of at least 1"
ENTRY = "one method or several, each a name or {method: NAME, label: ..., preset: ..., set: ...}"

KEYS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "dataset": (_list, "one dataset or several"),
    "model": (_entries, "one model or several, each a name or {model: NAME, weights: FILE}"),
    "weights": (_text, "a weight file"),
    "methods": (_entries, ENTRY),
    "preset": (_text, "the name of a preset, or none"),
    "scenario": (_list, "one scenario or several"),
    "seeds": (_seeds, "whole numbers of at least 0, or ranges such as 0-4"),
    "images": (_count, COUNT),
    "batch_size": (_count, COUNT),
    "severity": (partial(_whole, low=1, high=5), "a whole number from 1 to 5"),
    "corruptions": (_list, "one corruption or several"),
    "set": (_set, "METHOD.SETTING=VALUE, or {METHOD: {SETTING: VALUE}}"),
    "stream": (_pairs, "NAME=VALUE, or {NAME: VALUE}"),
    "clean": (partial(_whole, low=0), "a whole number of at least 0"),
    "precision": (partial(_text, known=PRECISIONS), " or ".join(PRECISIONS)),
    "profile": (_text, "the name of a profile of corruptions"),
    "import": (partial(_list, kinds=(str, Path)), "one Python file or several"),
}
"""Keys of a grid: how each is read, and what it accepts in words."""


def read_words(words: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Read every value by its key, with an error that names the key; what is None is left out."""
    out: dict[str, Any] = {}
    for name, value in ((str(word).replace("-", "_"), value) for word, value in words.items()):
        if value is None:
            continue
        if name == "setting":
            raise SettingError(f"{owner}: `setting`, the kind of stream, is called `scenario` now: rename it.")
        _known("key", [name], KEYS, owner)
        read, accepts = KEYS[name]
        try:
            out[name] = read(value)
        except (ValueError, yaml.YAMLError):
            raise SettingError(f"{owner}: expected `{name}` to be {accepts}, but got {value!r}.") from None
    return out


def _known(what: str, given: Iterable[Any], known: Iterable[str], owner: str) -> None:
    for name in given:
        if name not in known:
            accepted, hint = ", ".join(known), suggestion(str(name), known)
            raise SettingError(f"{owner} has an unknown {what} `{name}`.{hint} Accepted: {accepted}.")
