"""Several seeds of one thing as one line of a table: mean, standard deviation and worst."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ctta.bench.cell import Cell
from ctta.bench.summary import Summary


@dataclass(frozen=True)
class Spread:
    """A number over seeds; `std` (n - 1 in the denominator) is None for a single one."""

    mean: float
    std: float | None
    worst: float


def spread_of(values: Sequence[float], worst: Callable[[Sequence[float]], float] = max) -> Spread:
    """Mean, standard deviation and worst of one number a seed.

    >>> spread_of([15.0, 17.0])
    Spread(mean=16.0, std=1.4142135623730951, worst=17.0)
    """
    std = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), std, worst(values))


@dataclass(frozen=True)
class Line:
    """One method on one stream of one model, over its seeds. Errors and shares in %."""

    label: str
    model: str
    data: str
    scenario: str
    precision: str
    seeds: tuple[int, ...]
    keys: tuple[str, ...]
    """Where the numbers come from: the cells in the store."""
    error: dict[str, float]
    """Error of every domain, mean over seeds."""
    mean: float
    std: float | None
    """Standard deviation over seeds of the mean error; None for one seed."""
    worst: float
    """Highest mean error of a seed."""
    passes: float | None
    selected: float
    skipped: int

    @property
    def table(self) -> tuple[str, str, str, str]:
        """What lines of one table have in common."""
        return self.model, self.data, self.scenario, self.precision


def over_seeds(found: Iterable[tuple[Cell, Summary]]) -> list[Line]:
    """Put the cells that differ by their seed alone together, in the order they came."""
    groups: dict[tuple[str, ...], list[tuple[Cell, Summary]]] = {}
    for cell, summary in found:
        same = (cell.name, cell.model, cell.data, cell.scenario, cell.precision)
        groups.setdefault(same, []).append((cell, summary))
    return [_line(group) for group in groups.values()]


def _line(group: list[tuple[Cell, Summary]]) -> Line:
    first = group[0][0]
    summaries = [summary for _, summary in group]
    mean = spread_of([summary.mean for summary in summaries])
    passes = [summary.passes for summary in summaries if summary.passes is not None]
    return Line(
        label=first.name,
        model=first.model,
        data=first.data,
        scenario=first.scenario,
        precision=first.precision,
        seeds=tuple(cell.seed for cell, _ in group),
        keys=tuple(summary.record.key for summary in summaries),
        error={name: statistics.fmean(s.error[name] for s in summaries) for name in summaries[0].error},
        mean=mean.mean,
        std=mean.std,
        worst=mean.worst,
        passes=statistics.fmean(passes) if passes else None,
        selected=statistics.fmean(summary.selected for summary in summaries),
        skipped=sum(summary.skipped for summary in summaries),
    )
