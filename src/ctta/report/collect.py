"""What a report shows, read from a store: boards of entries that may be compared with one another."""

from __future__ import annotations

import functools
import itertools
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ctta._core.precision import mark
from ctta.bench.evaluation import BatchRow
from ctta.bench.reading import CellRecord
from ctta.bench.seeds import Spread, spread_of
from ctta.bench.store import Store
from ctta.bench.summary import Summary, corruption_of, sum_bins, summarise
from ctta.errors import StoreError
from ctta.methods import list_methods
from ctta.streams import SCENARIOS

MOST = 12
"""Most entries in one figure; of more the best are shown."""
POINTS = 240
"""Most points kept of a curve over the stream; more would not be seen."""


@dataclass(frozen=True)
class Run:
    """One finished cell: its summary, and curves over the stream, thinned to what can be seen."""

    record: CellRecord
    summary: Summary
    batches: tuple[int, ...]
    """Batches the curves have points at, from 1."""
    running: tuple[float, ...]
    """Error in % of all images up to there."""
    selected: tuple[float, ...]
    """Share of the parameters selected in %, mean since the point before; empty for methods that do not select."""
    bins: tuple[tuple[float, ...], ...]
    clean: tuple[tuple[str, float, float], ...]
    """After each domain: its name, clean error with batch statistics, with source statistics."""
    shifts: tuple[tuple[int, str], ...]
    """Where domains begin: batches before, name."""

    @property
    def seed(self) -> int:
        """Seed of the cell."""
        return int(self.record.manifest.get("seed", 0))


@dataclass(frozen=True)
class Entry:
    """A method with its settings on one board: the runs that differ in the seed only."""

    label: str
    method: str
    settings: dict[str, Any]
    runs: tuple[Run, ...]

    @property
    def first(self) -> Summary:
        """Summary of the run with the lowest seed."""
        return self.runs[0].summary

    @functools.cached_property
    def spread(self) -> Spread:
        """Mean error over seeds, its standard deviation and worst."""
        return spread_of([run.summary.mean for run in self.runs])

    @property
    def mean(self) -> float:
        """Mean error over seeds."""
        return self.spread.mean

    @property
    def std(self) -> float | None:
        """Standard deviation of the mean error over seeds; None for a single seed."""
        return self.spread.std

    def over_seeds(self, name: str) -> float | None:
        """Mean over seeds of a number of the summary; None where a run has none."""
        values = [getattr(run.summary, name) for run in self.runs]
        return None if any(value is None for value in values) else statistics.fmean(values)

    def curve(self, name: str) -> tuple[float, ...]:
        """Mean over seeds of a curve."""
        curves = [getattr(run, name) for run in self.runs]
        return tuple(statistics.fmean(values) for values in zip(*curves, strict=True)) if all(curves) else ()


@dataclass(frozen=True)
class Sweep:
    """Entries of one method that differ in one numeric setting alone."""

    method: str
    setting: str
    points: tuple[tuple[float, Entry], ...]


@dataclass(frozen=True)
class Board:
    """Entries on the same model and stream."""

    facts: dict[str, str]
    entries: tuple[Entry, ...]
    sweeps: tuple[Sweep, ...]
    headline: tuple[Entry, ...]
    """The entries figures show: without those that only vary the settings of another one."""
    domains: tuple[str, ...]
    """Names of the domains in the order they came; without the severity where all have the same."""

    @property
    def title(self) -> str:
        """Setting, data and model in a line."""
        return f"{self.facts['stream'].capitalize()} stream of {self.facts['data']}, model {self.model}"

    @property
    def model(self) -> str:
        """Name of the model, with the precision it was computed in where that is not full."""
        return self.facts["model"] + mark(self.facts.get("precision", "full"))

    def short(self, domain: str) -> str:
        """Name of a domain as the board prints it."""
        return corruption_of(domain) if corruption_of(domain) in self.domains else domain

    @property
    def variations(self) -> tuple[Entry, ...]:
        """The entries that only vary the settings of another one."""
        return tuple(entry for entry in self.entries if entry not in self.headline)

    def origin(self, entries: Sequence[Entry]) -> str:
        """Where the numbers of some entries come from, for captions."""
        runs = [run for entry in entries for run in entry.runs]
        seeds = sorted({run.seed for run in runs})
        return (
            f"Data: {_count(len(runs), 'run')} ({'seeds' if len(seeds) > 1 else 'seed'} "
            f"{_some(map(str, seeds))}), each {self.facts['images']}, {self.facts['stream']} stream of "
            f"{self.facts['data']}, model {self.model}."
        )


