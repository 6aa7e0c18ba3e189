"""One self-contained HTML page: tables, figures and manifests of a store. No script and no file beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from typing import Any

from ctta._version import __version__
from ctta.bench.reading import CellRecord
from ctta.bench.store import Store
from ctta.bench.table import Table
from ctta.report import svg
from ctta.report.collect import Board, collect
from ctta.report.comparison import tables_of
from ctta.report.figures import SHOWN_DOMAINS, Styles, figures_of, styles_of
from ctta.report.marks import COLOURS, DARK, Figure

WIDE, NARROW, HALF = 900.0, 360.0, 400.0
"""Widths figures are drawn at: across the page, on a phone, and half of the page."""


def render(store: Store, domains: Sequence[str] = SHOWN_DOMAINS) -> str:
    """Return the page of a store; `domains` are those whose learning-rate importance is shown."""
    boards = collect(store)
    styles = styles_of(boards)
    sections = [_board(number, board, styles, domains) for number, board in enumerate(boards, 1)]
    title = f"ctta report: {store.path.stem}"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{_style()}</style></head><body>"
        f"{_header(title, store, boards)}<main>{''.join(sections)}{_runs(store.cells())}</main>"
        f'<footer class="soft">Made by ctta {escape(__version__)} from {escape(store.path.name)}. Every number '
        "comes from the rows of the runs listed above.</footer></body></html>\n"
    )


def _style() -> str:
    sheet = resources.files("ctta.report").joinpath("page.css").read_text("utf-8")
    # paper is white: printing the dark theme would waste ink
    return (
        f":root{{color-scheme:light dark;{svg.variables(COLOURS)}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{svg.variables(DARK)}}}}}"
        f"{svg.rules()}\n{sheet}"
    )


def _header(title: str, store: Store, boards: Sequence[Board]) -> str:
    records = store.cells()
    done = [record for record in records if record.status == "done"]
    open_ = len(records) - len(done)
    last = max((record.finished or 0.0 for record in done), default=0.0)
    when = datetime.fromtimestamp(last, UTC).strftime("%Y-%m-%d %H:%M UTC")
    facts = f"{len(done)} runs, the last finished {when}."
    if open_:
        facts += f" {open_} more {'is' if open_ == 1 else 'are'} not finished and not counted."
    links = "".join(
        f'<li><a href="#board-{k}">{escape(board.title)}</a></li>' for k, board in enumerate(boards, 1)
    )
    nav = f'<nav aria-label="Contents"><ul>{links}<li><a href="#runs">All runs</a></li></ul></nav>'
    return f'<header><h1>{escape(title)}</h1><p class="soft">{escape(facts)}</p>{nav}</header>'


def _board(number: int, board: Board, styles: Styles, domains: Sequence[str]) -> str:
    facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in board.facts.items()
    )
    tables = "".join(_table(table) for table in tables_of(board))
    figures = "".join(_figure(figure) for figure in figures_of(board, styles, domains))
    return (
        f'<section id="board-{number}"><h2>{escape(board.title)}</h2>'
        f'<p class="verdict">{escape(verdict(board))}</p><dl class="facts">{facts}</dl>'
        f'{tables}<div class="figures">{figures}</div></section>'
    )


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


def _table(table: Table) -> str:
    notes = "".join(f'<p class="caption">{escape(note)}</p>' for note in table.notes)
    return f"<h3>{escape(table.title)}</h3>{table.html()}{notes}"


def _figure(figure: Figure) -> str:
    if figure.full:
        drawn = svg.inline(figure.draw(WIDE), figure.title, "wide")
        drawn += svg.inline(figure.draw(NARROW), figure.title, "narrow")
    else:
        drawn = svg.inline(figure.draw(HALF), figure.title)
    return (
        f'<figure class="{"full" if figure.full else "half"}"><h3>{escape(figure.title)}</h3>{drawn}'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
    )


def _runs(records: Sequence[CellRecord]) -> str:
    """List the manifest of every run; what all of them share is said once."""
    flat = [_flat(record.manifest) for record in records]
    shared = (
        {k: v for k, v in flat[0].items() if all(other.get(k) == v for other in flat)} if len(flat) > 1 else {}
    )
    out = ['<section id="runs"><h2>All runs</h2>']
    if shared:
        out.append(f"<details><summary>What all {len(flat)} runs share</summary>{_manifest(shared)}</details>")
    for record, facts in zip(records, flat, strict=True):
        own = {name: value for name, value in facts.items() if name not in shared}
        state = "" if record.status == "done" else f", {record.status}, {record.done} of {record.total} batches"
        small = f"seed {record.manifest.get('seed', 0)}, {record.key}{state}"
        if record.error:
            own = {"error": record.error, **own}
        out.append(
            f'<details><summary>{escape(record.label)} <span class="soft">{escape(small)}</span></summary>'
            f"{_manifest({'key': record.key, **own})}</details>"
        )
    return "".join([*out, "</section>"])


def _manifest(facts: dict[str, str]) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    return f'<dl class="manifest">{rows}</dl>'


def _flat(value: Any, path: str = "") -> dict[str, str]:
    """Nested data as dotted names and texts."""
    if isinstance(value, dict) and value:
        found: dict[str, str] = {}
        for name, part in value.items():
            found |= _flat(part, f"{path}.{name}" if path else str(name))
        return found
    return {path: value if isinstance(value, str) else json.dumps(value)}
