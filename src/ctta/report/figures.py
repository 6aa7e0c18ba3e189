"""The figures of a board, drawn with matplotlib. A figure whose data is not there is left out.

`figure_of(board, "cost")` is a figure to change and to save as one likes; a notebook shows it.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ctta.bench.metrics import corruption_of, grouped, means
from ctta.bench.results import Result, cells_at_once
from ctta.errors import DataError
from ctta.report.chart import Point, Series, Style, bars, dot_rows, lines, panels, scatter
from ctta.report.collect import MOST, Board, Sweep
from ctta.report.drawing import COLOURS, house_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDE, NARROW, HALF = 900.0, 360.0, 400.0  # pixels: across the page, on a phone, half of the page
SHOWN_DOMAINS = ("glass_blur", "snow")  # of the paper's figure of learning-rate importance
SIGNS = {"alpha": "α", "lam": "λ", "temperature": "T", "lr": "κ", "eta": "η"}  # noqa: RUF001
"""How the paper writes its settings."""

Styles = Mapping[str, Style]


@dataclass(frozen=True)
class Chart:
    """What a figure shows, and its caption, which says of which data.

    `full` ones take the width of the page and are drawn again, narrower, for a phone; others take half of it.
    """

    name: str
    title: str
    caption: str
    make: Callable[[float], Figure]
    full: bool = False

    def draw(self, width: float = 0.0) -> Figure:
        """Return the figure, free to be changed, as many pixels wide as asked for."""
        with house_style():
            return self.make(width or (WIDE if self.full else HALF))


@dataclass(frozen=True)
class View:
    """Entries of a board as figures show them."""

    board: Board
    entries: tuple[Result, ...]
    styles: Styles
    note: str = ""

    def of(self, entries: Iterable[Result], **changes: Any) -> View:
        """Return a view of other entries."""
        return replace(self, entries=tuple(entries), **changes)

    def chart(
        self, name: str, title: str, text: str, make: Callable[[float], Figure], full: bool = False
    ) -> Chart:
        """Return a chart of the entries; its caption is a text, and then which data it is."""
        return Chart(name, title, f"{text} {self.board.origin(self.entries)}{self.note}", make, full)

    def one(self, entry: Result, points: Sequence[Point]) -> Series:
        """Return the series of an entry."""
        style = self.styles.get(entry.label, Style(COLOURS["c0"]))
        return Series(entry.label, style, tuple(points), strong=entry.method == "palm")

    def series(self, points: Callable[[Result], Sequence[Point]]) -> list[Series]:
        """Return one series an entry, the best last: it covers the others, and PALM covers all."""
        ranked = sorted(self.entries, key=lambda entry: (entry.method == "palm", -entry.mean))
        return [self.one(entry, points(entry)) for entry in ranked]

    def curves(self, name: str, first: int = 0) -> list[Series]:
        """Return a curve of each entry, its points in the middle of their batches and so inside their domains."""
        middles = [batch - 0.5 for batch in self.entries[0].runs[0].batches]
        return self.series(lambda entry: list(zip(middles, entry.curve(name), strict=True))[first:])

    def stream(self) -> dict[str, Any]:
        """Return the stream as x axis: divided where the corruption changes, with names where all have room."""
        run = self.entries[0].runs[0]
        shifts = [(float(start), _words(corruption_of(domain))) for start, domain in run.shifts]
        starts = [shift for k, shift in enumerate(shifts) if not k or shift[1] != shifts[k - 1][1]]
        if not 1 < len(starts) <= 30:
            return {"x": (), "x_name": "batches", "borders": (0.0, float(run.batches[-1]))}
        borders = [*(start for start, _ in starts), float(run.batches[-1])]
        middles = [sum(ends) / 2 for ends in itertools.pairwise(borders)]
        return {"x": list(zip(middles, (name for _, name in starts), strict=True)), "borders": borders}

    def without_far(self) -> tuple[View, str]:
        """Set apart entries so far above all others that those would shrink to one, in a sentence."""
        ranked = sorted(self.entries, key=lambda entry: entry.mean)
        found = [entry.mean for entry in ranked]
        for k in range(2, len(ranked)):
            if found[k] - found[k - 1] > 1.5 * (found[k - 1] - found[0]) and found[k] > 1.3 * found[k - 1]:
                words = "".join(f" {e.label} lies above the figure, at {e.mean:.1f} %." for e in ranked[k:])
                return self.of(entry for entry in self.entries if entry in ranked[:k]), words
        return self, ""


def styles_of(boards: Sequence[Board]) -> dict[str, Style]:
    """Give every label its look, the same on all boards: six colours, then the same ones dashed; source grey.

    PALM is always the first colour.
    """
    entries = [entry for board in boards for entry in board.headline if entry.method != "source"]
    labels = dict.fromkeys(e.label for e in sorted(entries, key=lambda e: e.method != "palm"))
    found = {label: Style(COLOURS[f"c{k % 6}"], dashed=k // 6 % 2 == 1) for k, label in enumerate(labels)}
    grey = Style(COLOURS["c6"], dashed=True)
    return found | {e.label: grey for board in boards for e in board.entries if e.method == "source"}


def figures_of(board: Board, styles: Styles | None = None, domains: Sequence[str] = SHOWN_DOMAINS) -> list[Chart]:
    """All figures the board has data for, in the order of the page."""
    shown = sorted(board.headline, key=lambda entry: entry.mean)[:MOST]
    note = f" The {MOST} best of {len(board.headline)} entries." if len(board.headline) > MOST else ""
    entries = tuple(entry for entry in board.headline if entry in shown)
    view = View(board, entries, styles_of([board]) if styles is None else styles, note)
    found = (
        *(error_per_corruption(view), error_over_stream(view), selected_share(view), cost(view)),
        *(by_setting(view), importance(view, domains), calibration(view), forgetting(view)),
    )
    return list(itertools.chain(*found))


def figure_of(board: Board, name: str, width: float = 0.0) -> Figure:
    """Draw one figure of a board, by its name."""
    found = {chart.name: chart for chart in figures_of(board)}
    if name not in found:
        raise DataError(f"Expected one of the figures {', '.join(found)}, but got {name!r}.")
    return found[name].draw(width)


def error_per_corruption(view: View) -> Iterator[Chart]:
    """A row a corruption, a dot a method."""
    near, above = view.without_far()
    errors = {entry.label: _corruption_errors(entry) for entry in near.entries}
    names = list(dict.fromkeys(itertools.chain(*errors.values())))
    if len(names) > 1:
        series = near.series(
            lambda e: [(errors[e.label][n], k) for k, n in enumerate(names) if n in errors[e.label]]
        )
        yield near.chart(
            "error-per-corruption",
            "Error per corruption",
            f"A dot is the error of one method on one corruption, mean over severities, visits and seeds.{above}",
            partial(dot_rows, series, names=[_words(name) for name in names], x="error (%)"),
            full=True,
        )


def _corruption_errors(entry: Result) -> dict[str, float]:
    """Error of every corruption: mean over its severities and visits, then over seeds."""
    seeds = [grouped((corruption_of(visit.domain), visit.error) for visit in run.visits) for run in entry.runs]
    return means({name: statistics.fmean(errors) for name, errors in found.items()} for found in seeds)


def error_over_stream(view: View) -> Iterator[Chart]:
    """A line a method: its error among all images so far, without the first few batches, which jump about."""
    near, above = view.without_far()
    first = len(near.entries[0].runs[0].batches) // 25
    left_out = "; the first few batches are left out" if first else ""
    yield near.chart(
        "error-over-stream",
        "Error over the stream",
        f"Share of wrong predictions among all images up to a batch, mean over seeds{left_out}.{above}",
        partial(lines, near.curves("running", first), y="running error (%)", height=220, **near.stream()),
        full=True,
    )


def selected_share(view: View) -> Iterator[Chart]:
    """A line a method that selects parameters."""
    choosing = view.of(entry for entry in view.entries if entry.curve("selecting"))
    if choosing.entries:
        yield choosing.chart(
            "selected-share",
            "Parameters selected, batch by batch",
            "Share of the adaptable parameters that a method selected in a batch, mean over seeds; methods that "
            "do not select are left out.",
            partial(
                lines, choosing.curves("selecting"), y="parameters selected (%)", zero=True, **choosing.stream()
            ),
            full=True,
        )


def cost(view: View) -> Iterator[Chart]:
    """A dot a method: its time and its error."""
    passes = {entry.label: entry.over("passes") for entry in view.entries}
    timed = view.of(entry for entry in view.entries if passes[entry.label] is not None)
    if len(timed.entries) > 1:
        series = timed.series(lambda entry: [(passes[entry.label] or 0.0, entry.mean)])
        most = cells_at_once(run for entry in view.entries for run in entry.runs)
        beside = f" Timed while up to {most} cells ran at once." if most > 1 else ""
        yield view.chart(
            "cost",
            "Cost against error",
            "Median time of a batch divided by that of a bare forward pass, and mean error over domains; less is "
            f"better in both.{beside}",
            partial(scatter, series, x="time per batch (forward passes of the source model)", y="mean error (%)"),
        )


def by_setting(view: View) -> Iterator[Chart]:
    """A line through the values of a setting; several where it was varied with others at several values."""
    for (method, setting), sweeps in grouped(((s.method, s.setting), s) for s in view.board.sweeps).items():
        group, sign = sweeps[:6], SIGNS.get(setting, setting)
        series = [_sweep(view, group, k) for k in range(len(group))]
        ticks = [(value, f"{value:g}") for value in sorted({value for s in series for value, _ in s.points})]
        name = sign if sign == setting else f"{sign} ({setting})"
        yield view.of((entry for sweep in group for _, entry in sweep.points), note="").chart(
            f"{method}-{setting}",
            f"{method}: mean error by {setting}",  # labels of entries name points: "T = 50"
            f"Runs of {method} that differ in {setting} alone; bars are one standard deviation over seeds.",
            partial(lines, series, x=ticks, x_name=name, y="mean error (%)", dots=True),
        )


def _sweep(view: View, group: Sequence[Sweep], place: int) -> Series:
    """A line of a figure by setting: alone it looks like its method, else its name tells it from the others."""
    sweep, label, style = group[place], group[place].method, Style(COLOURS[f"c{place}"])
    if len(group) == 1:
        hub = next((entry.label for _, entry in sweep.points if entry in view.board.headline), "")
        style = Style(view.styles.get(hub, style).colour)
    else:
        settings = [other.points[0][1].settings for other in group]
        differ = [n for n in settings[0] if n != sweep.setting and len({repr(s.get(n)) for s in settings}) > 1]
        label = ", ".join(f"{SIGNS.get(name, name)} {settings[place].get(name)}" for name in differ)
    points = tuple((value, entry.mean) for value, entry in sweep.points)
    return Series(label, style, points, tuple(entry.std or 0.0 for _, entry in sweep.points), len(group) == 1)


def importance(view: View, wanted: Sequence[str]) -> Iterator[Chart]:
    """The paper's figure: importance of the learning rates by block, for chosen domains."""
    having = [e for e in view.entries if any(any(blocks.values()) for blocks in e.first.importance.values())]
    few = view.of(having[:4], note="")
    there = list(dict.fromkeys(domain for entry in few.entries for domain in entry.first.importance))
    chosen = [domain for domain in there if corruption_of(domain) in wanted or domain in wanted]
    # of a gradual stream the hardest of each
    chosen = [d for d in chosen if d == max(e for e in chosen if corruption_of(e) == corruption_of(d))]
    for domain in chosen or there[:2]:
        name = view.board.short(domain)
        blocks = list(dict.fromkeys(b for e in few.entries for b in e.first.importance.get(domain, {})))
        found = [[r.importance.get(domain, {}) for r in entry.runs] for entry in few.entries]
        bars_of = [[statistics.fmean(i.get(b, 0.0) for i in each) for b in blocks] for each in found]
        series = [few.one(e, list(enumerate(tall))) for e, tall in zip(few.entries, bars_of, strict=True)]
        who = series[0].label if len(series) == 1 else "methods with learning rates by importance"
        yield few.chart(
            f"importance-{name}",
            f"Learning-rate importance by block: {_words(name)}",
            f"Importance i of the paper for {who}, mean over the batches of the domain, the tensors of a block "
            "and seeds; tensors that were not selected count as 0.",
            partial(bars, series, names=blocks, y="importance"),
        )


