"""What `ctta bench` shows: the plan, the sweep while it runs (`ctta reproduce` too), and the tables at its end."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ctta._core.precision import mark
from ctta.bench.cell import Task
from ctta.bench.reading import CellRecord
from ctta.bench.store import Store
from ctta.bench.workers import Engine, Event, Tell

REFRESH = 2
"""How often a second the live table is drawn."""


def run(
    tasks: Sequence[Task], engine: Engine, path: Path, console: Console, tensorboard: Path | None = None
) -> list[str]:
    """Run tasks into a store behind a live table; returns what went wrong, a sentence a cell."""
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Store(path))
        # any callable of a cell and a row that can be closed; imported when asked for
        writer = importlib.import_module("ctta.report.tensorboard").Writer(tensorboard) if tensorboard else None
        if writer is not None:
            stack.callback(writer.close)
        sweep = stack.enter_context(Sweep(tasks, store, console))

        def hear(event: Event) -> None:
            if writer is not None and event.row is not None:
                writer(event.task.cell, event.row)

        sweep.follow(engine, hear)
    return [f"{called(event.task)}: {event.kind}, {event.text}" for event in sweep.problems]


class Standing:
    """How far one task is: batches done and the running error."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.state = "to do"
        self.batches = self.samples = self.wrong = 0

    @property
    def error(self) -> float | None:
        """Error so far in %."""
        return 100 * self.wrong / self.samples if self.samples else None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it in this run."""
        return self.state in ("done", "failed", "lost")


class Sweep:
    """Follows the events of an engine: a live table on a terminal, a line a cell elsewhere."""

    def __init__(self, tasks: Sequence[Task], store: Store, console: Console) -> None:
        self.standings = {task.key: Standing(task) for task in tasks}
        self.store, self.console = store, console
        self.problems: list[Event] = []
        self.start = time.monotonic()
        self.made = 0.0
        self.ended = self.before = 0
        self.live: Live | None = None

    def __enter__(self) -> Sweep:
        self._show()
        return self

    def __exit__(self, *_: object) -> None:
        self._hide()
        self._greet()

    def _show(self) -> None:
        if self.console.is_terminal:
            self.live = Live(
                console=self.console, get_renderable=self.render, transient=True, refresh_per_second=REFRESH
            )
            self.live.start()

    def _hide(self) -> None:
        if self.live:
            self.live.stop()
        self.live = None

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Take the live table off the terminal while something else is written there."""
        self._hide()
        try:
            yield
        finally:
            self._show()

    def follow(self, engine: Engine, hear: Tell) -> None:
        """Run the tasks on an engine; `hear` is told every event after the table has taken note of it."""

        def tell(event: Event) -> None:
            self(event)
            hear(event)

        engine.run([standing.task for standing in self.standings.values()], tell)

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        standing = self.standings[event.task.key]
        before = standing.state
        if event.row is not None:
            if standing.batches != event.row.batch:  # it goes on from a snapshot
                self._catch_up(standing, event.row.batch)
            standing.batches += 1
            standing.samples += event.row.samples
            standing.wrong += event.row.wrong
            self.made += event.task.passes / event.task.batches
            return
        standing.state = {"begun": "running", "waiting": "elsewhere"}.get(event.kind, event.kind)
        if event.kind == "lost" and event.again:
            standing.state = "to do"
        if event.kind == "done" and standing.batches != event.task.batches:  # it was done before
            self._catch_up(standing, event.task.batches)
        if event.final and event.kind != "done":
            self.problems.append(event)
        self.ended += standing.ended
        if event.kind == "done" and before == "to do":
            self.before += 1
        elif event.kind == "begun":
            self._greet()
        elif before != standing.state:
            self._line(event, standing)

    def _greet(self) -> None:
        """Say once how much was there already."""
        if self.before:
            self._say(f"{self.before} of {len(self.standings)} cells were done before")
        self.before = 0

    def _catch_up(self, standing: Standing, batches: int) -> None:
        rows = self.store.batches(standing.task.key)[:batches]
        standing.batches = batches
        standing.samples = sum(row.samples for row in rows)
        standing.wrong = sum(row.wrong for row in rows)

    def _line(self, event: Event, standing: Standing) -> None:
        name = f"[{self.ended}/{len(self.standings)}] {called(event.task)}"
        if event.kind == "done":
            if not self.console.is_terminal:
                self._say(f"{name}: error {standing.error:.2f} %, {self.left}")
        elif event.kind == "waiting":
            self._say(f"{name}: another runner has it, waiting")
        else:
            after = ", tried once more" if event.again else ""
            self._say(f"{name}: {event.kind}, {event.text}{after}")

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @property
    def left(self) -> str:
        """Time left, from the forward passes made so far."""
        rest = sum(
            s.task.passes * (1 - s.batches / s.task.batches) for s in self.standings.values() if not s.ended
        )
        if not rest:
            return "nothing left"
        if not self.made:
            return "time left unknown"
        return f"about {duration((time.monotonic() - self.start) * rest / self.made)} left"

    def render(self) -> Group:
        """The live table: a line for every method, model and scenario; seeds together."""
        groups: dict[str, list[Standing]] = {}
        for standing in self.standings.values():
            groups.setdefault(called(standing.task, seed=False), []).append(standing)
        shown = self._fitting(groups)
        table = Table(box=None, pad_edge=False)
        for column in ("", "cells", "progress", "error (%)", "state"):
            table.add_column(column, justify="left" if column in ("", "progress", "state") else "right")
        for name, group in shown.items():
            errors = [standing.error for standing in group if standing.error is not None]
            states = {standing.state: None for standing in group}
            table.add_row(
                escape(name),
                f"{sum(s.state == 'done' for s in group)}/{len(group)}",
                ProgressBar(sum(s.task.batches for s in group), sum(s.batches for s in group), width=20),
                f"{sum(errors) / len(errors):.1f}" if errors else "",
                ", ".join(states),
            )
        more = f", {len(groups) - len(shown)} lines not shown" if len(shown) < len(groups) else ""
        return Group(table, Text(f"{self.ended} of {len(self.standings)} cells, {self.left}{more}"))

    def _fitting(self, groups: dict[str, list[Standing]]) -> dict[str, list[Standing]]:
        """Lines a terminal has room for: what runs, then what is to come, then what has ended."""
        room = max(1, self.console.height - 3)
        if len(groups) <= room:
            return groups

        def rank(name: str) -> int:
            states = {standing.state for standing in groups[name]}
            return 0 if "running" in states else 1 if states & {"to do", "elsewhere"} else 2

        chosen = set(sorted(groups, key=rank)[:room])
        return {name: group for name, group in groups.items() if name in chosen}


def called(task: Task, *, seed: bool = True) -> str:
    """Name a cell for a person."""
    cell = task.cell
    clean = ", forgetting" if cell.clean else ""
    text = f"{cell.name} on {cell.data} ({cell.scenario}{clean}), {cell.model}{mark(cell.precision)}"
    return f"{text}, seed {cell.seed}" if seed else text


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
    table = Table(box=None, pad_edge=False)
    names = ("method", "model", "data", "scenario", "seed", "preset", "batches", "forward passes", "in the store")
    for name in names:
        table.add_column(name, justify="right" if name in ("seed", "batches", "forward passes") else "left")
    for task in tasks:
        cell = task.cell
        model = f"{cell.model}{mark(cell.precision)}"
        words = (cell.name, model, cell.data, cell.scenario, str(cell.seed), cell.preset or "-")
        table.add_row(
            *map(escape, words), f"{task.batches:,}", f"{task.passes:,.0f}", standing(task, records.get(task.key))
        )
    return table


def standing(task: Task, record: CellRecord | None) -> str:
    """What of a task is in the store, in words."""
    if record is None:
        return "no"
    if record.status == "running":
        return f"{record.done} of {task.batches} batches"
    return record.status


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
