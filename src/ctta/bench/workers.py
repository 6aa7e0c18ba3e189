"""The cells of a run: what a worker does with them, and what those who started it see of it.

The store is the truth: workers claim from it and tell nothing, it refuses what another one has, and whatever dies
leaves it whole. Who wants to know what has happened looks there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ctta.bench.cell import Task
from ctta.bench.evaluation import BatchRow
from ctta.bench.runner import Watch, run_task
from ctta.bench.store import Store
from ctta.errors import StoreError

POLL_SECONDS = 0.5
"""Between two looks at the store."""


@dataclass(frozen=True)
class Event:
    """One thing that happened to a task.

    begun: a worker has it. row: a batch is done. done: all its rows are in the store. failed: it ended in an error
    (`text`). lost: its worker died (`text`); `again` says whether it is tried once more. waiting: another runner
    has it.
    """

    kind: Literal["begun", "row", "done", "failed", "lost", "waiting"]
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
        self.store, self._tell, self.since = store, tell, time.time()
        self._begun: set[str] = set()
        self._told = store.progress()

    def looks(self) -> Iterator[list[Task]]:
        """Look again and again until there is nothing left to wait for."""
        while True:
            free = self.look()
            if not self.open:
                return
            yield free

    def look(self) -> list[Task]:
        """Tell what has happened since the last look; returns what is free, in the order of the plan."""
        free, rows = [], self.store.progress()  # a cell may be claimed between this and the next line
        for key, standing in self.store.standings(self.open, self.since).items():
            task = self.open[key]
            if standing in ("ours", "done"):
                self._follow(task, rows.get(key, 0), running=standing == "ours")
            match standing:
                case "free":
                    self._begun.discard(key)
                    free.append(task)
                case "taken":
                    self._begun.discard(key)
                    self._tell(Event("waiting", task, text="another runner has it"))
                case "done" | "failed":
                    self.end(Event(standing, task, text=self.store.cell(key).error or ""))
        return free

    def _follow(self, task: Task, rows: int, *, running: bool) -> None:
        """Tell of the rows that are new: a cell that went back to its snapshot has some of them again."""
        new = self.store.batches(task.key, min(self._told.get(task.key, 0), rows))
        if new or running:
            self.begin(task)
        for row in new:
            self.row(task, row)

    def begin(self, task: Task) -> None:
        """Tell that a worker has a cell."""
        if task.key not in self._begun:
            self._begun.add(task.key)
            self._tell(Event("begun", task))

    def row(self, task: Task, row: BatchRow) -> None:
        """Tell of a batch."""
        self._told[task.key] = row.batch + 1
        self._tell(Event("row", task, row))

    def end(self, event: Event) -> None:
        """Tell that a task no longer runs."""
        self._begun.discard(event.task.key)
        if event.final:
            del self.open[event.task.key]
        self._tell(event)


def attempt(
    task: Task, store: Store, since: float, seconds: float, processes: int, watch: Watch | None = None
) -> None:
    """Run a cell if it is still free. Its own errors are left in the store; those of the store are raised."""
    try:
        run_task(task, store, watch=watch, snapshot_seconds=seconds, processes=processes, since=since)
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's model may raise anything, and other cells can run
        if task.key in store.mine():  # it could not be noted before
            store.fail(task.key, f"{type(error).__name__}: {error}")


def work(tasks: Sequence[Task], store: Store, *, since: float, seconds: float, processes: int) -> None:
    """Claim cells and run them, the first that is free first, until none is."""
    try:
        while True:
            standings = store.standings([task.key for task in tasks], since)
            free = [task for task in tasks if standings[task.key] == "free"]
            if not free:
                return
            attempt(free[0], store, since, seconds, processes)
    finally:
        with contextlib.suppress(StoreError):
            store.give_back()


def longest_first(tasks: Sequence[Task]) -> list[Task]:
    """Order in which several workers end at about the same time."""
    return sorted(tasks, key=lambda task: -task.passes)
