"""One table of results, and the five ways to write it: terminal, Markdown, LaTeX, CSV and HTML."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

Value = str | float | int | None  # None is a number that is not there

NOTHING = "–"  # noqa: RUF001
LONG = 26  # letters from which on the name of a row may take several lines of a page
DENSE = 13  # columns from which on a page sets them closer


class Difference(float):
    """Ours minus the paper's; written with its sign."""


class Best(float):
    """The least of the numbers it is compared with; written in bold."""


def marked(values: Sequence[Value], digits: int = 1) -> list[Value]:
    """Mark the best, the least as printed; none where all are equal."""
    known = [round(value, digits) for value in values if isinstance(value, float) and not _absent(value)]
    if len(set(known)) < 2:
        return list(values)
    return [Best(v) if isinstance(v, float) and round(v, digits) == min(known) else v for v in values]


@dataclass(frozen=True)
class Table:
    """Rows under columns; the first column names the row, the others may hold words or numbers."""

    name: str
    title: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[Value, ...]]
    notes: Sequence[str] = ()
    digits: int | Sequence[int] = 1  # after the point, in every column or one after another

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.heads):
                raise ValueError(f"Expected {len(self.heads)} entries in a row of {self.name}, but got {row}.")

    def written(self) -> list[list[tuple[str, bool]]]:
        """All entries as people read them, each with whether it is the best of those it is compared with."""
        digits = [self.digits] * len(self.heads) if isinstance(self.digits, int) else self.digits
        return [
            [(_text(*pair), isinstance(pair[0], Best)) for pair in zip(row, digits, strict=True)]
            for row in self.rows
        ]

    def _grid(self, escaped: Callable[[str], str], bold: str) -> list[list[str]]:
        """Heads and rows as texts in a language; `bold` is what the best entry is put in."""
        heads = [(head, False) for head in self.heads]
        return [
            [(bold if best else "{}").format(escaped(text)) for text, best in row]
            for row in (heads, *self.written())
        ]

    def _sides(self, left: str, right: str) -> list[str]:
        """For every column one of two words: whether it holds words only, or numbers."""
        columns = zip(*self.rows, strict=True) if self.rows else [[]] * len(self.heads)
        return [left if all(isinstance(value, str) for value in column) else right for column in columns]

    def show(self, console: Console) -> None:
        """Write title, rows and notes to a terminal; wide rows and the commands in notes are left in one piece."""
        grid = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        for head, side in zip(self.heads, self._sides("left", "right"), strict=True):
            grid.add_column(Text(head), justify="left" if side == "left" else "right", no_wrap=True)
        for row in self.written():
            grid.add_row(*(Text(text, style="bold" if best else "") for text, best in row))
        grid.width = console.measure(grid, options=console.options.update(width=1000)).maximum
        console.print(Text(self.title, style="bold"), soft_wrap=True)
        console.print(grid, crop=False)
        for note in self.notes:
            console.print(Text(f"- {note}"), soft_wrap=True)
        console.print()

    def markdown(self) -> str:
        """Return the table as Markdown with its title and notes."""
        head, *rows = self._grid(_pipe, "**{}**")
        body = [f"| {' | '.join(line)} |" for line in (head, self._sides("---", "---:"), *rows)]
        return "\n".join([f"### {self.title}", "", *body, "", *(f"- {note}" for note in self.notes), ""])

    def latex(self) -> str:
        """Return the table as LaTeX for the package booktabs."""
        head, *body = (rf"{' & '.join(row)} \\" for row in self._grid(_tex, r"\textbf{{{}}}"))
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{_tex(self.title)}}}"]
        lines += [
            rf"\begin{{tabular}}{{{''.join(self._sides('l', 'r'))}}}",
            r"\toprule",
            head,
            r"\midrule",
            *body,
            r"\bottomrule",
        ]
        lines += [r"\end{tabular}", *(rf"{{\footnotesize {_tex(note)}\par}}" for note in self.notes)]
        return "\n".join([*lines, r"\end{table}", ""])

    def csv(self) -> str:
        """Return columns and rows, numbers in full; a number that is not there is an empty field."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.heads)
        writer.writerows(["" if _absent(value) else value for value in row] for row in self.rows)
        return out.getvalue()

    def html(self) -> str:
        """Return the rows as an HTML table that scrolls sideways inside its box; title and notes are left out."""
        heads, *rows = self._grid(escape, "<b>{}</b>")
        head, body = "".join(f'<th scope="col">{name}</th>' for name in heads), ""
        for row, (label, *entries) in zip(self.rows, rows, strict=True):
            kind = ' class="long"' if len(str(row[0])) > LONG else ""
            body += (
                f'<tr><th scope="row"{kind}>{label}</th>{"".join(f"<td>{entry}</td>" for entry in entries)}</tr>'
            )
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(self.title)}">'
            f'<table class="{"dense" if len(self.heads) > DENSE else ""}">'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain JSON-ready data."""
        facts = {"name": self.name, "title": self.title, "columns": list(self.heads)}
        return facts | {"rows": [list(row) for row in self.rows], "notes": list(self.notes)}


def _text(value: Value, digits: int) -> str:
    if _absent(value):
        return NOTHING
    if isinstance(value, float):
        return f"{value:{'+' if isinstance(value, Difference) else ''},.{digits}f}"
    return str(value)


def _absent(value: Value) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def _pipe(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|")


_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    NOTHING: "--",
}
_TEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"}


def _tex(text: str) -> str:
    return "".join(_TEX.get(sign, sign) for sign in text)
