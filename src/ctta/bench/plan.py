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

The other keys are weights, preset, batch_size, severity, clean and import. Without `preset` every method takes the
preset of the dataset where it has one; `preset: none` takes the defaults.
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

PLAIN = ("images", "batch_size", "severity", "clean", "precision")
"""Keys of a grid that are the same for all its cells and go to them as they are."""


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
    read = {name: value for name, value in read_words(words, owner).items() if value is not None}
    for file in read.get("import", ()):
        names_in(Path(file))
    weights = read.get("weights")
    models = [_model(entry, weights, owner) for entry in read.get("model", ["embedded:"])]
    if weights and len(models) > 1:
        raise SettingError(
            f"{owner}: `weights` belongs to one model, but there are {len(models)}. "
            "Give them in a YAML file: model: [{model: ARCH, weights: FILE}, ...]."
        )
    datasets, scenarios = read.get("dataset", ["embedded"]), read.get("scenario", ["continual"])
    _known("scenario", scenarios, SCENARIOS, owner)
    stream = _stream_options(read.get("stream", {}), scenarios, owner)
    names = read.get("methods", ["source", "bn1", "tent", "palm"])
    chosen = _methods(names, read.get("set", {}), read.get("preset"), owner)
    plain = {name: read[name] for name in PLAIN if name in read}
    corruptions = tuple(read["corruptions"]) if "corruptions" in read else None
    imports = tuple(read.get("import", ()))
    # methods vary fastest: neighbours share model and stream, which are kept in memory
    return [
        _settled(
            Cell(
                **plain,
                **method,
                **model,
                data=data,
                scenario=scenario,
                stream=stream[scenario],
                seed=seed,
                corruptions=corruptions,
                imports=imports,
                threads=threads,
            )
        )
        for data, model, scenario, seed, method in itertools.product(
            datasets, models, scenarios, read.get("seeds", [0]), chosen
        )
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
        given: Mapping[str, Any] = {"method": entry} if isinstance(entry, str) else entry
        _known("key of a method", given, ("method", "label", "preset", "set"), owner)
        if not isinstance(given.get("method"), str) or not isinstance(given.get("set", {}), Mapping):
            raise SettingError(
                f"{owner}: expected a method's name, or {{method: NAME, set: {{...}}}}, got {entry!r}."
            )
        method = given["method"]
        own = {name: _value(value) for name, value in given.get("set", {}).items()}
        made: dict[str, Any] = {
            "method": find(method).name,
            "label": str(given.get("label", "")),
            "preset": given.get("preset", preset),
            "settings": {**sets.get(method, {}), **own},
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


def _stream_options(given: Mapping[str, Any], scenarios: Sequence[str], owner: str) -> dict[str, dict[str, Any]]:
    """Return the options of every scenario: each goes to those that take it."""
    _known("stream option", given, OPTIONS, owner)
    for name in given:
        if not OPTIONS[name] & set(scenarios):
            takers = ", ".join(sorted(OPTIONS[name]))
            raise SettingError(f"{owner}: `{name}` is an option of {takers}, not of {', '.join(scenarios)}.")
    return {
        scenario: {name: _value(value) for name, value in given.items() if scenario in OPTIONS[name]}
        for scenario in scenarios
    }


def _model(entry: Any, weights: str | None, owner: str) -> dict[str, Any]:
    given = {"model": entry, "weights": weights} if isinstance(entry, str) else entry
    _known("key of a model", given, ("model", "weights"), owner)
    if not isinstance(given.get("model"), str):
        raise SettingError(
            f"{owner}: expected a model's name, or {{model: NAME, weights: FILE}}, but got {entry!r}."
        )
    file = given.get("weights")
    return {"model": given["model"], "weights": None if file is None else str(file)}


# -------------------------------------------------------------------- reading values


def _words(value: Any) -> list[str]:
    """Read a word, words separated by commas, or a list of words."""
    words = _entries(value)
    _fail(not all(isinstance(word, str) for word in words))
    return words


def _files(value: Any) -> list[str]:
    """Read one file or several, each a word or a path.

    >>> _files(("one.py", Path("two.py"))), _files("one.py,two.py")
    (['one.py', 'two.py'], ['one.py', 'two.py'])
    """
    return _words([_text(file) for file in value] if isinstance(value, list | tuple) else _text(value))


def _entries(value: Any) -> list[Any]:
    """Read a list whose entries may be words or mappings."""
    if isinstance(value, str):
        value = [word.strip() for word in value.split(",") if word.strip()]
    if isinstance(value, Mapping):
        value = [value]
    _fail(not isinstance(value, list | tuple) or not value)
    _fail(not all(isinstance(entry, str | Mapping) for entry in value))
    return list(value)


def _seeds(value: Any) -> list[int]:
    """Read numbers and ranges.

    >>> _seeds("0-2,7"), _seeds(3), _seeds([1, 2])
    ([0, 1, 2, 7], [3], [1, 2])
    """
    if isinstance(value, str):
        value = value.split(",")
    numbers: list[int] = []
    for part in value if isinstance(value, list | tuple) else [value]:
        first, dash, last = str(part).strip().partition("-")
        _fail(isinstance(part, bool) or not first.isdigit() or (bool(dash) and not last.isdigit()))
        span = range(int(first), int(last or first) + 1)
        _fail(not span)
        numbers += span
    return list(dict.fromkeys(numbers))


def _set(value: Any) -> dict[str, dict[str, Any]]:
    """Read settings by method from "palm.lr=1e-3" strings, {palm.lr: 1e-3} or {palm: {lr: 1e-3}}."""
    pairs: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        for name, item in value.items():
            if isinstance(item, Mapping):
                pairs += [(f"{name}.{inner}", one) for inner, one in item.items()]
            else:
                pairs.append((str(name), item))
    else:
        _fail(not isinstance(value, list | tuple))
        for text in value:
            name, equals, item = str(text).partition("=")
            _fail(not equals)
            pairs.append((name, item))
    out: dict[str, dict[str, Any]] = {}
    for place, item in pairs:
        method, dot, name = place.partition(".")
        _fail(not (method and dot and name))
        out.setdefault(method, {})[name] = _value(item)
    return out


def _options(value: Any) -> dict[str, Any]:
    if isinstance(value, list | tuple):
        _fail(not all("=" in str(text) for text in value))
        value = dict(str(text).split("=", 1) for text in value)
    _fail(not isinstance(value, Mapping))
    return dict(value)


def _whole(low: int, high: int | None = None) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        number = read_value(value) if isinstance(value, str) else value
        _fail(not isinstance(number, int) or isinstance(number, bool))
        _fail(number < low or (high is not None and number > high))
        return int(number)

    return read


def _text(value: Any) -> str:
    _fail(not isinstance(value, str | Path) or not str(value))
    return str(value)


def _precision(value: Any) -> str:
    _fail(value not in PRECISIONS)
    return str(value)


def _value(value: Any) -> Any:
    """YAML takes 1e-3 for a word; a setting is a number there, as on the command line."""
    return read_value(value) if isinstance(value, str) else value


def _fail(wrong: bool) -> None:
    """Stop reading a value that is wrong; `read_words` says which and what was expected."""
    if wrong:
        raise _WrongError


class _WrongError(Exception):
    """A value that its key does not accept."""


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
    "stream": (_options, "NAME=VALUE, or {NAME: VALUE}"),
    "clean": (_whole(0), "a whole number of at least 0"),
    "precision": (_precision, " or ".join(PRECISIONS)),
    "import": (_files, "one Python file or several"),
}
"""Keys of a grid: how each is read, and what it accepts in words."""


def read_words(words: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Read every value by its key, with an error that names the key."""
    out: dict[str, Any] = {}
    for word, value in words.items():
        name = str(word).replace("-", "_")
        if name == "setting":
            raise SettingError(f"{owner}: `setting`, the kind of stream, is called `scenario` now: rename it.")
        _known("key", [name], KEYS, owner)
        if value is None:
            continue
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
