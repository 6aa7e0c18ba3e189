"""Charts: from series of numbers to matplotlib figures. Names beside what they name, no boxes, no ornaments."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ctta.report.drawing import COLOURS, fit, sheet, short_label, text_width, tip

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW = 15.0  # pixels between two names, at least

Point = tuple[float, float]
Tick = tuple[float, str]


@dataclass(frozen=True)
class Style:
    """How a series looks everywhere in a report: where it is dashed, its dots are hollow."""

    colour: str
    dashed: bool = False


@dataclass(frozen=True)
class Series:
    """One named line, or one named point where there is only one."""

    label: str
    style: Style
    points: tuple[Point, ...]
    spread: tuple[float, ...] = ()  # standard deviation at each point, drawn as a bar
    strong: bool = False

    @property
    def weight(self) -> str:
        """Weight of the font of the name."""
        return "bold" if self.strong else "normal"


def lines(
    series: Sequence[Series],
    width: float,
    *,
    x: Sequence[Tick],
    y: str,
    x_name: str = "",
    borders: Sequence[float] = (),
    height: float = 195,
    dots: bool = False,
    zero: bool = False,
) -> Figure:
    """Lines named at their right end. Ticks are words, values where their axis has a name; `borders` divide it."""
    figure, axes = _area(width)
    series = [replace(s, label=short_label(figure, s.label, 0.36 * width)) for s in series]
    if zero:
        axes.update_datalim([(0, 0)], updatex=False)
    for border in borders[:-1]:
        axes.axvline(border, color=COLOURS["grid"], linewidth=1, clip_on=False, zorder=0.5)
    for s in series:
        _line(axes, s)
        if dots or len(s.points) == 1:
            _dots(axes, s, 3.4, [f"{s.label}: {up:.4g} at {across:.4g}" for across, up in s.points])
    if x:
        _ticks(axes, x, values=bool(x_name), upright=not x_name and len(x) > 4)
    axes.margins(x=0.04, tight=False)
    if borders:
        axes.set_xlim(borders[0], borders[-1])
    axes.set(title=y, xlabel=x_name)
    fit(figure, max(height, len(series) * ROW), right=15 + max(text_width(figure, s.label) for s in series))
    _name_ends(axes, series)
    return figure


def bars(series: Sequence[Series], width: float, *, names: Sequence[str], y: str) -> Figure:
    """Bars side by side in named groups; the points' x is the number of the group."""
    figure, axes = _area(width)
    thick = min(0.72 / len(series), 26 * len(names) / width)
    drawn = []
    for k, s in enumerate(series):
        groups, values = zip(*s.points, strict=True)
        left = [group + (k - len(series) / 2) * thick for group in groups]
        drawn.append(axes.bar(left, values, thick * 0.94, align="edge", color=s.style.colour, clip_on=False))
        for bar, group, value in zip(drawn[-1], groups, values, strict=True):
            tip(bar, [f"{s.label}, {names[int(group)]}: {value:.4g}"])
    _ticks(axes, list(enumerate(names)), upright=True)
    axes.set(title=y, xlim=(-0.5, len(names) - 0.5))
    if len(series) > 1:
        _legend(figure, series, drawn)
    fit(figure, 150)
    return figure


def dot_rows(series: Sequence[Series], width: float, *, names: Sequence[str], x: str) -> Figure:
    """One row a name, one dot a series; the points are (value, number of the row)."""
    figure, axes = _area(width, "x")
    names = [short_label(figure, name, 0.4 * width) for name in names]
    for row in range(len(names)):
        here = [value for s in series for value, at in s.points if at == row]
        axes.plot([min(here), max(here)], [row, row], color=COLOURS["grid"], linewidth=3, clip_on=False)
    tips = [[f"{s.label}, {names[int(row)]}: {value:.1f}" for value, row in s.points] for s in series]
    drawn = [_dots(axes, s, 5.0 if s.strong else 4.2, texts) for s, texts in zip(series, tips, strict=True)]
    axes.set_yticks(range(len(names)), names, size=12, color=COLOURS["ink"])
    axes.set(xlabel=x, ylim=(len(names) - 0.5, -0.5))
    _legend(figure, series, drawn)
    fit(figure, 21.0 * len(names))
    return figure


