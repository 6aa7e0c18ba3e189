"""A sweep of 60 cells on a real Ray of this machine, with five killed workers and one killed driver.

Its rows must equal those of `--engine local`. Needs the extra `ray`; takes some minutes.

    python benchmarks/ray_faults.py
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ctta.bench.store import Store
from ctta.errors import StoreError

MODEL = """
import torch
from torch import nn


def make():
    torch.manual_seed(0)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)]
    return nn.Sequential(nn.Conv2d(3, 8, 3, 4, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), *head)
"""

CELLS = 60
WORKERS_TO_KILL = 5


def main() -> None:
    """Run the sweep, kill as promised, compare, and say how it went."""
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "own.py").write_text(MODEL)
        words = ["--images", "60", "--batch-size", "10", "--corruptions", "contrast,brightness", "--threads", "1"]
        words += [
            "--model",
            f"{folder / 'own.py'}:make",
            "--methods",
            "source,tent,palm",
            "--seeds",
            "0-19",
            "--json",
        ]
        ours, theirs = folder / "ray.db", folder / "local.db"
        command = [*words, "--engine", "ray", "--processes", "2", "--store", str(ours)]
        start = time.monotonic()
        driver, killed, drivers = bench(command), 0, 1
        while driver.poll() is None:
            done = count(ours)
            busy = workers_of(driver.pid)
            if killed < WORKERS_TO_KILL and done >= 5 * killed and busy:
                os.kill(draw.choice(busy), signal.SIGKILL)
                killed += 1
                print(f"killed a worker, {done} cells done", flush=True)
            if drivers == 1 and done >= 30 and driver.poll() is None:
                driver.kill()
                driver.wait()
                print(f"killed the driver, {done} cells done", flush=True)
                driver, drivers = bench(command), 2
            time.sleep(draw.uniform(0.05, 0.3))
        print(f"driver {drivers} ended with code {driver.returncode} after {time.monotonic() - start:.0f} s")
        assert (driver.returncode, killed, drivers) == (0, WORKERS_TO_KILL, 2)
        assert bench([*words, "--processes", "1", "--store", str(theirs)]).wait() == 0
        assert len(rows(ours)) == CELLS
        assert rows(ours) == rows(theirs), "the rows differ from those of the local engine"
        print(f"{CELLS} cells, {sum(map(len, rows(ours).values()))} rows: the same as those of the local engine")


def bench(words: list[str]) -> subprocess.Popen[bytes]:
    """Start the command line."""
    return subprocess.Popen([sys.executable, "-m", "ctta", "bench", *words], stdout=subprocess.DEVNULL)


def count(path: Path) -> int:
    """Finished cells."""
    try:
        with Store(path, read_only=True) as store:
            return len(store.cells("done"))
    except StoreError:
        return 0


def rows(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Rows of every finished cell, times and memory aside."""
    out = {}
    with Store(path, read_only=True) as store:
        for record in store.cells("done"):
            out[record.key] = [
                row.to_dict() | dict.fromkeys(("seconds", "unit", "memory")) for row in store.batches(record.key)
            ]
    return out


def workers_of(driver: int) -> list[int]:
    """Processes under a driver that work on a cell right now."""
    parents, busy = {}, []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if (folder / "cmdline").read_bytes().startswith(b"ray::cell_rows"):
                busy.append(int(folder.name))
    return [pid for pid in busy if driver in lineage(pid, parents)]


def lineage(pid: int, parents: dict[int, int]) -> list[int]:
    """A process and those it descends from."""
    line = []
    while pid:
        line.append(pid)
        pid = parents.get(pid, 0)
    return line


if __name__ == "__main__":
    main()
