"""The tables of a board, as HTML, Markdown, LaTeX and CSV. The best of a column is bold where less is better."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape

from ctta.report.collect import Board, Entry

NOTHING = "–"  # noqa: RUF001


@dataclass(frozen=True)
class Column:
    """One column of numbers: its name, digits after the point, and whether the least value is the best."""

    name: str
    digits: int = 1
    least: bool = True


@dataclass(frozen=True)
class Table:
    """Named rows of numbers; None where a number was not measured."""

    name: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, tuple[float | None, ...]], ...]

    def texts(self) -> list[tuple[str, list[tuple[str, bool]]]]:
        """Rows as text, each number with whether it is the best as printed."""
        best = [self._best(k) for k in range(len(self.columns))]
        return [
            (label, [(text := self._text(k, value), text == best[k]) for k, value in enumerate(values)])
            for label, values in self.rows
        ]

    def _text(self, column: int, value: float | None) -> str:
        if value is None or not math.isfinite(value):
            return NOTHING
        return f"{value:,.{self.columns[column].digits}f}"

    def _best(self, column: int) -> str | None:
        values = [v[column] for _, v in self.rows]
        found = [value for value in values if value is not None and math.isfinite(value)]
        texts = {self._text(column, value) for value in found}
        return self._text(column, min(found)) if self.columns[column].least and len(texts) > 1 else None


def tables_of(board: Board) -> list[Table]:
    """Return the comparison in numbers, the errors per domain, and what was varied for a curve."""
    found = [_comparison(board, board.headline), _errors(board, board.headline)]
    if board.variations:
        found.append(
            replace(_comparison(board, board.variations), name="variations", title="Variations of single settings")
        )
    return found


def to_html(table: Table) -> str:
    """Return an HTML table that scrolls sideways inside its box."""
    head = "".join(f'<th scope="col">{escape(column.name)}</th>' for column in table.columns)
    body = "".join(
        f'<tr><th scope="row" title="{escape(label)}">{escape(label)}</th>'
        + "".join(f"<td>{f'<b>{text}</b>' if best else text}</td>" for text, best in cells)
        + "</tr>"
        for label, cells in table.texts()
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f'<table class="{"dense" if len(table.columns) > 12 else ""}">'
        f'<thead><tr><th scope="col">method</th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def to_markdown(table: Table) -> str:
    """Return a Markdown table under its title."""
    lines = [
        f"**{_pipe(table.title)}**",
        "",
        "| method | " + " | ".join(_pipe(column.name) for column in table.columns) + " |",
        "|---" + "|---:" * len(table.columns) + "|",
    ]
    for label, cells in table.texts():
        numbers = " | ".join(f"**{text}**" if best else text for text, best in cells)
        lines.append(f"| {_pipe(label)} | {numbers} |")
    return "\n".join([*lines, "", _pipe(table.caption), ""])


def to_latex(table: Table) -> str:
    """Return a LaTeX table for the booktabs package."""
    lines = [
        r"\begin{table}",
        rf"\caption{{{_tex(table.title)}. {_tex(table.caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
        "method & " + " & ".join(_tex(column.name) for column in table.columns) + r" \\",
        r"\midrule",
    ]
    for label, cells in table.texts():
        numbers = " & ".join(
            rf"\textbf{{{text}}}" if best else text.replace(NOTHING, "--") for text, best in cells
        )
        lines.append(rf"{_tex(label)} & {numbers} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def to_csv(table: Table) -> str:
    """Return the numbers as CSV, unrounded; empty where there is none."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", *(column.name for column in table.columns)])
    writer.writerows([label, *("" if v is None else repr(v) for v in values)] for label, values in table.rows)
    return out.getvalue()


def _comparison(board: Board, entries: Sequence[Entry]) -> Table:
    gradual = board.facts["stream"] == "gradual"
    wanted: list[tuple[Column, Callable[[Entry], float | None]]] = [
        (Column("error, mean (%)"), lambda entry: entry.mean),
        (Column("± std", 2, least=False), lambda entry: entry.std),
        (Column("worst seed"), lambda entry: max(entry.means) if len(entry.runs) > 1 else None),
        (Column("seeds", 0, least=False), lambda entry: float(len(entry.runs))),
    ]
    if gradual:
        wanted += [
            (Column("error, mean over severities (%)"), lambda entry: entry.over_seeds("mean_levels")),
            (Column("error at severity 5 (%)"), lambda entry: entry.over_seeds("mean_level5")),
        ]
    wanted += [
        (Column("forward passes"), lambda entry: entry.over_seeds("passes")),
        (Column("ms per batch", 0), lambda entry: _latency(entry, "median")),
        (Column("p95 (ms)", 0), lambda entry: _latency(entry, "p95")),
        (Column("p99 (ms)", 0), lambda entry: _latency(entry, "p99")),
        (Column("selected (%)", least=False), lambda entry: entry.over_seeds("selected")),
        (Column("moved (%)", least=False), lambda entry: entry.over_seeds("moved")),
        (Column("ever selected (%)", least=False), lambda entry: entry.over_seeds("ever_selected")),
        (Column("ECE (%)"), lambda entry: entry.over_seeds("ece")),
        (Column("NLL", 2), lambda entry: entry.over_seeds("nll")),
        (Column("Brier", 3), lambda entry: entry.over_seeds("brier")),
        (Column("clean error after (%)"), lambda entry: _clean(entry, "batch_last")),
        (Column("with source statistics (%)"), lambda entry: _clean(entry, "source_last")),
        (Column("memory (MB)", 0), lambda entry: entry.over_seeds("memory")),
        (Column("steps undone", 0, least=False), lambda entry: float(sum(r.summary.skipped for r in entry.runs))),
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
        (Column(short.replace("_", " ")), _error_in(name)) for name, short in zip(full, board.domains, strict=True)
    ]
    wanted.append((Column("mean"), lambda entry: entry.mean))
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
    rows = tuple((entry.label, tuple(values[k] for _, values in filled)) for k, entry in enumerate(entries))
    return Table(name, title, caption, tuple(column for column, _ in filled), rows)


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


def _pipe(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|")


def _tex(text: str) -> str:
    signs = {"\\": r"\textbackslash{}", "±": r"$\pm$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(signs.get(c, "\\" + c if c in "&%$#_{}" else c) for c in text)
