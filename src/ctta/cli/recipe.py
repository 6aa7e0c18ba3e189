"""What the verbs that train share: their arguments, progress, a manifest beside the weights."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ctta._core.checkpoint import write_bytes
from ctta._version import __version__
from ctta.settings import build, describe

FILE = click.Path(dir_okay=False, path_type=Path)


def training(verb: str, settings_type: type) -> Callable[[Any], Any]:
    """Give a verb DATA, OUT, --threads and one flag for every setting; it gets these as `settings`."""
    items = describe(settings_type)

    def add(command: Any) -> Any:
        @functools.wraps(command)
        def start(threads: int | None, **given: Any) -> None:
            import torch

            if threads:
                torch.set_num_threads(threads)
            recipe = {item.name: given.pop(item.name) for item in items}
            command(settings=build(settings_type, recipe, owner=verb, lists=f"ctta {verb} --help"), **given)

        for item in reversed(items):
            kind = click.Choice(item.choices) if item.choices else str if str in item.types else item.types[0]
            flag, default = f"--{item.name.replace('_', '-')}", item.default
            click.option(flag, item.name, type=kind, default=default, show_default=True, help=item.help)(start)
        count = click.IntRange(min=1)
        click.option("--threads", type=count, help="CPU threads (default: torch's choice).")(start)
        click.argument("out", type=FILE)(start)
        click.argument("data")(start)
        return start

    return add


def follow(steps: Iterable[Any], epochs: int) -> None:
    """Train to the end behind a progress bar, or with a line an epoch where there is no terminal."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("training", total=None)
        for now in steps:
            words = f"epoch {now.epoch}, loss {now.loss:.3f}, accuracy {100 * now.accuracy:.1f} %"
            done = (now.epoch - 1) * now.batches + now.batch
            bar.update(task, total=epochs * now.batches, completed=done, description=words)
            if now.batch == now.batches and not console.is_terminal:
                console.print(words)


def write_manifest(out: Path, **facts: Any) -> None:
    """Write how weights were made beside them, whole or not at all; the run that was kept to resume it goes."""
    import torch

    made_by = {"ctta": __version__, "torch": torch.__version__, "command": "ctta " + " ".join(sys.argv[1:])}
    write_bytes(out.with_suffix(".json"), (json.dumps({**facts, **made_by}, indent=2) + "\n").encode())
    out.with_suffix(".run").unlink(missing_ok=True)
