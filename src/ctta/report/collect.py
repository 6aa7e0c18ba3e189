"""What a report shows: boards of results that may be compared with one another."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ctta._core.precision import mark
from ctta.bench.metrics import corruption_of, grouped
from ctta.bench.results import Result, Run, read_run, results_of
from ctta.bench.store import Store
from ctta.errors import StoreError
from ctta.methods import list_methods
from ctta.streams import SCENARIOS

MOST = 12  # results in one figure; of more the best are shown


@dataclass(frozen=True)
class Sweep:
    """Results of one method that differ in one numeric setting alone."""

    method: str
    setting: str
    points: tuple[tuple[float, Result], ...]


@dataclass(frozen=True)
class Board:
    """Results on the same model and stream."""

    facts: dict[str, str]
    entries: tuple[Result, ...]
    sweeps: tuple[Sweep, ...]
    headline: tuple[Result, ...]  # entries figures show: without those that only vary settings of another one
    domains: tuple[str, ...]  # in the order they came; without the severity where all have the same

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
    def variations(self) -> tuple[Result, ...]:
        """The entries that only vary the settings of another one."""
        return tuple(entry for entry in self.entries if entry not in self.headline)

    def origin(self, entries: Sequence[Result]) -> str:
        """Where the numbers of some entries come from, for captions."""
        runs = [run for entry in entries for run in entry.runs]
        seeds = sorted({run.seed for run in runs})
        several, more = "" if len(runs) == 1 else "s", "s" if len(seeds) > 1 else ""
        return (
            f"Data: {len(runs)} run{several} (seed{more} {_some(map(str, seeds))}), each {self.facts['images']}, "
            f"{self.facts['stream']} stream of {self.facts['data']}, model {self.model}."
        )


def collect(store: Store) -> list[Board]:
    """Read the finished cells of a store into boards."""
    records = store.cells()
    if not (done := [record for record in records if record.status == "done"]):
        raise StoreError(
            f"{store.path} has no finished cell ({len(records)} begun): run its `ctta bench` command again, "
            "which continues where it stopped."
        )
    return boards_of(read_run(store, record) for record in done)


def boards_of(runs: Iterable[Run]) -> list[Board]:
    """Put runs on boards, by data, model, scenario and precision."""
    groups = grouped((run.ground, run) for run in runs).values()
    return [_board(group) for group in sorted(groups, key=lambda group: _place(group[0]))]


def _place(run: Run) -> tuple[str, str, int, bool]:
    """Where a board stands on the page, whichever of its cells was begun first."""
    scenario, known = run.record.manifest.get("scenario", {}).get("name"), list(SCENARIOS)
    place = known.index(scenario) if scenario in known else len(known)
    return str(run.cell.get("data")), str(run.cell.get("model")), place, run.precision != "full"


def _board(runs: Sequence[Run]) -> Board:
    years = {entry.name: place for place, entry in enumerate(list_methods())}
    # oldest method first: engines begin with the longest cells
    entries = _tell_apart(sorted(results_of(runs), key=lambda entry: years.get(entry.method, len(years))))
    sweeps = find_sweeps(entries)
    names = list(dict.fromkeys(name for entry in entries for name in entry.first.error))
    if len({name.removeprefix(corruption_of(name)) for name in names}) == 1:
        names = [corruption_of(name) for name in names]
    versions = dict.fromkeys(run.version for entry in entries for run in entry.runs)
    facts = _facts(runs[0]) | {"ctta": _some(versions)}
    return Board(facts, tuple(entries), sweeps, headline(entries, sweeps), tuple(names))


def _tell_apart(entries: Sequence[Result]) -> list[Result]:
    """Of entries of one label the one least set by hand keeps it; the others add the settings they differ in."""
    groups = grouped((entry.label, entry) for entry in entries)
    plain = {label: min(group, key=_by_hand) for label, group in groups.items()}
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
        out.append(dataclasses.replace(entry, label=label))
    return out


def find_sweeps(entries: Sequence[Result], least: int = 3) -> tuple[Sweep, ...]:
    """Find entries of one method that differ in one numeric setting alone, with at least three values of it."""
    points = []
    for entry in entries:
        for name, value in entry.settings.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                others = {key: v for key, v in entry.settings.items() if key != name}
                rest = json.dumps(others, sort_keys=True, default=str)
                points.append(((entry.method, name, rest), (float(value), entry)))
    return tuple(
        Sweep(method, name, tuple(sorted(found, key=lambda point: point[0])))
        for (method, name, _), found in grouped(points).items()
        if len(found) >= least
    )


def headline(entries: Sequence[Result], sweeps: Sequence[Sweep]) -> tuple[Result, ...]:
    """Leave out entries that are there for a sweep only: all but its hub, in most sweeps and least set by hand.

    Where more are left than a figure can hold, those set by hand go too whose method is there as it comes.
    """
    member = Counter(entry.label for sweep in sweeps for _, entry in sweep.points)
    hubs = {
        max((entry for _, entry in sweep.points), key=lambda e: (member[e.label], -_by_hand(e))).label
        for sweep in sweeps
    }
    left = tuple(entry for entry in entries if not member[entry.label] or entry.label in hubs)
    if len(left) <= MOST:
        return left
    plain = {entry.method for entry in left if not _by_hand(entry)}
    return tuple(entry for entry in left if not _by_hand(entry) or entry.method not in plain)


def _by_hand(entry: Result) -> int:
    return len(entry.first.cell.get("settings", {}))


def _facts(run: Run) -> dict[str, str]:
    """Facts of a board, by name, in words."""
    manifest, cell = run.record.manifest, run.cell
    scenario = dict(manifest.get("scenario", {}))
    part = cell.get("images")
    images = f"{manifest.get('samples', 0):,} images in {manifest.get('batches', run.record.total):,} batches"
    return {
        "model": str(cell.get("model", "model")).removesuffix(":"),
        "data": str(cell.get("data", "data")),
        "stream": str(scenario.pop("name", "continual")),
        "images": f"{images} (a slice: {part:,} images per domain)" if part else images,
        "weights": str(manifest.get("weights", ""))[:16],
        **({"precision": run.precision} if run.precision != "full" else {}),
        **{name.replace("_", " "): _plain(value) for name, value in scenario.items() if name != "images"},
    }


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _some(words: Iterable[str], most: int = 6) -> str:
    found = list(words)
    return ", ".join(found) if len(found) <= most else f"{', '.join(found[:most])}, … ({len(found)})"
