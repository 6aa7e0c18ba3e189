"""The live table, the final table and the saved report that `ctta demo` and `ctta run` share."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from ctta.bench import table as tables
from ctta.bench.compare import Row, Summary, summarise


def follow(rows: Iterable[Row], total: int, title: str, console: Console) -> list[Row]:
    """Consume the rows behind a live table (on a terminal) or a line a domain (elsewhere)."""
    done: list[Row] = []
    if not console.is_terminal:
        for row in rows:
            if done and row.domain != done[-1].domain:
                _line(done, console)
            done.append(row)
        _line(done, console)
        return done
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    task = progress.add_task("starting", total=total)
    with Live(progress, console=console, transient=True, refresh_per_second=4) as live:
        for row in rows:
            done.append(row)
            progress.update(task, advance=1, description=row.domain)
            live.update(Group(table(summarise(done), title), progress))
    return done


def _line(rows: list[Row], console: Console) -> None:
    if rows:
        errors = summarise(rows).error[rows[-1].domain]
        text = "  ".join(f"{label} {error:5.1f}" for label, error in errors.items())
        console.print(f"{rows[-1].domain:22} {text}", highlight=False)


def error_grid(title: str, errors: Mapping[str, Mapping[str, float]], labels: Sequence[str]) -> Table:
    """Errors in % by domain and label, the best of each domain in bold, for a terminal; more rows may follow."""
    out = Table(title=escape(title), title_justify="left")
    out.add_column("error (%)")
    for label in labels:
        out.add_column(escape(label), justify="right")
    for domain, found in errors.items():
        best = min(found.values())
        out.add_row(
            domain,
            *(f"[bold]{found[k]:.1f}[/]" if found[k] == best else f"{found[k]:.1f}" for k in labels),
        )
    out.add_section()
    return out


def table(summary: Summary, title: str) -> Table:
    """Errors per domain, their mean, the cost in forward passes and the share of parameters adapted."""
    labels = list(summary.mean)
    out = error_grid(title, summary.error, labels)
    out.add_row("mean", *(f"{summary.mean[label]:.1f}" for label in labels))
    out.add_row("time per batch (forward passes)", *(f"{summary.passes[label]:.1f}" for label in labels))
    out.add_row("parameters adapted (%)", *(f"{summary.adapted[label]:.1f}" for label in labels))
    if any(summary.skipped.values()):
        out.add_row("steps undone", *(str(summary.skipped[label]) for label in labels))
    return out


def save(folder: Path, name: str, summary: Summary, manifest: dict[str, Any]) -> Path:
    """Write NAME.json (numbers and manifest) and NAME.md (a table) into a folder; returns the Markdown file."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {"manifest": manifest, "summary": dataclasses.asdict(summary)}
    (folder / f"{name}.json").write_text(json.dumps(data, indent=2) + "\n")
    page = folder / f"{name}.md"
    page.write_text(markdown(summary, manifest))
    return page


def markdown(summary: Summary, manifest: dict[str, Any]) -> str:
    """Return the table and the manifest as a page of Markdown."""
    lines: dict[str, dict[str, float]] = {
        **summary.error,
        "mean": summary.mean,
        "forward passes per batch": summary.passes,
        "parameters adapted (%)": summary.adapted,
    }
    rows: list[tuple[tables.Value, ...]] = [
        (name, *(numbers[label] for label in summary.mean)) for name, numbers in lines.items()
    ]
    facts = tuple(f"{key}: {value}" for key, value in manifest.items())
    heads = ("error (%)", *summary.mean)
    return tables.Table("comparison", "Comparison", tables.columns(heads), tuple(rows), facts).markdown()


def present(summary: Summary, manifest: dict[str, Any], title: str, as_json: bool, console: Console) -> None:
    """Print the result for a person or for a program."""
    if as_json:
        click.echo(json.dumps({"manifest": manifest, "summary": dataclasses.asdict(summary)}, indent=2))
    else:
        console.print(table(summary, title))
