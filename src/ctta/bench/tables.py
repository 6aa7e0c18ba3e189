"""Tables of results: one small type that can be text, Markdown, LaTeX or CSV, and the tables made of summaries.

Numbers are ours, mean over the seeds; where the paper has a number it stands beside ours with the difference.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ctta.bench.summary import Summary

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

Value = str | float | int | None
"""An entry: None is a number that is not there."""


class Difference(float):
    """Ours minus the paper's; written with its sign."""


@dataclass(frozen=True)
class Table:
    """Rows under columns. The first columns are words, the others numbers with `digits` places."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    notes: tuple[str, ...] = ()
    digits: int = 1

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"Expected {len(self.columns)} entries in a row of {self.name}, but got {row}.")

    def write(self, value: Value) -> str:
        """Return an entry as people read it."""
        if isinstance(value, Difference):
            return f"{value:+.{self.digits}f}"
        if isinstance(value, float):
            return f"{value:.{self.digits}f}"
        return "-" if value is None else str(value)

    @property
    def written(self) -> list[list[str]]:
        """All rows as people read them."""
        return [[self.write(value) for value in row] for row in self.rows]

    def show(self, console: Console) -> None:
        """Write title, rows and notes to a terminal; wide rows and the commands in notes are left in one piece."""
        from rich.text import Text

        grid = self.grid()
        grid.width = console.measure(grid, options=console.options.update(width=1000)).maximum
        console.print(Text(self.title, style="bold"), soft_wrap=True)
        console.print(grid, crop=False)
        for note in self.notes:
            console.print(Text(f"- {note}"), soft_wrap=True)
        console.print()

    def grid(self) -> RichTable:
        """Return the rows alone for a terminal."""
        from rich import box
        from rich.markup import escape
        from rich.table import Table as RichTable

        out = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        for place, column in enumerate(self.columns):
            out.add_column(escape(column), justify="left" if self._words(place) else "right", no_wrap=True)
        for row in self.written:
            out.add_row(*(escape(entry) for entry in row))
        return out

    def markdown(self) -> str:
        """Return the table as Markdown with its title and notes."""
        rules = ["---" if self._words(place) else "---:" for place in range(len(self.columns))]
        lines = [self.columns, rules, *self.written]
        body = ["| " + " | ".join(entry.replace("|", "\\|") for entry in line) + " |" for line in lines]
        return "\n".join([f"### {self.title}", "", *body, "", *(f"- {note}" for note in self.notes), ""])

    def latex(self) -> str:
        """Return the table as LaTeX for the package booktabs."""
        spec = "".join("l" if self._words(place) else "r" for place in range(len(self.columns)))
        lines = [" & ".join(_tex(entry) for entry in row) + r" \\" for row in self.written]
        notes = [rf"{{\footnotesize {_tex(note)}\par}}" for note in self.notes]
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{_tex(self.title)}}}",
                rf"\begin{{tabular}}{{{spec}}}",
                r"\toprule",
                " & ".join(_tex(column) for column in self.columns) + r" \\",
                r"\midrule",
                *lines,
                r"\bottomrule",
                r"\end{tabular}",
                *notes,
                r"\end{table}",
                "",
            ]
        )

    def csv(self) -> str:
        """Return columns and rows, numbers in full; a number that is not there is an empty field."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        for row in self.rows:
            writer.writerow(["" if v is None else float(v) if isinstance(v, float) else v for v in row])
        return out.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain JSON-ready data."""
        return {
            "name": self.name,
            "title": self.title,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "notes": list(self.notes),
        }

    def _words(self, place: int) -> bool:
        """Whether a column holds words only."""
        return all(isinstance(row[place], str) for row in self.rows)


_TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {
    sign: f"\\{sign}" for sign in "&%$#_{}"
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(sign, sign) for sign in text)


@dataclass(frozen=True)
class Entry:
    """One line of a table: its finished runs, one a seed, and what the paper says (by column)."""

    dataset: str
    label: str
    runs: tuple[Summary, ...] = ()
    published: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Spread:
    """A number over seeds; `std` (of a sample) is None for a single one."""

    mean: float
    std: float | None
    worst: float


def over_seeds(values: Sequence[float], worst: Callable[[Sequence[float]], float] = max) -> Spread | None:
    """Mean, standard deviation and worst of one number a seed; None without any.

    >>> over_seeds([15.0, 17.0])
    Spread(mean=16.0, std=1.4142135623730951, worst=17.0)
    """
    if not values:
        return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), std, worst(values))


Number = Callable[[Summary], float]


def mean_error(run: Summary) -> float:
    """Mean error over the stays of a stream, in %: the mean of the paper's tables."""
    return run.mean


