"""What the verbs that train share: flags made from a settings class, progress, a manifest beside the weights."""

from __future__ import annotations

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
from ctta.settings import describe

threads_option = click.option(
    "--threads", type=click.IntRange(min=1), help="CPU threads (default: torch's choice)."
)


def recipe_options(settings_type: type) -> Callable[[Any], Any]:
    """One flag for every setting of a recipe, with its help and default."""

    def add(command: Any) -> Any:
        for item in reversed(describe(settings_type)):
            kind = click.Choice(item.choices) if item.choices else str if str in item.types else item.types[0]
            flag = f"--{item.name.replace('_', '-')}"
            command = click.option(
                flag, item.name, type=kind, default=item.default, show_default=True, help=item.help
            )(command)
        return command

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
    """Write how weights were made beside them, whole or not at all."""
    import torch

    made_by = {"ctta": __version__, "torch": torch.__version__, "command": "ctta " + " ".join(sys.argv[1:])}
    write_bytes(out.with_suffix(".json"), (json.dumps({**facts, **made_by}, indent=2) + "\n").encode())
