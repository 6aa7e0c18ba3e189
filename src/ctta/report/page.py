"""What a store comes to as files: one self-contained HTML page without script, figures, tables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from ctta._core.files import write
from ctta._version import __version__
from ctta.bench.reading import CellRecord
from ctta.bench.store import Store
from ctta.bench.table import Table
from ctta.errors import StoreError
from ctta.report.collect import Board, collect
from ctta.report.comparison import tables_of
from ctta.report.drawing import COLOURS, inline, library, pdf, standalone
from ctta.report.figures import NARROW, SHOWN_DOMAINS, Styles, figures_of, styles_of

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


def render(store: Store, domains: Sequence[str] = SHOWN_DOMAINS) -> str:
    """Return the page of a store; `domains` are those whose learning-rate importance is shown."""
    jinja2 = library("jinja2")
    options = {"autoescape": True, "undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    pages = jinja2.Environment(loader=jinja2.PackageLoader("ctta.report", ""), **options)
    boards, records = collect(store), store.cells()
    styles, (shared, own) = styles_of(boards), _manifests(records)
    page: str = pages.get_template("page.html.j2").render(
        title=f"ctta report: {store.path.stem}",
        file=store.path.name,
        version=__version__,
        colours=COLOURS,
        done=sum(record.status == "done" for record in records),
        last=datetime.fromtimestamp(max(record.finished or 0.0 for record in records), UTC),
        boards=[_section(board, styles, domains, number) for number, board in enumerate(boards, 1)],
        shared=shared,
        runs=list(zip(records, own, strict=True)),
    )
    return page


def _section(board: Board, styles: Styles, domains: Sequence[str], number: int) -> dict[str, Any]:
    """What the page says of a board. A figure that takes its width is drawn a second time for a phone."""
    figures = []
    for chart in figures_of(board, styles, domains):
        name = f"{number}-{chart.name}"
        drawings = {"wide" if chart.full else "half": inline(chart.draw(), name)}
        if chart.full:
            drawings["narrow"] = inline(chart.draw(NARROW), f"{name}-narrow")
        figures.append((chart, drawings))
    return {"board": board, "verdict": verdict(board), "tables": tables_of(board), "figures": figures}


def verdict(board: Board) -> str:
    """Say in a sentence which entry has the lowest error (all that share it), and how the source model does."""
    least = min(entry.mean for entry in board.headline)
    best = [entry for entry in board.headline if f"{entry.mean:.1f}" == f"{least:.1f}"]
    spread = f" ± {best[0].std:.1f}" if len(best) == 1 and best[0].std is not None else ""
    text = f"Lowest mean error: {', '.join(entry.label for entry in best)} with {least:.1f}{spread}\u00a0%"
    source = next((entry for entry in board.entries if entry.method == "source"), None)
    if source is not None and source not in best:
        text += f"; the source model without adaptation has {source.mean:.1f}\u00a0%"
    return text + "."


def _manifests(records: Sequence[CellRecord]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """What all runs share, where there are several, and what each has of its own."""
    flat = [_flat(record.manifest) for record in records]
    shared = (
        {k: v for k, v in flat[0].items() if all(other.get(k) == v for other in flat)} if len(flat) > 1 else {}
    )
    own = [
        {"key": record.key}
        | ({"error": record.error} if record.error else {})
        | {name: facts[name] for name in facts if name not in shared}
        for record, facts in zip(records, flat, strict=True)
    ]
    return shared, own


def _flat(value: Any, path: str = "") -> dict[str, str]:
    """Nested data as dotted names and texts."""
    if isinstance(value, dict) and value:
        parts = (_flat(part, f"{path}.{name}" if path else str(name)) for name, part in value.items())
        return {name: text for part in parts for name, text in part.items()}
    return {path: value if isinstance(value, str) else json.dumps(value)}
