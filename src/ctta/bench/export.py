"""Rows of a store as CSV, JSONL or Parquet: one line a batch, each with what it takes to trace it."""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ctta._core import files
from ctta.bench.database import DAMAGED
from ctta.bench.reading import CellRecord
from ctta.bench.store import Store
from ctta.errors import DataError, SettingError, StoreError

Line = dict[str, Any]
Writer = Callable[[BinaryIO, Iterator[Line]], int]
"""Writes lines to an open file; returns how many."""

NESTED = ("settings", "counts", "bins", "shares", "losses", "rates", "importance")
"""Columns that hold lists or mappings: JSON text in CSV and Parquet."""


def export(store: Store, target: Path, keys: Iterable[str] | None = None) -> int:
    """Write the batch rows of some cells (default: all) to a file by its ending; returns how many.

    The file is complete or not there.
    """
    write = writer_of(target)
    records = store.cells() if keys is None else [store.cell(key) for key in keys]
    try:
        with files.atomic(target) as file:
            return write(file, (line for record in records for line in _lines(store, record)))
    except OSError as error:
        raise StoreError(f"Could not write {target}: {error.strerror or error}.") from error


def writer_of(target: Path) -> Writer:
    """Return what writes files with this ending; refuses those that could not be written."""
    write = WRITERS.get(target.suffix.lower())
    if write is None:
        raise SettingError(f"Expected a file ending in {', '.join(WRITERS)}, but got {target}.")
    if write is _parquet:
        _pyarrow()
    return write


def _lines(store: Store, record: CellRecord) -> Iterator[Line]:
    """Batch rows as plain data, each with the identity of its cell."""
    manifest = {"numbers": 1, **record.manifest}  # 0.1 wrote no version down: it was the first
    cell = {"precision": "full", **manifest.get("cell", {})}
    try:
        identity = {name: manifest[name] for name in ("method", "settings", "seed", "weights", "stream")}
        identity |= {name: cell[name] for name in ("model", "data", "scenario", "precision")}
        identity |= {name: manifest[name] for name in ("numbers", "ctta")}
    except KeyError as error:
        raise StoreError(f"{store.path}: the manifest of cell {record.key} has no {error}. {DAMAGED}") from error
    for row in store.batches(record.key):
        about = {"key": record.key, "label": record.label, "status": record.status, **identity}
        yield {**about, **row.to_dict(), "error": row.error}


def _csv(file: BinaryIO, lines: Iterator[Line]) -> int:
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    count = 0
    for count, line in enumerate(lines, 1):
        table = csv.DictWriter(text, list(line), lineterminator="\n")
        if count == 1:
            table.writeheader()
        table.writerow(_flat(line))
    text.detach()
    return count


def _jsonl(file: BinaryIO, lines: Iterator[Line]) -> int:
    texts = (json.dumps(_finite(line), allow_nan=False) + "\n" for line in lines)
    return sum(bool(file.write(text.encode())) for text in texts)


def _parquet(file: BinaryIO, lines: Iterator[Line]) -> int:
    arrow, parquet = _pyarrow()
    table = arrow.Table.from_pylist([_flat(line) for line in lines])
    parquet.write_table(table, file)
    return int(table.num_rows)


WRITERS: dict[str, Writer] = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}


def _pyarrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError('Export to Parquet needs the package pyarrow: pip install "ctta[export]"') from error


def _flat(line: Line) -> Line:
    return {name: json.dumps(_finite(value)) if name in NESTED else value for name, value in line.items()}


def _finite(value: Any) -> Any:
    """JSON knows no NaN and no infinity: null stands for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
