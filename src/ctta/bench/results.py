"""What rows come to: one finished cell in numbers (Run), and a method over its seeds (Result).

Every table, figure, page and claim reads these two, whether the rows are in a store or in kept files. All errors
and shares are in %.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ctta._core.precision import mark
from ctta.bench import metrics
from ctta.bench.evaluation import BatchRow
from ctta.bench.metrics import Visit, corruption_of, grouped
from ctta.bench.reading import CellRecord
from ctta.bench.store import Store
from ctta.errors import StoreError
from ctta.methods import list_methods


@dataclass(frozen=True)
class Run:
    """One finished cell in numbers. Means are plain means over visits, as in the paper's tables."""

    record: CellRecord
    visits: tuple[Visit, ...]
    error: dict[str, float]  # of every domain, all its visits together, in the order they came
    mean: float
    levels: dict[str, float]  # mean error over the visits at every severity, the lowest first
    ece: float
    nll: float
    brier: float
    selected: float  # share of the adaptable parameters: mean over batches, then over domains
    moved: float
    ever_selected: float
    importance: dict[str, dict[str, float]]  # of every block in every domain, mean over batches
    seconds: dict[str, float]  # per batch: median, p95 and p99
    passes: float | None  # median time per batch in forward passes of the source model
    memory: float | None
    skipped: int
    clean_error: dict[str, float]  # after the last domain, mean over domains; empty if not measured
    bins: tuple[tuple[float, ...], ...] = ()  # samples, sum of confidences, correct ones
    clean: tuple[tuple[str, float, float], ...] = ()  # a domain, clean error with batch and source statistics
    batches: tuple[int, ...] = ()  # which the curves have points at, from 1; thinned to what can be seen
    running: tuple[float, ...] = ()  # curve of the error of all images up to there
    selecting: tuple[float, ...] = ()  # curve of the share selected since the point before
    shifts: tuple[tuple[int, str], ...] = ()  # where domains begin: batches before, name

    @property
    def label(self) -> str:
        """What tables call the cell."""
        return self.record.label

    @property
    def key(self) -> str:
        """Where the numbers come from: the cell in the store."""
        return self.record.key

    @property
    def method(self) -> str:
        """Name of its method."""
        return str(self.record.manifest.get("method", self.label))

    @property
    def seed(self) -> int:
        """Seed of the cell."""
        return int(self.record.manifest.get("seed", 0))

    @property
    def cell(self) -> dict[str, Any]:
        """What was run, in the words of the command line."""
        return dict(self.record.manifest.get("cell", {}))

    @property
    def precision(self) -> str:
        """What it was computed in."""
        return str(self.cell.get("precision", "full"))

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of its method. One the method got only later is at its default, which changed nothing."""
        manifest = self.record.manifest
        known = next((entry.settings for entry in list_methods() if entry.name == manifest.get("method")), ())
        return {**{item.name: item.default for item in known}, **manifest.get("settings", {})}

    @property
    def version(self) -> str:
        """Version of ctta and of the numbers it gives."""
        manifest = self.record.manifest
        return f"{manifest.get('ctta', '')}, numbers {manifest.get('numbers', 1)}"

    @property
    def mean_levels(self) -> float:
        """Mean error with equal weight to every severity."""
        return statistics.fmean(self.levels.values())

    @property
    def corruptions(self) -> dict[str, float]:
        """Error on every corruption, mean over its severities."""
        found = grouped((corruption_of(domain), error) for domain, error in self.error.items())
        return {name: statistics.fmean(errors) for name, errors in found.items()}

    @property
    def in_pass(self) -> dict[str, float]:
        """Mean error in every pass of the stream through its domains, counted from 1."""
        size, errors = len(self.error), [visit.error for visit in self.visits]
        return {str(k + 1): statistics.fmean(errors[k * size :][:size]) for k in range(len(errors) // size)}

    @property
    def clean_accuracy(self) -> dict[str, float]:
        """Accuracy on clean images: the complement of `clean_error`."""
        return {which: 100 - error for which, error in self.clean_error.items()}

    @property
    def milliseconds(self) -> dict[str, float]:
        """Time per batch: median, p95 and p99."""
        return {which: 1000 * value for which, value in self.seconds.items()}

    def number(self, name: str) -> float | None:
        """Return a number by its name, such as `mean` or `levels/5`; None if it is not there."""
        name, _, key = name.partition("/")
        found: Any = getattr(self, name)
        value: float | None = found.get(key) if key else found
        return value

    @property
    def place(self) -> str:
        """Model, data and scenario in words; whether it is a slice, and the precision where it is not full."""
        cell = self.cell
        part = f", {cell['images']} images a domain" if cell["images"] else ""
        return f"{cell['model']} on {cell['data']}, {cell['scenario']}{part}{mark(self.precision)}"

    @property
    def ground(self) -> str:
        """What runs must have in common to be compared: model, data, stream and precision."""
        manifest, cell = self.record.manifest, self.cell
        parts = [manifest.get("weights"), cell.get("model"), cell.get("data"), manifest.get("scenario")]
        parts += [cell.get("corruptions"), manifest.get("samples"), self.precision]
        return json.dumps(parts, sort_keys=True, default=str)


# ---------------------------------------------------------------- over seeds

SHARES = {"selected": "selected", "moved": "moved", "ever selected": "ever_selected"}
"""Shares of the adaptable parameters that a run has, as tables call them."""


@dataclass(frozen=True)
class Spread:
    """A number over seeds; `std` (n - 1 in the denominator) is None for a single one."""

    mean: float
    std: float | None
    worst: float


def spread_of(values: Sequence[float], worst: Callable[[Sequence[float]], float] = max) -> Spread:
    """Mean, standard deviation and worst of one number a seed."""
    std = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), std, worst(values))


@dataclass(frozen=True, eq=False)
class Result:
    """A method with its settings on one stream of one model: its runs, one a seed, and what the paper says."""

    label: str
    runs: tuple[Run, ...] = ()
    dataset: str = ""  # what tables of the paper call the data
    published: Mapping[str, float] = field(default_factory=dict)  # numbers of the paper, by column

    @property
    def first(self) -> Run:
        """Run with the lowest seed."""
        return self.runs[0]

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.first.method

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """Settings of the method."""
        return self.first.settings

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the runs."""
        return tuple(run.seed for run in self.runs)

    @property
    def keys(self) -> list[str]:
        """The cells in the store behind the numbers."""
        return [run.key for run in self.runs]

    def spread(self, number: str = "mean", worst: Callable[[Sequence[float]], float] = max) -> Spread | None:
        """Mean error, or another number, over the seeds; None where a run has none, or nothing ran."""
        values = [run.number(number) for run in self.runs]
        known = [value for value in values if value is not None]
        return spread_of(known, worst) if known and len(known) == len(values) else None

    def over(self, number: str) -> float | None:
        """Mean over the seeds of a number."""
        found = self.spread(number)
        return found.mean if found else None

    @functools.cached_property
    def mean(self) -> float:
        """Mean error over seeds; not a number where nothing ran."""
        return statistics.fmean(run.mean for run in self.runs) if self.runs else math.nan

    @property
    def std(self) -> float | None:
        """Standard deviation of the mean error over seeds; None for a single seed."""
        found = self.spread()
        return found.std if found else None

    @property
    def skipped(self) -> int:
        """Steps undone, of all runs together."""
        return sum(run.skipped for run in self.runs)

    def curve(self, name: str) -> tuple[float, ...]:
        """Mean over seeds of a curve of the runs; empty where one has none."""
        curves = [getattr(run, name) for run in self.runs]
        return tuple(statistics.fmean(values) for values in zip(*curves, strict=True)) if all(curves) else ()

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain JSON-ready data."""
        cell, spread = self.first.cell, self.spread()
        assert spread is not None
        return {
            "label": self.label,
            **{name: cell[name] for name in ("model", "data", "scenario")},
            "precision": self.first.precision,
            "seeds": self.seeds,
            "keys": self.keys,
            "error": {name: statistics.fmean(run.error[name] for run in self.runs) for name in self.first.error},
            **dataclasses.asdict(spread),
            **{name: self.over(name) for name in ("passes", "selected", "moved")},
            "skipped": self.skipped,
        }


def results_of(runs: Iterable[Run]) -> list[Result]:
    """Put the runs that differ in their seed alone together, in the order they came."""
    same = ((json.dumps([run.ground, run.method, run.settings], sort_keys=True, default=str), run) for run in runs)
    return [_result(group) for group in grouped(same).values()]


def _result(runs: Sequence[Run]) -> Result:
    # where forgetting was measured in a cell of its own, the cell without it has the method's name
    plain = min(runs, key=lambda run: run.record.manifest.get("clean", 0))
    by_seed = sorted(grouped((run.seed, run) for run in runs).items())
    return Result(plain.label, tuple(_newest(found) for _, found in by_seed))


def _newest(runs: Sequence[Run]) -> Run:
    """Of runs that differ in version or in what was measured beside: the newest, then the most measured."""
    last = max(runs, key=finished).version
    return max(runs, key=lambda run: (run.version == last, run.record.manifest.get("clean", 0), finished(run)))


def finished(run: Run) -> float:
    """When a run ended."""
    return run.record.finished or 0.0


def cells_at_once(runs: Iterable[Run]) -> int:
    """How many cells ran at once, at the most, while these were timed."""
    return max((int(run.record.manifest.get("processes", 1)) for run in runs), default=1)


def read_run(store: Store, record: CellRecord) -> Run:
    """Read the rows of a cell of a store and sum them up."""
    return run_of(record, store.batches(record.key), store.domains(record.key))


def run_of(record: CellRecord, rows: Sequence[BatchRow], domains: Sequence[Mapping[str, Any]] = ()) -> Run:
    """Sum up the rows of a cell and what was measured after its domains."""
    if not rows:
        raise StoreError(
            f"Cell {record.key} has no rows: it was not run, or its file is damaged; go back to a copy of it."
        )
    visits, bins, names = metrics.visits_of(rows), metrics.sum_bins(rows), metrics.CLEAN.values()
    levels = grouped((visit.domain.rpartition("-")[2], visit.error) for visit in visits)
    units = [row.unit for row in rows if row.unit]
    importance = grouped((row.domain, row.importance) for row in rows if row.importance)
    seconds = metrics.percentiles([row.seconds for row in rows])
    return Run(
        record=record,
        visits=visits,
        error=metrics.errors_of(visits),
        mean=statistics.fmean(visit.error for visit in visits),
        levels={level: statistics.fmean(levels[level]) for level in sorted(levels)},
        ece=100 * metrics.expected_calibration_error(bins),
        nll=metrics.per_image(rows, "nll"),
        brier=metrics.per_image(rows, "brier"),
        selected=metrics.share_of(rows, "selected"),
        moved=metrics.share_of(rows, "moved"),
        ever_selected=100 * rows[-1].shares.get("ever_selected", rows[-1].shares.get("moved", 0.0)),
        importance={domain: metrics.means(found) for domain, found in importance.items()},
        seconds=seconds,
        passes=seconds["median"] / statistics.median(units) if units else None,
        memory=max((row.memory for row in rows if row.memory is not None), default=None),
        skipped=sum(row.skipped for row in rows),
        clean_error=metrics.clean_errors(domains),
        bins=tuple(map(tuple, bins)),
        clean=tuple(tuple(row[n] for n in ("domain", *names)) for row in domains if row.keys() >= set(names)),
        **metrics.curves(rows),
    )
