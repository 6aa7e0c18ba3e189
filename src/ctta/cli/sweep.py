"""What `ctta bench` shows: the plan, and the sweep while it runs (`ctta run` and `ctta reproduce` too)."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from ctta._core.precision import mark
from ctta.bench.cell import Task
from ctta.bench.reading import CellRecord
from ctta.bench.store import Store
from ctta.bench.workers import Engine, Event, Tell

REFRESH = 2
"""How often a second the bars are drawn."""


def run(
    tasks: Sequence[Task], engine: Engine, path: Path, console: Console, tensorboard: Path | None = None
) -> list[str]:
    """Run tasks into a store behind live bars; returns what went wrong, a sentence a cell."""
    with Store(path) as store, contextlib.ExitStack() as stack:
        # any callable of a cell and a row that can be closed; imported when asked for
        writer = importlib.import_module("ctta.report.tensorboard").Writer(tensorboard) if tensorboard else None
        if writer is not None:
            stack.callback(writer.close)
        sweep = stack.enter_context(Sweep(tasks, store, console))
        sweep.follow(engine, lambda event: writer(event.task.cell, event.row) if writer and event.row else None)
    return [f"{called(event.task)}: {event.kind}, {event.text}" for event in sweep.problems]


@dataclass
class Standing:
    """How far one task is."""

    task: Task
    batches: int = 0
    samples: int = 0
    wrong: int = 0
    bar: TaskID | None = None
    """Its bar while it runs."""
    waits: bool = False
    ended: bool = False

    @property
    def error(self) -> str:
        """Error so far."""
        return f"error {100 * self.wrong / self.samples:.2f} %" if self.samples else ""


class Sweep:
    """Follows the events of an engine: a line a cell, and on a terminal a bar for all and for what runs."""

    def __init__(self, tasks: Sequence[Task], store: Store, console: Console) -> None:
        self.standings = {task.key: Standing(task) for task in tasks}
        self.store, self.console = store, console
        self.problems: list[Event] = []
        self.start, self.made, self.before = time.monotonic(), 0.0, 0
        columns = (BarColumn(20), TextColumn("{task.description}, {task.fields[note]}", markup=False))
        plain = not console.is_terminal
        self.bars = Progress(*columns, console=console, transient=True, refresh_per_second=REFRESH, disable=plain)
        self.whole = sum(task.passes for task in tasks)
        self.all = self.bars.add_task("", total=self.whole, note="")

    def __enter__(self) -> Sweep:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()
        self._greet()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Take the bars off the terminal while something else is written there."""
        self.bars.stop()
        try:
            yield
        finally:
            self.bars.start()

    def follow(self, engine: Engine, hear: Tell) -> None:
        """Run the tasks on an engine; `hear` is told every event after the sweep has taken note of it."""

        def tell(event: Event) -> None:
            self(event)
            hear(event)

        engine.run([standing.task for standing in self.standings.values()], tell)

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        standing = self.standings[event.task.key]
        if event.row is not None:
            self._catch_up(standing, event.row.batch)
            standing.batches += 1
            standing.samples += event.row.samples
            standing.wrong += event.row.wrong
            self.made += event.task.passes / event.task.batches
        elif event.kind == "begun":
            self._greet()
            standing.bar = self.bars.add_task(called(event.task), total=event.task.batches, note="")
        else:
            self._stopped(event, standing)
        if standing.bar is not None:
            self.bars.update(standing.bar, completed=standing.batches, note=standing.error)
        text = f"{self.ended} of {len(self.standings)} cells"
        self.bars.update(self.all, description=text, completed=self.whole - self.rest, note=self.left)

    def _stopped(self, event: Event, standing: Standing) -> None:
        """Take note of what no longer runs, for now or for good, and say so."""
        waited, standing.waits, standing.ended = standing.waits, event.kind == "waiting", event.final
        known = standing.bar is not None or waited
        if standing.bar is not None:
            self.bars.remove_task(standing.bar)
            standing.bar = None
        match event.kind:
            case "done":
                self._catch_up(standing, event.task.batches)
                self.before += not known
                text = f"{standing.error}, {self.left}" if known else ""
            case "waiting":
                text = "" if waited else "another runner has it, waiting"
            case _:
                self.problems += [event] if event.final else []
                text = f"{event.kind}, {event.text}" + (", tried once more" if event.again else "")
        if text:
            self._say(f"[{self.ended}/{len(self.standings)}] {called(event.task)}: {text}")

    def _catch_up(self, standing: Standing, batches: int) -> None:
        """Count the rows so far of a cell that goes on from a snapshot, or that another run has made."""
        if standing.batches != batches:
            rows = self.store.batches(standing.task.key)[:batches]
            standing.batches = batches
            standing.samples = sum(row.samples for row in rows)
            standing.wrong = sum(row.wrong for row in rows)

    def _greet(self) -> None:
        """Say once how much was there already."""
        if self.before:
            self._say(f"{self.before} of {len(self.standings)} cells were done before")
        self.before = 0

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @property
    def ended(self) -> int:
        """Cells to which nothing more will happen."""
        return sum(standing.ended for standing in self.standings.values())

    @property
    def rest(self) -> float:
        """Forward passes to come."""
        going = (standing for standing in self.standings.values() if not standing.ended)
        return sum(s.task.passes * (1 - s.batches / s.task.batches) for s in going)

    @property
    def left(self) -> str:
        """Time left, from the forward passes made so far."""
        if not self.rest:
            return "nothing left"
        if not self.made:
            return "time left unknown"
        return f"about {duration((time.monotonic() - self.start) * self.rest / self.made)} left"


def called(task: Task) -> str:
    """Name a cell for a person."""
    cell = task.cell
    clean = ", forgetting" if cell.clean else ""
    where = f"{cell.data} ({cell.scenario}{clean}), {cell.model}{mark(cell.precision)}"
    return f"{cell.name} on {where}, seed {cell.seed}"


def duration(seconds: float) -> str:
    """Say how long something takes.

    >>> duration(42), duration(170), duration(8000)
    ('42 s', '3 min', '2.2 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def plan_table(tasks: Sequence[Task], records: dict[str, CellRecord]) -> Table:
    """Cells with their size, estimated cost and what of them is in the store."""
    names = ("method", "model", "data", "scenario", "seed", "preset", "batches", "forward passes", "in the store")
    table = Table(*names, box=None, pad_edge=False)
    for place in (4, 6, 7):
        table.columns[place].justify = "right"
    for task in tasks:
        cell, record = task.cell, records.get(task.key)
        there: str = "no" if record is None else record.status
        if record is not None and record.status == "running":
            there = f"{record.done} of {task.batches} batches"
        model = f"{cell.model}{mark(cell.precision)}"
        words = (cell.name, model, cell.data, cell.scenario, str(cell.seed), cell.preset or "-")
        table.add_row(*map(escape, words), f"{task.batches:,}", f"{task.passes:,.0f}", there)
    return table


def plan_data(tasks: Sequence[Task], records: dict[str, CellRecord]) -> list[dict[str, Any]]:
    """The plan for a program."""
    return [
        {
            "key": task.key,
            "cell": task.cell.to_dict(),
            "batches": task.batches,
            "samples": task.samples,
            "forward_passes": task.passes,
            "status": records[task.key].status if task.key in records else "to do",
            "batches_done": records[task.key].done if task.key in records else 0,
        }
        for task in tasks
    ]