def calibration(view: View) -> Iterator[Chart]:
    """A square a method: confidence against accuracy."""
    found = [
        (entry.over("ece") or 0.0, view.one(entry, points))
        for entry in view.entries
        if (points := _reliability(entry))
    ]
    found.sort(key=lambda each: each[0])
    if found:
        notes = [f"ECE {error:.1f} %" for error, _ in found]
        yield view.chart(
            "calibration",
            "Calibration: how often predictions of a confidence are right",
            "On the dashed diagonal confidence and accuracy agree; below it a method is too sure. ECE is the "
            "expected calibration error over 15 bins, mean over seeds.",
            partial(panels, [series for _, series in found], notes=notes, x="confidence", y="accuracy"),
            full=True,
        )


def _reliability(entry: Result) -> list[Point]:
    """Mean confidence and accuracy of the images of every bin that has some, all seeds together."""
    seeds = zip(*(run.bins for run in entry.runs), strict=True)
    bins = [tuple(map(sum, zip(*same, strict=True))) for same in seeds]
    return [(sure / count, right / count) for count, sure, right in bins if count]


def forgetting(view: View) -> Iterator[Chart]:
    """A line a method: its error on clean images after every domain, normalised in two ways."""
    measured = view.of(entry for entry in view.entries if all(run.clean for run in entry.runs))
    for column, name in enumerate(("batch", "source"), 1) if measured.entries else ():
        domains = [_words(view.board.short(domain)) for domain, *_ in measured.entries[0].runs[0].clean]
        series, x, dots = measured.series(partial(_forgotten, column)), list(enumerate(domains)), len(domains) < 30
        yield measured.chart(
            f"forgetting-{name}",
            f"Forgetting: clean error with {name} statistics",
            "Error on clean images after each domain of the stream, without adapting to them, normalised with "
            f"{name} statistics; mean over seeds.",
            partial(lines, series, x=x, y="clean error (%)", dots=dots),
        )


def _forgotten(column: int, entry: Result) -> list[Point]:
    steps = zip(*(run.clean for run in entry.runs), strict=True)
    return [(k, statistics.fmean(float(item[column]) for item in step)) for k, step in enumerate(steps)]


def _words(name: str) -> str:
    return name.replace("_", " ")
