"""`ctta methods`: the registry, readable by people and by programs."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from ctta.methods import MethodEntry, find, list_methods
from ctta.settings import Setting

TITLES = {"paper": "Settings", "difference": "Differences from the paper", "cost": "Cost"}


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
        show_one(Console(highlight=False), entries[0])
    else:
        show_all(Console(highlight=False), entries)


def as_data(entry: MethodEntry) -> dict[str, Any]:
    """Return what is known of a method as plain data."""
    plain = ("name", "summary", "paper", "cost", "confidence")
    return {
        **{fact: getattr(entry, fact) for fact in plain},
        "year": entry.year or None,
        "needs": sorted(entry.needs),
        "adapts": entry.method.adapts,
        "settings": [
            {fact: getattr(item, fact) for fact in ("name", "default", "accepts", "help", "group")}
            for item in entry.settings
        ],
        "presets": {name: dict(values) for name, values in entry.presets.items()},
        "variants": {name: dict(values) for name, values in entry.variants.items()},
        "keeps": {name: {"kind": k.kind, "help": k.help} for name, k in entry.method.kept().items()},
    }


def show_all(console: Console, entries: list[MethodEntry]) -> None:
    """Print a few lines a method."""
    columns = "{:13}{:6}{:11}{:>4}  {}"
    console.print(columns.format("method", "year", "adapts", "cost", "confidence"), style="bold")
    for entry in entries:
        facts = (entry.name, entry.year or "-", entry.method.adapts, f"{entry.cost:g}", entry.confidence)
        console.print(columns.format(*map(str, facts)))
        console.print(Padding(escape(f"{entry.paper}. Needs: {_needs(entry)}."), (0, 0, 0, 4)), style="dim")
    console.print(
        "\nCost: forward passes of the model that a batch takes at most. Confidence: that this is the published "
        "method.\nOne method's settings: ctta methods NAME"
    )


def _needs(entry: MethodEntry) -> str:
    return ", ".join(sorted(entry.needs)) or "any model"


def show_one(console: Console, entry: MethodEntry) -> None:
    """Print everything about one method."""
    year = f" ({entry.year})" if entry.year else ""
    console.print(
        f"[bold]{entry.name}[/]  {escape(entry.summary)}\nPaper: {escape(entry.paper)}{year}\n"
        f"Needs: {_needs(entry)}\nAdapts: {entry.method.adapts}\nCost in forward passes a batch: {entry.cost:g}\n"
        f"Confidence that this is the published method: {entry.confidence}"
    )
    if not entry.settings:
        console.print("\nNo settings.")
    for group, title in TITLES.items():
        if found := [item for item in entry.settings if item.group == group]:
            console.print(f"\n[bold]{title}[/]", _table(found), sep="\n")
    for title, groups in (("Presets", entry.presets), ("Variants", entry.variants)):
        if groups:
            console.print(f"\n[bold]{title}[/]")
        for name, values in groups.items():
            text = ", ".join(f"{key}={value}" for key, value in values.items()) or "the defaults"
            console.print(f"  {name}: {escape(text)}")


def _table(settings: list[Setting]) -> Table:
    """Settings with their defaults, and with the help of each what it accepts."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(max_width=14, overflow="fold")
    table.add_column()
    for item in settings:
        table.add_row(item.name, escape(str(item.default)), escape(f"{item.help} ({item.accepts})"))
    return table
