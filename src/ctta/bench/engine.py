"""What every engine offers: run tasks into a store, and tell what happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ctta.bench.evaluation import BatchRow
from ctta.bench.plan import Task

RETRIES = 1
"""How often a cell whose worker died is tried again in the same run; it goes on from its last snapshot."""
POLL_SECONDS = 1.0
"""Between two looks at cells that another runner has."""


@dataclass(frozen=True)
class Event:
    """One thing that happened to a task.

    begun: it was given to a worker. row: a batch is done. done: all its rows are in the store. failed: it ended in
    an error (`text`). lost: its worker died (`text`); `again` says whether it is tried once more. waiting: another
    runner has it.
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


def longest_first(tasks: Sequence[Task]) -> list[Task]:
    """Order in which several workers end at about the same time."""
    return sorted(tasks, key=lambda task: -task.passes)


class Engine(Protocol):
    """A place where cells run."""

    def run(self, tasks: Sequence[Task], tell: Tell) -> None:
        """Run what is not done yet of these tasks; returns when each is done, failed or lost.

        A failed or lost cell does not stop the others. A store that cannot be written does (StoreError). On
        KeyboardInterrupt the cells in flight are given back, so that the next run goes on at once.
        """
