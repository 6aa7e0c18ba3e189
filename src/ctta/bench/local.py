"""Cells in processes of this machine, its cores divided among them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType

from ctta._cost.allocator import keep_freed_memory
from ctta.bench import owners, workers
from ctta.bench.cell import Task
from ctta.bench.runner import SNAPSHOT_SECONDS
from ctta.bench.store import Store, TakenOverError
from ctta.bench.workers import Course, Event, Tell, longest_first, work
from ctta.errors import CttaError, StoreError

RETRIES = 1
"""How often a cell whose worker died is tried again in the same run; it goes on from its last snapshot."""

MEMORY = 2 * 2**30
"""Bytes a process is taken to need when their number is chosen."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


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
    """Workers in processes of their own; where one is enough, it works in this process."""

    def __init__(
        self, store: Path, *, processes: int | None = None, snapshot_seconds: float = SNAPSHOT_SECONDS
    ) -> None:
        self.store, self.processes, self.seconds = store, processes, snapshot_seconds

    def run(self, tasks: Sequence[Task], tell: Tell) -> None:
        """Run what is not done yet of these tasks."""
        processes = self.processes or share(None, max((task.cell.threads for task in tasks), default=1))[0]
        with Store(self.store) as store:
            course = Course(tasks if processes == 1 else longest_first(tasks), store, tell)
            processes = min(processes, len(course.settle(course.standings())))
            if processes > 1:
                with _Pool(course, processes, self.seconds) as pool:
                    pool.run()
            else:
                self._here(course)

    def _here(self, course: Course) -> None:
        while course.open:
            if free := course.settle(course.standings()):
                work(free, course.store, course.hear, course.since, self.seconds, 1)
            elif course.open:
                time.sleep(workers.POLL_SECONDS)


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    owner: owners.Owner
    """Under which name it holds cells of the store."""


class _Pool:
    """Workers that claim cells from the store, and what becomes of them."""

    def __init__(self, course: Course, size: int, seconds: float) -> None:
        self.course, self.size, self.seconds = course, size, seconds
        self.threads = max(task.cell.threads for task in course.open.values())
        self.workers: dict[Connection, _Worker] = {}
        self.tries: dict[str, int] = {}
        self.barren = 0

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        """Have those that still work give their cells back."""
        for worker in self.workers.values():
            worker.process.terminate()
        for worker in self.workers.values():
            worker.process.join(20)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()

    def run(self) -> None:
        due = 0.0
        while self.course.open:
            if time.monotonic() >= due or not self.workers:
                standings = self.course.standings()
                self._hear(0)  # what was told before that moment: rows come before `done`
                free = self.course.settle(standings)
                for _ in range(min(len(free), self.size) - len(self.workers)):
                    self._start()
                due = time.monotonic() + workers.POLL_SECONDS
            if self.workers:
                self._hear(workers.POLL_SECONDS)
            elif self.course.open:
                time.sleep(workers.POLL_SECONDS / 4)

    def _hear(self, seconds: float) -> None:
        """Take in what workers have to tell, until there is nothing more or a time is over."""
        while ready := wait(list(self.workers), seconds):
            for pipe in ready:
                worker = self.workers[pipe]  # type: ignore[index]
                try:
                    message = worker.pipe.recv()
                except (EOFError, OSError):
                    self._bury(worker)
                else:
                    self._take(message)
            seconds = 0

    def _take(self, message: Event | str) -> None:
        if isinstance(message, str):
            raise StoreError(message)
        self.barren = 0
        self.course.hear(message)

    def _bury(self, worker: _Worker) -> None:
        """Give back what a dead worker held, or name it after its last try; it may also have come to its end."""
        worker.process.join()
        worker.pipe.close()
        del self.workers[worker.pipe]
        with Store(self.course.store.path, owner=worker.owner) as its:
            held = [self.course.open[key] for key in its.mine() if key in self.course.open]
            for task in held:
                fate = f"its process {_fate(worker.process.exitcode)}"
                self.tries[task.key] = self.tries.get(task.key, 0) + 1
                again = self.tries[task.key] <= RETRIES
                with contextlib.suppress(TakenOverError):
                    its.release(task.key) if again else its.fail(task.key, fate)
                self.course.hear(Event("lost", task, text=fate, again=again))
        self.barren += bool(worker.process.exitcode) and not held
        if self.barren > 2 * self.size:
            raise CttaError(
                f"The processes that should run cells end at once (the last {_fate(worker.process.exitcode)}): "
                "run the same command with --processes 1 to see why."
            )

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        course = self.course
        plan = (
            list(course.open.values()),
            course.store.path,
            course.store.owner,
            course.since,
            self.seconds,
            self.size,
        )
        process = context.Process(target=_work, args=(theirs, *plan), daemon=True)
        with _environment(self.threads), _deaf_to_ctrl_c():
            process.start()
        theirs.close()  # else its end would not be noticed here
        owner = owners.process(process.pid or 0, course.store.owner)
        self.workers[ours] = _Worker(process, ours, owner)


def _work(
    pipe: Connection,
    tasks: list[Task],
    path: Path,
    parent: owners.Owner,
    since: float,
    seconds: float,
    processes: int,
) -> None:
    """Work on the cells of a plan until none is free (one of so many processes)."""
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    keep_freed_memory()
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        try:
            with Store(path, owner=owners.process(os.getpid(), parent)) as store:
                work(tasks, store, pipe.send, since, seconds, processes)
        except StoreError as error:
            pipe.send(str(error))


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
