"""The few marks every figure is made of. Lengths in pixels, y downwards; colours are roles, not values.

Roles: `ink`, `soft` (secondary text), `grid`, `paper` (the background), and the series colours `c0` .. `c6`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Anchor = Literal["start", "middle", "end"]

COLOURS = {
    "ink": "#1b1f24",
    "soft": "#59636e",
    "grid": "#dfe3e8",
    "paper": "#ffffff",
    "c0": "#0072b2",
    "c1": "#d55e00",
    "c2": "#00845f",
    "c3": "#b0538a",
    "c4": "#b97f00",
    "c5": "#3a9bd9",
    "c6": "#7a7f87",
}
"""Roles in light. Hues of Okabe and Ito's palette, told apart by colour-blind people; three of them darkened, so
that thin lines stand out from white."""

DARK = {
    "ink": "#e6e9ed",
    "soft": "#a0a8b2",
    "grid": "#343a43",
    "paper": "#16191e",
    "c0": "#4aa8e0",
    "c1": "#ff8a3d",
    "c2": "#2fc79a",
    "c3": "#e394c2",
    "c4": "#f0b93a",
    "c5": "#9ad3f7",
    "c6": "#9aa1ab",
}
"""Roles in the dark: the same hues, lighter."""


@dataclass(frozen=True)
class Line:
    """A line through points."""

    points: tuple[tuple[float, float], ...]
    colour: str = "ink"
    width: float = 1.0
    dashed: bool = False


@dataclass(frozen=True)
class Box:
    """A filled rectangle; `tip` is shown when the pointer rests on it."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    tip: str = ""


@dataclass(frozen=True)
class Dot:
    """A disc, or a ring where it is hollow."""

    x: float
    y: float
    radius: float
    colour: str
    hollow: bool = False
    tip: str = ""


@dataclass(frozen=True)
class Text:
    """One line of text; `y` is its baseline, `turn` degrees clockwise about (x, y)."""

    x: float
    y: float
    text: str
    size: float = 12.0
    anchor: Anchor = "start"
    colour: str = "ink"
    bold: bool = False
    turn: float = 0.0


Mark = Line | Box | Dot | Text


@dataclass(frozen=True)
class Drawing:
    """Marks on a sheet."""

    width: float
    height: float
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Figure:
    """A figure that can be drawn at any width; its title says what is shown, its caption of which data.

    `full` figures take the width of the page and are drawn again, narrower, for a phone; others take half of it.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[float], Drawing]
    full: bool = False


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """About the width of a text in pixels: fonts differ, so a little more than most of them need.

    >>> text_width("brightness", 10.0)
    60.0
    """
    return (0.66 if bold else 0.6) * size * len(text)
