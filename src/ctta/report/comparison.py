"""Results side by side: the table that `ctta run`, `demo` and `bench` print, and the tables of a board.

The best is bold where less is better.
"""

from __future__ import annotations

import functools
import operator
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ctta.bench.results import Result, Run
from ctta.bench.table import Column, Table, Value, columns, marked
from ctta.report.collect import Board


def side_by_side(results: Sequence[Result], title: str, digits: int = 1) -> Table:
    """Domains down, results across: errors, their mean, and what a batch costs."""
    rows = [(name, *marked(_each(results, _error_in(name)), digits)) for name in results[0].first.error]
    rows.append(("mean", *marked([one.mean for one in results], digits)))
    if any(len(one.runs) > 1 for one in results):
        spreads = [one.spread() for one in results]
        rows.append(("seeds", *(len(one.runs) for one in results)))
        rows.append(("standard deviation", *(spread.std if spread else None for spread in spreads)))
        rows.append(("worst seed", *(spread.worst if spread else None for spread in spreads)))
    rows.append(("time per batch (forward passes)", *_each(results, operator.attrgetter("passes"))))
    rows.append(("parameters adapted (%)", *_each(results, operator.attrgetter("selected"))))
    if undone := [sum(run.skipped for run in one.runs) for one in results]:
        rows += [("steps undone", *undone)] if any(undone) else []
    heads = ("error (%)", *(one.label for one in results))
    return Table("comparison", title, columns(heads, digits), tuple(rows))


def _each(results: Sequence[Result], number: Callable[[Run], float | None]) -> list[Value]:
    return [one.over(number) for one in results]


# ---------------------------------------------------------------- the tables of a board


@dataclass(frozen=True)
class Wanted:
    """A column of a table of results: its number, and whether less of it is better."""

    name: str
    number: Callable[[Result], float | None]
    digits: int = 1
    least: bool = False


def tables_of(board: Board) -> list[Table]:
    """Return the comparison in numbers, the errors per domain, and what was varied for a curve."""
    found = [_comparison(board, board.headline), _errors(board, board.headline)]
    if board.variations:
        varied = _comparison(board, board.variations)
        found.append(replace(varied, name="variations", title="Variations of settings"))
    return found


def _comparison(board: Board, entries: Sequence[Result]) -> Table:
    wanted = [*ERROR, *(GRADUAL if board.facts["stream"] == "gradual" else ()), *COST]
    caption = (
        "Errors are means over domains, then over seeds; worst is the seed with the highest mean. Cost: median "
        "time of a batch, in forward passes of the source model. Less is better where a number is bold. "
        f"{board.origin(entries)}"
    )
    return _table("comparison", "Comparison", caption, entries, wanted)


def _errors(board: Board, entries: Sequence[Result]) -> Table:
    full = list(dict.fromkeys(name for entry in board.entries for name in entry.first.error))
    wanted = [
        Wanted(short.replace("_", " "), functools.partial(_pooled_error, name=name), least=True)
        for name, short in zip(full, board.domains, strict=True)
    ]
    wanted.append(Wanted("mean", operator.attrgetter("mean"), least=True))
    caption = (
        f"Error in % on every domain, in the order they came, mean over visits and seeds. {board.origin(entries)}"
    )
    return _table("errors", "Error per domain (%)", caption, entries, wanted)


def _table(name: str, title: str, caption: str, entries: Sequence[Result], wanted: Sequence[Wanted]) -> Table:
    """Fill a table; columns without a single number are left out."""
    filled = [(column, [column.number(entry) for entry in entries]) for column in wanted]
    filled = [(column, values) for column, values in filled if any(value is not None for value in values)]
    shown = [marked(values, column.digits) if column.least else values for column, values in filled]
    rows = tuple((entry.label, *(values[k] for values in shown)) for k, entry in enumerate(entries))
    heads = (Column("method"), *(Column(column.name, column.digits) for column, _ in filled))
    return Table(name, title, heads, rows, (caption,))


def _error_in(domain: str) -> Callable[[Run], float | None]:
    return lambda run: run.error.get(domain)


def _pooled_error(entry: Result, name: str) -> float | None:
    found = [run.error[name] for run in entry.runs if name in run.error]
    return statistics.fmean(found) if found else None


def _over(name: str) -> Callable[[Result], float | None]:
    return lambda entry: entry.over_seeds(name)


def _latency(which: str) -> Callable[[Result], float | None]:
    return lambda entry: entry.over(lambda run: 1000 * run.seconds[which])


def _clean(which: str) -> Callable[[Result], float | None]:
    return lambda entry: entry.over(lambda run: run.clean_error.get(which))


def _worst(entry: Result) -> float | None:
    spread = entry.spread() if len(entry.runs) > 1 else None
    return spread.worst if spread else None


ERROR = (
    Wanted("error, mean (%)", operator.attrgetter("mean"), least=True),
    Wanted("± std", operator.attrgetter("std"), 2),
    Wanted("worst seed", _worst, least=True),
    Wanted("seeds", lambda entry: float(len(entry.runs)), 0),
)
GRADUAL = (
    Wanted("error, mean over severities (%)", _over("mean_levels"), least=True),
    Wanted("error at severity 5 (%)", _over("mean_level5"), least=True),
)
COST = (
    Wanted("forward passes", _over("passes"), least=True),
    Wanted("ms per batch", _latency("median"), 0, least=True),
    Wanted("p95 (ms)", _latency("p95"), 0, least=True),
    Wanted("p99 (ms)", _latency("p99"), 0, least=True),
    Wanted("selected (%)", _over("selected")),
    Wanted("moved (%)", _over("moved")),
    Wanted("ever selected (%)", _over("ever_selected")),
    Wanted("ECE (%)", _over("ece"), least=True),
    Wanted("NLL", _over("nll"), 2, least=True),
    Wanted("Brier", _over("brier"), 3, least=True),
    Wanted("clean error after (%)", _clean("batch_last"), least=True),
    Wanted("with source statistics (%)", _clean("source_last"), least=True),
    Wanted("memory (MB)", _over("memory"), 0, least=True),
    Wanted("steps undone", lambda entry: float(sum(run.skipped for run in entry.runs)), 0),
)
"""What the error of a method is beside, and what it costs."""
