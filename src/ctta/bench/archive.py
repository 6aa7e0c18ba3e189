"""A reproduction as one file to keep: its command, and the rows of every cell behind it.

JSON lines: a header, then one line a cell with its manifest. Batches are merged to stays in a domain, which is all
that the tables need, so that a whole study fits into a repository. `read` makes the same tables of it again.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ctta._core.files import parsing
from ctta._core.files import write as write_file
from ctta.bench import reading
from ctta.bench.evaluation import BatchRow
from ctta.bench.experiments import SEEDS, Reproduction, about_seeds, made_of
from ctta.bench.paper_tables import Entry
from ctta.bench.published import experiment
from ctta.bench.store import Store
from ctta.bench.summary import Summary, sum_bins, sum_counts, summary_of
from ctta.errors import DataError

FORMAT = 1
DIGITS = 6
"""Significant digits kept of every number that is not a count."""


@dataclass(frozen=True)
class Archive:
    """What a file holds: the command that made it, and the tables that follow from its rows."""

    command: str
    result: Reproduction
    entries: tuple[Entry, ...]
    runs: dict[str, Summary]
    """Every cell by its key."""
    cells: tuple[dict[str, Any], ...]
    """The same as the file has them."""

    @property
    def precisions(self) -> set[str]:
        """What its cells were computed in: one, where it is of one command."""
        return {cell["manifest"]["cell"].get("precision", "full") for cell in self.cells}


def write(file: Path, result: Reproduction, store: Store, command: str) -> Path:
    """Keep a reproduction with the rows behind it; the file is complete or not there."""
    header = {
        "format": FORMAT,
        "command": command,
        "experiment": result.experiment.name,
        "title": result.title,
        "notes": list(result.notes),
        "corruptions": result.corruptions,
        "rows": result.keys,
    }
    keys = dict.fromkeys(key for found in result.keys.values() for key in found)
    lines = [header, *(_cell(store, key) for key in keys)]
    return write_file(file, "".join(json.dumps(line) + "\n" for line in lines).encode())


def _cell(store: Store, key: str) -> dict[str, Any]:
    record, rows = store.cell(key), store.batches(key)
    whole = summary_of(record, rows, domains := store.domains(key))
    return {
        "key": record.key,
        "label": record.label,
        "manifest": record.manifest,
        "batches": record.total,
        "started": record.started,
        "finished": record.finished,
        "seconds": _short(whole.seconds),
        "passes": _short(whole.passes),
        "stays": [_short(row.to_dict()) for row in stays(rows)],
        "domains": _short(domains),
    }


def read(file: Path) -> Archive:
    """Read a kept reproduction and make its tables again."""
    with parsing(f"{file} is not a kept reproduction, or it is damaged", "Use another copy, or run it again."):
        header, *cells = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        if header["format"] != FORMAT:
            raise DataError(f"{file} has format {header['format']}, and this version reads {FORMAT}.")
        _check(header)
        names = {key: place.partition(" / ")[2] for place, keys in header["rows"].items() for key in keys}
        # a cell that several experiments share is called in the store what the first of them calls it
        cells = [{**cell, "label": names[cell["key"]]} for cell in cells]
        runs = {cell["key"]: _summary(cell) for cell in cells}
        about = experiment(header["experiment"])
        entries = []
        for place, keys in header["rows"].items():
            dataset, _, label = place.partition(" / ")
            line = next(line for line in about.rows if line.label == label)
            paper = runs[keys[0]].record.manifest["cell"]["data"] if keys else dataset
            beside = about.beside(line, paper if paper in about.datasets else next(iter(about.datasets)))
            entries.append(Entry(dataset, label, tuple(runs[key] for key in keys), beside))
        corruptions = header["corruptions"]
        result = made_of(
            about,
            header["title"],
            entries,
            notes=header["notes"],
            corruptions=tuple(corruptions) if corruptions else None,
            keys=header["rows"],
        )
    return Archive(header["command"], result, tuple(entries), runs, tuple(cells))


def _check(header: dict[str, Any]) -> None:
    """Refuse texts that are none; what else is wrong in a header shows when the tables are made."""
    corruptions = header["corruptions"]
    lists = [header["notes"], [] if corruptions is None else corruptions, *header["rows"].values()]
    texts = [header["command"], header["title"], *(text for texts in lists for text in texts)]
    if not all(type(texts) is list for texts in lists) or not all(type(text) is str for text in texts):
        raise ValueError("a text is missing in its header")


def merge(archives: Sequence[Archive]) -> Archive:
    """Join archives of one experiment that hold different rows or seeds of it.

    A row that several of them have with one seed counts once: as it was run last.
    """
    first = archives[0].result
    about = first.experiment
    if any(archive.result.experiment.name != about.name for archive in archives):
        names = sorted({archive.result.experiment.name for archive in archives})
        raise DataError(f"Expected archives of one experiment, but got {', '.join(names)}.")
    precisions = sorted({found for archive in archives for found in archive.precisions})
    if len(precisions) > 1:
        raise DataError(f"Expected archives of one precision, but got {', '.join(precisions)}.")
    found: dict[tuple[str, str], dict[int, Summary]] = {}
    published = {}
    for entry in (entry for archive in archives for entry in archive.entries):
        place = (entry.dataset, entry.label)
        by_seed = found.setdefault(place, {})
        for run in entry.runs:
            by_seed[seed_of(run)] = max(by_seed.get(seed_of(run), run), run, key=_finished)
        published[place] = entry.published
    order = {line.label: place for place, line in enumerate(about.rows)}
    entries = [
        Entry(dataset, label, tuple(by_seed[seed] for seed in sorted(by_seed)), published[dataset, label])
        for (dataset, label), by_seed in sorted(found.items(), key=lambda item: (item[0][0], order[item[0][1]]))
    ]
    notes = dict.fromkeys(note for archive in archives for note in archive.result.notes)
    seeds = about_seeds({entry.label: [seed_of(run) for run in entry.runs] for entry in entries})
    result = made_of(
        about,
        first.title,
        entries,
        notes=[*seeds, *(note for note in notes if not note.startswith(SEEDS))],
        corruptions=first.corruptions,
        keys={f"{e.dataset} / {e.label}": [run.record.key for run in e.runs] for e in entries},
    )
    runs = {run.record.key: run for entry in entries for run in entry.runs}
    cells = {cell["key"]: cell for archive in archives for cell in archive.cells if cell["key"] in runs}
    command = "\n".join(
        dict.fromkeys(archive.command for archive in archives if runs.keys() & archive.runs.keys())
    )
    return Archive(command, result, tuple(entries), runs, tuple(cells.values()))


def seed_of(run: Summary) -> int:
    """Seed of a run."""
    return int(run.record.manifest["seed"])


def _finished(run: Summary) -> float:
    return run.record.finished or 0.0


def restore(file: Path, store: Store) -> int:
    """Enter the cells of a kept reproduction into a store; returns how many."""
    return enter(read(file), store)


def enter(archive: Archive, store: Store) -> int:
    """Enter the cells of an archive into a store, a row a stay, for pages and figures; returns how many.

    Cells the store has already are left as they are.
    """
    entered = 0
    for cell in archive.cells:
        rows = [replace(row, batch=place) for place, row in enumerate(_rows(cell))]
        manifest = {**cell["manifest"], "batches": cell["batches"]}  # what its rows no longer tell
        claim = store.claim(cell["key"], cell["label"], manifest, len(rows))
        if claim is not None:
            store.append(cell["key"], rows, list(enumerate(cell["domains"])))
            store.finish(cell["key"])
            entered += 1
    return entered


def _summary(cell: dict[str, Any]) -> Summary:
    total, manifest = cell["batches"], cell["manifest"]
    kept = {name: cell[name] for name in ("key", "label", "manifest", "started", "finished")}
    record = reading.record_from({**kept, "status": "done", "total": total, "done": total, "error": None})
    for domain in cell["domains"]:
        reading.require_domain(domain)
    words = [manifest["cell"]["data"], manifest["cell"].get("precision", "full")]
    if not {"seed", "settings"} <= manifest.keys() or not all(type(word) is str for word in words):
        raise ValueError(f"the manifest of cell {record.key!r} is not whole")
    # percentiles of single batches do not follow from stays
    whole = summary_of(record, _rows(cell), cell["domains"])
    return replace(whole, seconds=cell["seconds"], passes=cell["passes"])


def _rows(cell: dict[str, Any]) -> list[BatchRow]:
    """The stays of a cell, as rows."""
    return [reading.row_from(row, f"a stay of {cell['key']!r}") for row in cell["stays"]]


def stays(rows: Sequence[BatchRow]) -> Iterator[BatchRow]:
    """Merge the batches of each stay in a domain to one row: counts add up, the rest is a mean over the images.

    Times are medians, memory is the highest, and the share ever selected that of the last batch.
    """
    for _, group in itertools.groupby(rows, key=lambda row: row.domain):
        yield _merged(list(group))


def _merged(rows: Sequence[BatchRow]) -> BatchRow:
    samples = sum(row.samples for row in rows)
    units = [row.unit for row in rows if row.unit is not None]
    memory = [row.memory for row in rows if row.memory is not None]
    kept = [row.kept for row in rows if row.kept is not None]
    shares = _means(row.shares for row in rows)
    if "ever_selected" in shares:
        shares["ever_selected"] = rows[-1].shares["ever_selected"]
    return replace(
        rows[0],
        samples=samples,
        wrong=sum(row.wrong for row in rows),
        counts=sum_counts(rows),
        confidence=sum(row.confidence * row.samples for row in rows) / samples,
        nll=sum(row.nll * row.samples for row in rows) / samples,
        brier=sum(row.brier * row.samples for row in rows) / samples,
        bins=sum_bins(rows),
        seconds=statistics.median(row.seconds for row in rows),
        unit=statistics.median(units) if units else None,
        memory=max(memory, default=None),
        shares=shares,
        losses=_means(row.losses for row in rows),
        kept=sum(kept) if kept else None,
        rates=_means(row.rates for row in rows),
        importance=_means(row.importance for row in rows),
        skipped=any(row.skipped for row in rows),
        reason=next((row.reason for row in rows if row.reason), None),
    )


def _means(mappings: Iterable[dict[str, float]]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for mapping in mappings:
        for name, value in mapping.items():
            found.setdefault(name, []).append(value)
    return {name: statistics.fmean(values) for name, values in found.items()}


def _short(value: Any) -> Any:
    """Numbers with a few digits: more would only be noise in a file that people compare."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: _short(item) for name, item in value.items()}
    return [_short(item) for item in value] if isinstance(value, list | tuple) else value