def collect(store: Store) -> list[Board]:
    """Read the finished cells of a store into boards, by data, model, setting and precision."""
    records = store.cells()
    done = [record for record in records if record.status == "done"]
    if not done:
        raise StoreError(
            f"{store.path} has no finished cell ({len(records)} begun): run its `ctta bench` command again, "
            "which continues where it stopped."
        )
    groups: dict[str, list[CellRecord]] = {}
    for record in done:
        groups.setdefault(_ground(record.manifest), []).append(record)
    return [_board(store, group) for group in sorted(groups.values(), key=lambda group: _place(group[0]))]


def _place(record: CellRecord) -> tuple[str, str, int, bool]:
    """Where a board stands on the page, whichever of its cells was begun first."""
    cell, setting = record.manifest.get("cell", {}), record.manifest.get("scenario", {}).get("name")
    known = list(SCENARIOS)
    return (
        str(cell.get("data")),
        str(cell.get("model")),
        known.index(setting) if setting in known else len(known),
        _precision(record.manifest) != "full",
    )


def _ground(manifest: dict[str, Any]) -> str:
    """What entries must have in common to be compared."""
    cell = manifest.get("cell", {})
    parts = [manifest.get("weights"), cell.get("model"), cell.get("data"), manifest.get("scenario")]
    parts += [cell.get("corruptions"), manifest.get("samples"), _precision(manifest)]
    return json.dumps(parts, sort_keys=True, default=str)


def _precision(manifest: dict[str, Any]) -> str:
    """What a cell was computed in; manifests from before there was a choice do not say."""
    return str(manifest.get("cell", {}).get("precision", "full"))


def _board(store: Store, records: Sequence[CellRecord]) -> Board:
    groups: dict[str, list[CellRecord]] = {}
    for record in records:
        settings = json.dumps(_settings(record), sort_keys=True, default=str)
        groups.setdefault(f"{_method(record)} {settings}", []).append(record)
    years = {entry.name: place for place, entry in enumerate(list_methods())}
    entries = [_entry(store, group) for group in groups.values()]
    # oldest method first: engines begin with the longest cells
    entries = _tell_apart(sorted(entries, key=lambda entry: years.get(entry.method, len(years))))
    sweeps = find_sweeps(entries)
    names = list(dict.fromkeys(name for entry in entries for name in entry.first.error))
    severities = {name.removeprefix(corruption_of(name)) for name in names}
    if len(severities) == 1:
        names = [corruption_of(name) for name in names]
    codes = dict.fromkeys(str(run.record.manifest.get("code", "")) for entry in entries for run in entry.runs)
    facts = _facts(records[0]) | {"code": _some(codes)}
    return Board(facts, tuple(entries), sweeps, headline(entries, sweeps), tuple(names))


def _entry(store: Store, records: Sequence[CellRecord]) -> Entry:
    by_seed: dict[int, list[CellRecord]] = {}
    for record in records:
        by_seed.setdefault(int(record.manifest.get("seed", 0)), []).append(record)
    chosen = [_newest(found) for _, found in sorted(by_seed.items())]
    # where forgetting was measured in a cell of its own, the cell without it has the method's name
    plain = min(records, key=lambda record: record.manifest.get("clean", 0))
    runs = tuple(_run(store, record) for record in chosen)
    return Entry(plain.label, _method(plain), _settings(plain), runs)


def _settings(record: CellRecord) -> dict[str, Any]:
    """Settings of a cell. One its method got only later is at its default, which leaves everything as it was."""
    known = next((entry.settings for entry in list_methods() if entry.name == _method(record)), ())
    return {**{item.name: item.default for item in known}, **record.manifest.get("settings", {})}


def _newest(records: Sequence[CellRecord]) -> CellRecord:
    """Of cells that differ in code or in what was measured beside: the newest code, then the most measured."""
    last = max(records, key=lambda record: record.finished or 0)
    code = last.manifest.get("code")
    same = [record for record in records if record.manifest.get("code") == code]
    return max(same, key=lambda record: (record.manifest.get("clean", 0), record.finished or 0))


def _run(store: Store, record: CellRecord) -> Run:
    rows = store.batches(record.key)
    keep = thin(len(rows))
    running, wrong, samples = [], 0, 0
    for row in rows:
        wrong, samples = wrong + row.wrong, samples + row.samples
        running.append(100 * wrong / samples)
    shares = [100 * row.shares["selected"] for row in rows if "selected" in row.shares]
    selected: list[float] = []
    if len(shares) == len(rows):
        starts = [0, *(k + 1 for k in keep[:-1])]
        selected = [statistics.fmean(shares[a : b + 1]) for a, b in zip(starts, keep, strict=True)]
    return Run(
        record=record,
        summary=summarise(store, record, rows),
        batches=tuple(k + 1 for k in keep),
        running=tuple(running[k] for k in keep),
        selected=tuple(selected),
        bins=tuple(tuple(column) for column in sum_bins(rows)),
        clean=tuple(
            (row["domain"], row["clean_error"], row["clean_error_source_statistics"])
            for row in store.domains(record.key)
            if {"clean_error", "clean_error_source_statistics"} <= row.keys()
        ),
        shifts=_shifts(rows),
    )


