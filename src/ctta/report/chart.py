"""Charts: from numbers to marks. Labels beside what they name, no boxes, no ornaments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ctta.report.axes import Axis
from ctta.report.layout import LABEL, ROW, SMALL, Frame, Series, Style, beside, end_labels, legend, short_label
from ctta.report.marks import Anchor, Box, Dot, Drawing, Line, Mark, Text, text_width

__all__ = ["Series", "Style", "bar_chart", "dot_rows", "line_chart", "panels", "scatter"]


def line_chart(
    series: Sequence[Series],
    width: float,
    *,
    x: Axis,
    y: Axis,
    height: float = 260,
    lines_at: Sequence[float] = (),
    dots: bool = False,
    turned: bool = False,
) -> Drawing:
    """Lines named at their right end; `lines_at` are x values with a line up, `turned` turns the ticks."""
    series = [replace(s, label=short_label(s.label, 0.36 * width)) for s in series]
    right = 18 + max((text_width(s.label, LABEL, bold=s.strong) for s in series), default=0.0)
    below = 24.0
    if turned:
        below = 12 + 0.98 * max((text_width(text, SMALL) for _, text in x.ticks), default=0.0)
    bottom = below + (18 if x.name else 0)
    height = max(height, len(series) * ROW + 20 + bottom)
    frame = Frame(_left(y), 22, width - _left(y) - right, height - 22 - bottom, x, y)
    _grid(frame)
    base = frame.top + frame.height
    frame.marks += [Line((frame.at(value, y.low), frame.at(value, y.high)), "grid") for value in lines_at]
    reached = 0.0
    for value, text in x.ticks:
        at, half = frame.at(value, y.low)[0], 6.0 if turned else text_width(text, SMALL) / 2
        if at - half >= reached:  # no name over another
            frame.marks.append(_below(at, base, text, turned))
            reached = at + half + (0.0 if turned else 4.0)
    for s in series:
        if s.spread:
            frame.marks += [
                Line((frame.at(px, py - sd), frame.at(px, py + sd)), s.style.colour, 1.2)
                for (px, py), sd in zip(s.points, s.spread, strict=True)
                if sd > 0
            ]
        places = tuple(frame.at(*point) for point in s.points)
        if len(places) > 1:
            frame.marks.append(Line(places, s.style.colour, 2.4 if s.strong else 1.6, s.style.dashed))
        if dots or len(places) == 1:
            frame.marks += [
                Dot(px, py, 3.4, s.style.colour, s.style.dashed, f"{s.label}: {value[1]:.4g} at {value[0]:.4g}")
                for (px, py), value in zip(places, s.points, strict=True)
            ]
    end_labels(frame, [s for s in series if s.points])
    if x.name:
        frame.marks.append(Text(frame.left + frame.width / 2, height - 5, x.name, SMALL, "middle", "soft"))
    return Drawing(width, height, tuple(frame.marks))


def bar_chart(
    series: Sequence[Series], names: Sequence[str], width: float, *, y: Axis, height: float = 250
) -> Drawing:
    """Bars side by side in named groups; the points' x is the number of the group."""
    names_of, used = legend(series, width) if len(series) > 1 else ([], 0.0)
    below = 12 + 0.98 * max((text_width(name, SMALL) for name in names), default=0.0)
    x = Axis(-0.5, len(names) - 0.5)
    top = 22 + used
    frame = Frame(_left(y), top, width - _left(y) - 8, height - 22 - below, x, y)
    frame.marks += names_of
    _grid(frame)
    base = frame.top + frame.height
    slot = frame.width / len(names)
    thick = min(26.0, 0.72 * slot / max(1, len(series)))
    for k, s in enumerate(series):
        for px, value in s.points:
            centre, top_of = frame.at(px, value)
            left = centre + (k - len(series) / 2) * thick
            tip = f"{s.label}, {names[int(px)]}: {value:.4g}"
            frame.marks.append(Box(left + 0.5, top_of, thick - 1, max(base - top_of, 0.0), s.style.colour, tip))
    frame.marks += [_below(frame.at(k, y.low)[0], base, name, turned=True) for k, name in enumerate(names)]
    return Drawing(width, height + used, tuple(frame.marks))


