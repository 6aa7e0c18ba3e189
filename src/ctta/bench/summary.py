"""What the rows of a cell come to: errors, calibration, shares, cost, forgetting. All errors and shares in %."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ctta.bench.calibration import expected_calibration_error
from ctta.bench.evaluation import BINS, BatchRow
from ctta.bench.gradual import gradual_mean, severity_means
from ctta.bench.reading import CellRecord
from ctta.bench.store import Store
from ctta.errors import StoreError


@dataclass(frozen=True)
class Visit:
    """One stay in a domain (gradual and recurring streams come back to a domain): samples and wrong ones."""

    domain: str
    samples: int
    wrong: int

    @property
    def error(self) -> float:
        """Error in %."""
        return 100 * self.wrong / self.samples


@dataclass(frozen=True)
class Summary:
    """One cell in numbers. Means are plain means over visits, as in the paper's tables."""

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

    @property
    def label(self) -> str:
        """What tables call the cell."""
        return self.record.label

    @property
    def mean_levels(self) -> float:
        """Mean error with equal weight to every severity."""
        return statistics.fmean(self.levels.values())

    @property
    def mean_level5(self) -> float | None:
        """Mean error over the visits at severity 5."""
        return self.levels.get("5")


def summarise(store: Store, record: CellRecord, rows: Sequence[BatchRow] | None = None) -> Summary:
    """Read the rows of a cell (unless they are at hand) and sum them up."""
    rows = store.batches(record.key) if rows is None else rows
    return summary_of(record, rows, store.domains(record.key))


def summary_of(record: CellRecord, rows: Sequence[BatchRow], domains: list[dict[str, Any]]) -> Summary:
    """Sum up the rows of a cell and what was measured after its domains."""
    if not rows:
        raise StoreError(
            f"Cell {record.key} has no rows: it was not run, or its file is damaged; go back to a copy of it."
        )
    visits = visits_of(rows)
    pooled: dict[str, list[int]] = {}
    for visit in visits:
        total = pooled.setdefault(visit.domain, [0, 0])
        total[0] += visit.samples
        total[1] += visit.wrong
    errors = [(visit.domain, visit.error) for visit in visits]
    samples = sum(row.samples for row in rows)
    units = [row.unit for row in rows if row.unit]
    memory = [row.memory for row in rows if row.memory is not None]
    return Summary(
        record=record,
        visits=visits,
        error={domain: 100 * wrong / count for domain, (count, wrong) in pooled.items()},
        mean=gradual_mean(errors),
        levels=severity_means(errors),
        ece=100 * expected_calibration_error(sum_bins(rows)),
        nll=sum(row.nll * row.samples for row in rows) / samples,
        brier=sum(row.brier * row.samples for row in rows) / samples,
        selected=share_of(rows, "selected"),
        moved=share_of(rows, "moved"),
        ever_selected=100 * rows[-1].shares.get("ever_selected", rows[-1].shares.get("moved", 0.0)),
        importance=_importance(rows),
        seconds=_percentiles([row.seconds for row in rows]),
        passes=statistics.median(row.seconds for row in rows) / statistics.median(units) if units else None,
        memory=max(memory, default=None),
        skipped=sum(row.skipped for row in rows),
        clean_error=_clean(domains),
    )


def corruption_of(domain: str) -> str:
    """Name of a domain without its severity, where it has one.

    >>> corruption_of("glass_blur-5"), corruption_of("mixed")
    ('glass_blur', 'mixed')
    """
    name, _, severity = domain.rpartition("-")
    return name if severity.isdigit() else domain


def cells_at_once(runs: Iterable[Summary]) -> int:
    """How many cells ran at once, at the most, while these were timed."""
    return max((int(run.record.manifest.get("processes", 1)) for run in runs), default=1)


def visits_of(rows: Sequence[BatchRow]) -> tuple[Visit, ...]:
    """Stays in a domain: runs of batches of one domain; mixed batches count for each of their domains once."""
    if any(len(row.counts) > 1 for row in rows):
        totals = sum_counts(rows)
        return tuple(Visit(domain, *totals[domain]) for domain in sorted(totals))
    visits: list[Visit] = []
    for row in rows:
        before = Visit(row.domain, 0, 0)
        if visits and visits[-1].domain == row.domain:
            before = visits.pop()
        visits.append(Visit(row.domain, before.samples + row.samples, before.wrong + row.wrong))
    return tuple(visits)


def share_of(rows: Sequence[BatchRow], name: Literal["selected", "moved"]) -> float:
    """Share in %: mean over the batches of a domain, then over domains. Methods that select nothing move all."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        groups.setdefault(row.domain, []).append(row.shares.get(name, row.shares.get("moved", 0.0)))
    return 100 * statistics.fmean(statistics.fmean(values) for values in groups.values())


def _importance(rows: Sequence[BatchRow]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        for block, value in row.importance.items():
            found.setdefault(row.domain, {}).setdefault(block, []).append(value)
    return {d: {b: statistics.fmean(values) for b, values in blocks.items()} for d, blocks in found.items()}


def sum_counts(rows: Sequence[BatchRow]) -> dict[str, list[int]]:
    """Samples and wrong ones of every domain in all rows together."""
    totals: dict[str, list[int]] = {}
    for row in rows:
        for domain, (samples, wrong) in row.counts.items():
            total = totals.setdefault(domain, [0, 0])
            total[0] += samples
            total[1] += wrong
    return totals


def sum_bins(rows: Sequence[BatchRow]) -> list[list[float]]:
    """Calibration bins of all rows that have them together: samples, sum of confidences, correct ones."""
    kept = [row.bins for row in rows if row.bins]
    return [[sum(bins[k][column] for bins in kept) for column in range(3)] for k in range(BINS)]


def _percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]

    return {"median": statistics.median(ordered), "p95": at(0.95), "p99": at(0.99)}


def _clean(domains: list[dict[str, Any]]) -> dict[str, float]:
    out: dict[str, float] = {}
    for name, short in (("clean_error", "batch"), ("clean_error_source_statistics", "source")):
        values = [row[name] for row in domains if name in row]
        if values:
            out |= {f"{short}_last": values[-1], f"{short}_mean": statistics.fmean(values)}
    return out
