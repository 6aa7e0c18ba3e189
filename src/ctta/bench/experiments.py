"""The experiments of the paper with published numbers (`paper/*.yaml`), our own (`beyond/*.yaml`), their cells.

Each experiment runs on the paper's models and datasets where they are in the data folder; what is missing is
said with the command that brings it, and never replaced. Only who asks for a substitute (the embedded model and
images) gets one, and then every title says so.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from ctta._core.files import parsing
from ctta.bench.cell import Cell
from ctta.bench.resolve import clean_images
from ctta.corruptions import CORRUPTIONS
from ctta.data import MissingError, cache_folder, catalogue, domains
from ctta.data.get import present
from ctta.errors import DataError, SettingError
from ctta.methods import find
from ctta.settings import suggestion
from ctta.streams import SCENARIOS

EMBEDDED = "embedded"
SUBSTITUTE_BATCH = 200
LONGEST_TAG = 120  # some file systems take names of 143 letters
SPOKEN = {"wrn-28-10": "WRN-28-10", "resnext-29": "ResNeXt-29", "resnet-50": "ResNet-50"}
SPOKEN |= {"cifar10-c": "CIFAR-10-C", "cifar100-c": "CIFAR-100-C", "imagenet-c": "ImageNet-C"}
View = Literal["corruptions", "means", "sweep", "shares", "importance", "forgetting", "cost", "differences"]
"""Which tables an experiment comes to."""

NAMES = (
    *("table1", "table2", "table3", "gtta", "adapted", "optimizers", "pseudo-labels", "lambda", "temperature"),
    *("alpha", "importance", "forgetting", "cost", "mixed"),
)
"""The experiments, in the order of the paper."""
BEYOND = ("gradual", "correlated", "recurring", "differences", "share", "anchor", "resets", "speed")
"""Experiments the paper does not have; `all` does not mean them."""
COLUMNS = (*CORRUPTIONS, "mean", "selected", "clean_accuracy", "seconds")
"""What a published number may be of: an error in %, a share in %, an accuracy in %, seconds per batch."""


@dataclass(frozen=True)
class Benchmark:
    """A dataset as the paper uses it."""

    model: str
    batch_size: int
    clean: int = 0  # images on which forgetting is measured


@dataclass(frozen=True)
class Row:
    """One row: a method with settings beyond the preset of the dataset."""

    label: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    only: Sequence[str] = ()  # datasets it belongs to; empty: all
    row: str = ""  # the published row it stands beside, if not that of its own label


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper. `published[dataset][row][column]` holds only what was printed."""

    name: str
    title: str
    place: str
    view: View
    scenario: str
    datasets: Mapping[str, Benchmark]
    columns: Sequence[str]
    rows: Sequence[Row]
    published: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    domains: Sequence[str] = ()  # corruptions the figure shows
    reference: str = ""  # the row whose time is the unit
    nondecreasing: str = ""  # a number that must not fall from row to row

    def beside(self, row: Row, dataset: str) -> Mapping[str, float]:
        """Published numbers of a row, by column; empty where the paper has none."""
        return self.published.get(dataset, {}).get(row.row or row.label, {})

    def rows_of(self, dataset: str) -> list[Row]:
        """Rows of a dataset."""
        return [row for row in self.rows if not row.only or dataset in row.only]


@functools.cache
def experiment(name: str) -> Experiment:
    """Return an experiment by name."""
    known = (*NAMES, *BEYOND)
    if name not in known:
        raise SettingError(
            f"There is no experiment `{name}`.{suggestion(name, known)} Experiments: {', '.join(known)}."
        )
    file = files("ctta.bench") / ("paper" if name in NAMES else "beyond") / f"{name}.yaml"
    return read(name, file.read_text("utf-8"), str(file))


def read(name: str, text: str, file: str) -> Experiment:
    """Read an experiment from YAML; whatever is wrong is said with the file."""
    with parsing(f"{file} is not an experiment", "Correct it."):
        data = yaml.safe_load(text)
        data["rows"] = [Row(**row) for row in data["rows"]]
        data["datasets"] = {dataset: Benchmark(**facts) for dataset, facts in data["datasets"].items()}
        data["published"] = _published(data.get("published", {}), data["columns"])
        made = Experiment(name=name, **data)
        _check(made)
        return made


