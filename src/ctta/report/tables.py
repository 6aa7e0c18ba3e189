"""The tables of a board. The best of a column is bold where less is better."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from ctta.bench.table import Column, Table
from ctta.report.collect import Board, Entry


def tables_of(board: Board) -> list[Table]:
    """Return the comparison in numbers, the errors per domain, and what was varied for a curve."""
    found = [_comparison(board, board.headline), _errors(board, board.headline)]
    if board.variations:
        found.append(
            replace(_comparison(board, board.variations), name="variations", title="Variations of settings")
        )
    return found


def _comparison(board: Board, entries: Sequence[Entry]) -> Table:
    gradual = board.facts["stream"] == "gradual"
    wanted: list[tuple[Column, Callable[[Entry], float | None]]] = [
        (Column("error, mean (%)", least=True), lambda entry: entry.mean),
        (Column("± std", 2), lambda entry: entry.std),
        (Column("worst seed", least=True), lambda entry: entry.spread.worst if len(entry.runs) > 1 else None),
        (Column("seeds", 0), lambda entry: float(len(entry.runs))),
    ]
    if gradual:
        wanted += [
            (Column("error, mean over severities (%)", least=True), lambda entry: entry.over_seeds("mean_levels")),
            (Column("error at severity 5 (%)", least=True), lambda entry: entry.over_seeds("mean_level5")),
        ]
    wanted += [
        (Column("forward passes", least=True), lambda entry: entry.over_seeds("passes")),
        (Column("ms per batch", 0, least=True), lambda entry: _latency(entry, "median")),
        (Column("p95 (ms)", 0, least=True), lambda entry: _latency(entry, "p95")),
        (Column("p99 (ms)", 0, least=True), lambda entry: _latency(entry, "p99")),
        (Column("selected (%)"), lambda entry: entry.over_seeds("selected")),
        (Column("moved (%)"), lambda entry: entry.over_seeds("moved")),
        (Column("ever selected (%)"), lambda entry: entry.over_seeds("ever_selected")),
        (Column("ECE (%)", least=True), lambda entry: entry.over_seeds("ece")),
        (Column("NLL", 2, least=True), lambda entry: entry.over_seeds("nll")),
        (Column("Brier", 3, least=True), lambda entry: entry.over_seeds("brier")),
        (Column("clean error after (%)", least=True), lambda entry: _clean(entry, "batch_last")),
        (Column("with source statistics (%)", least=True), lambda entry: _clean(entry, "source_last")),
        (Column("memory (MB)", 0, least=True), lambda entry: entry.over_seeds("memory")),
        (Column("steps undone", 0), lambda entry: float(sum(r.summary.skipped for r in entry.runs))),
    ]
    caption = (
        "Errors are means over domains, then over seeds; worst is the seed with the highest mean. Cost: median "
        "time of a batch, in forward passes of the source model. Less is better where a number is bold. "
        f"{board.origin(entries)}"
    )
    return _table("comparison", "Comparison", caption, entries, wanted)


def _errors(board: Board, entries: Sequence[Entry]) -> Table:
    full = list(dict.fromkeys(name for entry in board.entries for name in entry.first.error))
    wanted: list[tuple[Column, Callable[[Entry], float | None]]] = [
        (Column(short.replace("_", " "), least=True), _error_in(name))
        for name, short in zip(full, board.domains, strict=True)
    ]
    wanted.append((Column("mean", least=True), lambda entry: entry.mean))
    caption = (
        f"Error in % on every domain, in the order they came, mean over visits and seeds. {board.origin(entries)}"
    )
    return _table("errors", "Error per domain (%)", caption, entries, wanted)


def _table(
    name: str,
    title: str,
    caption: str,
    entries: Sequence[Entry],
    wanted: Sequence[tuple[Column, Callable[[Entry], float | None]]],
) -> Table:
    """Fill a table; columns without a single number are left out."""
    filled = [(column, [value(entry) for entry in entries]) for column, value in wanted]
    filled = [(column, values) for column, values in filled if any(value is not None for value in values)]
    rows = tuple((entry.label, *(values[k] for _, values in filled)) for k, entry in enumerate(entries))
    return Table(name, title, (Column("method"), *(column for column, _ in filled)), rows, (caption,))


def _error_in(domain: str) -> Callable[[Entry], float | None]:
    def value(entry: Entry) -> float | None:
        found = [run.summary.error[domain] for run in entry.runs if domain in run.summary.error]
        return statistics.fmean(found) if found else None

    return value


def _latency(entry: Entry, name: str) -> float:
    return 1000 * statistics.fmean(run.summary.seconds[name] for run in entry.runs)


def _clean(entry: Entry, name: str) -> float | None:
    found = [run.summary.clean_error.get(name) for run in entry.runs]
    known = [value for value in found if value is not None]
    return statistics.fmean(known) if known and len(known) == len(found) else None
