"""The experiments of the paper with their published numbers (`paper/*.yaml`), and our own (`beyond/*.yaml`)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal, get_args

import yaml

from ctta.corruptions import CORRUPTIONS
from ctta.errors import DataError, SettingError
from ctta.settings import suggestion
from ctta.streams import SCENARIOS

View = Literal["corruptions", "means", "sweep", "shares", "importance", "forgetting", "cost", "differences"]
"""Which tables an experiment comes to."""

NAMES = (
    "table1",
    "table2",
    "table3",
    "gtta",
    "adapted",
    "optimizers",
    "pseudo-labels",
    "lambda",
    "temperature",
    "alpha",
    "importance",
    "forgetting",
    "cost",
    "mixed",
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
    clean: int = 0
    """Clean images on which forgetting is measured."""


@dataclass(frozen=True)
class Line:
    """One row: a method with settings beyond the preset of the dataset."""

    label: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    """Datasets it belongs to; empty: all."""
    row: str = ""
    """The published row it stands beside, if not that of its own label."""


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper. `published[dataset][row][column]` holds only what was printed."""

    name: str
    title: str
    place: str
    view: View
    setting: str
    datasets: Mapping[str, Benchmark]
    columns: tuple[str, ...]
    rows: tuple[Line, ...]
    published: Mapping[str, Mapping[str, Mapping[str, float]]]
    notes: tuple[str, ...]
    domains: tuple[str, ...] = ()
    """Corruptions the figure shows."""
    reference: str = ""
    """The row whose time is the unit."""
    nondecreasing: str = ""
    """A number that must not fall from row to row."""

    def beside(self, line: Line, dataset: str) -> Mapping[str, float]:
        """Published numbers of a row, by column; empty where the paper has none."""
        return self.published.get(dataset, {}).get(line.row or line.label, {})

    def lines(self, dataset: str) -> list[Line]:
        """Rows of a dataset."""
        return [line for line in self.rows if not line.only or dataset in line.only]


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
    """Read an experiment from YAML; whatever is wrong is named by file and key."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise DataError(f"{file}: it is not YAML ({error}).") from error
    top = _Part(file, "", data)
    datasets = {}
    listed = top.part("datasets")
    for key in listed.value:
        part = listed.part(key)
        datasets[key] = Benchmark(part.text("model"), part.whole("batch_size"), part.whole("clean", 0))
        part.done()
    columns = top.texts("columns", known=COLUMNS)
    rows = tuple(_line(part, datasets) for part in top.parts("rows"))
    out = Experiment(
        name=name,
        title=top.text("title"),
        place=top.text("place"),
        view=top.text("view", known=get_args(View)),  # type: ignore[arg-type]
        setting=top.text("setting", known=tuple(SCENARIOS)),
        datasets=datasets,
        columns=columns,
        rows=rows,
        published=_published(top.part("published", {}), datasets, columns, rows),
        notes=top.texts("notes", ()),
        domains=top.texts("domains", (), known=CORRUPTIONS),
        reference=top.text("reference", "", known=("", *(line.label for line in rows))),
        nondecreasing=top.text("nondecreasing", "", known=("", "selected")),
    )
    top.done()
    return out


def _line(part: _Part, datasets: Mapping[str, Benchmark]) -> Line:
    line = Line(
        label=part.text("label"),
        method=part.text("method"),
        settings=dict(part.part("settings", {}).value),
        only=part.texts("only", (), known=tuple(datasets)),
        row=part.text("row", ""),
    )
    part.done()
    return line


def _published(
    part: _Part, datasets: Mapping[str, Benchmark], columns: Sequence[str], rows: Sequence[Line]
) -> dict[str, dict[str, dict[str, float]]]:
    known = {line.row or line.label for line in rows}
    out: dict[str, dict[str, dict[str, float]]] = {}
    for dataset in part.keys(known=tuple(datasets)):
        numbers = part.part(dataset)
        out[dataset] = {
            row: dict(_numbers(numbers, row, columns)) for row in numbers.keys(known=tuple(sorted(known)))
        }
    return out


def _numbers(part: _Part, row: str, columns: Sequence[str]) -> list[tuple[str, float]]:
    """Pair a row's numbers with the columns; null, a dash in the paper, is left out."""
    found = part.take(row)
    values = found if isinstance(found, list) else [found]
    if len(values) != len(columns):
        raise part.error(row, f"{len(columns)} numbers, one a column", f"{len(values)}")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
            raise part.error(row, "numbers", repr(value))
    return [(c, float(v)) for c, v in zip(columns, values, strict=True) if v is not None]


_NOTHING: Any = object()


class _Part:
    """A mapping of the file, whose keys are taken one by one and checked."""

    def __init__(self, file: str, path: str, value: Any) -> None:
        self.file, self.path = file, path
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise DataError(f"{file}: {path or 'the file'}: expected keys with values, but got {value!r}.")
        self.value: dict[str, Any] = value
        self.taken: set[str] = set()

    def error(self, key: str, expected: str, got: str) -> DataError:
        return DataError(f"{self.file}: {self._key(key)}: expected {expected}, but got {got}.")

    def _key(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def take(self, key: str, default: Any = _NOTHING) -> Any:
        self.taken.add(key)
        if key not in self.value and default is _NOTHING:
            raise DataError(f"{self.file}: {self._key(key)}: it is missing.")
        return self.value.get(key, default)

    def keys(self, known: Sequence[str] | None = None) -> list[str]:
        for key in self.value if known is not None else ():
            if key not in (known or ()):
                raise self.error(key, f"one of {', '.join(known or ())}", f"{key!r}")
        return list(self.value)

    def text(self, key: str, default: Any = _NOTHING, known: Sequence[str] | None = None) -> str:
        value = self.take(key, default)
        if not isinstance(value, str) or (known is not None and value not in known):
            expected = "words" if known is None else f"one of {', '.join(known)}"
            raise self.error(key, expected, repr(value))
        return value

    def whole(self, key: str, default: Any = _NOTHING) -> int:
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.error(key, "a whole number of at least 0", repr(value))
        return value

    def texts(self, key: str, default: Any = _NOTHING, known: Sequence[str] | None = None) -> tuple[str, ...]:
        value = self.take(key, default)
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self.error(key, "a list of words", repr(value))
        for item in value if known is not None else ():
            if item not in (known or ()):
                raise self.error(key, f"some of {', '.join(known or ())}", repr(item))
        return tuple(value)

    def part(self, key: str, default: Any = _NOTHING) -> _Part:
        return _Part(self.file, self._key(key), self.take(key, default))

    def parts(self, key: str) -> list[_Part]:
        value = self.take(key)
        if not isinstance(value, list) or not value:
            raise self.error(key, "a list with at least one entry", repr(value))
        return [_Part(self.file, f"{self._key(key)}[{place}]", item) for place, item in enumerate(value)]

    def done(self) -> None:
        """Refuse keys that nobody asked for."""
        for key in self.value:
            if key not in self.taken:
                raise self.error(key, f"one of {', '.join(sorted(self.taken))}", f"{key!r}")
