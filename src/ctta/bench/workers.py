"""What a worker does with the cells of a plan, wherever it runs, and what is told of it.

The store is the truth: workers claim from it, it refuses what another one has, and whatever dies leaves it whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

from ctta._cost.allocator import keep_freed_memory
from ctta.bench.cell import Cell, Task
from ctta.bench.evaluation import BatchRow
from ctta.bench.runner import adapter_of, in_threads, rows_of, run_claimed
from ctta.bench.store import Standing, Store
from ctta.errors import CttaError, StoreError

POLL_SECONDS = 1.0
"""Between two looks at cells that another runner has."""

Kind = Literal["begun", "row", "done", "failed", "lost", "waiting"]


@dataclass(frozen=True)
class Event:
    """One thing that happened to a task.

    begun: a worker has it. row: a batch is done. done: all its rows are in the store. failed: it ended in an error
    (`text`). lost: its worker died (`text`); `again` says whether it is tried once more. waiting: another runner
    has it.
    """

    kind: Kind
    task: Task
    row: BatchRow | None = None
    text: str = ""
    again: bool = False

    @property
    def final(self) -> bool:
        """Whether nothing more will happen to the task in this run."""
        return self.kind in ("done", "failed", "lost") and not self.again


Tell = Callable[[Event], None]
"""Called in the process that started the engine."""


class Engine(Protocol):
    """A place where cells run."""

    def run(self, tasks: Sequence[Task], tell: Tell) -> None:
        """Run what is not done yet of these tasks; returns when each is done, failed or lost.

        A failed or lost cell does not stop the others. A store that cannot be written does (StoreError). On
        KeyboardInterrupt the cells in flight are given back, so that the next run goes on at once.
        """


class Course:
    """What has become of the tasks of one run."""

    def __init__(self, tasks: Sequence[Task], store: Store, tell: Tell) -> None:
        self.open = {task.key: task for task in tasks}
        self.store, self.tell = store, tell
        self.begun: set[str] = set()
        """Keys of what our own workers have and will tell of."""
        self.since = time.time()

    def standings(self) -> dict[str, Standing]:
        """How the open tasks stand in the store."""
        return self.store.standings(self.open, self.since)

    def hear(self, event: Event) -> None:
        """Take note of an event, and pass it on."""
        key = event.task.key
        (self.begun.add if event.kind in ("begun", "row") else self.begun.discard)(key)
        if event.final:
            self.open.pop(key, None)
        self.tell(event)

    def settle(self, standings: dict[str, Standing]) -> list[Task]:
        """Say what other runners have done or have in hand; returns what is free, in the order of the plan."""
        free = []
        for key, standing in standings.items():
            task = self.open.get(key)
            if task is None or key in self.begun or standing == "ours":
                continue
            if standing == "free":
                free.append(task)
            elif standing == "taken":
                self.hear(Event("waiting", task, text="another runner has it"))
            else:
                self.hear(Event(standing, task, text=self.store.cell(key).error or ""))
        return free


def work(tasks: Sequence[Task], store: Store, tell: Tell, since: float, seconds: float, processes: int) -> None:
    """Claim cells and run them, the first that is free first, until none is."""
    keys = [task.key for task in tasks]
    while True:
        standings = store.standings(keys, since)
        task = next((task for task in tasks if standings[task.key] == "free"), None)
        if task is None:
            return
        manifest = {**task.manifest, "processes": processes}
        claim = store.claim(task.key, task.cell.name, manifest, task.batches, since)
        if claim is None:  # another worker was quicker
            continue
        tell(Event("begun", task))
        try:
            whole = run_claimed(task, claim, store, partial(_tell_row, tell, task), seconds)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - the user's model may raise anything, and other cells can run
            tell(Event("failed", task, text=f"{type(error).__name__}: {error}"))
        else:
            tell(Event("done" if whole else "waiting", task, text="" if whole else "another runner has it"))


def _tell_row(tell: Tell, task: Task, _: Cell, row: BatchRow) -> None:
    tell(Event("row", task, row))


def cell_rows(task: Task) -> dict[str, Any]:
    """Make all rows of a cell, away from any store (a Ray task); an error of ours comes back as words."""
    keep_freed_memory()
    try:
        with in_threads(task.cell.threads):
            model, stream = task.load()
            rows = list(rows_of(task.cell, model, stream, adapter_of(task.cell, model)))
    except CttaError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "rows": [row.to_dict() for row, _ in rows],
        "domains": [(row.batch, domain) for row, domain in rows if domain is not None],
    }


def longest_first(tasks: Sequence[Task]) -> list[Task]:
    """Order in which several workers end at about the same time."""
    return sorted(tasks, key=lambda task: -task.passes)
