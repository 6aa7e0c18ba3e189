"""From the values in a store's file to rows and records; a damaged value is an error in words, never a number."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ctta.bench.evaluation import BINS, BatchRow
from ctta.errors import StoreError

DAMAGED = "It is not a store of ctta, or it is damaged: go back to a copy of it, or name another store."
SNAPSHOT = re.compile(r"[^/\\]+-\d{1,9}\.safetensors")


@dataclass(frozen=True)
class CellRecord:
    """One cell as the store knows it. `status` is running, done or failed; `done` counts batches."""

    key: str
    label: str
    status: str
    manifest: dict[str, Any]
    total: int
    done: int
    error: str | None
    started: float | None
    finished: float | None


class Held(NamedTuple):
    """What the store knows of a cell that someone wants to run."""

    status: str
    owner: str | None
    beat: float | None
    snapshot: str | None


# ---------------------------------------------------------------- which values fit

Fits = Callable[[Any], bool]


def _of(*kinds: type) -> Fits:
    return lambda value: type(value) in kinds


def _numbers(value: Any) -> bool:
    return type(value) is dict and set(map(type, value.values())) <= {int, float}


def _lists(length: int, *kinds: type) -> Fits:
    def fits(values: Any) -> bool:
        return all(type(v) is list and len(v) == length and set(map(type, v)) <= set(kinds) for v in values)

    return fits


_two, _three = _lists(2, int), _lists(3, int, float)
_number, _perhaps, _words = _of(int, float), _of(int, float, type(None)), _of(str, type(None))

ROW: dict[str, Fits] = {
    "batch": _of(int),
    "domain": _of(str),
    "samples": lambda value: type(value) is int and value > 0,
    "wrong": _of(int),
    "counts": lambda value: type(value) is dict and _two(value.values()),
    **dict.fromkeys(("confidence", "nll", "brier", "seconds"), _number),
    "bins": lambda value: type(value) is list and len(value) in (0, BINS) and _three(value),
    **dict.fromkeys(("unit", "memory"), _perhaps),
    **dict.fromkeys(("shares", "losses", "rates", "importance"), _numbers),
    "kept": _of(int, type(None)),
    "skipped": _of(bool),
    "reason": _words,
}
RECORD: dict[str, Fits] = {
    "key": _of(str),
    "label": _of(str),
    "status": lambda value: value in ("running", "done", "failed"),
    "manifest": _of(dict),
    **dict.fromkeys(("total", "done"), _of(int)),
    "error": _words,
    **dict.fromkeys(("started", "finished"), _perhaps),
}
MANIFEST: dict[str, Fits] = {
    **dict.fromkeys(("cell", "scenario", "settings"), _of(dict)),
    **dict.fromkeys(("seed", "samples", "batches", "processes"), _of(int)),
    "clean": _number,
}
HELD: dict[str, Fits] = {
    "status": RECORD["status"],
    "owner": _words,
    "beat": _perhaps,
    "snapshot": lambda value: value is None or (type(value) is str and bool(SNAPSHOT.fullmatch(value))),
}


def _require(what: str, values: Mapping[str, Any], fits: Mapping[str, Fits]) -> None:
    for name, value in values.items():
        if name in fits and not fits[name](value):
            raise ValueError(f"{what} has a wrong `{name}`")


def _data(what: str, text: Any) -> dict[str, Any]:
    try:
        data = json.loads(text) if type(text) is str else None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not readable ({error})") from error
    if type(data) is not dict:
        raise ValueError(f"{what} is not readable")
    return data


# ---------------------------------------------------------------- reading


def batch_row(text: Any, batch: Any) -> BatchRow:
    """Return the row of a batch."""
    row = row_from(_data(f"row {batch!r}", text), f"row {batch!r}")
    if row.batch != batch:
        raise ValueError(f"row {batch!r} is that of batch {row.batch}")
    return row


def row_from(data: dict[str, Any], what: str) -> BatchRow:
    """Return the row that such data are, if each value is of its kind."""
    _require(what, data, ROW)
    try:
        return BatchRow.from_dict(data)
    except TypeError as error:
        raise ValueError(f"{what} is not whole ({error})") from error


def domain_row(text: Any) -> dict[str, Any]:
    """Return what was measured after a domain."""
    data = _data("a row of a domain", text)
    require_domain(data)
    return data


def require_domain(data: dict[str, Any]) -> None:
    """Refuse what was not measured after a domain."""
    _require("a row of a domain", data, dict.fromkeys(data, _number) | {"domain": _of(str)})
    if "domain" not in data:
        raise ValueError("a row of a domain does not name it")


def record(values: Sequence[Any]) -> CellRecord:
    """Return a cell from the columns of its record, in their order."""
    named = dict(zip(RECORD, values, strict=True))
    named["manifest"] = _data(f"the manifest of cell {named['key']!r}", named["manifest"])
    return record_from(named)


def record_from(named: dict[str, Any]) -> CellRecord:
    """Return a cell from what its record holds by name, if each value is of its kind."""
    what = f"cell {named['key']!r}"
    for data in (named["manifest"], named["manifest"].get("cell")):
        if type(data) is dict and "setting" in data:  # what 0.1 called it
            data["scenario"] = data.pop("setting")
    _require(what, named, RECORD)
    _require(f"the manifest of {what}", named["manifest"], MANIFEST)
    return CellRecord(**named)


def held(key: str, values: Sequence[Any]) -> Held:
    """Return what decides whether a cell may be taken."""
    found = Held(*values)
    _require(f"cell {key!r}", found._asdict(), HELD)
    return found


@contextlib.contextmanager
def speaking(path: Path) -> Iterator[None]:
    """Say what is wrong with the store in words, with what to do about it."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        text = str(error)[:200]  # SQLite quotes the whole of a text that is not UTF-8
        raise StoreError(f"{path}: {text}. {_cure(error, text)}") from error
    except ValueError as error:  # of what was read
        raise StoreError(f"{path}: {str(error)[:200]}. {DAMAGED}") from error


def _cure(error: Exception, text: str) -> str:
    if "full" in text:
        return "The disk is full: make room and run the same command again; the rows so far are safe."
    if "disk I/O" in text:
        return "The disk cannot be written (full, over a limit, or failing); the rows so far are safe."
    if "readonly" in text or isinstance(error, PermissionError):
        return "It cannot be written: give yourself the right to, or name another store."
    if "locked" in text:
        return "Another process has held it for a minute: wait for it, or stop it."
    if any(words in text for words in ("not a database", "malformed", "no such", "decode", "unsupported")):
        return DAMAGED
    return "Check the path and the rights."
