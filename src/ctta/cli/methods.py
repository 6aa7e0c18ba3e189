"""`ctta methods`: the registry, readable by people and by programs."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ctta.methods import MethodEntry, find, list_methods


@click.command("methods")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read.")
def command(name: str | None, as_json: bool) -> None:
    """List the methods, or one method's settings with help, defaults, presets and variants.

    Example: ctta methods palm
    """
    entries = [find(name)] if name else list_methods()
    if as_json:
        data = [as_data(entry) for entry in entries]
        click.echo(json.dumps(data[0] if name else data, indent=2))
    elif name:
        show_one(Console(), entries[0])
    else:
        show_all(Console(), entries)


def as_data(entry: MethodEntry) -> dict[str, Any]:
    """Return what is known of a method as plain data."""
    return {
        "name": entry.name,
        "summary": entry.summary,
        "paper": entry.paper,
        "year": entry.year or None,
        "needs": sorted(entry.needs),
        "adapts": entry.method.adapts,
        "cost": entry.cost,
        "confidence": entry.confidence,
        "settings": [
            {"name": s.name, "default": s.default, "accepts": s.accepts, "help": s.help} for s in entry.settings
        ],
        "presets": {name: dict(values) for name, values in entry.presets.items()},
        "variants": {name: dict(values) for name, values in entry.variants.items()},
        "keeps": {name: {"kind": k.kind, "help": k.help} for name, k in entry.method.kept().items()},
    }


def show_all(console: Console, entries: list[MethodEntry]) -> None:
    """Print one line a method."""
    table = Table(box=None, pad_edge=False, title_justify="left")
    for column in ("method", "year", "needs", "adapts", "cost", "confidence", "paper"):
        table.add_column(column, no_wrap=column == "method")
    for entry in entries:
        needs = ", ".join(sorted(entry.needs)) or "any model"
        facts = (
            entry.name,
            str(entry.year or "-"),
            needs,
            entry.method.adapts,
            f"{entry.cost:g}",
            entry.confidence,
        )
        table.add_row(*map(escape, (*facts, entry.paper)))
    console.print(table)
    console.print("\nCost: forward passes of the model a batch. Confidence: that this is the published method.")
    console.print("One method's settings: ctta methods NAME", highlight=False)


def show_one(console: Console, entry: MethodEntry) -> None:
    """Print everything about one method."""
    console.print(f"[bold]{entry.name}[/]  {escape(entry.summary)}", highlight=False)
    year = f" ({entry.year})" if entry.year else ""
    console.print(f"Paper: {escape(entry.paper)}{year}", highlight=False)
    console.print(f"Needs: {', '.join(sorted(entry.needs)) or 'any model'}", highlight=False)
    console.print(f"Adapts: {entry.method.adapts}", highlight=False)
    console.print(f"Cost in forward passes a batch: {entry.cost:g}", highlight=False)
    console.print(f"Confidence that this is the published method: {entry.confidence}\n", highlight=False)
    if entry.settings:
        table = Table(box=None, pad_edge=False)
        for column in ("setting", "default", "accepts", "help"):
            table.add_column(column, overflow="fold")
        for item in entry.settings:
            table.add_row(item.name, str(item.default), escape(item.accepts), escape(item.help))
        console.print(table)
    else:
        console.print("No settings.")
    for title, groups in (("Presets", entry.presets), ("Variants", entry.variants)):
        if groups:
            console.print(f"\n[bold]{title}[/]")
        for name, values in groups.items():
            text = ", ".join(f"{key}={value}" for key, value in values.items()) or "the defaults"
            console.print(f"  {name}: {escape(text)}", highlight=False)
