"""Cells in processes of this machine, its cores divided among them."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.context
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from ctta._cost.allocator import keep_freed_memory
from ctta.bench import owners, workers
from ctta.bench.cell import Task
from ctta.bench.runner import SNAPSHOT_SECONDS
from ctta.bench.store import Store, TakenOverError
from ctta.bench.workers import Course, Event, Tell, attempt, longest_first, work
from ctta.errors import CttaError, StoreError

RETRIES = 1
"""How often a cell whose worker died is tried again in the same run; it goes on from its last snapshot."""

MEMORY = 2 * 2**30
"""Bytes a process is taken to need when their number is chosen."""

Job = Callable[[Store], None]

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return MEMORY * cores()


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
            processes = min(processes, len(course.look()))
            if processes > 1:
                _Pool(course, processes, self.seconds).run()
            else:
                self._here(course)

    def _here(self, course: Course) -> None:
        try:
            for free in course.looks():
                if free:
                    self._run(free[0], course)
                else:
                    time.sleep(workers.POLL_SECONDS)
        finally:
            with contextlib.suppress(StoreError):
                course.store.give_back()

    def _run(self, task: Task, course: Course) -> None:
        course.begin(task)
        attempt(task, course.store, course.since, self.seconds, 1, lambda _, row: course.row(task, row))


class _Pool:
    """Workers that claim cells from the store, and what becomes of them."""

    def __init__(self, course: Course, size: int, seconds: float) -> None:
        self.course, self.size, self.path = course, size, course.store.path
        tasks = list(course.open.values())
        self.job = partial(work, tasks, since=course.since, seconds=seconds, processes=size)
        self.threads = dict.fromkeys(THREAD_VARIABLES, str(max(task.cell.threads for task in tasks)))
        self.context = _context()
        self.problems, self.theirs = self.context.Pipe(duplex=False)
        self.workers: dict[BaseProcess, str] = {}
        """With the names under which they hold cells of the store."""
        self.tries: Counter[str] = Counter()
        self.barren = 0

    def run(self) -> None:
        try:
            for free in self.course.looks():
                for _ in range(min(len(free), self.size) - len(self.workers)):
                    self._start()
                wait([process.sentinel for process in self.workers], workers.POLL_SECONDS)
                for process in [process for process in self.workers if not process.is_alive()]:
                    self._bury(process)
        except BaseException:
            for process in self.workers:
                process.terminate()
            raise
        finally:
            self._end()

    def _start(self) -> None:
        given = (self.theirs, self.threads, self.path, self.course.store.owner, self.job)
        process = self.context.Process(target=_work, args=given, daemon=True)
        before = dict(os.environ)
        os.environ.update(self.threads)  # before torch is imported there
        try:
            process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        self.workers[process] = owners.process(process.pid or 0, self.course.store.owner)

    def _bury(self, process: BaseProcess) -> None:
        """Give back what a dead worker held, or name it after its last try; it may also have come to its end."""
        code = process.exitcode or 0
        fate = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        with Store(self.path, owner=self.workers.pop(process)) as its:
            held = [self.course.open[key] for key in its.mine() if key in self.course.open]
            for task in held:
                self.tries[task.key] += 1
                again, text = self.tries[task.key] <= RETRIES, f"its process {fate}"
                with contextlib.suppress(TakenOverError):
                    its.release(task.key) if again else its.fail(task.key, text)
                self.course.end(Event("lost", task, text=text, again=again))
        if self.problems.poll():
            raise StoreError(self.problems.recv())
        self.barren = self.barren + 1 if code and not held else 0
        if self.barren > 2 * self.size:
            raise CttaError(
                f"The processes that should run cells end at once (the last {fate}): "
                "run the same command with --processes 1 to see why."
            )

    def _end(self) -> None:
        """Wait for the workers; one may have been stopped in the moment after it claimed a cell."""
        for process, owner in self.workers.items():
            process.join(20)
            if process.is_alive():
                process.kill()
                process.join()
            with contextlib.suppress(StoreError), Store(self.path, owner=owner) as its:
                its.give_back()
        self.problems.close()
        self.theirs.close()


def _context() -> multiprocessing.context.ForkServerContext | multiprocessing.context.SpawnContext:
    """How processes begin: on Linux forked from a server that has imported torch once, for all of them."""
    if sys.platform != "linux":  # elsewhere a forked process may not use what its system has begun
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _work(
    problems: Connection, variables: dict[str, str], path: Path, parent: str, job: Callable[[Store], None]
) -> None:
    """Work on the cells of a plan until none is free."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all: the parent tells us
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ.update(variables)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    keep_freed_memory()
    with contextlib.suppress(KeyboardInterrupt):
        try:
            with Store(path, owner=owners.process(os.getpid(), parent)) as store:
                job(store)
        except StoreError as error:
            problems.send(str(error)[:1000])  # the only thing the store itself cannot say
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing is left to give back


def _leave_with_parent() -> None:
    """End at once when the parent was killed: its cells must not look as if someone still worked on them."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
