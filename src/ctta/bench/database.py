"""One SQLite file: opened for a writer or a reader, brought up to date, written all or nothing, wrong in words."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from ctta.errors import StoreError

DAMAGED = "It is not a store of ctta, or it is damaged: go back to a copy of it, or name another store."


class Database:
    """A file of tables on a local disk (SQLite's write-ahead log needs one), for many processes at once.

    `schema` has one step a version; a file of an older version is brought up by the steps it lacks.
    """

    def __init__(self, path: str | os.PathLike[str], schema: Sequence[str], *, read_only: bool = False) -> None:
        self.path = Path(path)
        self.read_only = read_only
        if read_only and not self.path.is_file():
            raise StoreError(f"There is no store {self.path}. `ctta bench --store {self.path}` makes one.")
        with speaking(self.path):
            self.db = _reader(self.path) if read_only else _writer(self.path)
            version = self.db.execute("PRAGMA user_version").fetchone()[0]
        if version > len(schema):
            raise StoreError(
                f"{self.path} was written by a newer ctta (schema {version}, this one knows {len(schema)}): "
                "install a newer version."
            )
        if not read_only:
            self._upgrade(schema)

    def _upgrade(self, schema: Sequence[str]) -> None:
        with self.transaction() as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version < len(schema):
                for statement in ";".join(schema[version:]).split(";"):  # executescript would end the transaction
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {len(schema)}")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing; the write lock is taken first, so that what is read inside stays true."""
        if self.read_only:
            raise StoreError(f"{self.path} was opened for reading only.")
        with speaking(self.path):
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield self.db
                self.db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # a full disk has rolled back already
                    self.db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Let go of the file."""
        self.db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _writer(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    end = time.monotonic() + 60
    while True:  # while two processes make the same file, SQLite does not wait by itself
        try:
            db.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)
    db.execute("PRAGMA synchronous = FULL")
    return db


def _reader(path: Path) -> sqlite3.Connection:
    """A reader needs the -shm file beside the file; where it cannot be made, the file is read as it is."""
    address = f"{path.absolute().as_uri()}?mode=ro"
    db = sqlite3.connect(address, uri=True, timeout=60)
    try:
        db.execute("PRAGMA user_version")
    except sqlite3.OperationalError:
        db.close()
        log = path.with_name(path.name + "-wal")
        if log.is_file() and log.stat().st_size:
            raise  # its rows would be missed
        db = sqlite3.connect(f"{address}&immutable=1", uri=True)
    return db


CURES = {
    "full": "The disk is full: make room and run the same command again; the rows so far are safe.",
    "disk I/O": "The disk cannot be written (full, over a limit, or failing); the rows so far are safe.",
    "readonly": "It cannot be written: give yourself the right to, or name another store.",
    "locked": "Another process has held it for a minute: wait for it, or stop it.",
    **dict.fromkeys(("not a database", "malformed", "no such", "decode", "unsupported"), DAMAGED),
}
"""What to do, by words of SQLite."""


@contextlib.contextmanager
def speaking(path: Path) -> Iterator[None]:
    """Say what is wrong with a file in words, with what to do about it."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        text = str(error)[:200]  # SQLite quotes the whole of a text that is not UTF-8
        cause = "readonly" if isinstance(error, PermissionError) else text
        cure = next((cure for words, cure in CURES.items() if words in cause), "Check the path and the rights.")
        raise StoreError(f"{path}: {text}. {cure}") from error
    except ValueError as error:  # of what was read
        raise StoreError(f"{path}: {str(error)[:200]}. {DAMAGED}") from error
