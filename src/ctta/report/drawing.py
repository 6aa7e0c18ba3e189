"""The sheet every figure is drawn on with matplotlib (extra `report`), and its way into a page or a file."""

from __future__ import annotations

import importlib
import io
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from ctta.errors import DataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {"ink": "#1b1f24", "soft": "#59636e", "grid": "#dfe3e8", "paper": "#ffffff"}
HUES = ("#0072b2", "#d55e00", "#00845f", "#b0538a", "#b97f00", "#3a9bd9", "#7a7f87")
COLOURS |= {f"c{k}": hue for k, hue in enumerate(HUES)}
"""Colours in light, by role; those in the dark are in page.css. Hues of Okabe and Ito's palette, told apart by
colour-blind people; three of them darkened, so that thin lines stand out from white."""
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", Arial, sans-serif'
"""Fonts of SVG files. None of them is wider than DejaVu Sans, which room is measured with."""
STYLE = Path(__file__).with_name("figures.mplstyle")


def library(name: str) -> Any:
    """Import a module of the extra `report`."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError(f'Figures and the page need {error.name}: pip install "ctta[report]"') from error


@contextmanager
def house_style(salt: str = "") -> Iterator[None]:
    """Draw as the house does, whatever the user has set in matplotlib; `salt` makes names inside an SVG unique."""
    matplotlib = library("matplotlib")
    with matplotlib.rc_context({"svg.hashsalt": salt}, STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # browsers have letters DejaVu Sans lacks
        yield


def sheet(width: float, height: float = 300.0) -> Figure:
    """Return an empty figure of a size in pixels."""
    figure: Figure = library("matplotlib.figure").Figure((width / 72, height / 72))
    library("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)  # it measures text
    return figure


def fit(figure: Figure, height: float, right: float = 0.0) -> None:
    """Give the plot area a height, and the width left by the names about it and by a margin at the right.

    A name at the x axis that would stand over the one before is left out.
    """
    (axes,), width = figure.axes, figure.bbox.width
    legend = sum(legend.get_window_extent().height + 8 for legend in figure.legends)
    for _ in range(2):  # names at the ends of an axis stand out further from a narrower area
        outer, inner = axes.get_tightbbox() or axes.bbox, axes.bbox
        left, beside = inner.x0 - outer.x0 + 1, max(outer.x1 - inner.x1 + 1, right)
        below, above = inner.y0 - outer.y0 + 3, outer.y1 - inner.y1 + legend + 6
        across, total = width - left - beside, below + height + above
        figure.set_size_inches(width / 72, total / 72)
        axes.set_position((left / width, below / total, across / width, height / total))
        axes.set_title(axes.get_title("left"), x=-left / across)
    reached = 0.0
    for label in axes.get_xticklabels():
        box = label.get_window_extent()
        label.set_visible(box.x0 >= reached)
        reached = max(reached, box.x1 + (0 if label.get_rotation() else 3)) if label.get_visible() else reached


def text_width(figure: Figure, text: str) -> float:
    """Width of a bold name in pixels."""
    sample = figure.text(0, 0, text, weight="bold")
    wide = sample.get_window_extent().width
    sample.remove()
    return float(wide)


def short_label(figure: Figure, label: str, limit: float) -> str:
    """Return a label on one line, cut where it would be wider than it may be."""
    cut = label = printable(label)
    while text_width(figure, cut) > limit and len(label) > 1:
        label = label[:-1].rstrip(" ,")
        cut = f"{label}…"
    return cut


def printable(text: str) -> str:
    """Return a text on one line, without letters that no SVG may hold."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def tip(artist: Any, texts: Sequence[str]) -> None:
    """Give the marks of an artist the texts that a page shows when the pointer rests on them."""
    artist.set_gid(json.dumps([printable(text) for text in texts]))


def inline(figure: Figure, name: str) -> str:
    """Return an SVG element in the colours of a page's style sheet; `name` is the drawing's own on that page."""
    colours = {colour: f"var(--{role})" for role, colour in COLOURS.items()}
    return ElementTree.tostring(_svg(figure, name, colours), "unicode")


def standalone(figure: Figure, title: str, caption: str) -> bytes:
    """Return an SVG file in the light colours, with title and caption for those who cannot see it."""
    root = _svg(figure, title, {})
    _, _, width, height = root.attrib["viewBox"].split()
    root.attrib |= {"xmlns": "http://www.w3.org/2000/svg", "width": width, "height": height}
    for name, text in {"style": f"text{{font-family:{FONT} !important}}", "desc": caption, "title": title}.items():
        root.insert(0, ElementTree.Element(name))
        root[0].text = printable(text)
    return bytes(ElementTree.tostring(root, "utf-8", xml_declaration=True)) + b"\n"


def pdf(figure: Figure, title: str) -> bytes:
    """Return a PDF of one page the size of the figure. Its text stays text."""
    return _saved(figure, "pdf", {"Title": title, "CreationDate": None})


def _saved(figure: Figure, form: str, metadata: Mapping[str, str | None], salt: str = "") -> bytes:
    """What matplotlib writes. It holds no date: the same figure gives the same bytes."""
    out = io.BytesIO()
    with house_style(salt):
        figure.savefig(out, format=form, metadata=metadata)
    return out.getvalue()


def _svg(figure: Figure, salt: str, colours: Mapping[str, str]) -> ElementTree.Element:
    """Return matplotlib's SVG without namespaces, metadata and style sheet, its marks with their tips."""
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    root = ElementTree.fromstring(_saved(figure, "svg", metadata, salt))
    root.remove(root[0])
    root.attrib = {"viewBox": root.attrib["viewBox"], "stroke-linejoin": "round"}
    for element in list(root.iter()):
        name = element.attrib.pop("id", "") if element.tag.endswith("}g") else ""
        if name.startswith("["):
            marks = [mark for mark in element.iter() if mark.tag.endswith("}use")] or list(element)
            for mark, text in zip(marks, json.loads(name), strict=True):
                ElementTree.SubElement(mark, "title").text = text
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {key.rpartition("}")[2]: value for key, value in element.items()}
        if style := element.get("style"):
            element.set("style", re.sub(r"#\w{6}", lambda colour: colours.get(colour[0], colour[0]), style))
    return root