def dot_rows(series: Sequence[Series], names: Sequence[str], width: float, *, x: Axis) -> Drawing:
    """One row a name, one dot a series; the points are (value, number of the row)."""
    names = [short_label(name, 0.4 * width) for name in names]
    left = 10 + max((text_width(name, LABEL) for name in names), default=0.0)
    names_of, used = legend(series, width)
    pitch = 21.0
    top = used + 14
    y = Axis(len(names) - 0.5, -0.5)
    frame = Frame(left, top, width - left - 12, pitch * len(names), x, y, names_of)
    base = frame.top + frame.height
    for value, text in x.ticks:
        at = frame.at(value, 0)[0]
        frame.marks += [
            Line(((at, frame.top), (at, base)), "grid"),
            Text(at, base + 16, text, SMALL, "middle", "soft"),
        ]
    for k, name in enumerate(names):
        here = [frame.at(value, row)[0] for s in series for value, row in s.points if row == k]
        _, at = frame.at(x.low, k)
        frame.marks.append(Text(left - 8, at + 4, name, LABEL, "end"))
        if here:
            frame.marks.append(Line(((min(here), at), (max(here), at)), "grid", 3))
    for s in series:
        for value, row in s.points:
            px, py = frame.at(value, row)
            tip = f"{s.label}, {names[int(row)]}: {value:.1f}"
            frame.marks.append(Dot(px, py, 5.0 if s.strong else 4.2, s.style.colour, s.style.dashed, tip))
    frame.marks.append(Text(left + frame.width / 2, base + 34, x.name, SMALL, "middle", "soft"))
    return Drawing(width, base + 40, tuple(frame.marks))


def scatter(series: Sequence[Series], width: float, *, x: Axis, y: Axis, height: float = 300) -> Drawing:
    """One named dot a series."""
    frame = Frame(_left(y), 22, width - _left(y) - 14, height - 22 - 46, x, y)
    _grid(frame)
    base = frame.top + frame.height
    for value, text in x.ticks:
        frame.marks.append(Text(frame.at(value, y.low)[0], base + 16, text, SMALL, "middle", "soft"))
    places = [frame.at(*s.points[0]) for s in series]
    for s, (px, py) in zip(series, places, strict=True):
        tip = f"{s.label}: {s.points[0][1]:.1f} % at {s.points[0][0]:.1f} passes"
        frame.marks.append(Dot(px, py, 5.0, s.style.colour, s.style.dashed, tip))
    frame.marks += beside(series, places, frame)
    frame.marks.append(Text(frame.left + frame.width / 2, height - 5, x.name, SMALL, "middle", "soft"))
    return Drawing(width, height, tuple(frame.marks))


def panels(series: Sequence[Series], width: float, notes: Sequence[str], *, x: str, y: str) -> Drawing:
    """Small squares from 0 to 1 on both axes with the diagonal, one a series, a note under each name."""
    gap, least = 16.0, 96.0 if width < 500 else 118.0
    across = max(1, min(len(series), int((width - 28 + gap) // (least + gap))))
    side = min(170.0, (width - 28 - gap * (across - 1)) / across)
    tall = side + 44
    rows = -(-len(series) // across)
    marks: list[Mark] = [Text(0, 12, y, SMALL, "start", "soft")]
    unit = Axis(0.0, 1.0)
    for k, (s, note) in enumerate(zip(series, notes, strict=True)):
        left, top = 26 + (k % across) * (side + gap), 50 + (k // across) * tall
        frame = Frame(left, top, side, side, unit, unit)
        name = short_label(s.label, side + gap - 4)
        marks += [
            Text(left, top - 19, name, LABEL, bold=True),
            Text(left, top - 6, note, SMALL, colour="soft"),
            Line((frame.at(0, 0), frame.at(1, 0)), "grid"),
            Line((frame.at(0, 0), frame.at(0, 1)), "grid"),
            Line((frame.at(0, 0), frame.at(1, 1)), "soft", 0.8, dashed=True),
            Line(tuple(frame.at(*p) for p in s.points), s.style.colour, 2.0),
        ]
        marks += [
            Dot(*frame.at(*p), 2.2, s.style.colour, tip=f"{p[0]:.2f} sure, {p[1]:.2f} right") for p in s.points
        ]
        if k % across == 0:
            marks += [Text(left - 5, frame.at(0, v)[1] + 4, str(v), SMALL, "end", "soft") for v in (0, 1)]
        if k // across == rows - 1 or k + across >= len(series):
            ends: tuple[tuple[int, Anchor], ...] = ((0, "start"), (1, "end"))
            marks += [Text(frame.at(v, 0)[0], top + side + 14, str(v), SMALL, a, "soft") for v, a in ends]
    height = 50 + rows * tall - 44 + 36
    marks.append(Text(width / 2, height - 4, x, SMALL, "middle", "soft"))
    return Drawing(width, height, tuple(marks))


def _grid(frame: Frame) -> None:
    """Lines across at the y ticks, their values at the left, the name of the axis on top."""
    for value, text in frame.y.ticks:
        (start, at), (end, _) = frame.at(frame.x.low, value), frame.at(frame.x.high, value)
        frame.marks += [
            Line(((start, at), (end, at)), "grid"),
            Text(start - 7, at + 4, text, SMALL, "end", "soft"),
        ]
    frame.marks.append(Text(0, frame.top - 11, frame.y.name, SMALL, "start", "soft"))


def _left(y: Axis) -> float:
    return 12 + max((text_width(text, SMALL) for _, text in y.ticks), default=0.0)


def _below(at: float, base: float, text: str, turned: bool) -> Text:
    if turned:
        return Text(at + 4, base + 8, text, SMALL, "end", "soft", turn=-90)
    return Text(at, base + 16, text, SMALL, "middle", "soft")
