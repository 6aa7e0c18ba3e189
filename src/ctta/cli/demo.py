"""`ctta demo`: train a small model, shift its world, and compare the methods."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable

import click
from rich.console import Console
from rich.table import Table

from ctta.cli.progress import step_bar
from ctta.demo import METHODS, SHIFTS, Row, compare, train_source

TRAINING_STEPS = 250


@click.command("demo")
@click.option("--batches", default=8, show_default=True, type=click.IntRange(min=1), help="Batches per shift.")
@click.option("--seed", default=0, show_default=True, help="Seed of the data and the weights.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read.")
def command(batches: int, seed: int, as_json: bool) -> None:
    """Train a small network on synthetic gratings, then compare methods on six shifts in a row.

    Nothing is downloaded. The data are synthetic: the numbers say that the pieces work together, not how good
    a method is on photographs.

    Example: ctta demo --batches 4
    """
    console = Console(stderr=True)
    rows: list[Row] = []
    with step_bar(console) as progress:
        training = progress.add_task("training the source model", total=TRAINING_STEPS)
        *_, model = progress.track(train_source(seed, TRAINING_STEPS), task_id=training)
        adapting = progress.add_task("adapting", total=batches * len(SHIFTS))
        for row in compare(model, batches=batches, seed=seed + 1):
            rows.append(row)
            progress.update(adapting, advance=1, description=f"adapting to {row.shift}")
    result = summarise(rows)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        show(Console(), result)


def summarise(rows: Iterable[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean error (%) of each method on each shift and overall, time relative to Source, adapted share (%)."""
    wrong: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(METHODS, 0))
    seen: dict[str, int] = defaultdict(int)
    seconds = dict.fromkeys(METHODS, 0.0)
    shares = dict.fromkeys(METHODS, 0.0)
    count = 0
    for row in rows:
        count += 1
        seen[row.shift] += row.samples
        for name in METHODS:
            wrong[row.shift][name] += row.wrong[name]
            seconds[name] += row.seconds[name]
            shares[name] += row.shares[name]
    errors = {shift: {m: 100 * wrong[shift][m] / seen[shift] for m in METHODS} for shift in seen}
    mean = {m: sum(errors[shift][m] for shift in errors) / len(errors) for m in METHODS}
    return {
        "error": {**errors, "mean": mean},
        "cost": {"passes": {m: seconds[m] / seconds["source"] for m in METHODS}},
        "adapted": {"share": {m: 100 * shares[m] / count for m in METHODS}},
    }


def show(console: Console, result: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print the table."""
    table = Table(title="Error (%) on a stream of six shifts, no reset (synthetic data)", title_justify="left")
    table.add_column("shift")
    for name in METHODS:
        table.add_column(name, justify="right")
    for shift, errors in result["error"].items():
        if shift == "mean":
            table.add_section()
        table.add_row(shift, *(f"{errors[name]:.1f}" for name in METHODS))
    passes = result["cost"]["passes"]
    table.add_row("time (Source = 1)", *(f"{passes[name]:.1f}" for name in METHODS))
    console.print(table)
    share = result["adapted"]["share"]["palm"]
    console.print(f"PALM selected {share:.1f} % of the adaptable parameters per batch.", highlight=False)
