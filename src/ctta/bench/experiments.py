"""From an experiment of the paper to its cells.

Each experiment runs on the paper's models and datasets where they are in the data folder; what is missing is
said with the command that brings it, and never replaced. Only who asks for a substitute (the embedded model and
images) gets one, and then every title says so.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctta.bench.cell import Cell
from ctta.bench.published import Experiment, Row
from ctta.bench.resolve import clean_images
from ctta.corruptions import CORRUPTIONS
from ctta.data import MissingError, cache_folder, catalogue, domains
from ctta.data.get import present
from ctta.errors import DataError, SettingError
from ctta.methods import find

EMBEDDED = "embedded"
SUBSTITUTE_BATCH = 200
LONGEST_TAG = 120  # some file systems take names of 143 letters
SPOKEN = {"wrn-28-10": "WRN-28-10", "resnext-29": "ResNeXt-29", "resnet-50": "ResNet-50"}
SPOKEN |= {"cifar10-c": "CIFAR-10-C", "cifar100-c": "CIFAR-100-C", "imagenet-c": "ImageNet-C"}


@dataclass(frozen=True)
class Options:
    """How an experiment is run: on the paper's models and data unless said otherwise."""

    dataset: str | None = None  # one of the paper's datasets, or `embedded`; None: all of the experiment's
    model: str | None = None  # a model for the paper's; `embedded:` brings its images with it
    weights: str | None = None
    images: int | None = None
    corruptions: tuple[str, ...] | None = None
    batch_size: int | None = None
    preset: str | None = None  # for the methods that have one of this name; the others: those of the dataset
    precision: str = "full"  # `bf16`: every method under bfloat16 autocast
    threads: int = 1  # of the CPU, of every cell
    seeds: tuple[int, ...] = (0,)
    only: tuple[str, ...] | None = None  # labels of the rows to run; None: all

    @property
    def data(self) -> str | None:
        """Images that stand in for the paper's, None where the paper's are used."""
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

    def file(self, name: str) -> str:
        """Name of a file of this run."""
        return f"{name}.{self.tag}" if self.tag else name


@dataclass
class Planned:
    """One cell of an experiment, beside the published numbers of `paper`, and what has become of it."""

    dataset: str  # what the tables call it
    paper: str
    row: Row
    cell: Cell
    needs: dict[str, str]  # what this machine lacks, each with the command that brings it (empty: there is none)
    key: str = ""  # in the store; empty where it cannot run
    reason: str = ""  # why there is no number
    failed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return a row without numbers as plain data: why, and the commands that would change that."""
        commands = [command for command in self.needs.values() if command]
        named = {"dataset": self.dataset, "label": self.row.label, "seed": self.cell.seed}
        return {**named, "reason": self.reason, "commands": commands, "failed": self.failed}


def plan(experiment: Experiment, options: Options) -> list[Planned]:
    """All cells of an experiment, in the order of its table, seeds last."""
    known = sorted({name for row in experiment.rows for name in find(row.method).presets})
    if options.preset is not None and options.preset not in known:
        raise SettingError(
            f"No method of experiment {experiment.name} has a preset {options.preset!r}: "
            f"known are {', '.join(known)}."
        )
    out = []
    for paper in _chosen(experiment, options):
        rows, needs = experiment.rows_of(paper), _needs(experiment, paper, options)
        labels = [row.label for row in rows]
        if unknown := [label for label in options.only or () if label not in labels]:
            raise SettingError(
                f"Experiment {experiment.name} has no row {', '.join(unknown)}: its rows are {', '.join(labels)}."
            )
        wanted = [row for row in rows if options.only is None or row.label in options.only]
        for row, seed in itertools.product(wanted, options.seeds):
            cell = _cell(experiment, paper, row, seed, options)
            out.append(Planned(options.data or paper, paper, row, cell, needs))
    return out


def _chosen(experiment: Experiment, options: Options) -> list[str]:
    """Datasets to run; a substitute stands in for the first one."""
    known = list(experiment.datasets)
    if options.data:
        return known[:1]
    if options.dataset not in (None, *known):
        raise SettingError(
            f"Experiment {experiment.name} is about {', '.join(known)}, not {options.dataset}: choose one of "
            f"them, or {EMBEDDED} for the images that come with the package."
        )
    return known if options.dataset is None else [options.dataset]


def _cell(experiment: Experiment, paper: str, row: Row, seed: int, options: Options) -> Cell:
    benchmark, model, weights = experiment.datasets[paper], options.model, options.weights
    if model is None and options.data:
        model = "embedded:"
    if model is None:
        model, found = benchmark.model, _weights(benchmark.model)
        weights = str(found) if found else None
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
    """Preset of a method for a dataset; for the embedded model that of CIFAR-10-C, if it has none of its own."""
    return "cifar10-c" if data == EMBEDDED and EMBEDDED not in find(method).presets else data


def _needs(experiment: Experiment, paper: str, options: Options) -> dict[str, str]:
    needs, benchmark = {}, experiment.datasets[paper]
    if options.model is None and not options.data and _weights(benchmark.model) is None:
        needs[f"{SPOKEN[benchmark.model]} weights"] = f"ctta data get {benchmark.model}"
    if not options.data:
        severities = (1, 2, 3, 4, 5) if experiment.scenario == "gradual" else (5,)
        needs |= _missing_images(paper, options.corruptions or CORRUPTIONS, severities)
        needs |= _missing_clean(paper) if benchmark.clean else {}
    return needs


def _weights(model: str) -> Path | None:
    """Where the checkpoint of a model is in the data folder."""
    return present(catalogue.find(model).parts[0], cache_folder())


def _missing_images(dataset: str, corruptions: Sequence[str], severities: Sequence[int]) -> dict[str, str]:
    benchmark, missing = domains(dataset), []
    wanted = list(itertools.product(corruptions, severities))
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