def scatter(series: Sequence[Series], width: float, *, x: str, y: str) -> Figure:
    """One named dot a series; x is logarithmic where its values span a factor of 8."""
    figure, axes = _area(width)
    for s in series:
        _dots(axes, s, 5.0, [f"{s.label}: {up:.1f} % at {across:.1f} passes" for across, up in s.points])
    values = [s.points[0][0] for s in series]
    if 0 < 8 * min(values) <= max(values):
        steps = [digit * 10.0**power for power in range(-9, 10) for digit in (1, 2, 5)]
        first, last = max(m for m in steps if m < min(values)), min(m for m in steps if m > max(values))
        axes.set_xscale("log")
        _ticks(axes, [(m, f"{m:g}") for m in steps if first <= m <= last])
        axes.set_xlim(first, last)
    else:
        axes.update_datalim([(0, 0)], updatey=False)
        axes.autoscale_view()
    axes.set(title=y, xlabel=x)
    fit(figure, 232)
    _name_dots(figure, [replace(s, label=short_label(figure, s.label, 0.4 * width)) for s in series])
    return figure


def panels(series: Sequence[Series], width: float, *, notes: Sequence[str], x: str, y: str) -> Figure:
    """Small squares from 0 to 1 on both axes with the diagonal, one a series, with a note."""
    columns, left, gap = int(width // (150 if width > 500 else 115)), 40, 22
    rows, side = math.ceil(len(series) / columns), (width - left) / columns - gap
    height = rows * (side + 46) + 20
    figure = sheet(width, height)
    figure.subplots_adjust(left / width, 42 / height, 1 - gap / width, 1 - 24 / height, gap / side, 46 / side)
    for k, (s, note) in enumerate(zip(series, notes, strict=True)):
        axes = figure.add_subplot(rows, columns, k + 1, box_aspect=1, xlim=(0, 1), ylim=(0, 1))
        axes.set(xticks=[0, 1], yticks=[0, 1])
        label = short_label(figure, s.label, side + gap - 16)
        axes.set_title(label, size=12, weight="bold", color=COLOURS["ink"], pad=6)
        axes.text(0.05, 0.9, note, size=11, color=COLOURS["soft"])
        axes.plot([0, 0, 1], [1, 0, 0], color=COLOURS["grid"], linewidth=1, clip_on=False)
        axes.plot([0, 1], [0, 1], color=COLOURS["soft"], linewidth=0.8, linestyle="--", clip_on=False)
        solid = replace(s, style=Style(s.style.colour))
        _line(axes, solid)
        _dots(axes, solid, 2.2, [f"{sure:.2f} sure, {right:.2f} right" for sure, right in s.points])
    figure.supxlabel(x, x=(left + side / 2) / width, color=COLOURS["soft"])
    figure.supylabel(y, x=10 / width, color=COLOURS["soft"])
    return figure


def _area(width: float, grid: Literal["x", "y"] = "y") -> tuple[Figure, Axes]:
    """An empty figure, and its axes with round ticks and lines across at one axis' own."""
    figure = sheet(width)
    axes = figure.add_subplot()
    axes.locator_params(nbins=6, steps=[1, 2, 5, 10])
    axes.grid(axis=grid, clip_on=False)
    return figure, axes


def _line(axes: Axes, series: Series) -> None:
    """A line, with a bar for the spread of each point."""
    across, up = zip(*series.points, strict=True)
    look: dict[str, Any] = {"color": series.style.colour, "linestyle": "--" if series.style.dashed else "-"}
    axes.plot(across, up, linewidth=2.4 if series.strong else 1.6, clip_on=False, **look)
    if any(series.spread):
        axes.errorbar(
            across, up, series.spread, fmt="none", ecolor=series.style.colour, elinewidth=1.2, clip_on=False
        )


def _dots(axes: Axes, series: Series, radius: float, tips: Sequence[str]) -> Any:
    """Discs, or rings where the series is dashed, with texts for the pointer."""
    hollow, colour = series.style.dashed, series.style.colour
    look: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 2 * radius, "clip_on": False}
    look |= {"markeredgecolor": colour, "markeredgewidth": 1.8 if hollow else 0.0}
    across, up = zip(*series.points, strict=True)
    (drawn,) = axes.plot(across, up, markerfacecolor=COLOURS["paper"] if hollow else colour, **look)
    tip(drawn, tips)
    return drawn


