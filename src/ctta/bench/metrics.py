"""Numbers that follow from the rows of one cell: pure functions, errors and shares in %."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ctta.bench.evaluation import BINS, BatchRow

POINTS = 240  # kept of a curve over the stream at most; more would not be seen
CLEAN = {"batch": "clean_error", "source": "clean_error_source_statistics"}
"""Clean errors measured after a domain, by the statistics they were measured with."""

K = TypeVar("K")
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Values by their key, in the order they came."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


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


def visits_of(rows: Sequence[BatchRow]) -> tuple[Visit, ...]:
    """Stays in a domain: runs of batches of one domain; mixed batches count for each of their domains once."""
    if any(len(row.counts) > 1 for row in rows):
        totals = sum_counts(rows)
        return tuple(Visit(domain, *totals[domain]) for domain in sorted(totals))
    stays = ((domain, list(group)) for domain, group in itertools.groupby(rows, key=lambda row: row.domain))
    return tuple(Visit(name, sum(r.samples for r in stay), sum(r.wrong for r in stay)) for name, stay in stays)


def errors_of(visits: Sequence[Visit]) -> dict[str, float]:
    """Error of every domain, all its visits together, in the order they came."""
    stays = grouped((visit.domain, visit) for visit in visits)
    return {
        name: 100 * sum(v.wrong for v in found) / sum(v.samples for v in found) for name, found in stays.items()
    }


def corruption_of(domain: str) -> str:
    """Name of a domain without its severity, where it has one.

    >>> corruption_of("glass_blur-5"), corruption_of("mixed")
    ('glass_blur', 'mixed')
    """
    name, _, severity = domain.rpartition("-")
    return name if severity.isdigit() else domain


def expected_calibration_error(bins: Sequence[Sequence[float]]) -> float:
    """Expected calibration error, 0 to 1, from bins of (samples, sum of confidences, correct ones).

    Whether a prediction made with 80 % confidence is right in 80 % of the cases.
    """
    samples = sum(count for count, _, _ in bins)
    return sum(abs(confidence - correct) for _, confidence, correct in bins) / samples if samples else 0.0


def per_image(rows: Sequence[BatchRow], name: Literal["nll", "brier", "confidence"]) -> float:
    """Mean over images of a number that rows have as a mean over their batch."""
    return float(sum(getattr(row, name) * row.samples for row in rows) / sum(row.samples for row in rows))


def share_of(rows: Sequence[BatchRow], name: Literal["selected", "moved"]) -> float:
    """Share in %: mean over the batches of a domain, then over domains. Methods that select nothing move all."""
    groups = grouped((row.domain, row.shares.get(name, row.shares.get("moved", 0.0))) for row in rows)
    return 100 * statistics.fmean(statistics.fmean(values) for values in groups.values())


def means(mappings: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Mean of every name over the mappings that have it."""
    found = grouped(item for mapping in mappings for item in mapping.items())
    return {name: statistics.fmean(values) for name, values in found.items()}


def sum_counts(rows: Sequence[BatchRow]) -> dict[str, list[int]]:
    """Samples and wrong ones of every domain in all rows together."""
    found = grouped(item for row in rows for item in row.counts.items())
    return {domain: [sum(column) for column in zip(*counts, strict=True)] for domain, counts in found.items()}


def sum_bins(rows: Sequence[BatchRow]) -> list[list[float]]:
    """Calibration bins of all rows that have them together: samples, sum of confidences, correct ones."""
    kept = [row.bins for row in rows if row.bins]
    return [[sum(bins[k][column] for bins in kept) for column in range(3)] for k in range(BINS)]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th and 99th percentile."""
    ordered, last = sorted(values), len(values) - 1
    return {"median": statistics.median(ordered)} | {f"p{n}": ordered[round(n / 100 * last)] for n in (95, 99)}


def clean_errors(domains: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Clean error after the last domain and mean over domains, under both statistics; empty if not measured."""
    found = grouped((short, row[name]) for short, name in CLEAN.items() for row in domains if name in row)
    last = {f"{short}_last": values[-1] for short, values in found.items()}
    return last | {f"{short}_mean": statistics.fmean(values) for short, values in found.items()}


def thin(count: int, most: int = POINTS) -> list[int]:
    """Numbers of the points that are kept of a curve: evenly spread, the last always among them."""
    most = min(count, most)
    return [(k + 1) * count // most - 1 for k in range(most)]


def curves(rows: Sequence[BatchRow]) -> dict[str, Any]:
    """Curves of a run by the names of its fields: `batches`, `running`, `selecting`, `shifts`."""
    keep = thin(len(rows))
    sums = (itertools.accumulate(values) for values in ((r.wrong for r in rows), (r.samples for r in rows)))
    running = [100 * wrong / samples for wrong, samples in zip(*sums, strict=True)]
    shares = [100 * row.shares["selected"] for row in rows if "selected" in row.shares]
    selecting: list[float] = []
    if len(shares) == len(rows):
        starts = [0, *(k + 1 for k in keep[:-1])]
        selecting = [statistics.fmean(shares[a : b + 1]) for a, b in zip(starts, keep, strict=True)]
    before: list[str | None] = [None, *(row.domain for row in rows)]
    return {
        "batches": tuple(k + 1 for k in keep),
        "running": tuple(running[k] for k in keep),
        "selecting": tuple(selecting),
        "shifts": tuple((k, row.domain) for k, row in enumerate(rows) if row.domain != before[k]),
    }
