"""Run cells into a store: what is finished is never run again, what was killed goes on from its last snapshot."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn

import ctta
from ctta._core.precision import in_precision
from ctta.adapter import Adapter
from ctta.bench.cell import Cell, Task, prepare
from ctta.bench.evaluation import BatchRow, Forgetting, measure, pass_seconds
from ctta.bench.store import Claim, Measured, Store, TakenOverError
from ctta.errors import StateError, StoreError
from ctta.streams import Stream

SNAPSHOT_SECONDS = 20.0
"""Least time between two snapshots: what a kill can cost."""
SNAPSHOT_SHARE = 0.01
"""Most of the running time that snapshots may take; large states are saved less often."""
ROW_SECONDS = 4.0
"""Time after which rows are put into the store though no snapshot is due: whoever looks on sees them there."""
UNIT_SHARE = 0.01
"""Most of the adapter's time that measuring a bare forward pass, the unit of cost, may take after the first."""

Watch = Callable[[Cell, BatchRow], None]
"""Called after every batch."""


def run(cells: Iterable[Cell], store: Store, *, watch: Watch | None = None) -> list[str]:
    """Run cells here, one after the other, and return their keys; a cell the store has already is not run again.

    An error of a cell is raised. A store for the moment: `with Store.temporary() as store`.
    """
    keys = []
    for cell in cells:
        task = prepare(cell)
        if not run_task(task, store, watch=watch) and store.cell(task.key).status != "done":
            raise StoreError(f"Another runner has {cell.name} of {store.path}: wait for it, or stop it.")
        keys.append(task.key)
    return keys


def run_task(
    task: Task,
    store: Store,
    *,
    watch: Watch | None = None,
    snapshot_seconds: float = SNAPSHOT_SECONDS,
    processes: int = 1,
    since: float = math.inf,
) -> bool:
    """Run one cell to its end, or what is left of it; False if it is done already, or if another runner has it.

    `snapshot_seconds`: least time between two snapshots, 0 for one after every batch. `processes`: how many cells
    run at once, this one among them; the manifest says so, for the times of its rows depend on it. `since`: a cell
    that failed after this moment is not tried again.

    Rows are bit-identical to those of an uninterrupted run, times and memory aside. An error is noted in the
    store and raised; the rows before it stay, and the cell can be run again.
    """
    claim = store.claim(task.key, task.cell.name, {**task.manifest, "processes": processes}, task.batches, since)
    if claim is None:
        return False
    try:
        with store.beating(task.key), in_threads(task.cell.threads):
            _continue(task, claim, store, watch, snapshot_seconds)
    except TakenOverError:
        return False
    except Exception as error:
        with contextlib.suppress(StoreError):  # a full disk must not hide the error itself
            store.fail(task.key, f"{type(error).__name__}: {error}")
        raise
    except BaseException:  # Ctrl-C: whoever comes next goes on at once
        with contextlib.suppress(StoreError):
            store.release(task.key)
        raise
    return True


@contextlib.contextmanager
def in_threads(count: int) -> Iterator[None]:
    """Have torch work with so many threads meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _continue(task: Task, claim: Claim, store: Store, watch: Watch | None, interval: float) -> None:
    model, stream = task.load()
    adapter, start = adapter_of(task.cell, model), 0
    if claim.snapshot is not None:
        try:
            adapter, start = ctta.load(claim.snapshot, model), claim.start
        except StateError:  # a damaged snapshot costs a fresh start
            store.rewind(task.key)
    pending = _Pending(store, task.key, adapter, interval)
    for row, domain in rows_of(task.cell, model, stream, adapter, start):
        pending.add(row, domain)
        if watch is not None:
            watch(task.cell, row)
    pending.flush(snapshot=False)
    store.finish(task.key)


def adapter_of(cell: Cell, model: nn.Module) -> Adapter:
    """Make the adapter a cell begins with."""
    return ctta.adapt(model, cell.method, preset=cell.preset, seed=cell.seed, **cell.settings)


def rows_of(
    cell: Cell, model: nn.Module, stream: Stream, adapter: Adapter, start: int = 0
) -> Iterator[tuple[BatchRow, dict[str, Any] | None]]:
    """Rows of a cell from a batch on, each with what was measured after its domain, where one ended."""
    forgetting = Forgetting(model, stream.source, cell.clean, cell.batch_size) if cell.clean else None
    device = next(model.parameters()).device.type
    total = spent = 0.0
    for batch in stream.resume(start):
        measured = None
        # entered anew for every batch: held open across a yield it would reach into the caller's own work
        with in_precision(cell.precision, device):
            row = measure(adapter, batch)
            total += row.seconds
            if spent <= UNIT_SHARE * total:
                row = dataclasses.replace(row, unit=pass_seconds(model, batch.images))
                spent += row.unit or 0.0
            if forgetting and _ends_domain(stream, row.batch):
                measured = {"domain": row.domain, **forgetting.measure(adapter)}
        yield row, measured


def _ends_domain(stream: Stream, batch: int) -> bool:
    """Whether the next batch begins with another domain, or there is none."""
    end = int(stream.bounds[batch + 1])
    if end == stream.samples:
        return True
    # in a mixed stream all domains come at once
    return stream.name != "mixed" and bool(stream.domain_of[end] != stream.domain_of[end - 1])


class _Pending:
    """Rows that are not in the store yet, and when it is time for the next snapshot."""

    def __init__(self, store: Store, key: str, adapter: Adapter, interval: float) -> None:
        self.store, self.key, self.adapter = store, key, adapter
        self.least = self.interval = interval
        self.rows: list[BatchRow] = []
        self.domains: list[Measured] = []
        self.saved = self.flushed = perf_counter()

    def add(self, row: BatchRow, domain: dict[str, Any] | None) -> None:
        self.rows.append(row)
        if domain is not None:
            self.domains.append((row.batch, domain))
        now = perf_counter()
        due = now - self.saved >= self.interval
        if due or now - self.flushed >= ROW_SECONDS:
            self.flush(snapshot=due)

    def flush(self, *, snapshot: bool) -> None:
        """Put the rows into the store, with the state to go on from if there is more to come."""
        start = perf_counter()
        path = self._save() if snapshot else None
        self.store.append(self.key, self.rows, self.domains, snapshot=path)
        self.rows, self.domains = [], []
        self.flushed = perf_counter()
        if snapshot:
            self.saved = self.flushed
            if self.least > 0:
                self.interval = max(self.least, (self.saved - start) / SNAPSHOT_SHARE)

    def _save(self) -> Path:
        try:
            path = self.store.snapshot_path(self.key, self.rows[-1].batch + 1)
            self.adapter.save(path)
        except (StateError, OSError) as error:
            raise StoreError(
                f"{error} It was to be the snapshot of a running cell: make room, or give yourself the right to "
                "write there, and run the same command again; the rows so far are safe."
            ) from error
        return path
