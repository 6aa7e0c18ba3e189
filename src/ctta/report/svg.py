"""Drawings as SVG: inside a page, whose style sheet colours them, or as files that stand alone."""

from __future__ import annotations

from html import escape

from ctta.report.marks import COLOURS, Box, Dot, Drawing, Figure, Line, Mark, Text

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", Arial, sans-serif'


def inline(drawing: Drawing, title: str, kind: str = "") -> str:
    """Return an SVG element whose colours follow the page's theme; `kind` is a class for its style sheet."""
    return (
        f'<svg class="{kind}" viewBox="0 0 {_n(drawing.width)} {_n(drawing.height)}" role="img" '
        f'aria-label="{escape(title)}">' + "".join(map(_mark, drawing.marks)) + "</svg>"
    )


def standalone(drawing: Drawing, figure: Figure) -> str:
    """Return an SVG file in the light colours, with title and caption for those who cannot see it."""
    style = "".join(f".s-{role}{{stroke:{value}}}.f-{role}{{fill:{value}}}" for role, value in COLOURS.items())
    size = f'width="{_n(drawing.width)}" height="{_n(drawing.height)}"'
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {_n(drawing.width)} {_n(drawing.height)}">'
        f"<title>{escape(figure.title)}</title><desc>{escape(figure.caption)}</desc>"
        f"<style>text{{font-family:{FONT}}}{style}</style>"
        f'<rect width="100%" height="100%" class="f-paper"/>' + "".join(map(_mark, drawing.marks)) + "</svg>\n"
    )


def variables(colours: dict[str, str]) -> str:
    """Return the colours as CSS variables.

    >>> variables({"ink": "#000"})
    '--ink:#000;'
    """
    return "".join(f"--{role}:{value};" for role, value in colours.items())


def rules() -> str:
    """Return the CSS rules that give marks inside a page the colours of the theme."""
    return "".join(f".s-{role}{{stroke:var(--{role})}}.f-{role}{{fill:var(--{role})}}" for role in COLOURS)


def _mark(mark: Mark) -> str:
    match mark:
        case Line():
            path = "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in mark.points)
            dash = ' stroke-dasharray="5 3"' if mark.dashed else ""
            return (
                f'<path d="{path}" fill="none" class="s-{mark.colour}" stroke-width="{_n(mark.width)}" '
                f'stroke-linejoin="round" stroke-linecap="round"{dash}/>'
            )
        case Box():
            where = f'x="{_n(mark.x)}" y="{_n(mark.y)}" width="{_n(mark.width)}" height="{_n(mark.height)}"'
            return f'<rect {where} class="f-{mark.colour}">{_tip(mark.tip)}</rect>'
        case Dot():
            where = f'cx="{_n(mark.x)}" cy="{_n(mark.y)}" r="{_n(mark.radius)}"'
            look = (
                f'class="f-paper s-{mark.colour}" stroke-width="1.8"'
                if mark.hollow
                else f'class="f-{mark.colour}"'
            )
            return f"<circle {where} {look}>{_tip(mark.tip)}</circle>"
        case Text():
            turn = f' transform="rotate({_n(mark.turn)} {_n(mark.x)} {_n(mark.y)})"' if mark.turn else ""
            bold = ' font-weight="600"' if mark.bold else ""
            anchor = "" if mark.anchor == "start" else f' text-anchor="{mark.anchor}"'
            return (
                f'<text x="{_n(mark.x)}" y="{_n(mark.y)}" font-size="{_n(mark.size)}" class="f-{mark.colour}"'
                f"{anchor}{bold}{turn}>{escape(mark.text)}</text>"
            )


def _tip(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""


def _n(value: float) -> str:
    """Print a length in tenths of a pixel, as short as it goes."""
    return f"{value:.1f}".removesuffix(".0")
