"""From the values in a store's file to rows and records; a damaged value is an error in words, never a number."""

from __future__ import annotations

import functools
import json
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from ctta.bench.evaluation import BINS, BatchRow

Status = Literal["running", "done", "failed"]
SNAPSHOT = re.compile(r"[^/\\]+-\d{1,9}\.safetensors")


@dataclass(frozen=True)
class CellRecord:
    """One cell as the store knows it. `done` counts batches."""

    key: str
    label: str
    status: Status
    manifest: dict[str, Any]
    total: int
    done: int
    error: str | None
    started: float | None
    finished: float | None


class Held(NamedTuple):
    """What the store knows of a cell that someone wants to run."""

    status: Status
    owner: str | None
    beat: float | None
    snapshot: str | None


LATEST = 2**36
"""Seconds after 1970 that no clock of ours shows, but every calendar has."""

MANIFEST: dict[str, Any] = {
    **dict.fromkeys(("cell", "scenario", "settings"), dict[str, Any]),
    **dict.fromkeys(("seed", "samples", "batches", "processes"), int),
    "clean": float,
}
"""Kinds of what a manifest may hold; the rest is for readers."""

_kinds = functools.cache(get_type_hints)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value from JSON or SQLite is of a kind as annotations write it; numbers may be whole."""
    parts = get_args(kind)
    match get_origin(kind):
        case None:
            return kind is Any or type(value) is kind or (kind is float and type(value) is int)
        case origin if origin in (Union, types.UnionType):
            return any(_fits(value, part) for part in parts)
        case origin if origin is Literal:
            return type(value) is str and value in parts
        case origin if origin is dict:
            return type(value) is dict and all(_fits(k, parts[0]) and _fits(v, parts[1]) for k, v in value.items())
        case _:
            return type(value) is list and all(_fits(item, parts[0]) for item in value)


def _require(what: str, values: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name in kinds and not _fits(value, kinds[name]):
            raise ValueError(f"{what} has a wrong `{name}`")


def _data(what: str, text: Any) -> dict[str, Any]:
    try:
        return {**json.loads(text)}
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{what} is not readable ({error})") from error


def batch_row(text: Any, batch: Any) -> BatchRow:
    """Return the row of a batch."""
    row = row_from(_data(f"row {batch!r}", text), f"row {batch!r}")
    if row.batch != batch:
        raise ValueError(f"row {batch!r} is that of batch {row.batch}")
    return row


def row_from(data: dict[str, Any], what: str) -> BatchRow:
    """Return the row that such data are, if each value is of its kind."""
    _require(what, data, _kinds(BatchRow))
    try:
        row = BatchRow.from_dict(data)
    except TypeError as error:
        raise ValueError(f"{what} is not whole ({error})") from error
    counts = row.samples > 0 and all(len(pair) == 2 for pair in row.counts.values())
    if not counts or len(row.bins) not in (0, BINS) or any(len(bins) != 3 for bins in row.bins):
        raise ValueError(f"{what} counts wrongly")
    return row


def domain_row(text: Any) -> dict[str, Any]:
    """Return what was measured after a domain."""
    return require_domain(_data("a row of a domain", text))


def require_domain(data: dict[str, Any]) -> dict[str, Any]:
    """Refuse what was not measured after a domain."""
    _require("a row of a domain", data, dict.fromkeys(data, float) | {"domain": str})
    if "domain" not in data:
        raise ValueError("a row of a domain does not name it")
    return data


def record(values: Sequence[Any]) -> CellRecord:
    """Return a cell from the columns of its record, in their order."""
    named = dict(zip((item.name for item in fields(CellRecord)), values, strict=True))
    return record_from({**named, "manifest": _data(f"the manifest of cell {named['key']!r}", named["manifest"])})


def record_from(named: dict[str, Any]) -> CellRecord:
    """Return a cell from what its record holds by name, if each value is of its kind."""
    what, manifest = f"cell {named['key']!r}", named["manifest"]
    _require(what, named, _kinds(CellRecord))
    for name in ("started", "finished"):
        if not 0 <= (named[name] or 0) < LATEST:  # infinity, too
            raise ValueError(f"{what} has a wrong `{name}`")
    for data in (manifest, manifest.get("cell")):
        if type(data) is dict and "setting" in data:  # what 0.1 called it
            data["scenario"] = data.pop("setting")
    _require(f"the manifest of {what}", manifest, MANIFEST)
    return CellRecord(**named)


def held(key: str, values: Sequence[Any]) -> Held:
    """Return what decides whether a cell may be taken."""
    found = Held(*values)
    _require(f"cell {key!r}", found._asdict(), _kinds(Held))
    if found.snapshot is not None and not SNAPSHOT.fullmatch(found.snapshot):
        raise ValueError(f"cell {key!r} has a wrong `snapshot`")
    return found