def _check(made: Experiment) -> None:
    """Refuse names that nothing in the file, or in ctta, goes by."""
    labels = {row.row or row.label for row in made.rows}
    checks: Sequence[tuple[str, Iterable[str], Iterable[str]]] = (
        ("view", [made.view], get_args(View)),
        ("scenario", [made.scenario], SCENARIOS),
        ("columns", made.columns, COLUMNS),
        ("domains", made.domains, CORRUPTIONS),
        ("only", [dataset for row in made.rows for dataset in row.only], made.datasets),
        ("published", made.published, made.datasets),
        ("published", [row for found in made.published.values() for row in found], labels),
        ("reference", [made.reference], ["", *(row.label for row in made.rows)]),
        ("nondecreasing", [made.nondecreasing], ["", "selected"]),
    )
    for key, values, known in checks:
        if wrong := sorted(set(values) - set(known)):
            raise ValueError(f"{key}: expected some of {', '.join(known)}, but got {', '.join(wrong)}")


def _published(data: Mapping[str, Any], columns: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Pair the numbers of each row with the columns; null, a dash in the paper, is left out."""
    out: dict[str, dict[str, dict[str, float]]] = {}
    for dataset, row, found in ((dataset, *item) for dataset, rows in data.items() for item in rows.items()):
        pairs = zip(columns, found if isinstance(found, list) else [found], strict=True)
        numbers = {column: value for column, value in pairs if value is not None}
        if not all(type(value) in (int, float) for value in numbers.values()):
            raise ValueError(f"published.{dataset}.{row}: expected numbers, but got {found}")
        out.setdefault(dataset, {})[row] = {column: float(value) for column, value in numbers.items()}
    return out


# ---------------------------------------------------------------- from an experiment to its cells


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
        said = {"reason": self.reason, "commands": list(filter(None, self.needs.values())), "failed": self.failed}
        return {"dataset": self.dataset, "label": self.row.label, "seed": self.cell.seed, **said}


def plan(experiment: Experiment, options: Options) -> list[Planned]:
    """All cells of an experiment, in the order of its table, seeds last."""
    known = sorted({name for row in experiment.rows for name in find(row.method).presets})
    if options.preset not in (None, *known):
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
    elif model is None:
        model, weights = benchmark.model, str(_weights(benchmark.model) or "") or None
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
        batch_size=options.batch_size or (SUBSTITUTE_BATCH if options.data else benchmark.batch_size),
        clean=min(benchmark.clean, options.images or benchmark.clean),
        **{name: getattr(options, name) for name in ("images", "corruptions", "precision", "threads")},
        label=row.label,
    )


def preset_for(method: str, data: str) -> str:
    """Preset of a method for a dataset; for the embedded model that of CIFAR-10-C, if it has none of its own."""
    return "cifar10-c" if data == EMBEDDED and EMBEDDED not in find(method).presets else data


def _needs(experiment: Experiment, paper: str, options: Options) -> dict[str, str]:
    needs: dict[str, str] = {}
    benchmark = experiment.datasets[paper]
    if options.data:
        return needs
    if options.model is None and _weights(benchmark.model) is None:
        needs[f"{SPOKEN[benchmark.model]} weights"] = f"ctta data get {benchmark.model}"
    severities = (1, 2, 3, 4, 5) if experiment.scenario == "gradual" else (5,)
    needs |= _missing_images(paper, options.corruptions or CORRUPTIONS, severities)
    return needs | (_missing_clean(paper) if benchmark.clean else {})


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
        clean, name = dataset.removesuffix("-c"), SPOKEN[dataset].removesuffix("-C")
        known = clean in {entry.name for entry in catalogue.ENTRIES}
        return {f"clean {name} images": f"ctta data get {clean}"} if known else {f"clean images: {error}": ""}
    return {}
