"""`ctta data`: get, make, list and verify datasets and checkpoints."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ctta.data import Watcher, cache_folder, catalogue, check, manifest
from ctta.data.check import Check, begun, check_made
from ctta.data.get import get, present
from ctta.data.make import ALL, Plan, make

EVERY = 5.0
"""Seconds between two lines of progress."""

PATH = click.Path(path_type=Path)


@click.group("data")
def command() -> None:
    """Get, make, list and verify datasets and checkpoints.

    Example: ctta data get cifar10
    """


def verb(name: str) -> Callable[[Callable[..., None]], click.Command]:
    """Add a verb, with the options that every one has."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read.")
    cache = click.option("--cache", type=PATH, help="Data folder [default: $CTTA_DATA, else ~/.cache/ctta].")
    return lambda function: command.command(name)(cache(as_json(function)))


def show(as_json: bool, data: dict[str, Any], lines: Iterable[str]) -> None:
    """Print what was done, for a program or for people."""
    click.echo(json.dumps(data, indent=2) if as_json else "\n".join(lines))


@verb("get")
@click.argument("name")
@click.option(
    "--from", "source", metavar="PATH_OR_URL", help="Own file, folder or mirror, used instead of all others."
)
@click.option("--only", multiple=True, metavar="PART", help="A part of a large dataset, e.g. noise. Repeatable.")
@click.option("--keep", is_flag=True, help="Keep the archive after unpacking.")
def get_command(name: str, as_json: bool, **options: Any) -> None:
    """Download a dataset or checkpoint, verify it, and unpack it. What is there already is not downloaded again.

    Example: ctta data get cifar10-c --from /mnt/share/CIFAR-10-C.tar
    """
    entry = catalogue.find(name)
    with meter("bytes") as watcher:
        paths = list(map(str, get(entry, progress=watcher, **options)))
    lines = [f"{entry.name} is in {path}" for path in dict.fromkeys(paths)]
    licence = f"Licence: {entry.licence}. Cite: {entry.cite}."
    show(as_json, {"name": entry.name, "paths": paths}, [*lines, licence])


@verb("make")
@click.argument("name")
@click.option("--corruptions", default="", help="Names, separated by commas [default: all 19].")
@click.option("--severities", default="1,2,3,4,5", show_default=True, help="Severities, separated by commas.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random corruptions.")
@click.option("--images", type=int, help="Only the first N images [default: all].")
@click.option("--overlays", type=PATH, help="Folder of the original frost photos.")
@click.option("--clean", type=PATH, help="Folder of the clean images [default: the data folder].")
@click.option("--ids", type=PATH, help="List of the images to take (imagenet-c).")
@click.option("--out", type=PATH, help="Folder to fill [default: made/NAME in the data folder].")
def make_command(name: str, corruptions: str, severities: str, as_json: bool, **options: Any) -> None:
    """Make a corrupted benchmark from clean images, in the official layout.

    NAME is cifar10-c, cifar100-c, imagenet-c or tiny-imagenet-c. Run it again to go on after an interruption.
    Every file is compared with the published MD5 where that can be met.

    Example: ctta data make cifar10-c --corruptions fog,contrast --severities 5
    """
    names = tuple(part.strip() for part in corruptions.split(",") if part.strip()) or ALL
    plan = Plan(names, _numbers(severities), *(options.pop(key) for key in ("seed", "images", "overlays")))
    with meter("images") as watcher:
        results = make(name, plan, progress=watcher, **options)
    rows = [{"path": str(r.path), "state": r.state, "already_there": r.there} for r in results]
    lines = [f"{r.state:15}{r.path}{' (was there)' if r.there else ''}" for r in results]
    lines += [f"{state}: {manifest.STATES[state]}." for state in dict.fromkeys(r.state for r in results)]
    show(as_json, {"name": name, "files": rows}, lines)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"expected numbers separated by commas, got {text}") from None


