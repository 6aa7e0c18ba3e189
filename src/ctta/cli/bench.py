"""`ctta bench`: any grid of methods, models, streams and seeds, into a store that survives."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ctta._core.precision import PRECISIONS
from ctta.cli.engine import Where, engine_options, stoppable
from ctta.streams import SCENARIOS

PATH = click.Path(path_type=Path)
COUNT = click.IntRange(min=1)


@click.command("bench")
@click.argument("grid", required=False, type=PATH)
@click.option("--dataset", help="embedded, cifar10-c, ..., or a folder of images by class. [default: embedded]")
@click.option("--model", help="embedded:, timm:NAME, ARCH with --weights, FILE.py:FUNCTION. [default: embedded:]")
@click.option("--weights", type=PATH, help="Weight file of an architecture.")
@click.option("--methods", help="Methods. [default: source,bn1,tent,palm]")
@click.option("--preset", help="Settings of all of them [default: those of the dataset]; none: their defaults.")
@click.option("--scenario", help=f"Streams: {', '.join(SCENARIOS)}. [default: continual]")
@click.option("--setting", hidden=True)  # refused with the word it has now
@click.option("--seeds", help="Seeds: numbers and ranges, as in 0,1,2 or 0-4. [default: 0]")
@click.option("--images", type=COUNT, help="Images per domain. [default: all]")
@click.option("--batch-size", type=COUNT, help="Images per batch. [default: 200]")
@click.option("--severity", type=click.IntRange(1, 5), help="Of scenarios with one. [default: 5]")
@click.option("--corruptions", help="Corruptions. [default: the fifteen]")
@click.option("--set", multiple=True, metavar="METHOD.NAME=VALUE", help="One setting, or values to sweep.")
@click.option("--stream", multiple=True, metavar="NAME=VALUE", help="Option of a stream, as passes=3; repeatable.")
@click.option("--clean", type=click.IntRange(min=0), help="Clean images to measure forgetting on. [default: 0]")
@click.option("--precision", type=click.Choice(PRECISIONS), help="bf16: under bfloat16 autocast. [default: full]")
@click.option("--import", multiple=True, type=PATH, help="FILE.py with a method.")
@click.option("--store", type=PATH, default=Path("bench.db"), show_default=True, help="Results, SQLite.")
@engine_options
@click.option("--tensorboard", type=PATH, help="Folder for TensorBoard.")
@click.option("--export", type=PATH, help="Write the rows to FILE.csv, .jsonl or .parquet.")
@click.option("--dry-run", is_flag=True, help="Print the plan, its cost in forward passes and what is done.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read.")
def command(
    grid: Path | None,
    store: Path,
    where: Where,
    tensorboard: Path | None,
    export: Path | None,
    dry_run: bool,
    as_json: bool,
    **words: Any,
) -> None:
    """Run a grid of methods, models, streams and seeds; lists are separated by commas.

    The grid comes from the options, or from one YAML file with the same words as keys (options given beside it
    replace them). All rows go into the store: the same command again continues, and what is done is not run
    again. With --export and no grid, the rows of the whole store are written and nothing is run.

    Exits with 1 if a cell failed or was lost, with 130 after Ctrl-C.

    Example: ctta bench --dataset embedded --methods source,tent,palm --seeds 0-2 --images 200
    """
    from ctta.bench.export import writer_of
    from ctta.bench.plan import from_words, from_yaml, tasks
    from ctta.cli.sweep import run

    if export:
        writer_of(export)  # refused now rather than after a night
    given = {name: value for name, value in words.items() if value not in (None, ())}
    if export and not given and grid is None:
        _export(store, export, None)
        return
    plan = tasks(from_yaml(grid, where.each, **given) if grid else from_words(given, "`ctta bench`", where.each))
    if dry_run:
        _show_plan(plan, store, as_json)
        return
    console = Console(stderr=True)
    with stoppable(console):
        problems = run(plan, where.filling(store), store, console, tensorboard)
    _show_results(plan, store, as_json, problems)
    if export:
        _export(store, export, [task.key for task in plan])
    if problems:
        console.print(f"{len(problems)} of {len(plan)} cells did not finish; the same command tries them again")
        raise SystemExit(1)


def _show_plan(plan: Sequence[Any], path: Path, as_json: bool) -> None:
    from ctta.bench.store import Store
    from ctta.cli.sweep import plan_data, plan_table

    records = {}
    if path.is_file():
        with Store(path, read_only=True) as store:
            records = {record.key: record for record in store.cells()}
    done = {key for key, record in records.items() if record.status == "done"} & {task.key for task in plan}
    total = sum(task.passes for task in plan)
    left = sum(task.passes for task in plan if task.key not in done)
    if as_json:
        facts = {"cells": len(plan), "done": len(done), "forward_passes": total, "forward_passes_left": left}
        click.echo(json.dumps({**facts, "store": str(path), "plan": plan_data(plan, records)}, indent=2))
        return
    # as wide as it needs to be where nobody looks: a plan is also read by grep
    console = Console() if Console().is_terminal else Console(width=200)
    console.print(plan_table(plan, records))
    counts = f"{len(plan)} cells, {len(done)} of them done in {path}"
    cost = f"about {total:,.0f} forward passes of a batch, {left:,.0f} of them to come"
    console.print(f"\n{counts}; {cost}", highlight=False, soft_wrap=True)


def _show_results(plan: Sequence[Any], path: Path, as_json: bool, problems: list[str]) -> None:
    from ctta.bench.results import read_run, results_of
    from ctta.bench.store import Store
    from ctta.report.comparison import side_by_side

    with Store(path, read_only=True) as store:
        records = {record.key: record for record in store.cells("done")}
        results = results_of(read_run(store, records[task.key]) for task in plan if task.key in records)
    if as_json:
        facts = {"store": str(path), "images": plan[0].cell.images if plan else None, "problems": problems}
        click.echo(json.dumps({**facts, "lines": [result.to_dict() for result in results]}, indent=2))
        return
    for _, group in itertools.groupby(results, lambda result: result.first.ground):
        same = list(group)
        side_by_side(same, same[0].first.place, digits=2).show(Console())
    click.echo(f"rows and manifests in {path}", err=True)


def _export(path: Path, target: Path, keys: Sequence[str] | None) -> None:
    from ctta.bench.export import export
    from ctta.bench.store import Store

    with Store(path, read_only=True) as store:
        there = store.progress()
        count = export(store, target, there if keys is None else [key for key in keys if key in there])
    click.echo(f"{count:,} rows in {target}", err=True)
