"""`ctta data`: get, make, list and verify datasets and checkpoints."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from ctta.data import Watcher, cache_folder, catalogue, check, manifest
from ctta.data.check import Check, begun, check_made
from ctta.data.get import get, present
from ctta.data.make import ALL, Plan, make

WORDS = {
    "official": "the published MD5: byte for byte the benchmark's file",
    "fresh draw": "random corruption: same procedure, other draws than the published file",
    "differs": "deterministic, but not the published bytes",
    "partial": "fewer images or severities than the benchmark: nothing published to compare with",
    "same procedure": "deterministic; no checksum of single images is published",
}

EVERY = 5.0
"""Seconds between two lines of progress."""

PATH = click.Path(path_type=Path)
cache_option = click.option("--cache", type=PATH, help="Data folder [default: $CTTA_DATA, else ~/.cache/ctta].")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read.")


@click.group("data")
def command() -> None:
    """Get, make, list and verify datasets and checkpoints.

    Example: ctta data get cifar10
    """


@command.command("get")
@click.argument("name")
@click.option(
    "--from", "source", metavar="PATH_OR_URL", help="Own file, folder or mirror, used instead of all others."
)
@click.option("--only", multiple=True, metavar="PART", help="A part of a large dataset, e.g. noise. Repeatable.")
@click.option("--keep", is_flag=True, help="Keep the archive after unpacking.")
@cache_option
@json_option
def get_command(
    name: str, source: str | None, only: tuple[str, ...], keep: bool, cache: Path | None, as_json: bool
) -> None:
    """Download a dataset or checkpoint, verify it, and unpack it. What is there already is not downloaded again.

    Example: ctta data get cifar10-c --from /mnt/share/CIFAR-10-C.tar
    """
    entry = catalogue.find(name)
    with meter("bytes") as watcher:
        paths = get(entry, cache=cache, source=source, only=only, keep=keep, progress=watcher)
    if as_json:
        click.echo(json.dumps({"name": entry.name, "paths": [str(path) for path in paths]}, indent=2))
        return
    for path in dict.fromkeys(paths):
        click.echo(f"{entry.name} is in {path}")
    click.echo(f"Licence: {entry.licence}. Cite: {entry.cite}.")


@command.command("make")
@click.argument("name")
@click.option("--corruptions", default="", help="Names, separated by commas [default: all 19].")
@click.option("--severities", default="1,2,3,4,5", show_default=True, help="Severities, separated by commas.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random corruptions.")
@click.option("--images", type=int, help="Only the first N images [default: all].")
@click.option("--overlays", type=PATH, help="Folder of the original frost photos.")
@click.option("--clean", type=PATH, help="Folder of the clean images [default: the data folder].")
@click.option("--ids", type=PATH, help="List of the images to take (imagenet-c).")
@click.option("--out", type=PATH, help="Folder to fill [default: made/NAME in the data folder].")
@cache_option
@json_option
def make_command(
    name: str,
    corruptions: str,
    severities: str,
    seed: int,
    images: int | None,
    overlays: Path | None,
    as_json: bool,
    **places: Any,
) -> None:
    """Make a corrupted benchmark from clean images, in the official layout.

    NAME is cifar10-c, cifar100-c, imagenet-c or tiny-imagenet-c. Run it again to go on after an interruption.
    Every file is compared with the published MD5 where that can be met.

    Example: ctta data make cifar10-c --corruptions fog,contrast --severities 5
    """
    names = tuple(part.strip() for part in corruptions.split(",") if part.strip()) or ALL
    plan = Plan(names, _numbers(severities), seed, images, overlays)
    with meter("images") as watcher:
        results = make(name, plan, progress=watcher, **places)
    if as_json:
        rows = [{"path": str(r.path), "state": r.state, "already_there": r.there} for r in results]
        click.echo(json.dumps({"name": name, "files": rows}, indent=2))
        return
    for result in results:
        click.echo(f"{result.state:15}{result.path}{' (was there)' if result.there else ''}")
    for state in dict.fromkeys(result.state for result in results):
        click.echo(f"{state}: {WORDS[state]}.")


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"expected numbers separated by commas, got {text}") from None


@command.command("list")
@cache_option
@json_option
def list_command(cache: Path | None, as_json: bool) -> None:
    """List what can be had and what is in the data folder.

    Example: ctta data list
    """
    root = cache_folder(cache)
    rows = [_row(entry, root) for entry in catalogue.ENTRIES]
    if as_json:
        click.echo(json.dumps({"cache": str(root), "entries": rows}, indent=2))
        return
    console = Console()
    table = Table(box=None, pad_edge=False)
    for column in ("name", "there", "size", "what it is"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(row["name"], row["there"], row["size"], escape(row["title"]))
    console.print(table)
    console.print(f"\nData folder: {escape(str(root))}", highlight=False)
    console.print("Get one: ctta data get NAME", highlight=False)


def _row(entry: catalogue.Entry, root: Path) -> dict[str, Any]:
    found = [present(part, root) is not None for part in entry.parts]
    state = "yes" if all(found) else "partly" if any(found) else "made" if _made(entry, root) else "no"
    return {
        "name": entry.name,
        "there": state,
        "size": entry.about,
        "title": entry.title,
        "folder": str(root / entry.folder),
        "sources": [source for part in entry.parts for archive in part for source in archive.sources],
        "licence": entry.licence,
        "cite": entry.cite,
    }


def _made(entry: catalogue.Entry, root: Path) -> bool:
    return (root / "made" / entry.folder / manifest.NAME).is_file()


@command.command("verify")
@click.argument("name", required=False)
@cache_option
@json_option
def verify_command(name: str | None, cache: Path | None, as_json: bool) -> None:
    """Read every byte of a dataset, or of all that is there, and compare it with the published checksums.

    Exits with 1 if a file is damaged, or if a part of the dataset asked for is missing.

    Example: ctta data verify cifar10-c
    """
    root = cache_folder(cache)
    entries = [catalogue.find(name)] if name else list(catalogue.ENTRIES)
    checks: list[tuple[str, Check]] = []
    with meter("bytes") as watcher:
        for entry in entries:
            if not (name or _made(entry, root) or any(begun(a, root) for part in entry.parts for a in part)):
                continue
            made = check_made(root / "made" / entry.folder, watcher)
            found = check(entry, root, watcher)
            if made and all(item.state == "missing" for item in found):
                found = []  # made, never fetched: what was made is what counts
            checks += [(entry.name, item) for item in found + made]
    bad = [item for _, item in checks if item.state in ("damaged", "missing")]
    if as_json:
        rows = [{"name": n, "path": str(c.path), "state": c.state, "detail": c.detail} for n, c in checks]
        click.echo(json.dumps({"ok": not bad, "files": rows}, indent=2))
    else:
        for _, item in checks:
            click.echo(f"{item.state:10}{item.path}{': ' + item.detail if item.detail else ''}")
        click.echo(_verdict(checks, bad, root))
    if bad:
        raise SystemExit(1)


def _verdict(checks: list[tuple[str, Check]], bad: list[Check], root: Path) -> str:
    if not checks:
        return f"Nothing to verify in {root}. Get something: ctta data get cifar10"
    if not bad:
        return f"All {len(checks)} are as they should be."
    names = ", ".join(dict.fromkeys(n for n, item in checks if item in bad))
    return (
        f"{len(bad)} of {len(checks)} are damaged or missing. Delete the damaged ones, then: ctta data get {names}"
    )


@contextlib.contextmanager
def meter(unit: str) -> Iterator[Watcher]:
    """Show progress on stderr: a bar with the time left on a terminal, a line every few seconds elsewhere."""
    console = Console(stderr=True)
    columns = (
        *(TextColumn("{task.description}"), BarColumn()),
        *(TextColumn("{task.fields[amount]}"), TimeRemainingColumn()),
    )
    tasks: dict[str, TaskID] = {}
    due: dict[str, float] = {}

    def watch(what: str, done: int, total: int | None) -> None:
        amount, now, ended = _amount(unit, done, total), time.monotonic(), total is not None and done >= total
        if what not in tasks:
            for task in tasks.values():
                bar.update(task, visible=False)
            tasks[what] = bar.add_task(escape(what), total=total, amount=amount)
        bar.update(tasks[what], completed=done, total=total, amount=amount)
        if not console.is_terminal and (now >= due.get(what, 0.0) or (ended and due[what] < math.inf)):
            due[what] = math.inf if ended else now + EVERY
            click.echo(f"{what}: {amount}", err=True)

    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield watch


def _amount(unit: str, done: int, total: int | None) -> str:
    if unit == "bytes" and max(done, total or 0) > 100_000:
        return f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB" if total else f"{done / 1e6:,.1f} MB"
    return f"{done:,} of {total:,}" if total else f"{done:,}" if done else "..."
