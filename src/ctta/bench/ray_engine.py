"""Cells as tasks of a Ray cluster.

Workers are stateless: a task makes all rows of one cell and returns them. The driver alone writes the store, which
therefore stays on its disk. Ray runs the task of a lost worker again; after a lost driver the same command goes on
with the cells that were not in flight. Every node needs ctta, and own model files under the same path.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ctta._cost.allocator import keep_freed_memory
from ctta.bench.cell import Cell, prepare
from ctta.bench.engine import POLL_SECONDS, Event, Tell, longest_first
from ctta.bench.evaluation import BatchRow
from ctta.bench.owners import LEASE
from ctta.bench.plan import Task
from ctta.bench.runner import rows_of
from ctta.bench.store import Store, TakenOverError
from ctta.errors import CttaError, DataError, StoreError

RETRIES = 3
"""How often Ray runs a task again whose worker died."""


class Ray:
    """Tasks on a cluster at `address`, or on this machine when there is none."""

    def __init__(
        self,
        store: Path,
        *,
        processes: int | None = None,
        threads: int | None = None,
        address: str | None = None,
    ) -> None:
        self.store, self.processes, self.threads, self.address = store, processes, threads or 1, address

    def run(self, tasks: Sequence[Task], tell: Tell) -> None:
        """Run what is not done yet of these tasks."""
        ray = _package()
        ours = not ray.is_initialized()
        # Ray speaks of dead workers on stdout, which may be read by a program
        with contextlib.redirect_stdout(sys.stderr):
            if ours:
                self._connect(ray)
            try:
                with Store(self.store) as store:
                    _Driver(ray, store, self.threads, self._slots(ray), tell).run(tasks)
            finally:
                if ours:
                    ray.shutdown()

    def _connect(self, ray: Any) -> None:
        # Ray says on stderr what our own lines and errors say better
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.address:
            options["address"] = self.address
        else:
            options |= {"address": "local", "include_dashboard": False}  # not what an old run left behind
            if self.processes:
                options["num_cpus"] = self.processes * self.threads
        try:
            ray.init(**options)
        except Exception as error:
            where = f"at {self.address}" if self.address else "on this machine"
            raise CttaError(
                f"Could not reach or start Ray {where}: {error}. Check the address, and that this machine has the "
                "cluster's token where it asks for one (RAY_AUTH_MODE of Ray)."
            ) from error

    def _slots(self, ray: Any) -> int:
        slots = max(1, int(ray.cluster_resources().get("CPU", 1) // self.threads))
        return min(slots, self.processes) if self.processes else slots


class _Driver:
    """Hands out cells, takes their rows, writes the store."""

    def __init__(self, ray: Any, store: Store, threads: int, slots: int, tell: Tell) -> None:
        self.ray, self.store, self.threads, self.slots, self.tell = ray, store, threads, slots, tell
        self.remote = ray.remote(num_cpus=threads, max_retries=RETRIES)(cell_rows)
        self.flight: dict[Any, Task] = {}
        self.beaten = time.monotonic()

    def run(self, tasks: Sequence[Task]) -> None:
        todo, later = deque(longest_first(tasks)), list[Task]()
        try:
            while todo or later or self.flight:
                while todo and len(self.flight) < self.slots:
                    task = todo.popleft()
                    if not self._begin(task):
                        later.append(task)
                if self.flight:
                    ended, _ = self.ray.wait(list(self.flight), num_returns=1, timeout=POLL_SECONDS)
                    for reference in ended:
                        self._end(reference)
                elif later:
                    time.sleep(POLL_SECONDS)
                if not todo:
                    todo, later = deque(later), []
                self._beat()
        except BaseException:
            self._give_back()
            raise

    def _begin(self, task: Task) -> bool:
        """Claim a cell and send it off; False if another runner has it."""
        ready = prepare(task.cell)
        manifest = {**ready.manifest, "processes": self.slots}
        claim = self.store.claim(ready.key, task.cell.name, manifest, len(ready.stream))
        if claim is None:
            done = self.store.cell(ready.key).status == "done"
            self.tell(Event("done" if done else "waiting", task, text="" if done else "another runner has it"))
            return done
        if claim.start:  # a task makes all rows: the snapshot of another engine is of no use to it
            self.store.rewind(ready.key)
        self.flight[self.remote.remote(anywhere(task.cell).to_dict(), self.threads)] = task
        self.tell(Event("begun", task))
        return True

    def _end(self, reference: Any) -> None:
        task = self.flight[reference]
        try:
            result = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            cause = getattr(error, "cause", error)
            result = {"error": f"{type(cause).__name__}: {cause}"}
        except self.ray.exceptions.RayError as error:
            del self.flight[reference]
            with contextlib.suppress(TakenOverError):
                self.store.release(task.key)
            self.tell(Event("lost", task, text=f"its worker died {RETRIES + 1} times ({type(error).__name__})"))
            return
        problem = result.get("error")
        if not problem and result["key"] != task.key:
            problem = (
                "StateError: the worker has other code, weights or data than the driver; its rows are refused."
            )
        rows = [] if problem else [BatchRow.from_dict(row) for row in result["rows"]]
        try:
            if problem:
                self.store.fail(task.key, problem)
            else:
                self.store.append(task.key, rows, result["domains"])
                self.store.finish(task.key)
        except TakenOverError as error:
            problem = str(error)
        del self.flight[reference]
        if problem:
            self.tell(Event("failed", task, text=problem))
            return
        for row in rows:
            self.tell(Event("row", task, row))
        self.tell(Event("done", task))

    def _beat(self) -> None:
        if time.monotonic() - self.beaten > LEASE / 4:
            self.store.beat(task.key for task in self.flight.values())
            self.beaten = time.monotonic()

    def _give_back(self) -> None:
        for reference, task in self.flight.items():
            self.ray.cancel(reference, force=True)
            with contextlib.suppress(StoreError):
                self.store.release(task.key)


def cell_rows(cell: dict[str, Any], threads: int) -> dict[str, Any]:
    """Make all rows of a cell, away from any store (a Ray task); an error of ours comes back as words."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    try:
        ready = prepare(Cell.from_dict(cell))
        rows = list(rows_of(ready, ready.adapter()))
    except CttaError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "key": ready.key,
        "rows": [row.to_dict() for row, _ in rows],
        "domains": [(row.batch, domain) for row, domain in rows if domain is not None],
    }


def anywhere(cell: Cell) -> Cell:
    """Return the cell with full paths: workers do not start in the driver's folder."""
    file, colon, function = cell.model.rpartition(":")
    return dataclasses.replace(
        cell,
        model=f"{Path(file).absolute()}:{function}" if colon and file.endswith(".py") else cell.model,
        weights=str(Path(cell.weights).absolute()) if cell.weights else None,
        data=str(Path(cell.data).absolute()) if Path(cell.data).is_dir() else cell.data,
        imports=tuple(str(Path(name).absolute()) for name in cell.imports),
    )


def _package() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise DataError('`--engine ray` needs the package ray: pip install "ctta[ray]"') from error
