"""One self-contained HTML page: tables, figures and manifests of a store. No script and no file beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from ctta._version import __version__
from ctta.bench.reading import CellRecord
from ctta.bench.store import Store
from ctta.report.collect import Board, collect
from ctta.report.comparison import tables_of
from ctta.report.drawing import COLOURS, inline, library
from ctta.report.figures import NARROW, SHOWN_DOMAINS, Chart, Styles, figures_of, styles_of


def render(store: Store, domains: Sequence[str] = SHOWN_DOMAINS) -> str:
    """Return the page of a store; `domains` are those whose learning-rate importance is shown."""
    template = _template()
    boards, records = collect(store), store.cells()
    styles = styles_of(boards)
    shared, own = _manifests(records)
    page: str = template.render(
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


def _template() -> Any:
    jinja2 = library("jinja2")
    pages = jinja2.Environment(
        loader=jinja2.PackageLoader("ctta.report", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return pages.get_template("page.html.j2")


def _section(board: Board, styles: Styles, domains: Sequence[str], number: int) -> dict[str, Any]:
    """What the page says of a board."""
    figures = [(each, _drawings(each, f"{number}-{each.name}")) for each in figures_of(board, styles, domains)]
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


def _drawings(chart: Chart, name: str) -> dict[str, str]:
    """The figure as SVG; one that takes the width of the page a second time for a phone."""
    if not chart.full:
        return {"half": inline(chart.draw(), name)}
    return {"wide": inline(chart.draw(), name), "narrow": inline(chart.draw(NARROW), f"{name}-narrow")}


def _manifests(records: Sequence[CellRecord]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """What all runs share, where there are several, and what each has of its own."""
    flat = [_flat(record.manifest) for record in records]
    several = len(flat) > 1
    shared = {k: v for k, v in flat[0].items() if several and all(other.get(k) == v for other in flat)}
    own = []
    for record, facts in zip(records, flat, strict=True):
        first = {"key": record.key} | ({"error": record.error} if record.error else {})
        own.append(first | {name: value for name, value in facts.items() if name not in shared})
    return shared, own


def _flat(value: Any, path: str = "") -> dict[str, str]:
    """Nested data as dotted names and texts."""
    if isinstance(value, dict) and value:
        found: dict[str, str] = {}
        for name, part in value.items():
            found |= _flat(part, f"{path}.{name}" if path else str(name))
        return found
    return {path: value if isinstance(value, str) else json.dumps(value)}
