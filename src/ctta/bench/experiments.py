"""From an experiment of the paper to cells, and from finished cells back to its tables.

Each experiment runs on the paper's models and datasets where they are in the data folder; what is missing is
said with the command that brings it, and never replaced. Only who asks for a substitute (the embedded model and
images) gets one, and then every title says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctta.bench import paper_tables as tables
from ctta.bench.cell import Cell, Task, prepare
from ctta.bench.paper_tables import Entry
from ctta.bench.published import Benchmark, Experiment, Line
from ctta.bench.resolve import clean_images
from ctta.bench.store import Store
from ctta.bench.summary import summarise
from ctta.bench.table import Table
from ctta.corruptions import CORRUPTIONS
from ctta.data import MissingError, cache_folder, catalogue, domains
from ctta.data.get import present
from ctta.errors import DataError, SettingError
from ctta.methods import find

EMBEDDED = "embedded"
SUBSTITUTE_BATCH = 200
LONGEST_TAG = 120
"""Letters of a tag at the most: some file systems take names of 143."""
SPOKEN = {
    "wrn-28-10": "WRN-28-10",
    "resnext-29": "ResNeXt-29",
    "resnet-50": "ResNet-50",
    "cifar10-c": "CIFAR-10-C",
    "cifar100-c": "CIFAR-100-C",
    "imagenet-c": "ImageNet-C",
}


@dataclass(frozen=True)
class Options:
    """How an experiment is run: on the paper's models and data unless said otherwise."""

    dataset: str | None = None
    """One of the paper's datasets, or `embedded`; None: all of the experiment's."""
    model: str | None = None
    """A model in the place of the paper's; `embedded:` brings its images with it."""
    weights: str | None = None
    images: int | None = None
    corruptions: tuple[str, ...] | None = None
    batch_size: int | None = None
    preset: str | None = None
    """Settings of the methods that have a preset of this name; None, and for the others: those of the dataset."""
    precision: str = "full"
    """`bf16`: every method under bfloat16 autocast."""
    seeds: tuple[int, ...] = (0,)
    threads: int = 1
    only: tuple[str, ...] | None = None
    """Labels of the rows to run; None: all."""

    @property
    def data(self) -> str | None:
        """Images in the place of the paper's, None where the paper's are used."""
        own_images = self.dataset is None and self.model is not None and self.model.startswith("embedded:")
        return EMBEDDED if self.dataset == EMBEDDED or own_images else None

    @property
    def labels(self) -> list[str]:
        """What every title must say: in which way this is not the paper's experiment."""
        model = self.model or ("embedded:" if self.data else None)
        words = []
        if self.data and model and model.startswith("embedded:"):
            words.append("embedded model and images, not the paper's")
        elif self.data:
            words.append(f"model {model} on embedded images, not the paper's")
        elif model:
            words.append(f"model {model}, not the paper's")
        if self.images is not None:
            words.append(f"a slice: {self.images} images per domain")
        if self.corruptions is not None:
            words.append(
                f"{len(self.corruptions)} of {len(CORRUPTIONS)} corruptions: {', '.join(self.corruptions)}"
            )
        if self.batch_size is not None:
            words.append(f"batches of {self.batch_size}")
        if self.preset is not None:
            words.append(f"settings of the preset {self.preset}")
        if self.precision == "bf16":
            words.append("convolutions and matrix products in bfloat16")
        return words

    @property
    def tag(self) -> str:
        """A few words for file names, empty for the paper's own experiment."""
        parts = [self.dataset or "", Path(self.model.rstrip(":")).name if self.model else ""]
        parts += [f"{self.images}-images"] if self.images is not None else []
        parts += [f"{len(self.corruptions)}-corruptions"] if self.corruptions is not None else []
        parts += [f"batch-{self.batch_size}"] if self.batch_size is not None else []
        parts += [self.preset] if self.preset is not None else []
        parts += [self.precision] if self.precision != "full" else []
        parts += ["-".join(self.only)] if self.only is not None else []
        parts += [f"seeds-{'-'.join(map(str, self.seeds))}"] if self.seeds != (0,) else []
        words = ".".join("".join(c if c.isalnum() or c in "-_" else "-" for c in part) for part in parts if part)
        if len(words) <= LONGEST_TAG:
            return words
        mark = hashlib.sha256(words.encode()).hexdigest()[:8]  # what tells it from others that begin alike
        return f"{words[: LONGEST_TAG - len(mark) - 1]}-{mark}"


