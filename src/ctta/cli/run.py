"""`ctta run`: methods side by side on your own model and data, a grid on a store that lasts as long as the run."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from ctta.streams import SCENARIOS

if TYPE_CHECKING:
    from ctta.bench.results import Result


PATH = click.Path(path_type=Path)
WHOLE = click.IntRange(min=1)
METHODS = "source,bn1,tent,palm"
SHARED = (
    click.option("--methods", default=METHODS, show_default=True, help="Methods, separated by commas."),
    click.option("--batch-size", type=WHOLE, default=200, show_default=True, help="Images per batch."),
    click.option(
        "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of adapters and images."
    ),
    click.option("--threads", type=WHOLE, help="CPU threads (default: torch's choice)."),
    click.option("--out", type=PATH, default=Path("runs"), show_default=True, help="Report folder."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read."),
)


def shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of `run` and `demo`."""
    return functools.reduce(lambda called, option: option(called), reversed(SHARED), command)


@click.command("run")
@click.option("--model", required=True, help="embedded:, timm:NAME, ARCH with --weights, or FILE.py:FUNCTION.")
@click.option("--weights", type=PATH, help="Weight file of an architecture.")
@click.option("--data", default="embedded", show_default=True, help="A benchmark, or a folder of images by class.")
@click.option("--preset", help="Settings of all of them: cifar10-c, cifar100-c, imagenet-c, embedded.")
@click.option("--set", multiple=True, metavar="METHOD.NAME=VALUE", help="One setting; may be repeated.")
@click.option(
    "--scenario", type=click.Choice(list(SCENARIOS)), default="continual", show_default=True, help="Stream."
)
@click.option("--corruptions", help="Corruptions, separated by commas (default: the fifteen).")
@click.option("--severity", type=click.IntRange(1, 5), default=5, show_default=True, help="Of scenarios with one.")
@click.option("--images", type=WHOLE, help="Images per domain (default: all).")
@click.option("--profile", help="Corruption constants: cifar, tiny-imagenet, imagenet (default: by size).")
@click.option("--import", multiple=True, type=PATH, help="FILE.py with a method.")
@click.option("--name", default="run", show_default=True, help="Name of the report.")
@shared_options
def command(**words: Any) -> None:
    """Compare methods on a stream of corrupted images: errors per domain, cost in forward passes, a saved report.

    Clean images (cifar10, a folder) are corrupted on the fly; benchmarks on disk (cifar10-c, ...) are read.

    Example: ctta run --model my_model.py:make --data photos/ --methods source,palm --set palm.adapt_share=0.05
    """
    execute(**words)


def execute(
    *,
    data: str,
    seed: int,
    threads: int | None,
    out: Path,
    name: str,
    as_json: bool,
    title: str = "",
    **words: Any,
) -> None:
    """Run the comparison the words describe, show it, and save table and page."""
    import torch

    from ctta._core.files import write
    from ctta.bench.local import Local
    from ctta.bench.plan import from_words, tasks
    from ctta.bench.results import read_run, results_of
    from ctta.bench.store import Store
    from ctta.cli.sweep import run
    from ctta.report.comparison import side_by_side
    from ctta.report.page import write_page

    profile, preset = words.pop("profile", None), words.pop("preset", None) or "none"
    grid = {**words, "dataset": data, "seeds": [seed], "preset": preset}
    given = {key: value or None for key, value in grid.items()}
    cells = from_words(given, f"`ctta {name}`", threads or torch.get_num_threads())
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.sqlite"
        plan = tasks(dataclasses.replace(cell, profile=profile) for cell in cells)
        problems = run(plan, Local(path, processes=1), path, console)
        with Store(path, read_only=True) as store:
            records = {record.key: record for record in store.cells("done")}
            results = results_of(read_run(store, records[task.key]) for task in plan if task.key in records)
            page = write_page(store, out / f"{name}.html") if results else None
    if results:
        first = results[0].first
        facts = f"{first.place}, {first.record.manifest['samples']:,} images in {first.record.total:,} batches"
        table = side_by_side(results, title or facts)
        found = {"manifest": _manifest(results), "summary": _summary(results), "report": str(page)}
        write(out / f"{name}.json", (json.dumps(found, indent=2) + "\n").encode())
        write(out / f"{name}.md", table.markdown().encode())
        if as_json:
            click.echo(json.dumps(found, indent=2))
        else:
            table.show(Console())
            click.echo(f"page in {page}; the table is in {name}.md, the numbers in {name}.json beside it")
    if problems:
        raise SystemExit(1)


def _manifest(results: Sequence[Result]) -> dict[str, Any]:
    """What it takes to do it again: the command, and what all runs share."""
    manifests = [result.first.record.manifest for result in results]
    shared = {name: value for name, value in manifests[0].items() if all(m.get(name) == value for m in manifests)}
    cells = {result.label: result.first.cell for result in results}
    methods = {
        label: ({"preset": cell["preset"]} if cell["preset"] else {}) | cell["settings"]
        for label, cell in cells.items()
    }
    return {"command": "ctta " + " ".join(sys.argv[1:]), **shared, "methods": methods}


def _summary(results: Sequence[Result]) -> dict[str, Any]:
    """The numbers, by name and method."""

    def each(name: str) -> dict[str, float | None]:
        return {result.label: result.first.number(name) for result in results}

    return {
        "error": {domain: each(f"error/{domain}") for domain in results[0].first.error},
        **{name: each(name) for name in ("mean", "passes", "skipped")},
        "adapted": each("selected"),
        "samples": results[0].first.record.manifest["samples"],
    }
