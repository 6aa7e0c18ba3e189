"""From an experiment of the paper to its cells.

Each experiment runs on the paper's models and datasets where they are in the data folder; what is missing is
said with the command that brings it, and never replaced. Only who asks for a substitute (the embedded model and
images) gets one, and then every title says so.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctta.bench.cell import Cell
from ctta.bench.published import Benchmark, Experiment, Row
from ctta.bench.resolve import clean_images
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
    threads: int = 1
    """CPU threads of every cell."""
    seeds: tuple[int, ...] = (0,)
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
        model, some = self.model or ("embedded:" if self.data else ""), self.corruptions or ()
        own = model.startswith("embedded:")
        said = {
            "embedded model and images, not the paper's": self.data and own,
            f"model {model} on embedded images, not the paper's": self.data and not own,
            f"model {model}, not the paper's": model and not self.data,
            f"a slice: {self.images} images per domain": self.images,
            f"{len(some)} of {len(CORRUPTIONS)} corruptions: {', '.join(some)}": some,
            f"batches of {self.batch_size}": self.batch_size,
            f"settings of the preset {self.preset}": self.preset,
            "convolutions and matrix products in bfloat16": self.precision == "bf16",
        }
        return [words for words, holds in said.items() if holds]

    @property
    def tag(self) -> str:
        """A few words for file names, empty for the paper's own experiment."""
        said = (
            (self.dataset, self.dataset),
            (Path((self.model or "").rstrip(":")).name, self.model),
            (f"{self.images}-images", self.images),
            (f"{len(self.corruptions or ())}-corruptions", self.corruptions),
            (f"batch-{self.batch_size}", self.batch_size),
            (self.preset, self.preset),
            (self.precision, self.precision != "full"),
            ("-".join(self.only or ()), self.only),
            (f"seeds-{'-'.join(map(str, self.seeds))}", self.seeds != (0,)),
        )
        words = ".".join(re.sub(r"[^\w-]", "-", str(word)) for word, holds in said if holds)
        if len(words) <= LONGEST_TAG:
            return words
        mark = hashlib.sha256(words.encode()).hexdigest()[:8]  # what tells it from others that begin alike
        return f"{words[: LONGEST_TAG - len(mark) - 1]}-{mark}"


@dataclass
class Planned:
    """One cell of an experiment, beside the published numbers of `paper`, and what has become of it."""

    dataset: str
    """What the tables call the dataset."""
    paper: str
    row: Row
    cell: Cell
    needs: dict[str, str]
    """What it needs and this machine lacks, each with the command that brings it (empty: there is none)."""
    key: str = ""
    """In the store; empty where it cannot run."""
    reason: str = ""
    """Why there is no number."""
    failed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return a row without numbers as plain data: why, and the commands that would change that."""
        commands = [command for command in self.needs.values() if command]
        named = {"dataset": self.dataset, "label": self.row.label, "seed": self.cell.seed}
        return {**named, "reason": self.reason, "commands": commands, "failed": self.failed}


# ---------------------------------------------------------------- from the paper to cells


def plan(experiment: Experiment, options: Options) -> list[Planned]:
    """All cells of an experiment, in the order of its table, seeds last."""
    known = sorted({name for row in experiment.rows for name in find(row.method).presets})
    if options.preset is not None and options.preset not in known:
        raise SettingError(
            f"No method of experiment {experiment.name} has a preset {options.preset!r}: "
            f"known are {', '.join(known)}."
        )
    out = []
    for paper, benchmark in _chosen(experiment, options).items():
        needs = _needs(experiment, paper, benchmark, options)
        for row in _wanted(experiment, paper, options):
            for seed in options.seeds:
                cell = _cell(experiment, paper, benchmark, row, seed, options)
                out.append(Planned(options.data or paper, paper, row, cell, needs))
    return out


def _wanted(experiment: Experiment, dataset: str, options: Options) -> list[Row]:
    """Rows to run, all or some."""
    rows = experiment.rows_of(dataset)
    labels = [row.label for row in rows]
    unknown = [label for label in options.only or () if label not in labels]
    if unknown:
        raise SettingError(
            f"Experiment {experiment.name} has no row {', '.join(unknown)}: its rows are {', '.join(labels)}."
        )
    return [row for row in rows if options.only is None or row.label in options.only]


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


def _cell(experiment: Experiment, paper: str, benchmark: Benchmark, row: Row, seed: int, options: Options) -> Cell:
    model, weights = options.model, options.weights
    if model is None and options.data:
        model = "embedded:"
    if model is None:
        found = _weights(benchmark.model)
        model, weights = benchmark.model, str(found) if found else None
    preset = options.preset if options.preset in find(row.method).presets else None
    own = EMBEDDED if model.startswith("embedded:") else options.data or paper
    return Cell(
        row.method,
        model=model,
        weights=weights,
        data=options.data or paper,
        scenario=experiment.scenario,
        preset=preset or preset_for(row.method, own),
        settings=dict(row.settings),
        seed=seed,
        images=options.images,
        batch_size=options.batch_size or (SUBSTITUTE_BATCH if options.data else benchmark.batch_size),
        corruptions=options.corruptions,
        clean=min(benchmark.clean, options.images or benchmark.clean),
        precision=options.precision,
        threads=options.threads,
        label=row.label,
    )


def preset_for(method: str, data: str) -> str:
    """Preset of a method for a dataset, or for the embedded model; without one `embedded`, that of CIFAR-10-C."""
    return "cifar10-c" if data == EMBEDDED and EMBEDDED not in find(method).presets else data


# ---------------------------------------------------------------- what must be there


def _needs(experiment: Experiment, paper: str, benchmark: Benchmark, options: Options) -> dict[str, str]:
    needs: dict[str, str] = {}
    if options.model is None and not options.data and _weights(benchmark.model) is None:
        needs[f"{SPOKEN[benchmark.model]} weights"] = f"ctta data get {benchmark.model}"
    if not options.data:
        severities = (1, 2, 3, 4, 5) if experiment.scenario == "gradual" else (5,)
        needs |= _missing_images(paper, options.corruptions or CORRUPTIONS, severities)
        if benchmark.clean:
            needs |= _missing_clean(paper)
    return needs


def _weights(model: str) -> Path | None:
    """Where the checkpoint of a model is in the data folder."""
    return present(catalogue.find(model).parts[0], cache_folder())


def _missing_images(dataset: str, corruptions: Sequence[str], severities: Sequence[int]) -> dict[str, str]:
    benchmark, missing = domains(dataset), []
    wanted = [(corruption, severity) for corruption in corruptions for severity in severities]
    for corruption, severity in wanted:
        try:
            benchmark.domain(corruption, severity)
        except MissingError:
            missing.append(f"{corruption}-{severity}")
        except DataError as error:  # there, but not as it should be: its own words say what to do
            return {f"another look at {SPOKEN[dataset]}: {error}": ""}
    some = "" if len(missing) == len(wanted) else f" ({', '.join(missing)})"
    return {f"{SPOKEN[dataset]} images{some}": f"ctta data get {dataset}"} if missing else {}


def _missing_clean(dataset: str) -> dict[str, str]:
    try:
        clean_images(dataset)
    except DataError as error:
        clean = dataset.removesuffix("-c")
        if clean in {entry.name for entry in catalogue.ENTRIES}:
            return {f"clean {SPOKEN[dataset].removesuffix('-C')} images": f"ctta data get {clean}"}
        return {f"clean images: {error}": ""}
    return {}
