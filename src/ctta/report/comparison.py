"""Results side by side: the table that `ctta run`, `demo` and `bench` print, and the tables of a board.

The best is bold where less is better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ctta.bench.results import Result
from ctta.bench.table import Table, Value, marked
from ctta.report.collect import Board


def side_by_side(results: Sequence[Result], title: str, digits: int = 1) -> Table:
    """Domains down, results across: errors, their mean, and what a batch costs."""
    rows: list[tuple[Value, ...]] = [
        (name, *marked([one.over(f"error/{name}") for one in results], digits)) for name in results[0].first.error
    ]
    rows.append(("mean", *marked([one.mean for one in results], digits)))
    if any(len(one.runs) > 1 for one in results):
        rows.append(("seeds", *(len(one.runs) for one in results)))
        rows.append(("standard deviation", *(one.std for one in results)))
        rows.append(("worst seed", *(spread.worst if (spread := one.spread()) else None for one in results)))
    rows.append(("time per batch (forward passes)", *(one.over("passes") for one in results)))
    rows.append(("parameters adapted (%)", *(one.over("selected") for one in results)))
    if any(one.skipped for one in results):
        rows.append(("steps undone", *(one.skipped for one in results)))
    heads = ("error (%)", *(one.label for one in results))
    return Table("comparison", title, heads, rows, digits=digits)


# ---------------------------------------------------------------- the tables of a board


@dataclass(frozen=True)
class Wanted:
    """A column of a table of results: its number, and whether less of it is better."""

    name: str
    number: str | Callable[[Result], float | None]
    digits: int = 1
    least: bool = False

    def of(self, entry: Result) -> float | None:
        """Return the number of an entry."""
        return entry.over(self.number) if isinstance(self.number, str) else self.number(entry)


def tables_of(board: Board) -> list[Table]:
    """Return the comparison in numbers, the errors per domain, and what was varied for a curve."""
    gradual = GRADUAL if board.facts["stream"] == "gradual" else ()
    wanted = (*ERROR, *gradual, *COST)
    caption = (
        "Errors are means over domains, then over seeds; worst is the seed with the highest mean. Cost: median "
        "time of a batch, in forward passes of the source model. Less is better where a number is bold. "
    )
    full = dict.fromkeys(name for entry in board.entries for name in entry.first.error)
    names = [(short.replace("_", " "), f"error/{name}") for name, short in zip(full, board.domains, strict=True)]
    errors = [Wanted(name, number, least=True) for name, number in (*names, ("mean", "mean"))]
    order = "Error in % on every domain, in the order they came, mean over visits and seeds. "
    found = [
        _table("comparison", "Comparison", caption + board.origin(board.headline), board.headline, wanted),
        _table("errors", "Error per domain (%)", order + board.origin(board.headline), board.headline, errors),
    ]
    if varied := board.variations:
        found.append(
            _table("variations", "Variations of settings", caption + board.origin(varied), varied, wanted)
        )
    return found


def _table(name: str, title: str, caption: str, entries: Sequence[Result], wanted: Sequence[Wanted]) -> Table:
    """Fill a table; columns without a single number are left out."""
    filled = [(column, [column.of(entry) for entry in entries]) for column in wanted]
    filled = [(column, values) for column, values in filled if any(value is not None for value in values)]
    shown = [marked(values, column.digits) if column.least else values for column, values in filled]
    rows = [(entry.label, *(values[k] for values in shown)) for k, entry in enumerate(entries)]
    heads, digits = (
        ("method", *(column.name for column, _ in filled)),
        [1, *(column.digits for column, _ in filled)],
    )
    return Table(name, title, heads, rows, (caption,), digits)


def _worst(entry: Result) -> float | None:
    spread = entry.spread() if len(entry.runs) > 1 else None
    return spread.worst if spread else None


ERROR = (
    Wanted("error, mean (%)", "mean", least=True),
    Wanted("± std", lambda entry: entry.std, 2),
    Wanted("worst seed", _worst, least=True),
    Wanted("seeds", lambda entry: float(len(entry.runs)), 0),
)
GRADUAL = (
    Wanted("error, mean over severities (%)", "mean_levels", least=True),
    Wanted("error at severity 5 (%)", "levels/5", least=True),
)
COST = (
    Wanted("forward passes", "passes", least=True),
    Wanted("ms per batch", "milliseconds/median", 0, least=True),
    Wanted("p95 (ms)", "milliseconds/p95", 0, least=True),
    Wanted("p99 (ms)", "milliseconds/p99", 0, least=True),
    Wanted("selected (%)", "selected"),
    Wanted("moved (%)", "moved"),
    Wanted("ever selected (%)", "ever_selected"),
    Wanted("ECE (%)", "ece", least=True),
    Wanted("NLL", "nll", 2, least=True),
    Wanted("Brier", "brier", 3, least=True),
    Wanted("clean error after (%)", "clean_error/batch_last", least=True),
    Wanted("with source statistics (%)", "clean_error/source_last", least=True),
    Wanted("memory (MB)", "memory", 0, least=True),
    Wanted("steps undone", lambda entry: float(entry.skipped), 0),
)
"""What the error of a method is beside, and what it costs."""
