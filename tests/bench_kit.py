"""Shared by the tests of the benchmark: a model of a few hundred weights, tiny cells, rows without their times."""

from __future__ import annotations

import signal

from ctta.bench.cell import Cell
from ctta.bench.evaluation import BINS, BatchRow
from ctta.bench.store import Store

MODEL = """
import torch
from torch import nn


def make():  # in train mode, as models often come
    torch.manual_seed(0)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)]
    return nn.Sequential(nn.Conv2d(3, 8, 3, 4, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), *head)
"""

TIMES = ("seconds", "unit", "memory")


def write_model(folder, text=MODEL, name="own.py"):
    """Write a model file and return its spec."""
    file = folder / name
    file.write_text(text)
    return f"{file}:make"


def tiny(model, method="palm", **changes):
    """A cell of four batches of ten images in two domains."""
    words = {"images": 20, "batch_size": 10, "corruptions": ("contrast", "brightness"), **changes}
    return Cell(method, model=model, **words)


def comparable(store: Store):
    """Everything a store says of its cells that must not depend on kills, engines or the clock."""
    out = {}
    for record in store.cells():
        rows = [row.to_dict() for row in store.batches(record.key)]
        for row in rows:
            for name in TIMES:
                del row[name]
        out[record.key] = (record.label, record.status, record.total, record.done, rows, store.domains(record.key))
    return out


def read(path):
    with Store(path, read_only=True) as store:
        return comparable(store)


def a_row(batch, wrong=1):
    return BatchRow(
        batch=batch,
        domain="fog-5",
        samples=10,
        wrong=wrong,
        counts={"fog-5": [10, wrong]},
        confidence=0.5,
        nll=1.25,
        brier=0.1,
        bins=[[0.0, 0.0, 0.0]] * BINS,
        seconds=0.01,
    )


def hearing_ctrl_c(arguments):
    """Run the command line in a new process: one that a shell began in the background is deaf to Ctrl-C."""
    from ctta.cli import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(arguments)
