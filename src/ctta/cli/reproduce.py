"""`ctta reproduce`: every table and figure of the paper, ours beside the published numbers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape

from ctta._core.files import write
from ctta._core.precision import PRECISIONS
from ctta.cli.engine import Where, engine_options, stoppable

if TYPE_CHECKING:
    from ctta.bench.experiments import Options
    from ctta.bench.reproduction import Reproduction, Work
    from ctta.bench.workers import Event

INCOMPLETE = 3  # exit code where something could not run for want of weights or data
FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("reproduce")
@click.argument("names", nargs=-1, metavar="EXPERIMENT...")
@click.option("--list", "show_list", is_flag=True, help="List the experiments.")
@click.option("--dataset", help="One of the paper's datasets, or embedded (default: all of the experiment's).")
@click.option("--model", help="A model instead of the paper's, as in ctta run; embedded: brings its own images.")
@click.option("--weights", type=click.Path(path_type=Path), help="Weight file of --model.")
@click.option("--images", type=click.IntRange(min=1), help="Images per domain: a slice, labelled as one.")
@click.option("--corruptions", help="Some corruptions, separated by commas: labelled too.")
@click.option("--only", help="Some rows of the table by their labels, separated by commas.")
@click.option("--batch-size", type=click.IntRange(min=1), help="Images per batch (default: the paper's).")
@click.option("--preset", help="Settings of the methods that have this preset: labelled too.")
@click.option("--precision", type=click.Choice(PRECISIONS), help="bf16: under bfloat16 autocast, labelled too.")
@click.option("--seeds", default="0", show_default=True, help="Seeds: numbers and ranges, as in 0,1,2 or 0-4.")
@click.option("--store", type=FILE, default="runs/reproduce.sqlite", show_default=True, help="Results, SQLite.")
@engine_options
@click.option("--report", type=FILE, help="Write the page of `ctta report` at the end.")
@click.option("--rows", type=click.Path(file_okay=False, path_type=Path), help="Folder to keep the rows in.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read.")
def command(
    names: tuple[str, ...],
    show_list: bool,
    store: Path,
    where: Where,
    report: Path | None,
    rows: Path | None,
    as_json: bool,
    **words: Any,
) -> None:
    """Run experiments (or `all` of the paper) and print ours, the paper's numbers and the difference.

    All cells of all experiments are run together, those they share once. Finished ones are never run again,
    killed ones go on. The tables of an experiment are printed as soon as it is complete, and saved as Markdown,
    LaTeX and CSV beside the store. What needs weights or data that are not there is listed with the command that
    gets them. Exit codes: 0 all ran, 1 an error, 3 something could not run, 130 after Ctrl-C.

    Example: ctta reproduce table1 --dataset embedded --images 200
    """
    from ctta.bench.experiments import BEYOND, NAMES, experiment
    from ctta.bench.reproduction import Work

    if show_list:
        _list(as_json)
        return
    if not names:
        raise click.UsageError(f"Name an experiment: {', '.join((*NAMES, *BEYOND))}, or all.")
    if words["weights"] and not words["model"]:
        raise click.UsageError("--weights are those of --model: name one.")
    if report and report.resolve() == store.resolve():
        raise click.UsageError("--report would be written over the store: name another file.")
    wanted = [inner for name in names for inner in (NAMES if name == "all" else (name,))]
    chosen = [experiment(name) for name in dict.fromkeys(wanted)]
    options, console = _options(words, where.each), Console(stderr=True)
    tables = store.with_suffix(".tables")
    with stoppable(console):
        results = run(Work(chosen, options), where, store, tables, console, None if as_json else Console())
        page = _page(store, report) if report else None
        if rows:
            _keep(results, store, rows, options)
    if as_json:
        data = {"store": str(store), "report": str(page) if page else None}
        click.echo(json.dumps({**data, "experiments": [result.to_dict() for result in results]}, indent=2))
    else:
        where_to = f"tables in {tables}" + (f", page in {page}" if page else "")
        Console().print(escape(where_to), highlight=False, soft_wrap=True)
    missing = [item for result in results for item in result.not_run]
    if missing:
        raise SystemExit(1 if any(item.failed for item in missing) else INCOMPLETE)


def _options(words: dict[str, Any], threads: int) -> Options:
    """How to run the experiments, from the words of the command line."""
    from ctta.bench.experiments import Options
    from ctta.bench.plan import read_words

    lists = read_words({name: words[name] for name in ("seeds", "corruptions")}, owner="`ctta reproduce`")
    only, weights, corruptions = words["only"], words["weights"], lists.get("corruptions")
    return Options(
        **{name: words[name] for name in ("dataset", "model", "images", "batch_size", "preset")},
        weights=str(weights) if weights else None,
        precision=words["precision"] or "full",
        corruptions=tuple(corruptions) if corruptions else None,
        threads=threads,
        seeds=tuple(lists["seeds"]),
        only=tuple(label.strip() for label in only.split(",")) if only else None,
    )


def run(
    work: Work, where: Where, path: Path, folder: Path, console: Console, out: Console | None
) -> list[Reproduction]:
    """Run all cells behind a live table; what is complete is saved in a folder at once, and shown on `out`."""
    from ctta.bench.store import Store
    from ctta.cli.sweep import Sweep

    results: dict[str, Reproduction] = {}
    with Store(path) as store, Sweep(work.tasks, store, console) as sweep:

        def complete(names: Iterable[str]) -> None:
            for name in names:
                results[name] = work.reproduction(name, store)
                _save(results[name], folder, work.options)
                if out:
                    with sweep.aside():
                        for table in results[name].tables:
                            table.show(out)

        def hear(event: Event) -> None:
            if event.final:
                problem = "" if event.kind == "done" else f"{event.kind}: {event.text}"
                complete(work.ended(event.task.key, problem))

        complete(name for name in work.experiments if not work.waiting(name))
        if work.tasks:
            sweep.follow(where.filling(path), hear)
    return [results[name] for name in work.experiments]


def _save(result: Reproduction, folder: Path, options: Options) -> None:
    """Write EXPERIMENT.md and .tex, and a CSV file a table; a tag keeps slices and substitutes apart."""
    name = options.file(result.experiment.name)
    page = "\n".join([f"## {result.title}", "", *(one.markdown() for one in result.tables)])
    texts = {f"{name}.md": page, f"{name}.tex": "\n".join(one.latex() for one in result.tables)}
    for file, text in (texts | {f"{options.file(one.name)}.csv": one.csv() for one in result.tables}).items():
        write(folder / file, text.encode())


def _page(path: Path, target: Path) -> Path | None:
    """Write the page of a store, unless nothing in it is finished."""
    from ctta.bench.store import Store
    from ctta.report.page import write_page

    with Store(path, read_only=True) as store:
        if store.cells("done"):
            return write_page(store, target)
    click.echo(f"{target} is not written: no cell is finished", err=True)
    return None


def _keep(results: Iterable[Reproduction], path: Path, folder: Path, options: Options) -> None:
    """Write EXPERIMENT.TAG.jsonl for every experiment of which something ran, with the command that made it."""
    from ctta.bench import archive
    from ctta.bench.store import Store

    said = click.get_current_context().params
    given = (
        "dataset",
        "model",
        "weights",
        "images",
        "corruptions",
        "only",
        "batch_size",
        "preset",
        "precision",
        "seeds",
    )
    words = [
        f"--{name.replace('_', '-')} {shlex.quote(str(said[name]))}"
        for name in given
        if said[name] and said[name] != "full"  # goes without saying
    ]
    with Store(path, read_only=True) as store:
        for result in results:
            if result.runs:
                command = " ".join(["ctta reproduce", result.experiment.name, *words])
                archive.write(folder / f"{options.file(result.experiment.name)}.jsonl", result, store, command)


def _list(as_json: bool) -> None:
    from ctta.bench.experiments import BEYOND, NAMES, experiment

    found = [experiment(name) for name in (*NAMES, *BEYOND)]
    if as_json:
        facts = ("name", "place", "title", "published")
        rows = [{name: getattr(e, name) for name in facts} for e in found]
        for row, e in zip(rows, found, strict=True):
            row |= {"datasets": list(e.datasets), "rows": [line.label for line in e.rows]}
        click.echo(json.dumps(rows, indent=2))
        return
    for e in found:
        click.echo(f"{e.name:15}{e.place}: {e.title}")
    click.echo("Run one: ctta reproduce NAME, or all of the paper: ctta reproduce all")
