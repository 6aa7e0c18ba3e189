"""Drawings as PDF, through matplotlib (extra `report`): the same marks at the same places as in the SVG."""

from __future__ import annotations

import importlib
import io
from typing import Any

from ctta.errors import DataError
from ctta.report.marks import COLOURS, Box, Dot, Drawing, Figure, Line, Mark, Text

POINTS = 72 / 96
"""Points per pixel."""


def standalone(drawing: Drawing, figure: Figure) -> bytes:
    """Return a PDF of one page the size of the drawing. Its text stays text."""
    try:
        matplotlib = importlib.import_module("matplotlib")
        figures = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise DataError('Figures as PDF need matplotlib: pip install "ctta[report]"') from error
    with matplotlib.rc_context({"pdf.fonttype": 42, "font.family": ["DejaVu Sans"], "path.simplify": False}):
        sheet = figures.Figure(figsize=(drawing.width / 96, drawing.height / 96))
        axes = sheet.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, drawing.width), ylim=(drawing.height, 0))
        axes.set_axis_off()
        for order, mark in enumerate(drawing.marks):
            _put(axes, mark, order)
        out = io.BytesIO()
        # no date: the same store gives the same bytes
        sheet.savefig(out, format="pdf", metadata={"Title": figure.title, "CreationDate": None})
    return out.getvalue()


def _put(axes: Any, mark: Mark, order: int) -> None:
    patches = importlib.import_module("matplotlib.patches")
    colour = COLOURS[mark.colour]
    match mark:
        case Line():
            across, down = zip(*mark.points, strict=True)
            axes.plot(
                across,
                down,
                color=colour,
                linewidth=mark.width * POINTS,
                linestyle=(0, (3.5, 2)) if mark.dashed else "-",
                solid_capstyle="round",
                zorder=order,
            )
        case Box():
            axes.add_patch(
                patches.Rectangle((mark.x, mark.y), mark.width, mark.height, facecolor=colour, zorder=order)
            )
        case Dot():
            inside = COLOURS["paper"] if mark.hollow else colour
            edge = {"edgecolor": colour, "linewidth": 1.8 * POINTS} if mark.hollow else {"linewidth": 0}
            axes.add_patch(patches.Circle((mark.x, mark.y), mark.radius, facecolor=inside, zorder=order, **edge))
        case Text():
            axes.text(
                mark.x,
                mark.y,
                mark.text,
                fontsize=mark.size * POINTS,
                color=colour,
                ha={"start": "left", "middle": "center", "end": "right"}[mark.anchor],
                va="baseline",
                rotation=-mark.turn,
                rotation_mode="anchor",
                fontweight="bold" if mark.bold else "normal",
                parse_math=False,
                zorder=order,
            )
