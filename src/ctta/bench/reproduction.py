"""An experiment run: its cells, each once, and from finished ones to results and tables with what must be said."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ctta.bench.cell import Task, prepare
from ctta.bench.experiments import SPOKEN, Experiment, Options, Planned, plan
from ctta.bench.metrics import grouped
from ctta.bench.paper_tables import tables_of
from ctta.bench.results import Result, Run, read_run
from ctta.bench.store import Store
from ctta.bench.table import Table
from ctta.data import cache_folder, catalogue
from ctta.data.get import present


@dataclass(frozen=True)
class Reproduction:
    """What an experiment came to, from a store or from a kept file."""

    experiment: Experiment
    title: str
    results: tuple[Result, ...]
    notes: tuple[str, ...]
    corruptions: tuple[str, ...] | None = None
    not_run: tuple[Planned, ...] = ()
    command: str = ""  # that made it, where it was read from a file

    @functools.cached_property
    def tables(self) -> tuple[Table, ...]:
        """Its tables."""
        return tables_of(self.experiment, self.title, self.results, self.notes, self.corruptions)

    @property
    def runs(self) -> dict[str, Run]:
        """Every cell by its key."""
        return {run.key: run for result in self.results for run in result.runs}

    @property
    def keys(self) -> dict[str, list[str]]:
        """The store's keys behind every row, "dataset / label"."""
        return {f"{result.dataset} / {result.label}": result.keys for result in self.results}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON-ready data."""
        return {
            "experiment": self.experiment.name,
            "title": self.title,
            "place": self.experiment.place,
            "tables": [table.to_dict() for table in self.tables],
            "not_run": [item.to_dict() for item in self.not_run],
            "cells": self.keys,
        }


class Work:
    """The cells of several experiments, each of them once, and what has become of them."""

    def __init__(self, experiments: Sequence[Experiment], options: Options) -> None:
        self.options = options
        self.experiments = {experiment.name: experiment for experiment in experiments}
        self._ended: set[str] = set()
        self._planned = {experiment.name: plan(experiment, options) for experiment in experiments}
        tasks: dict[str, Task] = {}
        for task in filter(None, map(self._enter, itertools.chain.from_iterable(self._planned.values()))):
            tasks.setdefault(task.key, task)  # a cell is called what the first experiment that has it calls it
        self.tasks = list(tasks.values())

    def _enter(self, item: Planned) -> Task | None:
        """Give a cell its key and return its task if it is to run, else say why it cannot."""
        if item.needs:
            words = (f"needs {it}" + (f", get them with: {how}" if how else "") for it, how in item.needs.items())
            item.reason = "not run: " + "; ".join(words)
            return None
        try:
            task = prepare(item.cell)
        except Exception as error:  # noqa: BLE001 - the user's model may raise anything, and other cells can run
            item.reason, item.failed = f"failed: {type(error).__name__}: {error}", True
            return None
        item.key = task.key
        return task

    def waiting(self, name: str) -> set[str]:
        """Keys of the cells an experiment still waits for."""
        return {item.key for item in self._planned[name] if item.key} - self._ended

    def ended(self, key: str, problem: str = "") -> list[str]:
        """Take note that a cell is done, or of its problem; returns the experiments it was the last one of."""
        waited = [name for name in self.experiments if key in self.waiting(name)]
        self._ended.add(key)
        for item in itertools.chain.from_iterable(self._planned.values()):
            if item.key == key:
                item.reason, item.failed = problem, bool(problem)
        return [name for name in waited if not self.waiting(name)]

    def reproduction(self, name: str, store: Store) -> Reproduction:
        """Gather the results of an experiment whose cells have ended."""
        about, planned, options = self.experiments[name], self._planned[name], self.options
        results = []
        for (dataset, label), items in grouped(((item.dataset, item.row.label), item) for item in planned).items():
            runs = tuple(read_run(store, store.cell(item.key)) for item in items if not item.reason)
            results.append(Result(label, runs, dataset, about.beside(items[0].row, items[0].paper)))
        words = f" [{'; '.join(options.labels)}]" if options.labels else ""
        notes = (*_why(planned), *_about(about, planned, options), *about.notes)
        not_run = tuple(item for item in planned if item.reason)
        title = f"{about.place}: {about.title}{words}"
        return Reproduction(about, title, tuple(results), notes, options.corruptions, not_run)


def _why(planned: Sequence[Planned]) -> list[str]:
    """One note a reason why there is no number, with the rows it concerns."""
    out = []
    groups = grouped(((item.dataset, item.reason), item.row.label) for item in planned if item.reason)
    for (dataset, reason), labels in groups.items():
        which = "" if len(labels) == len(planned) else f" ({', '.join(dict.fromkeys(labels))})"
        out.append(f"{dataset}{which}: {reason}")
    return out


def _about(experiment: Experiment, planned: Sequence[Planned], options: Options) -> list[str]:
    """What a reader must know of this run beyond the title."""
    out = []
    if options.data and experiment.published:
        name = SPOKEN[planned[0].paper]
        out.append(f"The paper's numbers beside ours are those of {name}: another model, other images.")
    if options.data:
        other = sorted({item.row.method for item in planned if item.cell.preset == "cifar10-c"})
        if other:
            out.append(
                f"Settings of the preset cifar10-c, for want of one for the embedded model: {', '.join(other)}."
            )
    out += [
        f"{SPOKEN[name]}: images made here (ctta data make), other draws than the published files."
        for name in dict.fromkeys(item.paper for item in planned if not options.data and not item.needs)
        if _was_made(name)
    ]
    return [*out, *about_seeds({item.row.label: options.seeds for item in planned})]


SEEDS = "Mean over the seeds "


def about_seeds(found: Mapping[str, Sequence[int]]) -> list[str]:
    """Say over which seeds rows are means: nothing where each is of one, else which rows if not all are alike.

    >>> about_seeds({"PALM": (0,), "Tent": (0,)}), about_seeds({"PALM": (0, 1), "Tent": (0,)})
    ([], ['Mean over the seeds 0, 1: PALM; seed 0: Tent.'])
    """
    groups = grouped((tuple(sorted(seeds)), label) for label, seeds in found.items())
    if all(len(seeds) < 2 for seeds in groups):
        return []
    parts: list[str] = []
    for seeds, labels in sorted(groups.items(), key=lambda item: -len(item[0])):
        words = f"{SEEDS if len(seeds) > 1 else 'Seed '}{', '.join(map(str, seeds))}"
        words += "" if len(groups) == 1 else f": {', '.join(labels)}"
        parts.append(words[0].lower() + words[1:] if parts else words)
    return ["; ".join(parts) + "."]


def _was_made(dataset: str) -> bool:
    folder = cache_folder() / "made" / catalogue.find(dataset).folder
    official = present(catalogue.find(dataset).parts[0], cache_folder())
    return folder.is_dir() and official is None
