"""Where things are in a chart: the plot area, and names beside what they name, none over another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ctta.report.axes import Axis
from ctta.report.marks import Dot, Line, Mark, Text, text_width

SMALL = 11.0
"""Size of axis text."""
LABEL = 12.0
"""Size of the labels of series."""
ROW = 15.0
"""Least distance between two labels."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Style:
    """How a series looks everywhere in a report."""

    colour: str
    dashed: bool = False
    """Lines dashed, dots hollow."""


@dataclass(frozen=True)
class Series:
    """One named line, or one named point where there is only one."""

    label: str
    style: Style
    points: tuple[Point, ...]
    spread: tuple[float, ...] = ()
    """Standard deviation at each point, drawn as a bar."""
    strong: bool = False


@dataclass
class Frame:
    """The plot area inside a drawing, and what was put on it."""

    left: float
    top: float
    width: float
    height: float
    x: Axis
    y: Axis
    marks: list[Mark] = field(default_factory=list)

    def at(self, x: float, y: float) -> Point:
        """Pixel of a value pair."""
        return self.left + self.width * self.x.place(x), self.top + self.height * (1 - self.y.place(y))


def end_labels(frame: Frame, series: Sequence[Series]) -> None:
    """Name every line at its right end, moved apart where the names would cover one another."""
    ends = sorted(((frame.at(*s.points[-1]), s) for s in series), key=lambda item: item[0][1])
    edge = frame.left + frame.width
    places = spread_out([at[1] for at, _ in ends], ROW, frame.top - 6, frame.top + frame.height + 4)
    for (end, s), y in zip(ends, places, strict=True):
        frame.marks += [
            Line(((min(end[0], edge), end[1]), (edge + 10, y)), s.style.colour, 0.8),
            Text(edge + 13, y + 4, s.label, LABEL, bold=s.strong),
        ]


def short_label(label: str, width: float) -> str:
    """Cut a label that would be wider than it may be.

    >>> short_label("adacontrast", 100.0), short_label("palm with settings of my own", 100.0)
    ('adacontrast', 'palm with se…')
    """
    if text_width(label, LABEL) <= width:
        return label
    return label[: max(1, int(width / text_width("x", LABEL)) - 1)].rstrip(" ,") + "…"


def spread_out(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places as near as can be to sorted wanted ones, at least a gap apart, within low and high where they fit.

    >>> spread_out([10.0, 11.0, 50.0], 10.0, 0.0, 100.0)
    [5.5, 15.5, 50.0]
    """
    groups: list[tuple[float, int]] = []  # centre and size of runs of labels that touch
    for place in wanted:
        centre, size = max(low, min(high, place)), 1
        while groups and centre - gap * size / 2 < groups[-1][0] + gap * groups[-1][1] / 2:
            before, count = groups.pop()
            centre = (before * count + centre * size) / (count + size)
            size += count
            half = gap * (size - 1) / 2
            centre = max(low + half, min(high - half, centre))
        groups.append((centre, size))
    return [centre + gap * (k - (size - 1) / 2) for centre, size in groups for k in range(size)]


def legend(series: Sequence[Series], width: float) -> tuple[list[Mark], float]:
    """Names with their colours in lines across; returns the marks and the height they take."""
    marks: list[Mark] = []
    x, y = 6.0, 14.0
    for s in (replace(item, label=short_label(item.label, 0.6 * width)) for item in series):
        wide = 14 + text_width(s.label, LABEL, bold=s.strong) + 14
        if x + wide - 14 > width and x > 6:
            x, y = 6.0, y + 20
        marks += [
            Dot(x, y - 4, 4.2, s.style.colour, s.style.dashed),
            Text(x + 10, y, s.label, LABEL, bold=s.strong),
        ]
        x += wide
    return marks, y + 10


def beside(series: Sequence[Series], places: Sequence[Point], frame: Frame) -> list[Mark]:
    """Name dots where there is room: beside them, else above or below, far ones tied by a thin line."""
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in places]
    marks: list[Mark] = []
    for s, (x, y) in sorted(zip(series, places, strict=True), key=lambda item: item[1][1]):
        label = short_label(s.label, 0.4 * frame.width)
        wide = text_width(label, LABEL, bold=s.strong)
        choices: list[tuple[float, float]] = [(x + 9, y + 4), (x - 9 - wide, y + 4)]
        for away in range(12, 200, 6):
            choices += [(x - wide / 2, y - away), (x - wide / 2, y + away + 9)]
            choices += [
                (x + 9, y - away),
                (x + 9, y + away + 9),
                (x - 9 - wide, y - away),
                (x - 9 - wide, y + away),
            ]
        fits = (c for c in choices if _free((c[0], c[1] - 10, c[0] + wide, c[1] + 3), taken, frame))
        tx, ty = next(fits, choices[0])
        taken.append((tx, ty - 10, tx + wide, ty + 3))
        if abs(ty - 4 - y) > 20:
            marks.append(Line(((x, y), (min(max(x, tx), tx + wide), ty + (3 if ty < y else -11))), "grid", 1.0))
        marks.append(Text(tx, ty, label, LABEL, bold=s.strong))
    return marks


Area = tuple[float, float, float, float]


def _free(box: Area, taken: Sequence[Area], frame: Frame) -> bool:
    inside = frame.left < box[0] and box[2] < frame.left + frame.width + 12
    inside = inside and frame.top - 8 < box[1] and box[3] < frame.top + frame.height
    return inside and not any(
        box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3] for other in taken
    )
