"""A reproduction as one file to keep: its command, and the rows of every cell behind it.

JSON lines: a header, then one line a cell with its manifest. Batches are merged to stays in a domain, which is all
that the tables need, so that a whole study fits into a repository. `read` makes the same tables of it again.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ctta._core.files import parsing
from ctta._core.files import write as write_file
from ctta.bench import reading
from ctta.bench.evaluation import BatchRow
from ctta.bench.experiments import Experiment, experiment
from ctta.bench.metrics import grouped, means, per_image, sum_bins, sum_counts
from ctta.bench.reproduction import SEEDS, Reproduction, about_seeds
from ctta.bench.results import Result, Run, finished, run_of
from ctta.bench.store import Store
from ctta.errors import DataError

FORMAT = 1
KEPT = ("key", "label", "manifest", "started", "finished")  # of the record of a cell
DIGITS = 6  # significant digits kept of every number that is not a count


def write(file: Path, result: Reproduction, store: Store, command: str) -> Path:
    """Keep a reproduction with the rows behind it; the file is complete or not there."""
    facts = {"format": FORMAT, "command": command, "experiment": result.experiment.name, "title": result.title}
    header = {**facts, "notes": result.notes, "corruptions": result.corruptions, "rows": result.keys}
    lines = [header, *(_cell(run, store) for run in result.runs.values())]
    return write_file(file, "".join(json.dumps(line) + "\n" for line in lines).encode())


def _cell(run: Run, store: Store) -> dict[str, Any]:
    record = run.record
    return {
        **{name: getattr(record, name) for name in KEPT},
        "batches": record.total,
        "seconds": _short(run.seconds),
        "passes": _short(run.passes),
        "stays": [_short(row.to_dict()) for row in stays(store.batches(record.key))],
        "domains": _short(store.domains(record.key)),
    }


def read(file: Path) -> Reproduction:
    """Read a kept reproduction."""
    with parsing(f"{file} is not a kept reproduction, or it is damaged", "Use another copy, or run it again."):
        header, *cells = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        if header["format"] != FORMAT:
            raise DataError(f"{file} has format {header['format']}, and this version reads {FORMAT}.")
        _check(header)
        names = {key: place.partition(" / ")[2] for place, keys in header["rows"].items() for key in keys}
        # a cell that several experiments share is called in the store what the first of them calls it
        runs = {cell["key"]: _run({**cell, "label": names[cell["key"]]}) for cell in cells}
        about, notes, some = experiment(header["experiment"]), tuple(header["notes"]), header["corruptions"]
        results = tuple(_result(about, place, keys, runs) for place, keys in header["rows"].items())
        chosen = tuple(some) if some else None
        found = Reproduction(about, header["title"], results, notes, chosen, command=header["command"])
        if not found.tables:
            raise ValueError("it holds no table")
    return found


def _check(header: dict[str, Any]) -> None:
    """Refuse texts that are none; what else is wrong in a header shows when the tables are made."""
    some = header["corruptions"]
    lists = [[header["command"], header["title"]], header["notes"], some or [], *header["rows"].values()]
    if not all(type(texts) is list and all(type(text) is str for text in texts) for texts in lists):
        raise ValueError("a text is missing in its header")


def _result(about: Experiment, place: str, keys: Sequence[str], runs: dict[str, Run]) -> Result:
    """One row with the paper's numbers; a substitute stands beside the first dataset."""
    dataset, _, label = place.partition(" / ")
    row = next(row for row in about.rows if row.label == label)
    paper = runs[keys[0]].cell["data"] if keys else dataset
    beside = about.beside(row, paper if paper in about.datasets else next(iter(about.datasets)))
    return Result(label, tuple(runs[key] for key in keys), dataset, beside)


