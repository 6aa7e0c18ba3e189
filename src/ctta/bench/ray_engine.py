"""Cells as tasks of a Ray cluster.

Workers are stateless: a task makes all rows of one cell and returns them. The driver alone claims cells and
writes the store, which therefore stays on its disk. Ray runs the task of a lost worker again; after a lost driver
the same command goes on with the cells that were not in flight. Every node needs ctta, and own files alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ctta._cost.allocator import keep_freed_memory
from ctta.bench import workers
from ctta.bench.cell import Cell, Task
from ctta.bench.evaluation import BatchRow
from ctta.bench.owners import LEASE
from ctta.bench.runner import adapter_of, in_threads, rows_of
from ctta.bench.store import Store, TakenOverError
from ctta.bench.workers import Course, Event, Tell, longest_first
from ctta.errors import CttaError, DataError, StoreError

RETRIES = 3
"""How often Ray runs a task again whose worker died."""


class Ray:
    """Tasks on a cluster at `address`, or on this machine when there is none."""

    def __init__(self, store: Path, *, processes: int | None = None, address: str | None = None) -> None:
        self.store, self.processes, self.address = store, processes, address

    def run(self, tasks: Sequence[Task], tell: Tell) -> None:
        """Run what is not done yet of these tasks."""
        ray = _package()
        ours = not ray.is_initialized()
        threads = max((task.cell.threads for task in tasks), default=1)
        # Ray speaks of dead workers on stdout, which may be read by a program
        with contextlib.redirect_stdout(sys.stderr):
            try:
                if ours:
                    self._connect(ray, threads)
                slots = max(1, int(ray.cluster_resources().get("CPU", 1) // threads))
                with Store(self.store) as store:
                    course = Course(longest_first(tasks), store, tell)
                    _Driver(ray, course, threads, min(slots, self.processes or slots)).run()
            finally:
                if ours:
                    ray.shutdown()

    def _connect(self, ray: Any, threads: int) -> None:
        # Ray says on stderr what our own lines and errors say better
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if not self.address:
            options |= {"include_dashboard": False, "num_cpus": self.processes and self.processes * threads}
        try:
            ray.init(address=self.address or "local", **options)  # local: not what an old run left behind
        except Exception as error:
            where = f"at {self.address}" if self.address else "on this machine"
            raise CttaError(
                f"Could not reach or start Ray {where}: {error}. Check the address, and that this machine has the "
                "cluster's token where it asks for one (RAY_AUTH_MODE of Ray)."
            ) from error


class _Driver:
    """Hands out cells, takes their rows, writes the store."""

    def __init__(self, ray: Any, course: Course, threads: int, slots: int) -> None:
        self.ray, self.course, self.store, self.slots = ray, course, course.store, slots
        self.remote = ray.remote(num_cpus=threads, max_retries=RETRIES)(cell_rows)
        self.flight: dict[Any, Task] = {}
        self.beaten = time.monotonic()

    def run(self) -> None:
        try:
            for free in self.course.looks():
                for task in free[: self.slots - len(self.flight)]:
                    self._begin(task)
                if not self.flight:
                    time.sleep(workers.POLL_SECONDS)
                    continue
                flying, seconds = list(self.flight), workers.POLL_SECONDS
                for reference in self.ray.wait(flying, num_returns=1, timeout=seconds)[0]:
                    self._end(reference)
                if time.monotonic() - self.beaten > LEASE / 4:
                    self.store.beat(task.key for task in self.flight.values())
                    self.beaten = time.monotonic()
        except BaseException:
            for reference, task in self.flight.items():
                self.ray.cancel(reference, force=True)
                with contextlib.suppress(StoreError):
                    self.store.release(task.key)
            raise

    def _begin(self, task: Task) -> None:
        """Claim a cell and send it off, unless another runner was quicker."""
        manifest = {**task.manifest, "processes": self.slots}
        claim = self.store.claim(task.key, task.cell.name, manifest, task.batches, self.course.since)
        if claim is None:
            return
        if claim.start:  # a task makes all rows: the snapshot of another engine is of no use to it
            self.store.rewind(task.key)
        self.flight[self.remote.remote(dataclasses.replace(task, cell=anywhere(task.cell)))] = task

    def _end(self, reference: Any) -> None:
        """Enter the rows of a cell, or why there are none."""
        task = self.flight[reference]
        with contextlib.suppress(TakenOverError):  # then its new owner will say what becomes of it
            try:
                result = self.ray.get(reference)
            except self.ray.exceptions.RayTaskError as error:
                cause = getattr(error, "cause", error)
                result = {"error": f"{type(cause).__name__}: {cause}"}
            except self.ray.exceptions.RayError as error:
                text = f"its worker died {RETRIES + 1} times ({type(error).__name__})"
                self.course.end(Event("lost", task, text=text))
                self.store.release(task.key)
                result = None
            if result and "error" in result:
                self.store.fail(task.key, result["error"])
            elif result:
                self.store.append(task.key, map(BatchRow.from_dict, result["rows"]), result["domains"])
                self.store.finish(task.key)
        del self.flight[reference]


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