def thin(count: int, most: int = POINTS) -> list[int]:
    """Numbers of the points that are kept of a curve: evenly spread, the last always among them.

    >>> thin(3), thin(10, most=4)
    ([0, 1, 2], [1, 4, 6, 9])
    """
    if count <= most:
        return list(range(count))
    return [(k + 1) * count // most - 1 for k in range(most)]


def _shifts(rows: Sequence[BatchRow]) -> tuple[tuple[int, str], ...]:
    before: list[str | None] = [None, *(row.domain for row in rows)]
    return tuple((k, row.domain) for k, row in enumerate(rows) if row.domain != before[k])


def _tell_apart(entries: Sequence[Entry]) -> list[Entry]:
    """Of entries of one label the one least set by hand keeps it; the others add the settings they differ in."""
    plain: dict[str, Entry] = {}
    for entry in entries:
        if entry.label not in plain or _by_hand(entry) < _by_hand(plain[entry.label]):
            plain[entry.label] = entry
    out, taken = [], set(plain)
    for entry in entries:
        label, first = entry.label, plain[entry.label]
        if entry is not first:
            known = sorted(entry.settings.keys() | first.settings.keys())
            differ = [name for name in known if entry.settings.get(name) != first.settings.get(name)]
            label += f" ({entry.method})" if entry.method != first.method else ""
            label += "".join(f", {name} {_plain(entry.settings.get(name))}" for name in differ)
            names = itertools.chain([label], (f"{label} ({k})" for k in itertools.count(2)))
            label = next(name for name in names if name not in taken)
            taken.add(label)
        out.append(Entry(label, entry.method, entry.settings, entry.runs))
    return out


def find_sweeps(entries: Sequence[Entry], least: int = 3) -> tuple[Sweep, ...]:
    """Find entries of one method that differ in one numeric setting alone, with at least three values of it."""
    groups: dict[tuple[str, str, str], list[tuple[float, Entry]]] = {}
    for entry in entries:
        for name, value in entry.settings.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                others = {key: v for key, v in entry.settings.items() if key != name}
                rest = json.dumps(others, sort_keys=True, default=str)
                groups.setdefault((entry.method, name, rest), []).append((float(value), entry))
    return tuple(
        Sweep(method, name, tuple(sorted(points, key=lambda point: point[0])))
        for (method, name, _), points in groups.items()
        if len(points) >= least
    )


def headline(entries: Sequence[Entry], sweeps: Sequence[Sweep]) -> tuple[Entry, ...]:
    """Leave out entries that are there for a sweep only: all but its hub, in most sweeps and least set by hand.

    Where more are left than a figure can hold, those set by hand go too whose method is there as it comes.
    """
    member = {entry.label: 0 for entry in entries}
    for sweep in sweeps:
        for _, entry in sweep.points:
            member[entry.label] += 1
    hubs = {
        max((entry for _, entry in sweep.points), key=lambda e: (member[e.label], -_by_hand(e))).label
        for sweep in sweeps
    }
    left = tuple(entry for entry in entries if not member[entry.label] or entry.label in hubs)
    if len(left) <= MOST:
        return left
    plain = {entry.method for entry in left if not _by_hand(entry)}
    return tuple(entry for entry in left if not _by_hand(entry) or entry.method not in plain)


def _by_hand(entry: Entry) -> int:
    return len(entry.first.record.manifest.get("cell", {}).get("settings", {}))


def _facts(record: CellRecord) -> dict[str, str]:
    """Facts of a board, by name, in words."""
    manifest, cell = record.manifest, record.manifest.get("cell", {})
    setting = dict(manifest.get("scenario", {}))
    part = cell.get("images")
    images = f"{manifest.get('samples', 0):,} images in {manifest.get('batches', record.total):,} batches"
    facts = {
        "model": str(cell.get("model", "model")).removesuffix(":"),
        "data": str(cell.get("data", "data")),
        "stream": str(setting.pop("name", "continual")),
        "images": f"{images} (a slice: {part:,} images per domain)" if part else images,
        "weights": str(manifest.get("weights", ""))[:16],
    }
    if _precision(manifest) != "full":
        facts["precision"] = _precision(manifest)
    return facts | {name.replace("_", " "): _plain(value) for name, value in setting.items() if name != "images"}


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _some(words: Iterable[str], most: int = 6) -> str:
    found = list(words)
    return ", ".join(found) if len(found) <= most else f"{', '.join(found[:most])}, … ({len(found)})"


def _method(record: CellRecord) -> str:
    return str(record.manifest.get("method", record.label))