def means(name: str, title: str, entries: Sequence[Entry], notes: Sequence[str] = ()) -> Table:
    """Mean error of every method beside the paper's."""
    return _beside(name, title, entries, notes, mean_error, "mean")


def gradual(name: str, title: str, entries: Sequence[Entry], notes: Sequence[str] = ()) -> Table:
    """Mean error of a gradual stream beside the paper's; with equal weight to each severity, and at severity 5."""
    more: dict[str, Number] = {
        "equal severities": lambda run: run.mean_levels,
        "severity 5": lambda run: math.nan if run.mean_level5 is None else run.mean_level5,
    }
    return _beside(name, title, entries, notes, mean_error, "mean", more)


def shares(name: str, title: str, entries: Sequence[Entry], notes: Sequence[str] = ()) -> Table:
    """Share of the adaptable parameters selected beside the paper's; moved, and ever selected by the end."""
    more: dict[str, Number] = {"moved": lambda run: run.moved, "ever selected": lambda run: run.ever_selected}
    return _beside(name, title, entries, notes, lambda run: run.selected, "selected", more, digits=2)


def sweep(
    name: str, title: str, entries: Sequence[Entry], notes: Sequence[str] = (), nondecreasing: str = ""
) -> Table:
    """Mean error over the values of one setting, with the share of parameters selected."""
    checks = [nondecreasing_note(entries)] if nondecreasing == "selected" else []
    more: dict[str, Number] = {"selected": lambda run: run.selected}
    return _beside(name, title, entries, [*notes, *checks], mean_error, "mean", more, digits=2)


def nondecreasing_note(entries: Sequence[Entry]) -> str:
    """Say whether the selected share never falls from row to row, in every dataset."""
    falls, rows = [], 0
    for dataset in dict.fromkeys(entry.dataset for entry in entries):
        found = [(e.label, _of(e, lambda run: run.selected)) for e in entries if e.dataset == dataset]
        known = [(label, spread.mean) for label, spread in found if spread]
        rows = max(rows, len(known))
        for (before, low), (after, high) in itertools.pairwise(known):
            if high < low - 1e-9:
                falls.append(f"{dataset}: from {before} ({low:.2f} %) to {after} ({high:.2f} %)")
    if any(run.record.manifest["settings"].get("eta") == "auto" for entry in entries for run in entry.runs):
        return "Selected share: eta is found anew for every T, so that it need not grow with T."
    if rows < 2:
        return "Selected share: too few runs to say whether it grows with T."
    if falls:
        return f"Selected share falls where it should not: {'; '.join(falls)}."
    return "Selected share never falls as T grows, as it should."


def forgetting(name: str, title: str, entries: Sequence[Entry], notes: Sequence[str] = ()) -> Table:
    """Accuracy on clean images: mean over tasks and after the last, with batch and with source statistics."""

    def accuracy(which: str) -> Number:
        return lambda run: 100 - run.clean_error[which]

    more = {
        "after the last task": accuracy("batch_last"),
        "source statistics": accuracy("source_mean"),
        "source statistics, last": accuracy("source_last"),
    }
    return _beside(
        name, title, entries, notes, accuracy("batch_mean"), "clean_accuracy", more, digits=2, worst=min
    )


def _beside(
    name: str,
    title: str,
    entries: Sequence[Entry],
    notes: Sequence[str],
    number: Number,
    column: str,
    more: Mapping[str, Number] | None = None,
    digits: int = 1,
    worst: Callable[[Sequence[float]], float] = max,
) -> Table:
    """One number of every entry: ours, its spread over seeds, the paper's, the difference, and further numbers.

    The paper's columns are there if it has any number to put in.
    """
    several = any(len(entry.runs) > 1 for entry in entries)
    published = any(column in entry.published for entry in entries)
    spread = ("std", "worst") if several else ()
    rows = []
    for entry in entries:
        ours, paper = _of(entry, number, worst), entry.published.get(column)
        row: list[Value] = [entry.dataset, entry.label, ours.mean if ours else "not run"]
        if several:
            row += [ours.std, ours.worst] if ours else [None, None]
        row += [paper, _difference(ours, paper)] if published else []
        for other in (more or {}).values():
            found = _of(entry, other)
            row.append(found.mean if found else None)
        rows.append(tuple(row))
    beside = ("paper", "difference") if published else ()
    columns = ("dataset", "method", "ours", *spread, *beside, *(more or {}))
    return Table(name, title, columns, tuple(rows), tuple(notes), digits)


