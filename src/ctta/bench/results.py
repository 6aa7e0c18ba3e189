"""What rows come to: one finished cell in numbers (Run), and a method over its seeds (Result).

Every table, figure, page and claim reads these two, whether the rows are in a store or in kept files. All errors
and shares are in %.
"""

from __future__ import annotations

import functools
import json
import math
import operator
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ctta._core.precision import mark
from ctta.bench import metrics
from ctta.bench.evaluation import BatchRow
from ctta.bench.metrics import Spread, Visit, corruption_of, spread_of
from ctta.bench.reading import CellRecord
from ctta.bench.store import Store
from ctta.errors import StoreError
from ctta.methods import list_methods


@dataclass(frozen=True)
class Run:
    """One finished cell in numbers. Means are plain means over visits, as in the paper's tables."""

    record: CellRecord
    visits: tuple[Visit, ...]
    error: dict[str, float]
    """Error of every domain, all its visits together, in the order they came."""
    mean: float
    """Mean error over visits: the table mean of continual and gradual streams."""
    levels: dict[str, float]
    """Mean error over the visits at every severity, the lowest first."""
    ece: float
    nll: float
    brier: float
    selected: float
    """Share of the adaptable parameters selected per batch: mean over batches, then over visits."""
    moved: float
    ever_selected: float
    """Share selected at least once by the end."""
    importance: dict[str, dict[str, float]]
    """Importance of every block in every domain: mean over batches."""
    seconds: dict[str, float]
    """Time per batch: median, p95 and p99."""
    passes: float | None
    """Median time per batch in forward passes of the source model."""
    memory: float | None
    skipped: int
    clean_error: dict[str, float]
    """Clean error after the last domain and mean over domains, under both statistics; empty if not measured."""
    bins: tuple[tuple[float, ...], ...] = ()
    """Calibration bins of all rows together: samples, sum of confidences, correct ones."""
    clean: tuple[tuple[str, float, float], ...] = ()
    """After each domain: its name, clean error with batch statistics, with source statistics."""
    batches: tuple[int, ...] = ()
    """Batches the curves have points at, from 1; thinned to what can be seen."""
    running: tuple[float, ...] = ()
    """Curve of the error of all images up to there."""
    selecting: tuple[float, ...] = ()
    """Curve of the share selected, mean since the point before; empty for methods that do not select."""
    shifts: tuple[tuple[int, str], ...] = ()
    """Where domains begin: batches before, name."""

    @property
    def label(self) -> str:
        """What tables call the cell."""
        return self.record.label

    @property
    def key(self) -> str:
        """Where the numbers come from: the cell in the store."""
        return self.record.key

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
    def mean_level5(self) -> float | None:
        """Mean error over the visits at severity 5."""
        return self.levels.get("5")

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

Number = Callable[[Run], float | None]
"""A number of a run; None where it has none."""


def mean_error(run: Run) -> float:
    """Mean error over the stays of a stream: the mean of the paper's tables."""
    return run.mean


SHARES: dict[str, Number] = {
    "selected": lambda run: run.selected,
    "moved": lambda run: run.moved,
    "ever selected": lambda run: run.ever_selected,
}
"""Shares of the adaptable parameters that a run has."""


def error_of(corruption: str) -> Number:
    """Error on one corruption, mean over its severities."""

    def error(run: Run) -> float:
        found = [e for domain, e in run.error.items() if corruption_of(domain) == corruption]
        if not found:
            raise ValueError(f"Expected a corruption of the stream, but got {corruption}.")
        return statistics.fmean(found)

    return error


def error_at(severity: str) -> Number:
    """Mean error over the stays at one severity."""
    return lambda run: run.levels.get(severity)


def error_in_pass(k: int) -> Number:
    """Mean error in one pass of a stream through its domains, the first being 0."""

    def error(run: Run) -> float | None:
        stays = run.visits[k * len(run.error) : (k + 1) * len(run.error)]
        return statistics.fmean(visit.error for visit in stays) if stays else None

    return error


def clean_accuracy(which: str) -> Number:
    """Accuracy on clean images, by a key of `Run.clean_error`."""
    return lambda run: 100 - run.clean_error[which] if which in run.clean_error else None


