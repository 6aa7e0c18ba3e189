"""The experiments of the paper with their published numbers (`paper/*.yaml`), and our own (`beyond/*.yaml`)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal, get_args

import yaml

from ctta._core.files import parsing
from ctta.corruptions import CORRUPTIONS
from ctta.errors import SettingError
from ctta.settings import suggestion
from ctta.streams import SCENARIOS

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
    """Return an experiment by name.

    >>> experiment("table1").published["cifar10-c"]["PALM"]["mean"]
    15.5
    """
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
    for dataset, rows in data.items():
        for row, found in rows.items():
            pairs = zip(columns, found if isinstance(found, list) else [found], strict=True)
            numbers = {column: value for column, value in pairs if value is not None}
            if not all(type(value) in (int, float) for value in numbers.values()):
                raise ValueError(f"published.{dataset}.{row}: expected numbers, but got {found}")
            out.setdefault(dataset, {})[row] = {column: float(value) for column, value in numbers.items()}
    return out