def _ticks(axes: Axes, ticks: Sequence[Tick], *, values: bool = False, upright: bool = False) -> None:
    """Set the ticks of the x axis; values that span a factor of 20 make it logarithmic.

    A 0 among these stands at the low end, a little apart.
    """
    places = [place for place, _ in ticks]
    least = min((place for place in places if place > 0), default=0.0)
    if values and least and min(places) >= 0 and max(places) >= 20 * least:
        apart: dict[str, float] = {"linthresh": least, "linscale": 0.25} if min(places) == 0 else {}
        axes.set_xscale("symlog" if apart else "log", **apart)
    look: dict[str, Any] = {"rotation": 90, "rotation_mode": "anchor", "ha": "right", "va": "center"}
    axes.set_xticks(places, [name for _, name in ticks], **(look if upright else {}))
    axes.set_xticks([], minor=True)


def _name(axes: Axes, series: Series, offset: Point, tie: Mapping[str, Any] | None) -> None:
    """Name the last point of a series a few pixels from it; a tie is a thin line between them."""
    look: dict[str, Any] = {"textcoords": "offset points", "annotation_clip": False, "va": "center_baseline"}
    line = {"arrowstyle": "-", "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0, **tie} if tie else None
    axes.annotate(series.label, series.points[-1], offset, weight=series.weight, arrowprops=line, **look)


def _name_ends(axes: Axes, series: Sequence[Series]) -> None:
    """Name every line at its right end, moved apart where the names would cover one another."""
    area = axes.bbox
    ends = sorted(((*axes.transData.transform(s.points[-1]), s) for s in series), key=lambda end: end[1])
    places = spread_out([y for _, y, _ in ends], ROW, area.y0 - 4, area.y1 + 6)
    for (x, y, s), place in zip(ends, places, strict=True):
        _name(axes, s, (area.x1 + 13 - x, place - y), {"color": s.style.colour, "relpos": (0, 0.5)})


def spread_out(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places as near as can be to sorted wanted ones, at least a gap apart, within low and high where they fit.

    >>> spread_out([10.0, 11.0, 50.0], 10.0, 0.0, 100.0)
    [5.5, 15.5, 50.0]
    """
    runs: list[tuple[float, int]] = []  # of places a gap apart: their mean with the gaps taken out, their number
    for k, place in enumerate(wanted):
        mean, size = place - gap * k, 1
        while runs and runs[-1][0] > mean:
            before, count = runs.pop()
            mean, size = (before * count + mean * size) / (count + size), count + size
        runs.append((mean, size))
    last = max(low, high - gap * (len(wanted) - 1))
    level = [min(max(mean, low), last) for mean, size in runs for _ in range(size)]
    return [place + gap * k for k, place in enumerate(level)]


def _name_dots(figure: Figure, series: Sequence[Series]) -> None:
    """Name dots where there is room: beside them, else above or below, far ones tied by a thin line."""
    from matplotlib.transforms import Bbox

    (axes,) = figure.axes
    area = Bbox.from_extents(axes.bbox.x0, axes.bbox.y0, axes.bbox.x1, axes.bbox.y1 + 4)
    dots = axes.transData.transform([s.points[0] for s in series])
    taken = [Bbox.from_extents(x - 6, y - 6, x + 6, y + 6) for x, y in dots]
    ups = [0.0, *(sign * away for away in range(14, 200, 3) for sign in (1, -1))]
    for s, (x, y) in sorted(zip(series, dots, strict=True), key=lambda item: -item[1][1]):
        wide = text_width(figure, s.label)
        spots = [(side, up) for up in ups for side in (9.0, -9 - wide, -wide / 2)]
        boxes = [Bbox.from_bounds(x + side, y + up - 7, wide, 14) for side, up in spots]
        free = (area.count_contains(box.corners()) == 4 and not box.count_overlaps(taken) for box in boxes)
        spot, box = next(itertools.compress(zip(spots, boxes, strict=True), free), (spots[0], boxes[0]))
        taken.append(box)
        _name(axes, s, spot, {"color": COLOURS["soft"], "shrinkB": 5} if abs(spot[1]) > 20 else None)


def _legend(figure: Figure, series: Sequence[Series], drawn: Sequence[Any]) -> None:
    """Names with their colours on top of the figure, in as few rows as its width allows; read across."""
    room, count = figure.bbox.width, len(series)
    labels = [short_label(figure, s.label, 0.6 * room) for s in series]
    wide = [text_width(figure, label) + 30 for label in labels]
    columns = max(n for n in range(1, count + 1) if n == 1 or sum(max(wide[k::n]) for k in range(n)) <= room)
    order = [k for column in range(columns) for k in range(column, count, columns)]
    shown = figure.legend([drawn[k] for k in order], map(str, order), loc="upper left", ncols=columns)
    for text, k in zip(shown.get_texts(), order, strict=True):
        text.set(text=labels[k], weight=series[k].weight)