def corruptions(
    name: str, title: str, entries: Sequence[Entry], names: Sequence[str], notes: Sequence[str] = ()
) -> Table:
    """Error per corruption and mean: three lines a method, ours, the paper's and the difference."""
    rows: list[tuple[Value, ...]] = []
    for entry in entries:
        ours = [_of(entry, _error_of(name)) for name in names] + [_of(entry, mean_error)]
        paper = [entry.published.get(name) for name in (*names, "mean")]
        rows.append((entry.label, "ours", *(spread.mean if spread else "not run" for spread in ours)))
        if entry.published:
            rows.append((entry.label, "paper", *paper))
            rows.append((entry.label, "difference", *map(_difference, ours, paper)))
    heads = [name.partition("_")[0] for name in names]
    return Table(name, title, ("method", "", *heads, "mean"), tuple(rows), tuple(notes))


def calibration(name: str, title: str, entries: Sequence[Entry], notes: Sequence[str] = ()) -> Table:
    """How far confidences can be trusted: expected calibration error in %, likelihood in nats, Brier score."""
    numbers: dict[str, Number] = {
        "ECE (%)": lambda run: run.ece,
        "NLL": lambda run: run.nll,
        "Brier": lambda run: run.brier,
    }
    return _listing(name, title, entries, notes, numbers, digits=3)


def cost(name: str, title: str, entries: Sequence[Entry], reference: str = "", notes: Sequence[str] = ()) -> Table:
    """Time per batch in seconds and forward passes, memory, and time relative to that of one method."""
    rows = []
    for entry in entries:
        unit = next((e for e in entries if (e.dataset, e.label) == (entry.dataset, reference)), None)
        ours, paper = _of(entry, _seconds("median")), entry.published.get("seconds")
        base, paper_base = (_of(unit, _seconds("median")), unit.published.get("seconds")) if unit else (None, None)
        relative = Spread(ours.mean / base.mean, None, ours.worst) if ours and base else None
        published = paper / paper_base if paper is not None and paper_base else None
        rows.append(
            (
                entry.dataset,
                entry.label,
                ours.mean if ours else "not run",
                *(_plain(entry, _seconds(which)) for which in ("p95", "p99")),
                _known([run.passes for run in entry.runs]),
                _known([run.memory for run in entry.runs]),
                paper,
                relative.mean if relative else None,
                published,
                _difference(relative, published),
            )
        )
    to = f"time / {reference}'s" if reference else "relative time"
    columns = ("dataset", "method", "s (median)", "p95", "p99", "forward passes", "memory (MB)", "paper (s)")
    heads = (*columns, to, f"paper {to}", "difference")
    return Table(name, title, heads, tuple(rows), (*shared_cores_note(entries), *notes), digits=2)


def shared_cores_note(entries: Sequence[Entry]) -> list[str]:
    """Say so where times were taken while other cells ran on the same machine."""
    most = max((run.record.manifest.get("processes", 1) for entry in entries for run in entry.runs), default=1)
    if most == 1:
        return []
    return [
        f"Timed while up to {most} cells ran at once, which share memory and caches; the cleanest times come from "
        "--processes 1 and a new --store (finished cells are not run again)."
    ]


def importance(
    name: str, title: str, entry: Entry, domains: Sequence[str] = (), notes: Sequence[str] = ()
) -> Table:
    """Importance of every block in chosen corruptions (all, if none of them was met)."""
    found: dict[str, dict[str, list[float]]] = {}
    met = [d for run in entry.runs for d in run.importance]
    wanted = [d for d in dict.fromkeys(met) if d.rpartition("-")[0] in domains] or list(dict.fromkeys(met))
    for run in entry.runs:
        for domain in wanted:
            for block, value in run.importance.get(domain, {}).items():
                found.setdefault(block, {}).setdefault(domain, []).append(value)
    rows = tuple(
        (block, *(statistics.fmean(values[d]) if d in values else None for d in wanted))
        for block, values in found.items()
    )
    return Table(name, title, ("block", *wanted), rows, tuple(notes), digits=4)


def _listing(
    name: str,
    title: str,
    entries: Sequence[Entry],
    notes: Sequence[str],
    numbers: Mapping[str, Number],
    digits: int,
) -> Table:
    rows = tuple(
        (entry.dataset, entry.label, *(_plain(entry, number) for number in numbers.values())) for entry in entries
    )
    return Table(name, title, ("dataset", "method", *numbers), rows, tuple(notes), digits)


def _of(entry: Entry, number: Number, worst: Callable[[Sequence[float]], float] = max) -> Spread | None:
    return over_seeds([number(run) for run in entry.runs], worst)


def _plain(entry: Entry, number: Number) -> float | None:
    spread = _of(entry, number)
    return spread.mean if spread else None


def _known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _seconds(which: str) -> Number:
    return lambda run: run.seconds[which]


def _error_of(corruption: str) -> Number:
    def error(run: Summary) -> float:
        return statistics.fmean(e for domain, e in run.error.items() if domain.rpartition("-")[0] == corruption)

    return error


def _difference(ours: Spread | None, paper: float | None) -> Difference | None:
    return None if ours is None or paper is None else Difference(ours.mean - paper)
