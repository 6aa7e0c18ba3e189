"""Figures and tables of a store as files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from ctta._core.files import write
from ctta.bench.store import Store
from ctta.bench.table import Table
from ctta.errors import StoreError
from ctta.report.collect import Board, collect
from ctta.report.comparison import tables_of
from ctta.report.drawing import pdf, standalone
from ctta.report.figures import SHOWN_DOMAINS, figures_of, styles_of
from ctta.report.page import render

TABLES: dict[str, Callable[[Table], str]] = {"md": Table.markdown, "tex": Table.latex, "csv": Table.csv}


def write_page(store: Store, out: Path, domains: Sequence[str] = SHOWN_DOMAINS) -> Path:
    """Write the page of a store."""
    if out.resolve() == store.path.resolve():
        raise StoreError(f"{out} is the store itself: name another file for the page.")
    return write(out, render(store, domains).encode())


def write_figures(
    store: Store, folder: Path, form: Literal["svg", "pdf"] = "svg", domains: Sequence[str] = SHOWN_DOMAINS
) -> list[Path]:
    """Write every figure of the page into a folder as SVG or PDF."""
    boards = collect(store)
    styles, written = styles_of(boards), []
    for prefix, board in _prefixed(boards):
        for figure in figures_of(board, styles, domains):
            drawn = figure.draw()
            data = standalone(drawn, figure.title, figure.caption) if form == "svg" else pdf(drawn, figure.title)
            written.append(write(folder / f"{prefix}{file_name(figure.name)}.{form}", data))
    return written


def write_tables(store: Store, folder: Path) -> list[Path]:
    """Write every table of the page into a folder as Markdown, LaTeX and CSV."""
    return [
        write(folder / f"{prefix}{table.name}.{ending}", form(table).encode())
        for prefix, board in _prefixed(collect(store))
        for table in tables_of(board)
        for ending, form in TABLES.items()
    ]


def file_name(text: str) -> str:
    """Make a label a file name.

    >>> file_name("PALM, T = 50/../x")
    'PALM-T-50-x'
    """
    return re.sub(r"(?:[^\w.+-]|\.\.+)+", "-", text).strip("-.") or "unnamed"


def _prefixed(boards: Sequence[Board]) -> list[tuple[str, Board]]:
    """Each board with what its files begin with: nothing where there is one board only."""
    return [(f"{k}-" if len(boards) > 1 else "", board) for k, board in enumerate(boards, 1)]
