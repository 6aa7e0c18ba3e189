"""`ctta reproduce`: every table and figure of the paper, ours beside the published numbers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from ctta.bench.cell import Cell
    from ctta.bench.experiments import Outcome, Reproduction
    from ctta.evaluation import BatchRow

INCOMPLETE = 3
"""Exit code where something could not run for want of weights or data."""


@click.command("reproduce")
@click.argument("names", nargs=-1, metavar="EXPERIMENT...")
@click.option("--list", "show_list", is_flag=True, help="List the experiments.")
@click.option("--dataset", help="One of the paper's datasets, or embedded (default: all of the experiment's).")
@click.option("--model", help="A model instead of the paper's, as in ctta run; embedded: brings its own images.")
@click.option("--weights", type=click.Path(path_type=Path), help="Weight file of --model.")
@click.option("--images", type=click.IntRange(min=1), help="Images per domain: a slice, labelled as one.")
@click.option("--corruptions", help="Some corruptions, separated by commas: labelled too.")
@click.option("--batch-size", type=click.IntRange(min=1), help="Images per batch (default: the paper's).")
@click.option("--seeds", default="0", show_default=True, help="Seeds, separated by commas.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads (default: torch's choice).")
@click.option(
    "--store",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("runs/reproduce.sqlite"),
    show_default=True,
    help="Where results are kept; the same command continues there.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read.")
def command(
    names: tuple[str, ...],
    show_list: bool,
    dataset: str | None,
    model: str | None,
    weights: Path | None,
    images: int | None,
    corruptions: str | None,
    batch_size: int | None,
    seeds: str,
    threads: int | None,
    store: Path,
    as_json: bool,
) -> None:
    """Run experiments of the paper (or `all`) and print ours, the paper's numbers and the difference.

    Finished runs are never run again, killed ones go on. Tables are saved as Markdown, LaTeX and CSV beside the
    store. What needs weights or data that are not there is listed with the command that gets them. Exit codes:
    0 all ran, 1 an error, 3 something could not run.

    Example: ctta reproduce table1 --dataset embedded --images 200
    """
    from ctta.bench.experiments import Options, reproduce
    from ctta.bench.published import NAMES, experiment
    from ctta.bench.store import Store

    if show_list:
        _list(as_json)
        return
    if not names:
        raise click.UsageError(f"Name an experiment: {', '.join(NAMES)}, or all.")
    if weights and not model:
        raise click.UsageError("--weights are those of --model: name one.")
    chosen = [experiment(name) for name in (NAMES if "all" in names else dict.fromkeys(names))]
    options = Options(
        dataset=dataset,
        model=model,
        weights=str(weights) if weights else None,
        images=images,
        corruptions=_words(corruptions) if corruptions else None,
        batch_size=batch_size,
        seeds=_numbers(seeds),
    )
    if threads:
        import torch

        torch.set_num_threads(threads)
    console, done = Console(), []
    with Store(store) as opened:
        for item in chosen:
            with Follow(item.name, Console(stderr=True)) as follow:
                result = reproduce(item, options, opened, follow.watch, follow.ended)
            save(result, _folder(store), options.tag)
            done.append(result)
            for table in () if as_json else result.tables:
                table.show(console)
    if as_json:
        click.echo(json.dumps({"store": str(store), "experiments": [r.to_dict() for r in done]}, indent=2))
    else:
        console.print(f"saved in {escape(str(_folder(store)))}", highlight=False, soft_wrap=True)
    missing = [item for result in done for item in result.not_run]
    if missing:
        raise SystemExit(1 if any(item.failed for item in missing) else INCOMPLETE)


def save(result: Reproduction, folder: Path, tag: str) -> None:
    """Write EXPERIMENT.md and .tex, and a CSV file a table; a tag keeps slices and substitutes apart."""
    folder.mkdir(parents=True, exist_ok=True)
    end = f".{tag}" if tag else ""
    name = result.experiment.name
    (folder / f"{name}{end}.md").write_text(result.markdown, "utf-8")
    (folder / f"{name}{end}.tex").write_text(result.latex, "utf-8")
    for table in result.tables:
        (folder / f"{table.name}{end}.csv").write_text(table.csv(), "utf-8")


class Follow:
    """Progress on stderr: a bar with batches, running error and time left; elsewhere a line a finished cell."""

    def __init__(self, name: str, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.name, self.console = name, console
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self.task = self.bar.add_task(name, total=None)
        self.cell: Cell | None = None
        self.samples = self.wrong = 0
        self.start = time.monotonic()

    def __enter__(self) -> Follow:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.bar.stop()

    def watch(self, cell: Cell, row: BatchRow) -> None:
        """Take note of a batch."""
        if cell is not self.cell:
            from ctta.bench.cell import prepare

            self.cell, self.samples, self.wrong, self.start = cell, 0, 0, time.monotonic()
            self.bar.reset(self.task, total=len(prepare(cell).stream), completed=row.batch)
        self.samples += row.samples
        self.wrong += row.wrong
        error = 100 * self.wrong / self.samples
        text = f"{self.name}: {escape(cell.name)} on {cell.data}, {row.domain}, error {error:.1f} %"
        self.bar.update(self.task, completed=row.batch + 1, description=text)

    def ended(self, cell: Cell, outcome: Outcome) -> None:
        """Say how a cell ended."""
        where = f"{self.name}: {cell.name} on {cell.data}, seed {cell.seed}"
        if outcome.key is None:
            text = outcome.reason
        elif cell is self.cell:
            text = f"error {100 * self.wrong / self.samples:.1f} % in {time.monotonic() - self.start:.0f} s"
        else:
            text = "done before"
        self.console.print(f"{where}: {text}", highlight=False, markup=False, soft_wrap=True)


def _list(as_json: bool) -> None:
    from ctta.bench.published import NAMES, experiment

    found = [experiment(name) for name in NAMES]
    if as_json:
        rows = [
            {
                "name": e.name,
                "place": e.place,
                "title": e.title,
                "datasets": list(e.datasets),
                "rows": [line.label for line in e.rows],
                "published": {d: {r: dict(v) for r, v in rows.items()} for d, rows in e.published.items()},
            }
            for e in found
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    for e in found:
        click.echo(f"{e.name:15}{e.place}: {e.title}")
    click.echo("Run one: ctta reproduce NAME, or all of them: ctta reproduce all")


def _folder(store: Path) -> Path:
    """Folder of the tables, beside the store."""
    return store.with_suffix(".tables")


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(text: str) -> tuple[int, ...]:
    parts = _words(text)
    if not parts or not all(part.isdigit() for part in parts):
        raise click.BadParameter(f"expected whole numbers separated by commas, got {text!r}", param_hint="--seeds")
    return tuple(dict.fromkeys(int(part) for part in parts))