@dataclass(frozen=True, eq=False)
class Result:
    """A method with its settings on one stream of one model: its runs, one a seed, and what the paper says."""

    label: str
    runs: tuple[Run, ...] = ()
    dataset: str = ""
    """What tables of the paper call the data."""
    published: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the paper, by column."""

    @property
    def first(self) -> Run:
        """Run with the lowest seed."""
        return self.runs[0]

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.first.record.manifest.get("method", self.first.label))

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

    def spread(
        self, number: Number = mean_error, worst: Callable[[Sequence[float]], float] = max
    ) -> Spread | None:
        """Mean error, or another number, over the seeds; None where a run has none, or nothing ran."""
        values = [number(run) for run in self.runs]
        known = [value for value in values if value is not None]
        return spread_of(known, worst) if known and len(known) == len(values) else None

    def over(self, number: Number) -> float | None:
        """Mean over the seeds of a number."""
        found = self.spread(number)
        return found.mean if found else None

    def over_seeds(self, name: str) -> float | None:
        """Mean over the seeds of a number of the runs by its name."""
        return self.over(operator.attrgetter(name))

    @functools.cached_property
    def mean(self) -> float:
        """Mean error over seeds; not a number where nothing ran."""
        found = self.spread()
        return found.mean if found else math.nan

    @property
    def std(self) -> float | None:
        """Standard deviation of the mean error over seeds; None for a single seed."""
        found = self.spread()
        return found.std if found else None

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
            "mean": spread.mean,
            "std": spread.std,
            "worst": spread.worst,
            **{name: self.over_seeds(name) for name in ("passes", "selected", "moved")},
            "skipped": sum(run.skipped for run in self.runs),
        }


def results_of(runs: Iterable[Run]) -> list[Result]:
    """Put the runs that differ in their seed alone together, in the order they came."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        same = json.dumps(
            [run.record.manifest.get("method", run.label), run.settings], sort_keys=True, default=str
        )
        groups.setdefault((run.ground, same), []).append(run)
    return [_result(group) for group in groups.values()]


def _result(runs: Sequence[Run]) -> Result:
    by_seed: dict[int, list[Run]] = {}
    for run in runs:
        by_seed.setdefault(run.seed, []).append(run)
    # where forgetting was measured in a cell of its own, the cell without it has the method's name
    plain = min(runs, key=lambda run: run.record.manifest.get("clean", 0))
    return Result(plain.label, tuple(_newest(found) for _, found in sorted(by_seed.items())))


def _newest(runs: Sequence[Run]) -> Run:
    """Of runs that differ in version or in what was measured beside: the newest, then the most measured."""
    last = max(runs, key=finished).version
    same = [run for run in runs if run.version == last]
    return max(same, key=lambda run: (run.record.manifest.get("clean", 0), finished(run)))


def finished(run: Run) -> float:
    """When a run ended."""
    return run.record.finished or 0.0


def cells_at_once(runs: Iterable[Run]) -> int:
    """How many cells ran at once, at the most, while these were timed."""
    return max((int(run.record.manifest.get("processes", 1)) for run in runs), default=1)


# ---------------------------------------------------------------- from rows to numbers


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
    units = [row.unit for row in rows if row.unit]
    seconds = metrics.percentiles([row.seconds for row in rows])
    return Run(
        record=record,
        visits=visits,
        error=metrics.errors_of(visits),
        mean=statistics.fmean(visit.error for visit in visits),
        levels=metrics.severity_means((visit.domain, visit.error) for visit in visits),
        ece=100 * metrics.expected_calibration_error(bins),
        nll=metrics.per_image(rows, "nll"),
        brier=metrics.per_image(rows, "brier"),
        selected=metrics.share_of(rows, "selected"),
        moved=metrics.share_of(rows, "moved"),
        ever_selected=100 * rows[-1].shares.get("ever_selected", rows[-1].shares.get("moved", 0.0)),
        importance=metrics.importance_of(rows),
        seconds=seconds,
        passes=seconds["median"] / statistics.median(units) if units else None,
        memory=max((row.memory for row in rows if row.memory is not None), default=None),
        skipped=sum(row.skipped for row in rows),
        clean_error=metrics.clean_errors(domains),
        bins=tuple(map(tuple, bins)),
        clean=tuple(tuple(row[n] for n in ("domain", *names)) for row in domains if row.keys() >= set(names)),
        **metrics.curves(rows),
    )
