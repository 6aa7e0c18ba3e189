"""Cells in processes of this machine, its cores divided among them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import Literal

import torch

from ctta._cost.allocator import keep_freed_memory
from ctta.bench.engine import POLL_SECONDS, RETRIES, Event, Tell, longest_first
from ctta.bench.plan import Task
from ctta.bench.runner import SNAPSHOT_SECONDS, run_cell
from ctta.bench.store import Store
from ctta.errors import StoreError

MEMORY = 2 * 2**30
"""Bytes a process is taken to need when their number is chosen."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

Outcome = tuple[Literal["done", "failed", "waiting", "store"], str]


def cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share(processes: int | None, threads: int | None) -> tuple[int, int]:
    """Return how many processes run how many threads each.

    Cells are many and independent, so a core each does more than threads on one cell. The numbers do not depend on
    how many cells there are: threads belong to what a cell is, and a longer grid finds what a shorter one did.
    """
    if processes is None:
        room = max(1, _physical_memory() // MEMORY)
        processes = min(max(1, cores() // (threads or 1)), room)
    return processes, threads or max(1, cores() // processes)


class Local:
    """Processes with a store each; one process runs the cells here, without another."""

    def __init__(
        self,
        store: Path,
        *,
        processes: int | None = None,
        threads: int | None = None,
        snapshot_seconds: float | None = None,
    ) -> None:
        self.store, self.processes, self.threads = store, processes, threads
        self.seconds = SNAPSHOT_SECONDS if snapshot_seconds is None else snapshot_seconds

    def run(self, tasks: Sequence[Task], tell: Tell) -> None:
        """Run what is not done yet of these tasks."""
        processes, threads = share(self.processes, self.threads)
        with Store(self.store) as store:
            there = {record.key for record in store.cells("done")}
        todo: list[Task] = []
        for task in tasks:
            if task.key in there:
                tell(Event("done", task))
            else:
                todo.append(task)
        processes = min(processes, len(todo))
        if processes <= 1:
            self._here(todo, threads, tell)
        elif todo:
            with _Pool(self.store, processes, threads, self.seconds) as pool:
                pool.run(longest_first(todo), tell)

    def _here(self, tasks: Sequence[Task], threads: int, tell: Tell) -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            with Store(self.store) as store:
                todo = deque(tasks)
                while todo:
                    task = todo.popleft()
                    tell(Event("begun", task))
                    outcome, text = _attempt(task, store, tell, self.seconds)
                    if outcome == "store":
                        raise StoreError(text)
                    tell(Event(outcome, task, text=text))
                    if outcome == "waiting":
                        todo.append(task)
                        time.sleep(POLL_SECONDS)
        finally:
            torch.set_num_threads(before)


def _attempt(task: Task, store: Store, tell: Tell, seconds: float, processes: int = 1) -> Outcome:
    """Run one cell; an error is an outcome, for the other cells go on."""
    try:
        key = run_cell(
            task.cell,
            store,
            watch=lambda _, row: tell(Event("row", task, row)),
            snapshot_seconds=seconds,
            processes=processes,
        )
    except StoreError as error:
        return "store", str(error)
    except Exception as error:  # noqa: BLE001 - the user's model may raise anything
        return "failed", f"{type(error).__name__}: {error}"
    return ("done", "") if key else ("waiting", "another runner has it")


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    task: Task | None = None


class _Pool:
    """Worker processes with a pipe each: what kills one cannot leave a lock or half a message to the others."""

    def __init__(self, store: Path, size: int, threads: int, seconds: float) -> None:
        self.store, self.size, self.threads, self.seconds = store, size, threads, seconds
        self.workers: list[_Worker] = []
        self.todo: deque[Task] = deque()
        self.later: list[tuple[float, Task]] = []
        self.tries: dict[str, int] = {}

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        """Let idle workers go, and have busy ones give their cells back."""
        for worker in self.workers:
            if worker.task is not None:
                worker.process.terminate()
            with contextlib.suppress(OSError):
                worker.pipe.send(None)
        for worker in self.workers:
            worker.process.join(20)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()

    def run(self, tasks: Sequence[Task], tell: Tell) -> None:
        self.todo.extend(tasks)
        while self.todo or self.later or any(worker.task for worker in self.workers):
            self._hand_out(tell)
            busy = {worker.pipe: worker for worker in self.workers if worker.task}
            if not busy:
                time.sleep(POLL_SECONDS / 4)
            for pipe in wait(list(busy), POLL_SECONDS) if busy else []:
                self._hear(busy[pipe], tell)  # type: ignore[index]

    def _hand_out(self, tell: Tell) -> None:
        now = time.monotonic()
        self.todo.extend(task for due, task in self.later if due <= now)
        self.later = [(due, task) for due, task in self.later if due > now]
        while self.todo:
            worker = next((worker for worker in self.workers if worker.task is None), None)
            if worker is None:
                if len(self.workers) == self.size:
                    return
                worker = self._start()
            task = self.todo.popleft()
            worker.task = task
            tell(Event("begun", task))
            with contextlib.suppress(OSError):  # it died while idle: `_hear` finds out
                worker.pipe.send(task)

    def _hear(self, worker: _Worker, tell: Tell) -> None:
        """Take one message of a worker, or note its death."""
        task = worker.task
        assert task is not None
        try:
            message = worker.pipe.recv()
        except (EOFError, OSError):
            self._bury(worker, task, tell)
            return
        if isinstance(message, Event):
            tell(message)
            return
        worker.task = None
        outcome, text = message
        if outcome == "store":
            raise StoreError(text)
        if outcome == "waiting":
            self.later.append((time.monotonic() + POLL_SECONDS, task))
        tell(Event(outcome, task, text=text))

    def _bury(self, worker: _Worker, task: Task, tell: Tell) -> None:
        worker.process.join()
        worker.pipe.close()
        self.workers.remove(worker)
        self.tries[task.key] = self.tries.get(task.key, 0) + 1
        again = self.tries[task.key] <= RETRIES
        if again:
            self.todo.append(task)
        tell(Event("lost", task, text=f"its process {_fate(worker.process.exitcode)}", again=again))

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (theirs, self.store, self.threads, self.seconds, self.size)
        process = context.Process(target=_work, args=arguments, daemon=True)
        with _environment(self.threads), _deaf_to_ctrl_c():
            process.start()
        theirs.close()  # else its end would not be noticed here
        worker = _Worker(process, ours)
        self.workers.append(worker)
        return worker


def _work(pipe: Connection, path: Path, threads: int, seconds: float, processes: int) -> None:
    """Run cells until told to stop (one of so many worker processes)."""
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    keep_freed_memory()
    with contextlib.suppress(KeyboardInterrupt, EOFError, BrokenPipeError), Store(path) as store:
        while (task := pipe.recv()) is not None:
            pipe.send(_attempt(task, store, pipe.send, seconds, processes))


def _interrupt(_: int, __: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _leave_with_parent() -> None:
    """End at once when the parent was killed: its cells must not look as if someone still worked on them."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _fate(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"


@contextlib.contextmanager
def _environment(threads: int) -> Iterator[None]:
    """Give the processes started here their number of threads before they import torch."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Have the processes started here ignore Ctrl-C, which a terminal sends to all: the parent tells them."""
    if threading.current_thread() is not threading.main_thread():  # only that one may set handlers
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return MEMORY * cores()
