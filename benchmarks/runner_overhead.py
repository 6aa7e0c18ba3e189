"""What rows, store, snapshots and progress cost beside the bare loop `for batch in stream: adapter(batch.images)`.

Both run in one process, batch by batch in turn, and are timed in CPU seconds, which also pace snapshots and the
live table: the result does not depend on how busy the machine is. The runner is to cost at most 3 % more. No
weights are needed: an untrained WRN-16-2 takes the time of a trained one.

    python benchmarks/runner_overhead.py --methods source,tent,palm --images 400 --batch-size 200
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path
from time import process_time

import torch
from rich.console import Console

from ctta.bench import runner as runner_module
from ctta.bench.cell import Cell, prepare
from ctta.bench.evaluation import BatchRow
from ctta.bench.runner import SNAPSHOT_SECONDS, adapter_of, run_task
from ctta.bench.store import Store
from ctta.bench.workers import Event
from ctta.cli.sweep import REFRESH, Sweep

MODEL = """
import torch
from ctta.models import build


def make():
    torch.manual_seed(0)
    return build("wrn-16-2")
"""


def main() -> None:
    """Print CPU seconds of both loops and the difference in %."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--methods", default="source,tent,palm")
    words.add_argument("--images", type=int, default=400, help="per domain, of fifteen")
    words.add_argument("--batch-size", type=int, default=200)
    words.add_argument("--threads", type=int, default=1)
    given = words.parse_args()
    torch.set_num_threads(given.threads)
    runner_module.perf_counter = process_time  # type: ignore[attr-defined]
    print(f"{'method':10}{'batches':>8}{'bare (s)':>10}{'runner (s)':>12}{'overhead (%)':>14}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.py"
        file.write_text(MODEL)
        for method in given.methods.split(","):
            cell = Cell(method, model=f"{file}:make", images=given.images, batch_size=given.batch_size)
            bare, runner, batches = compare(cell, Path(folder) / f"{method}.db")
            print(f"{method:10}{batches:8}{bare:10.2f}{runner:12.2f}{100 * (runner / bare - 1):14.2f}", flush=True)


def compare(cell: Cell, path: Path) -> tuple[float, float, int]:
    """CPU seconds of the bare loop and of the runner over one cell."""
    task = prepare(cell)
    model, stream = task.load()
    screen = Console(file=io.StringIO(), force_terminal=True, width=120)
    start = process_time()
    adapter = adapter_of(cell, model)
    bare = process_time() - start
    with Store(path) as store:
        sweep = Sweep([task], store, screen)
        mark, runner, shown = process_time(), 0.0, 0.0

        def watch(_: Cell, row: BatchRow) -> None:
            nonlocal mark, runner, bare, shown
            sweep(Event("row", task, row))
            while shown < runner:  # as often as the bars are drawn
                screen.print(sweep.bars)
                shown += 1 / REFRESH
            now = process_time()
            runner += now - mark
            adapter(stream[row.batch].images)
            mark = process_time()
            bare += mark - now

        sweep(Event("begun", task))
        # half the time on the clock is the bare loop's
        run_task(task, store, watch=watch, snapshot_seconds=SNAPSHOT_SECONDS / 2)
        runner += process_time() - mark
    return bare, runner, task.batches


if __name__ == "__main__":
    main()
