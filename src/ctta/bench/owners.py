"""Who runs a cell, in the words the store keeps, and whether that runner still lives."""

from __future__ import annotations

import os
import re
import socket
import uuid
from pathlib import Path

LEASE = 120.0
"""Seconds without a sign of life after which a cell of a runner on another machine may be taken over."""

OWNER = re.compile(r"([^:]+):(\d{1,9}):(\d*):.*")
"""Machine, process, when the process began ("" where that cannot be told), and the run it belongs to."""


def process(pid: int, parent: str = "") -> str:
    """Return the name of a process of this machine: of a run of its own, or a worker in that of its parent."""
    run = parent.rpartition(":")[2] or uuid.uuid4().hex[:8]
    return f"{socket.gethostname()}:{pid}:{birth(pid)}:{run}"


def together(owner: str | None, other: str) -> bool:
    """Whether two are of one run: the cell of a dead one is for the run's own parent to give back."""
    return owner is not None and owner.rpartition(":")[2] == other.rpartition(":")[2]


def alive(owner: str | None, beat: float | None, now: float) -> bool:
    """Whether a runner still works on its cell: its process if it is on this machine, else its sign of life.

    A sign of life from the future counts no longer than one from the past: all who use a store share its disk and
    so a clock, which was set back, or the file came from a machine whose clock is ahead.
    """
    if not owner:
        return False
    found = OWNER.fullmatch(owner)
    if found is None:
        raise ValueError(f"{owner!r} names no runner (HOST:PROCESS:BEGUN:ID)")
    host, pid, begun = found.groups()
    if host == socket.gethostname():
        if begun:
            return birth(int(pid)) == begun
        if os.name == "posix" and not _there(int(pid)):
            return False
    return beat is not None and abs(now - beat) < LEASE


def birth(pid: int) -> str:
    """When a process began, so that a number used again is not taken for it; "" if dead or not to be told."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]  # a killed child stays as a zombie until its parent looks


def _there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True