def _run(cell: dict[str, Any]) -> Run:
    kept = {name: cell[name] for name in KEPT}
    ended = {"status": "done", "total": cell["batches"], "done": cell["batches"], "error": None}
    record = reading.record_from(kept | ended)
    for domain in cell["domains"]:
        reading.require_domain(domain)
    words = [record.manifest["cell"]["data"], record.manifest["cell"].get("precision", "full")]
    if not {"seed", "settings"} <= record.manifest.keys() or not all(type(word) is str for word in words):
        raise ValueError(f"the manifest of cell {record.key!r} is not whole")
    rows = [reading.row_from(row, f"a stay of {record.key!r}") for row in cell["stays"]]
    # percentiles of single batches do not follow from stays
    found = run_of(record, rows, cell["domains"])
    return dataclasses.replace(found, seconds=cell["seconds"], passes=cell["passes"])


def merge(parts: Sequence[Reproduction]) -> Reproduction:
    """Join kept reproductions of one experiment that hold different rows or seeds of it.

    A row that several of them have with one seed counts once: as it was run last.
    """
    first = parts[0]
    _alike("one experiment", {part.experiment.name for part in parts})
    _alike("one precision", {run.precision for part in parts for run in part.runs.values()})
    found = grouped(((result.dataset, result.label), result) for part in parts for result in part.results)
    order = {row.label: place for place, row in enumerate(first.experiment.rows)}
    places = sorted(found, key=lambda place: (place[0], order[place[1]]))
    results = tuple(_joined(found[place]) for place in places)
    notes = dict.fromkeys(note for part in parts for note in part.notes if not note.startswith(SEEDS))
    seeds = about_seeds({result.label: result.seeds for result in results})
    keys = {run.key for result in results for run in result.runs}
    commands = dict.fromkeys(part.command for part in parts if keys & part.runs.keys())
    return dataclasses.replace(first, results=results, notes=(*seeds, *notes), command="\n".join(commands))


def _alike(what: str, found: set[str]) -> None:
    if len(found) > 1:
        raise DataError(f"Expected archives of {what}, but got {', '.join(sorted(found))}.")


def _joined(results: Sequence[Result]) -> Result:
    runs = sorted((run for result in results for run in result.runs), key=finished)
    by_seed = {run.seed: run for run in runs}
    return dataclasses.replace(results[-1], runs=tuple(by_seed[seed] for seed in sorted(by_seed)))


def stays(rows: Sequence[BatchRow]) -> Iterator[BatchRow]:
    """Merge the batches of each stay in a domain to one row: counts add up, the rest is a mean over the images.

    Times are medians, memory is the highest, and the share ever selected that of the last batch.
    """
    return (_merged(list(group)) for _, group in itertools.groupby(rows, key=lambda row: row.domain))


def _merged(rows: Sequence[BatchRow]) -> BatchRow:
    units = [row.unit for row in rows if row.unit is not None]
    kept = [row.kept for row in rows if row.kept is not None]
    shares = means(row.shares for row in rows)
    if "ever_selected" in shares:
        shares["ever_selected"] = rows[-1].shares["ever_selected"]
    return dataclasses.replace(
        rows[0],
        samples=sum(row.samples for row in rows),
        wrong=sum(row.wrong for row in rows),
        counts=sum_counts(rows),
        confidence=per_image(rows, "confidence"),
        nll=per_image(rows, "nll"),
        brier=per_image(rows, "brier"),
        bins=sum_bins(rows),
        seconds=statistics.median(row.seconds for row in rows),
        unit=statistics.median(units) if units else None,
        memory=max((row.memory for row in rows if row.memory is not None), default=None),
        shares=shares,
        losses=means(row.losses for row in rows),
        kept=sum(kept) if kept else None,
        rates=means(row.rates for row in rows),
        importance=means(row.importance for row in rows),
        skipped=any(row.skipped for row in rows),
        reason=next((row.reason for row in rows if row.reason), None),
    )


def _short(value: Any) -> Any:
    """Numbers with a few digits: more would only be noise in a file that people compare."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: _short(item) for name, item in value.items()}
    return [_short(item) for item in value] if isinstance(value, list | tuple) else value
