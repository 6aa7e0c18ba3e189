"""From a grid (datasets x models x scenarios x seeds x methods) to cells, and what they will cost.

A grid is written in the words of `ctta bench`, or as one YAML file with the same words as keys:

    dataset: cifar10-c                 # one word or a list; so with model, scenario, methods and corruptions
    model:
      - robustbench:Standard
      - {model: wrn-28-10, weights: mine.safetensors}
    methods:
      - source
      - palm
      - {method: palm, label: palm T=100, preset: cifar10-c, set: {temperature: 100}}
    scenario: [continual, gradual]
    seeds: 0-2                         # or [0, 1, 2]
    images: 1000                       # per domain; left out: all
    set: {tent: {lr: 1e-3}}            # or {tent.lr: 1e-3}
    stream: {passes: 3}                # further options of the scenarios
    precision: bf16                    # all methods under bfloat16 autocast; left out: full

The other keys are weights, preset, batch_size, severity, clean, profile and import. Without `preset` every method
takes the preset of the dataset where it has one; `preset: none` takes the defaults.
"""

from __future__ import annotations

import dataclasses
import itertools
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
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

    >>> [(cell.method, cell.seed) for cell in from_words({"methods": "source,bn1", "seeds": "0-1"})]
    [('source', 0), ('bn1', 0), ('source', 1), ('bn1', 1)]
    """
    read = read_words(words, owner)
    imports = tuple(read.pop("import", ()))
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
    entry = find(cell.method)
    preset = cell.preset
    if preset is None:
        fitting = PRESETS.get(cell.data, cell.data)
        preset = fitting if fitting in entry.presets else None
    elif preset == "none":
        preset = None
    entry.resolve(preset, cell.settings)
    return dataclasses.replace(cell, preset=preset)


def _methods(
    names: Sequence[Any], sets: Mapping[str, Any], preset: str | None, owner: str
) -> list[dict[str, Any]]:
    """Return method, label, preset and settings of every entry of `methods`."""
    chosen: dict[str, dict[str, Any]] = {}
    for entry in names:
        given = _entry("method", entry, ("method", "label", "preset", "set"), owner)
        method, own = given["method"], given.get("set", {})
        if not isinstance(own, Mapping):
            raise SettingError(f"{owner}: expected `set` of {method} to be {{SETTING: VALUE}}, but got {own!r}.")
        made: dict[str, Any] = {
            "method": find(method).name,
            "label": str(given.get("label", "")),
            "preset": given.get("preset", preset),
            "settings": {**sets.get(method, {}), **{name: _value(value) for name, value in own.items()}},
        }
        name = made["label"] or method
        if chosen.setdefault(name, made) != made:
            raise SettingError(f"{owner}: two different methods are called `{name}`: give one of them a `label`.")
    for name in sets:
        if all(made["method"] != name for made in chosen.values()):
            raise SettingError(
                f"{owner} sets something of `{name}`, which is none of its methods: {', '.join(chosen)}."
            )
    return list(chosen.values())


def _models(entries: Sequence[Any], weights: str | None, owner: str) -> list[dict[str, Any]]:
    """Return name and weights of every entry of `model`."""
    if weights and len(entries) > 1:
        raise SettingError(
            f"{owner}: `weights` belongs to one model, but there are {len(entries)}. "
            "Give them in a YAML file: model: [{model: ARCH, weights: FILE}, ...]."
        )
    given = [_entry("model", entry, ("model", "weights"), owner) for entry in entries]
    files = [entry.get("weights", weights if isinstance(entries[0], str) else None) for entry in given]
    return [
        {"model": entry["model"], "weights": None if file is None else str(file)}
        for entry, file in zip(given, files, strict=True)
    ]


def _entry(what: str, entry: Any, keys: Sequence[str], owner: str) -> Mapping[str, Any]:
    """Read one model or method: its name, or a mapping that names it."""
    given: Mapping[str, Any] = {what: entry} if isinstance(entry, str) else entry
    _known(f"key of a {what}", given, keys, owner)
    if not isinstance(given.get(what), str):
        rest = ", ".join(f"{key}: ..." for key in keys[1:])
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


# -------------------------------------------------------------------- reading values


class _WrongError(Exception):
    """A value that its key does not accept; `read_words` says which, and what was expected."""


def _require(right: bool) -> None:
    if not right:
        raise _WrongError


def _list(*kinds: type) -> Callable[[Any], list[Any]]:
    """Read one entry, entries separated by commas, or a list of them."""

    def read(value: Any) -> list[Any]:
        if isinstance(value, str):
            value = [word.strip() for word in value.split(",") if word.strip()]
        entries = list(value) if isinstance(value, list | tuple) else [value]
        _require(bool(entries) and all(isinstance(entry, kinds) for entry in entries))
        return entries

    return read


def _files(value: Any) -> list[str]:
    """Read one file or several, each a word or a path."""
    return [str(file) for file in _list(str, Path)(value)]


def _seeds(value: Any) -> list[int]:
    """Read numbers and ranges.

    >>> _seeds("0-2,7"), _seeds(3), _seeds([1, 2])
    ([0, 1, 2, 7], [3], [1, 2])
    """
    numbers: list[int] = []
    for part in _list(str, int)(value):
        first, dash, last = str(part).strip().partition("-")
        _require(first.isdigit() and (not dash or last.isdigit()))  # True and -1 are no digits either
        span = range(int(first), int(last or first) + 1)
        _require(bool(span))
        numbers += span
    return list(dict.fromkeys(numbers))


def _pairs(value: Any) -> dict[str, Any]:
    """Read NAME=VALUE words or a mapping."""
    if not isinstance(value, Mapping):
        words = [str(text) for text in _list(str)(value)]
        _require(all("=" in text for text in words))
        value = dict(text.split("=", 1) for text in words)
    return {str(name): _value(item) for name, item in value.items()}


def _set(value: Any) -> dict[str, dict[str, Any]]:
    """Read settings by method from "palm.lr=1e-3" words, {palm.lr: 1e-3} or {palm: {lr: 1e-3}}."""
    out: dict[str, dict[str, Any]] = {}
    for place, item in _pairs(value).items():
        method, dot, name = place.partition(".")
        _require(bool(method) and bool(name if dot else isinstance(item, Mapping)))
        found = {name: item} if dot else {str(inner): _value(one) for inner, one in item.items()}
        out.setdefault(method, {}).update(found)
    return out


def _whole(low: int, high: int | None = None) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        number = _value(value)
        _require(type(number) is int and low <= number and (high is None or number <= high))
        return int(number)

    return read


def _text(value: Any) -> str:
    _require(isinstance(value, str | Path) and bool(str(value)))
    return str(value)


def _precision(value: Any) -> str:
    _require(value in PRECISIONS)
    return str(value)


def _value(value: Any) -> Any:
    """YAML takes 1e-3 for a word; a setting is a number there, as on the command line."""
    return read_value(value) if isinstance(value, str) else value


_words, _entries = _list(str), _list(str, Mapping)

KEYS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "dataset": (_words, "one dataset or several"),
    "model": (_entries, "one model or several, each a name or {model: NAME, weights: FILE}"),
    "weights": (_text, "a weight file"),
    "methods": (
        _entries,
        "one method or several, each a name or {method: NAME, label: ..., preset: ..., set: ...}",
    ),
    "preset": (_text, "the name of a preset, or none"),
    "scenario": (_words, "one scenario or several"),
    "seeds": (_seeds, "whole numbers of at least 0, or ranges such as 0-4"),
    "images": (_whole(1), "a whole number of at least 1"),
    "batch_size": (_whole(1), "a whole number of at least 1"),
    "severity": (_whole(1, 5), "a whole number from 1 to 5"),
    "corruptions": (_words, "one corruption or several"),
    "set": (_set, "METHOD.SETTING=VALUE, or {METHOD: {SETTING: VALUE}}"),
    "stream": (_pairs, "NAME=VALUE, or {NAME: VALUE}"),
    "clean": (_whole(0), "a whole number of at least 0"),
    "precision": (_precision, " or ".join(PRECISIONS)),
    "profile": (_text, "the name of a profile of corruptions"),
    "import": (_files, "one Python file or several"),
}
"""Keys of a grid: how each is read, and what it accepts in words."""


def read_words(words: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Read every value by its key, with an error that names the key; what is None is left out."""
    out: dict[str, Any] = {}
    for word, value in words.items():
        name = str(word).replace("-", "_")
        if name == "setting" and value is not None:
            raise SettingError(f"{owner}: `setting`, the kind of stream, is called `scenario` now: rename it.")
        if value is None:
            continue
        _known("key", [name], KEYS, owner)
        read, accepts = KEYS[name]
        try:
            out[name] = read(value)
        except _WrongError:
            raise SettingError(f"{owner}: expected `{name}` to be {accepts}, but got {value!r}.") from None
    return out


def _known(what: str, given: Iterable[Any], known: Iterable[str], owner: str) -> None:
    for name in given:
        if name not in known:
            accepted = ", ".join(known)
            raise SettingError(
                f"{owner} has an unknown {what} `{name}`.{suggestion(str(name), known)} Accepted: {accepted}."
            )