@dataclass(frozen=True)
class Need:
    """Something a cell needs and this machine lacks, and the command that brings it (empty: there is none)."""

    what: str
    command: str = ""

    def __str__(self) -> str:
        return f"needs {self.what}" + (f", get them with: {self.command}" if self.command else "")


@dataclass(frozen=True)
class Planned:
    """One cell of an experiment, beside the published numbers of `paper`, or why it cannot run."""

    shown: str
    """What the tables call the dataset."""
    paper: str
    line: Line
    cell: Cell
    needs: tuple[Need, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """The key of a finished cell, or why there is none."""

    key: str | None
    reason: str = ""
    failed: bool = False


@dataclass(frozen=True)
class NotRun:
    """A row without numbers and why, with the commands that would change that."""

    dataset: str
    label: str
    seed: int
    reason: str
    commands: tuple[str, ...] = ()
    failed: bool = False


@dataclass(frozen=True)
class Reproduction:
    """What an experiment came to."""

    experiment: Experiment
    title: str
    tables: tuple[Table, ...]
    not_run: tuple[NotRun, ...]
    keys: dict[str, list[str]] = field(default_factory=dict)
    """The store's keys behind every row, "dataset / label"."""
    notes: tuple[str, ...] = ()
    corruptions: tuple[str, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON-ready data."""
        return {
            "experiment": self.experiment.name,
            "title": self.title,
            "place": self.experiment.place,
            "tables": [table.to_dict() for table in self.tables],
            "not_run": [vars(item) | {"commands": list(item.commands)} for item in self.not_run],
            "cells": self.keys,
        }

    @property
    def markdown(self) -> str:
        """All tables on one page."""
        return "\n".join([f"## {self.title}", "", *(table.markdown() for table in self.tables)])

    @property
    def latex(self) -> str:
        """All tables, for a document that uses booktabs."""
        return "\n".join(table.latex() for table in self.tables)


# ---------------------------------------------------------------- from the paper to cells


def plan(experiment: Experiment, options: Options) -> list[Planned]:
    """All cells of an experiment, in the order of its table, seeds last."""
    _check_preset(experiment, options.preset)
    out = []
    for paper, benchmark in _chosen(experiment, options).items():
        needs = _needs(experiment, paper, benchmark, options)
        for line in _wanted(experiment, paper, options):
            for seed in options.seeds:
                cell = _cell(experiment, paper, benchmark, line, seed, options)
                out.append(Planned(options.data or paper, paper, line, cell, needs))
    return out


def _check_preset(experiment: Experiment, preset: str | None) -> None:
    known = sorted({name for line in experiment.rows for name in find(line.method).presets})
    if preset is not None and preset not in known:
        raise SettingError(
            f"No method of experiment {experiment.name} has a preset {preset!r}: known are {', '.join(known)}."
        )


def _wanted(experiment: Experiment, dataset: str, options: Options) -> list[Line]:
    """Rows to run, all or some."""
    lines = experiment.lines(dataset)
    if options.only is None:
        return lines
    unknown = [label for label in options.only if label not in {line.label for line in lines}]
    if unknown:
        raise SettingError(
            f"Experiment {experiment.name} has no row {', '.join(unknown)}: its rows are "
            f"{', '.join(line.label for line in lines)}."
        )
    return [line for line in lines if line.label in options.only]


def _chosen(experiment: Experiment, options: Options) -> dict[str, Benchmark]:
    """Datasets to run; a substitute stands in for the first one."""
    datasets = dict(experiment.datasets)
    if options.data:
        first = next(iter(datasets))
        return {first: datasets[first]}
    if options.dataset is None:
        return datasets
    if options.dataset not in datasets:
        raise SettingError(
            f"Experiment {experiment.name} is about {', '.join(datasets)}, not {options.dataset}: choose one of "
            f"them, or {EMBEDDED} for the images that come with the package."
        )
    return {options.dataset: datasets[options.dataset]}


def _cell(
    experiment: Experiment, paper: str, benchmark: Benchmark, line: Line, seed: int, options: Options
) -> Cell:
    model, weights = options.model, options.weights
    if model is None and options.data:
        model = "embedded:"
    if model is None:
        found = _weights(benchmark.model)
        model, weights = benchmark.model, str(found) if found else None
    preset = options.preset if options.preset in find(line.method).presets else None
    size = options.batch_size or (SUBSTITUTE_BATCH if options.data else benchmark.batch_size)
    return Cell(
        line.method,
        model=model,
        weights=weights,
        data=options.data or paper,
        scenario=experiment.setting,
        preset=preset
        or preset_for(line.method, EMBEDDED if model.startswith("embedded:") else options.data or paper),
        settings=dict(line.settings),
        seed=seed,
        images=options.images,
        batch_size=size,
        corruptions=options.corruptions,
        clean=min(benchmark.clean, options.images or benchmark.clean),
        precision=options.precision,
        threads=options.threads,
        label=line.label,
    )


def preset_for(method: str, data: str) -> str:
    """Preset of a method for a dataset, or for the embedded model; without one `embedded`, that of CIFAR-10-C."""
    return "cifar10-c" if data == EMBEDDED and EMBEDDED not in find(method).presets else data


# ---------------------------------------------------------------- what must be there


def _needs(experiment: Experiment, paper: str, benchmark: Benchmark, options: Options) -> tuple[Need, ...]:
    needs = []
    if options.model is None and not options.data and _weights(benchmark.model) is None:
        needs.append(Need(f"{SPOKEN[benchmark.model]} weights", f"ctta data get {benchmark.model}"))
    if not options.data:
        severities = (1, 2, 3, 4, 5) if experiment.setting == "gradual" else (5,)
        needs += _missing_images(paper, options.corruptions or CORRUPTIONS, severities)
        if benchmark.clean:
            needs += _missing_clean(paper)
    return tuple(needs)


def _weights(model: str) -> Path | None:
    """Where the checkpoint of a model is in the data folder."""
    return present(catalogue.find(model).parts[0], cache_folder())


def _missing_images(dataset: str, corruptions: Sequence[str], severities: Sequence[int]) -> list[Need]:
    benchmark, missing = domains(dataset), []
    for corruption in corruptions:
        for severity in severities:
            try:
                benchmark.domain(corruption, severity)
            except MissingError:
                missing.append(f"{corruption}-{severity}")
            except DataError as error:  # there, but not as it should be: its own words say what to do
                return [Need(f"another look at {SPOKEN[dataset]}: {error}")]
    if not missing:
        return []
    some = "" if len(missing) == len(corruptions) * len(severities) else f" ({', '.join(missing)})"
    return [Need(f"{SPOKEN[dataset]} images{some}", f"ctta data get {dataset}")]


def _missing_clean(dataset: str) -> list[Need]:
    try:
        clean_images(dataset)
    except DataError as error:
        clean = dataset.removesuffix("-c")
        if clean in {entry.name for entry in catalogue.ENTRIES}:
            return [Need(f"clean {SPOKEN[dataset].removesuffix('-C')} images", f"ctta data get {clean}")]
        return [Need(f"clean images: {error}")]
    return []


# ---------------------------------------------------------------- running


class Work:
    """The cells of several experiments, each of them once, and what has become of them."""

    def __init__(self, experiments: Sequence[Experiment], options: Options) -> None:
        self.options = options
        self.experiments = {experiment.name: experiment for experiment in experiments}
        self._tasks: dict[str, Task] = {}
        self._outcomes: dict[str, Outcome] = {}  # by key
        self._rows = {
            experiment.name: [(item, self._enter(item)) for item in plan(experiment, options)]
            for experiment in experiments
        }

    def _enter(self, item: Planned) -> str | Outcome:
        """Return the key of a cell that is to run, or why it cannot."""
        if item.needs:
            return Outcome(None, "not run: " + "; ".join(map(str, item.needs)))
        try:
            task = prepare(item.cell)
        except Exception as error:  # noqa: BLE001 - the user's model may raise anything, and other cells can run
            return Outcome(None, f"failed: {type(error).__name__}: {error}", failed=True)
        self._tasks.setdefault(task.key, task)
        return task.key

    @property
    def tasks(self) -> list[Task]:
        """What there is to run, in the order of the experiments."""
        return list(self._tasks.values())

    def waiting(self, name: str) -> set[str]:
        """Keys of the cells an experiment still waits for."""
        return {end for _, end in self._rows[name] if isinstance(end, str)} - self._outcomes.keys()

    def ended(self, key: str, problem: str = "") -> list[str]:
        """Take note that a cell is done, or of its problem; returns the experiments it was the last one of."""
        waited = [name for name in self.experiments if key in self.waiting(name)]
        self._outcomes[key] = Outcome(None, problem, failed=True) if problem else Outcome(key)
        return [name for name in waited if not self.waiting(name)]

    def reproduction(self, name: str, store: Store) -> Reproduction:
        """Make the tables of an experiment whose cells have ended."""
        planned = [item for item, _ in self._rows[name]]
        ends = [self._outcomes[end] if isinstance(end, str) else end for _, end in self._rows[name]]
        return _reproduction(self.experiments[name], self.options, store, planned, ends)


# ---------------------------------------------------------------- from cells to tables


def _reproduction(
    experiment: Experiment, options: Options, store: Store, planned: Sequence[Planned], outcomes: Sequence[Outcome]
) -> Reproduction:
    pairs = list(zip(planned, outcomes, strict=True))
    entries, keys = [], {}
    for shown, paper, label in dict.fromkeys((p.shown, p.paper, p.line.label) for p in planned):
        mine = [(p, o) for p, o in pairs if (p.shown, p.line.label) == (shown, label)]
        found = [o.key for _, o in mine if o.key]
        runs = tuple(summarise(store, store.cell(key)) for key in found)
        entries.append(Entry(shown, label, runs, experiment.beside(mine[0][0].line, paper)))
        keys[f"{shown} / {label}"] = found
    not_run = tuple(
        NotRun(
            p.shown,
            p.line.label,
            p.cell.seed,
            o.reason,
            tuple(need.command for need in p.needs if need.command),
            o.failed,
        )
        for p, o in pairs
        if o.key is None
    )
    words = f" [{'; '.join(options.labels)}]" if options.labels else ""
    return made_of(
        experiment,
        f"{experiment.place}: {experiment.title}{words}",
        entries,
        notes=[*_why(not_run, len(planned)), *_about(experiment, planned, options), *experiment.notes],
        corruptions=options.corruptions,
        keys=keys,
        not_run=not_run,
    )


def made_of(
    experiment: Experiment,
    title: str,
    entries: list[Entry],
    *,
    notes: Sequence[str],
    corruptions: tuple[str, ...] | None,
    keys: dict[str, list[str]],
    not_run: tuple[NotRun, ...] = (),
) -> Reproduction:
    """Make the tables of an experiment from its entries."""
    made = _tables(experiment, title, entries, list(notes), corruptions)
    return Reproduction(experiment, title, made, not_run, keys, tuple(notes), corruptions)


def _why(not_run: Sequence[NotRun], planned: int) -> list[str]:
    """One note a reason, with the rows it concerns."""
    groups: dict[tuple[str, str], list[str]] = {}
    for item in not_run:
        groups.setdefault((item.dataset, item.reason), []).append(item.label)
    out = []
    for (dataset, reason), labels in groups.items():
        which = "" if len(labels) == planned else f" ({', '.join(dict.fromkeys(labels))})"
        out.append(f"{dataset}{which}: {reason}")
    return out


def _about(experiment: Experiment, planned: Sequence[Planned], options: Options) -> list[str]:
    """What a reader must know of this run beyond the title."""
    out = []
    if options.data and experiment.published:
        name = SPOKEN[planned[0].paper]
        out.append(f"The paper's numbers beside ours are those of {name}: another model, other images.")
    if options.data:
        other = sorted({item.line.method for item in planned if item.cell.preset == "cifar10-c"})
        if other:
            out.append(
                f"Settings of the preset cifar10-c, for want of one for the embedded model: {', '.join(other)}."
            )
    out += [
        f"{SPOKEN[name]}: images made here (ctta data make), other draws than the published files."
        for name in dict.fromkeys(item.paper for item in planned if not options.data and not item.needs)
        if _was_made(name)
    ]
    return [*out, *about_seeds({item.line.label: options.seeds for item in planned})]


SEEDS = "Mean over the seeds "


def about_seeds(found: Mapping[str, Sequence[int]]) -> list[str]:
    """Say over which seeds rows are means: nothing where each is of one, else which rows if not all are alike.

    >>> about_seeds({"PALM": (0,), "Tent": (0,)}), about_seeds({"PALM": (0, 1), "Tent": (0,)})
    ([], ['Mean over the seeds 0, 1: PALM; seed 0: Tent.'])
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    for label, seeds in found.items():
        groups.setdefault(tuple(sorted(seeds)), []).append(label)
    if all(len(seeds) < 2 for seeds in groups):
        return []
    parts = []
    for seeds, labels in sorted(groups.items(), key=lambda item: -len(item[0])):
        words = f"{SEEDS if len(seeds) > 1 else 'Seed '}{', '.join(map(str, seeds))}"
        parts.append(words if len(groups) == 1 else f"{words}: {', '.join(labels)}")
    first, *rest = parts
    return ["; ".join([first, *(part[0].lower() + part[1:] for part in rest)]) + "."]


def _was_made(dataset: str) -> bool:
    folder = cache_folder() / "made" / catalogue.find(dataset).folder
    official = present(catalogue.find(dataset).parts[0], cache_folder())
    return folder.is_dir() and official is None


def _tables(
    experiment: Experiment, title: str, entries: list[Entry], notes: list[str], chosen: tuple[str, ...] | None
) -> tuple[Table, ...]:
    name, view = experiment.name, experiment.view
    if view == "corruptions":
        wanted = chosen or CORRUPTIONS
        return (
            tables.means(name, title, entries, notes),
            tables.corruptions(f"{name}-corruptions", f"{title}, per corruption", entries, wanted),
            tables.calibration(f"{name}-calibration", f"{title}, calibration", entries),
        )
    if view == "importance":
        return tuple(
            tables.importance(
                f"{name}-{entry.dataset}", f"{title}, {entry.dataset}", entry, experiment.domains, notes
            )
            for entry in entries
        )
    if view == "sweep":
        return (tables.sweep(name, title, entries, notes, experiment.nondecreasing),)
    if view == "cost":
        return (tables.cost(name, title, entries, experiment.reference, notes),)
    if view == "differences":
        return (tables.differences(name, title, entries, experiment.reference, notes),)
    if view == "shares":
        return (tables.shares(name, title, entries, notes),)
    if view == "forgetting":
        return (tables.forgetting(name, title, entries, notes),)
    make = {"gradual": tables.gradual, "recurring": tables.recurring}.get(experiment.setting, tables.means)
    return (make(name, title, entries, notes),)