@verb("list")
def list_command(cache: Path | None, as_json: bool) -> None:
    """List what can be had and what is in the data folder.

    Example: ctta data list
    """
    root = cache_folder(cache)
    rows = [_row(entry, root) for entry in catalogue.ENTRIES]
    if as_json:
        show(as_json, {"cache": str(root), "entries": rows}, ())
        return
    console, table = Console(), Table(box=None, pad_edge=False)
    for column in ("name", "there", "size", "what it is"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(row["name"], row["there"], row["size"], escape(row["title"]))
    console.print(table)
    console.print(f"\nData folder: {escape(str(root))}\nGet one: ctta data get NAME", highlight=False)


def _row(entry: catalogue.Entry, root: Path) -> dict[str, Any]:
    found = [present(part, root) is not None for part in entry.parts]
    made = (root / "made" / entry.folder / manifest.NAME).is_file()
    return {
        "name": entry.name,
        "there": "yes" if all(found) else "partly" if any(found) else "made" if made else "no",
        "size": entry.about,
        "title": entry.title,
        "folder": str(root / entry.folder),
        "sources": [source for part in entry.parts for archive in part for source in archive.sources],
        "licence": entry.licence,
        "cite": entry.cite,
    }


@verb("verify")
@click.argument("name", required=False)
def verify_command(name: str | None, cache: Path | None, as_json: bool) -> None:
    """Read every byte of a dataset, or of all that is there, and compare it with the published checksums.

    Exits with 1 if a file is damaged, or if a part of the dataset asked for is missing.

    Example: ctta data verify cifar10-c
    """
    root = cache_folder(cache)
    checks: list[tuple[str, Check]] = []
    with meter("bytes") as watcher:
        for entry in [catalogue.find(name)] if name else catalogue.ENTRIES:
            made = check_made(root / "made" / entry.folder, watcher)
            fetched = any(begun(a, root) for part in entry.parts for a in part)
            if fetched or (name and not made):  # what was made and never fetched is not missing
                checks += [(entry.name, item) for item in check(entry, root, watcher)]
            checks += [(entry.name, item) for item in made]
    bad = [name for name, item in checks if item.state in ("damaged", "missing")]
    rows = [{"name": n, "path": str(c.path), "state": c.state, "detail": c.detail} for n, c in checks]
    lines = [f"{c.state:10}{c.path}{': ' + c.detail if c.detail else ''}" for _, c in checks]
    show(as_json, {"ok": not bad, "files": rows}, [*lines, _verdict(len(checks), bad, root)])
    if bad:
        raise SystemExit(1)


def _verdict(count: int, bad: list[str], root: Path) -> str:
    if not count:
        return f"Nothing to verify in {root}. Get something: ctta data get cifar10"
    if not bad:
        return f"All {count} are as they should be."
    cure = f"Delete the damaged ones, then: ctta data get {', '.join(dict.fromkeys(bad))}"
    return f"{len(bad)} of {count} are damaged or missing. {cure}"


@contextlib.contextmanager
def meter(unit: str) -> Iterator[Watcher]:
    """Show progress on stderr: a bar with the time left on a terminal, a line every few seconds elsewhere."""
    console, current, due = Console(stderr=True), "", 0.0
    amount_column = TextColumn("{task.fields[amount]}")
    columns = TextColumn("{task.description}"), BarColumn(), amount_column, TimeRemainingColumn()

    def watch(what: str, done: int, total: int | None) -> None:
        nonlocal current, due
        amount, now, ended = _amount(unit, done, total), time.monotonic(), total is not None and done >= total
        if what != current:
            current, due = what, 0.0
            bar.reset(task, description=escape(what), visible=True)
        bar.update(task, completed=done, total=total, amount=amount)
        if not console.is_terminal and (now >= due or (ended and due < math.inf)):
            due = math.inf if ended else now + EVERY
            click.echo(f"{what}: {amount}", err=True)

    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", visible=False, amount="")
        yield watch


def _amount(unit: str, done: int, total: int | None) -> str:
    if unit == "bytes" and max(done, total or 0) > 100_000:
        return f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB" if total else f"{done / 1e6:,.1f} MB"
    return f"{done:,} of {total:,}" if total else f"{done:,}" if done else "..."
