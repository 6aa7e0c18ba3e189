"""TensorBoard: the rows of a run as scalars, one run folder a cell (extra `track`)."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from pathlib import Path
from typing import Any

from ctta.bench.cell import Cell
from ctta.bench.evaluation import BatchRow
from ctta.errors import DataError
from ctta.report.page import file_name


class Writer:
    """Called with a cell and a row after every batch, as `run(cells, store, watch=Writer("tb"))` does.

    Scalars by batch: `error/batch` and `error/running` in %, `loss/NAME` in nats, `share/NAME` in %,
    `rate/BLOCK` (mean learning rate), `confidence`, `seconds`. A cell that is continued goes on where it was;
    its running error then counts from there.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            self._make = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        except ImportError as error:
            raise DataError('Event files need TensorBoard: pip install "ctta[track]"') from error
        self.folder = Path(folder)
        self._open: dict[str, Any] = {}
        self._counts: dict[str, tuple[int, int]] = {}

    def __call__(self, cell: Cell, row: BatchRow) -> None:
        """Write one row."""
        name = run_name(cell)
        if name not in self._open:
            self._open[name] = self._make(str(self.folder / name), purge_step=row.batch)
        before = self._counts.get(name, (0, 0))
        samples, wrong = self._counts[name] = before[0] + row.samples, before[1] + row.wrong
        for tag, value in scalars(row, 100 * wrong / samples).items():
            self._open[name].add_scalar(tag, value, row.batch)

    def close(self) -> None:
        """Write what is pending and let go of the files."""
        for out in self._open.values():
            out.close()
        self._open.clear()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def scalars(row: BatchRow, running: float) -> dict[str, float]:
    """Return the scalars of one row by tag; `running` is the error in % so far."""
    return {
        "error/batch": row.error,
        "error/running": running,
        "confidence": row.confidence,
        "seconds": row.seconds,
        **{f"loss/{name}": value for name, value in row.losses.items()},
        **{f"share/{name}": 100 * value for name, value in row.shares.items()},
        **{f"rate/{block}": value for block, value in row.rates.items()},
    }


def run_name(cell: Cell) -> str:
    """Folder of a cell: its label, its seed, and a few digits that tell cells of one label apart.

    >>> run_name(Cell("palm", label="PALM, T = 50", seed=1)).startswith("PALM-T-50-seed1-")
    True
    """
    digits = hashlib.sha256(json.dumps(cell.to_dict(), sort_keys=True, default=str).encode()).hexdigest()[:6]
    return f"{file_name(cell.name)}-seed{cell.seed}-{digits}"
