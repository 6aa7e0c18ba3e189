"""The store: one SQLite file with the manifest, the domain rows and the batch rows of every cell.

A cell is entered when a runner claims it. A snapshot appears in one transaction with the last rows before it, and
rows beyond it are taken back when the cell is claimed again: whatever is killed, the two belong together.
Snapshots are files in a folder beside the store (`NAME.snapshots`); the store names the one that counts.

Every claim carries its owner, and only the owner may write: a runner that was thought dead, and whose cell another
one has taken over, finds out at its next write and changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ctta.bench import owners, reading
from ctta.bench.database import Database, speaking
from ctta.bench.evaluation import BatchRow
from ctta.bench.owners import LEASE
from ctta.bench.reading import CellRecord, Held
from ctta.errors import StoreError

SCHEMA = (
    """
    CREATE TABLE cells (
        key TEXT PRIMARY KEY, label TEXT NOT NULL, status TEXT NOT NULL, manifest TEXT NOT NULL,
        total INTEGER NOT NULL, done INTEGER NOT NULL DEFAULT 0, error TEXT,
        owner TEXT, beat REAL, started REAL, finished REAL
    );
    CREATE TABLE batches (
        key TEXT NOT NULL REFERENCES cells(key), batch INTEGER NOT NULL, row TEXT NOT NULL,
        PRIMARY KEY (key, batch)
    ) WITHOUT ROWID;
    CREATE TABLE domains (
        key TEXT NOT NULL REFERENCES cells(key), last INTEGER NOT NULL, row TEXT NOT NULL,
        PRIMARY KEY (key, last)
    ) WITHOUT ROWID;
    """,
    "ALTER TABLE cells ADD COLUMN snapshot TEXT;",
)
"""One step a version."""

Standing = Literal["free", "taken", "ours", "done", "failed"]
"""How a cell stands for someone who wants to run it; `ours`: a worker of the same run has it, or died with it."""


Measured = tuple[int, dict[str, Any]]
"""What was measured after a domain, with the last batch of it."""


class TakenOverError(StoreError):
    """A cell this runner worked on belongs to another one by now."""


class Claim(NamedTuple):
    """A cell that is ours to run: from which batch on, and the snapshot to continue from (None: the start)."""

    start: int
    snapshot: Path | None


class Store(Database):
    """Rows of many cells in one file; safe for many processes at once, readable while it is written.

    It stays on the disk of the machine that writes it (the Ray engine therefore keeps it with the driver).
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False, owner: str | None = None) -> None:
        super().__init__(path, SCHEMA, read_only=read_only)
        self.owner = owner or owners.process(os.getpid())
        self.snapshots = self.path.with_name(self.path.name + ".snapshots")
        if not read_only:
            self._tidy()

    @classmethod
    @contextlib.contextmanager
    def temporary(cls) -> Iterator[Store]:
        """Open a store that is gone at the end of the block."""
        with tempfile.TemporaryDirectory(prefix="ctta-") as folder, cls(Path(folder) / "store.sqlite") as store:
            yield store

    # ---------------------------------------------------------------- writing

    def standings(self, keys: Iterable[str], since: float = math.inf) -> dict[str, Standing]:
        """How cells stand for someone who wants to run them.

        `failed`: since a moment (a run's beginning: what failed before it is tried again, and so free).
        """
        with speaking(self.path):
            rows = self.db.execute("SELECT key, status, owner, beat, snapshot FROM cells").fetchall()
            there = {key: self._standing(reading.held(key, found), since) for key, *found in rows}
        return {key: there.get(key, "free") for key in keys}

    def _standing(self, there: Held, since: float) -> Standing:
        if there.status == "running":
            if owners.together(there.owner, self.owner):
                return "ours"
            return "taken" if owners.alive(there.owner, there.beat, time.time()) else "free"
        if there.status == "failed":
            return "failed" if (there.beat or 0.0) >= since else "free"
        return "done"

    def claim(
        self, key: str, label: str, manifest: dict[str, Any], total: int, since: float = math.inf
    ) -> Claim | None:
        """Take a cell to run it, if it is free."""
        text, now = json.dumps(manifest, sort_keys=True, default=str), time.time()
        with self.transaction() as db:
            found = db.execute("SELECT status, owner, beat, snapshot FROM cells WHERE key = ?", (key,)).fetchone()
            there = reading.held(key, found) if found else None
            if there and self._standing(there, since) != "free":
                return None
            name = there.snapshot if there else None
            if name and not (self.snapshots / name).is_file():
                name = None
            start = int(Path(name).stem.rpartition("-")[2]) if name else 0
            self._cut(db, key, start)
            db.execute(
                "INSERT INTO cells (key, label, status, manifest, total, done, owner, beat, started, snapshot) "
                "VALUES (?, ?, 'running', ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET (status, manifest, done, "
                "owner, beat, snapshot, error) = ('running', excluded.manifest, excluded.done, excluded.owner, "
                "excluded.beat, excluded.snapshot, NULL)",
                (key, label, text, total, start, self.owner, now, now, name),
            )
        self.sweep(key, keep=name)
        return Claim(start, self.snapshots / name if name else None)

    def rewind(self, key: str) -> None:
        """Go back to the first batch of a cell of ours, as when its snapshot turns out to be damaged."""
        with self.transaction() as db:
            self._update(db, key, "done = 0, snapshot = NULL")
            self._cut(db, key, 0)
        self.sweep(key)

    def _cut(self, db: sqlite3.Connection, key: str, start: int) -> None:
        """Take back the rows of a cell from a batch on."""
        db.execute("DELETE FROM batches WHERE key = ? AND batch >= ?", (key, start))
        db.execute("DELETE FROM domains WHERE key = ? AND last >= ?", (key, start))

    def append(
        self, key: str, rows: Iterable[BatchRow], domains: Iterable[Measured] = (), *, snapshot: Path | None = None
    ) -> None:
        """Add rows of a running cell, what was measured after domains (by their last batch), and a snapshot.

        A snapshot holds the state after the last of the rows; its name comes from `snapshot_path`.
        """
        batches = [(key, row.batch, json.dumps(row.to_dict())) for row in rows]
        finished = [(key, last, json.dumps(row)) for last, row in domains]
        name = snapshot.name if snapshot else None
        with self.transaction() as db:
            changes = "done = done + ?, beat = ?, snapshot = coalesce(?, snapshot)"
            self._update(db, key, changes, len(batches), time.time(), name)
            db.executemany("INSERT INTO batches (key, batch, row) VALUES (?, ?, ?)", batches)
            db.executemany("INSERT INTO domains (key, last, row) VALUES (?, ?, ?)", finished)
        if name:
            self.sweep(key, keep=name)

    def finish(self, key: str) -> None:
        """Mark a cell as done; refuses one whose rows are not all there."""
        with self.transaction() as db:
            self._update(db, key, "status = 'done', owner = NULL, snapshot = NULL, finished = ?", time.time())
            counted = "SELECT (SELECT count(*) FROM batches WHERE key = cells.key), total FROM cells WHERE key = ?"
            rows, total = db.execute(counted, (key,)).fetchone()
            if rows != total:
                raise StoreError(f"Cell {key} of {self.path} has {rows} of {total} rows and cannot be finished.")
        self._tidy()

    def fail(self, key: str, error: str) -> None:
        """Note that a cell of ours ended in an error; it may be claimed again."""
        with self.transaction() as db:
            self._update(db, key, "status = 'failed', owner = NULL, beat = ?, error = ?", time.time(), error)

    def release(self, key: str) -> None:
        """Give a cell of ours back without an error, as after Ctrl-C: the next runner continues it at once."""
        with self.transaction() as db:
            self._update(db, key, "owner = NULL, beat = 0")

    def mine(self) -> list[str]:
        """Keys of the cells we hold."""
        with speaking(self.path):
            found = self.db.execute("SELECT key FROM cells WHERE owner = ? AND status = 'running'", (self.owner,))
            return [key for (key,) in found]

    def give_back(self) -> None:
        """Release all we hold: who is stopped between two lines may not know what that is."""
        for key in self.mine():
            self.release(key)

    def beat(self, keys: Iterable[str]) -> None:
        """Show that the runner of cells of ours lives."""
        beats = [(time.time(), key, self.owner) for key in keys]
        with self.transaction() as db:
            db.executemany("UPDATE cells SET beat = ? WHERE key = ? AND owner = ?", beats)

    @contextlib.contextmanager
    def beating(self, key: str) -> Iterator[None]:
        """Show that the runner of a cell lives while the block runs, however long its batches take."""
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(LEASE / 4):
                # a connection belongs to its thread; what goes wrong here will go wrong in `append` too
                with contextlib.suppress(StoreError), Store(self.path, owner=self.owner) as own:
                    own.beat([key])

        thread = threading.Thread(target=beat, name=f"beat {key}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _update(self, db: sqlite3.Connection, key: str, changes: str, *values: Any) -> None:
        """Change a cell that is ours; whoever no longer owns it must not write."""
        ours = f"UPDATE cells SET {changes} WHERE key = ? AND owner = ? AND status = 'running'"
        if db.execute(ours, (*values, key, self.owner)).rowcount != 1:
            raise TakenOverError(f"Cell {key} of {self.path} belongs to another runner by now.")

    def snapshot_path(self, key: str, batch: int) -> Path:
        """Where the state before a batch of a cell is kept."""
        self.snapshots.mkdir(exist_ok=True)
        return self.snapshots / f"{key}-{batch}.safetensors"

    def sweep(self, key: str, keep: str | None = None) -> None:
        """Remove the snapshots of a cell that no longer count."""
        for pattern in (f"{key}-*", f".{key}-*.tmp"):  # the second: what a kill left half written
            for path in self.snapshots.glob(pattern):
                if path.name != keep:
                    path.unlink(missing_ok=True)

    def _tidy(self) -> None:
        """Remove snapshots of finished cells, and their folder when no runner is about to write one into it.

        A runner killed in the moment after it finished a cell leaves them to the next one.
        """
        if not self.snapshots.is_dir():
            return
        for key in {path.name.removeprefix(".").rpartition("-")[0] for path in self.snapshots.glob("*")}:
            if self._records("key = ? AND status = 'done'", key):
                self.sweep(key)
        with self.transaction() as db:  # a cell is claimed before its first snapshot: no claim, no writer
            if db.execute("SELECT 1 FROM cells WHERE status = 'running' LIMIT 1").fetchone() is None:
                with contextlib.suppress(OSError):  # not there, or not empty
                    self.snapshots.rmdir()

    # ---------------------------------------------------------------- reading

    def cells(self, status: str | None = None) -> list[CellRecord]:
        """All cells, or those of one status, in the order they were begun."""
        return self._records("status = coalesce(?, status)", status)

    def _records(self, where: str, value: str | None) -> list[CellRecord]:
        with speaking(self.path):
            found = self.db.execute(
                "SELECT key, label, status, manifest, total, done, error, started, finished FROM cells "
                f"WHERE {where} ORDER BY started, key",
                (value,),
            )
            return [reading.record(columns) for columns in found]

    def cell(self, key: str) -> CellRecord:
        """One cell by its key."""
        for record in self._records("key = ?", key):
            return record
        raise StoreError(f"{self.path} has no cell {key}.")

    def progress(self) -> dict[str, int]:
        """How many rows every cell has."""
        with speaking(self.path):
            return dict(self.db.execute("SELECT key, done FROM cells").fetchall())

    def batches(self, key: str, start: int = 0) -> list[BatchRow]:
        """The rows of a cell from a batch on, in order; of one that is done, all of them."""
        with speaking(self.path):
            done = self.db.execute("SELECT total FROM cells WHERE key = ? AND status = 'done'", (key,)).fetchone()
            wanted = "SELECT row, batch FROM batches WHERE key = ? AND batch >= ? ORDER BY batch"
            rows = [reading.batch_row(text, batch) for text, batch in self.db.execute(wanted, (key, start))]
            if done is not None and done[0] != start + len(rows):
                raise ValueError(f"cell {key!r} is done, but has {start + len(rows)} of its {done[0]} rows")
            return rows

    def domains(self, key: str) -> list[dict[str, Any]]:
        """What was measured after each domain of a cell, in order."""
        with speaking(self.path):
            found = self.db.execute("SELECT row FROM domains WHERE key = ? ORDER BY last", (key,))
            return [reading.domain_row(text) for (text,) in found]
