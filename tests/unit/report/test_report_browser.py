"""Figures as they are seen: no name over another, nothing cut. In a real browser too, where one is found."""

import html
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile

import pytest
from matplotlib.text import Text
from tests.synthetic import add_cell, full_store

from ctta.bench.store import Store
from ctta.report.collect import collect
from ctta.report.figures import NARROW, figures_of
from ctta.report.page import render

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
BROWSER = os.environ.get("CTTA_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.timeout(900)
in_a_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium found")
WIDTHS = (390, 820, 1400)

PROBE = """<script>addEventListener("load", () => {
  const seen = e => { const r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0; };
  const drawn = e => { const r = e.getBoundingClientRect(); return r.width + r.height > 0; };
  const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2;
  const figures = [...document.querySelectorAll("figure")].map(f => {
    const svg = [...f.querySelectorAll("svg")].filter(seen);
    const box = svg.length ? svg[0].getBoundingClientRect() : null;
    const texts = svg.length ? [...svg[0].querySelectorAll("text")].map(t => [t, t.getBoundingClientRect()]) : [];
    return {title: f.querySelector("h3").textContent, drawings: svg.length, width: box?.width, height: box?.height,
      marks: svg.length ? [...svg[0].querySelectorAll("g path, use")].filter(drawn).length : 0,
      least: Math.min(...texts.map(([t]) => parseFloat(getComputedStyle(t).fontSize) * box.width /
        svg[0].viewBox.baseVal.width)),
      out: texts.filter(([t, r]) => r.left < box.left - 2 || r.right > box.right + 2 || r.top < box.top - 2 ||
        r.bottom > box.bottom + 2).map(([t]) => t.textContent),
      over: texts.flatMap(([t, r], k) => texts.slice(k + 1).filter(([_, other]) => over(r, other)).map(
        ([other]) => [t.textContent, other.textContent]))};
  });
  parent.postMessage({width: innerWidth, scroll: document.documentElement.scrollWidth, figures,
    tables: [...document.querySelectorAll(".scroll")].every(t => getComputedStyle(t).overflowX == "auto")}, "*");
});</script>"""

FRAME = """<!DOCTYPE html><body><script>addEventListener("message", e => {
  const p = document.createElement("pre"); p.textContent = JSON.stringify(e.data); document.body.append(p);
});</script>%s</body>"""


def browse(*options):
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        "--enable-logging=stderr",
    ]
    with tempfile.TemporaryDirectory() as profile:
        command += [f"--user-data-dir={profile}", *map(str, options)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Twelve methods with sweeps, two of them with names that are hard to place; and one method alone."""
    folder = tmp_path_factory.mktemp("browser")
    with full_store(folder / "full.db", batches=2, seeds=1) as full, Store(folder / "one.db") as one:
        for k, label in enumerate(("a method whose name is far too long for any figure", "<b>x</b> & $y_1")):
            add_cell(full, "tent", label=label, batches=2, settings={"kind": f"{k}"}, clean=True)
        add_cell(one, "palm", batches=2, clean=True)
        yield {12: full, 1: one}


@pytest.fixture(scope="module")
def page(stores, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(render(stores[12]))
    return path


@pytest.mark.parametrize(("methods", "charts"), [(1, 8), (12, 12)])
def test_no_text_of_a_figure_lies_over_another_or_outside(stores, methods, charts):
    (board,) = collect(stores[methods])
    assert len(board.headline) == methods
    figures = figures_of(board)
    assert len(figures) == charts
    for chart in figures:
        for width in (0.0, NARROW) if chart.full else (0.0,):
            figure = chart.draw(width)
            figure.draw_without_rendering()  # puts its legend in place
            boxes = {f"{text.get_text()} {k}": box for k, (text, box) in enumerate(boxes_of(figure))}
            outside = [name for name, box in boxes.items() if not contains(figure.bbox, box)]
            assert not outside, (chart.name, width)
            over = [pair for pair in itertools.combinations(boxes, 2) if cover(*map(boxes.get, pair))]
            assert not over, (chart.name, width)


def boxes_of(figure):
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    return [(text, Text.get_window_extent(text)) for text in texts]


def contains(outer, box):
    return outer.x0 - 1 <= box.x0 and box.x1 <= outer.x1 + 1 and outer.y0 - 1 <= box.y0 and box.y1 <= outer.y1 + 1


def cover(a, b):
    return min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 2


@pytest.fixture(scope="module")
def measured(page, tmp_path_factory):
    """What the browser says of the page at three widths."""
    inner = html.escape(page.read_text().replace("</body>", PROBE + "</body>"))
    frames = "".join(f'<iframe width="{width}" height="900" srcdoc="{inner}"></iframe>' for width in WIDTHS)
    outer = tmp_path_factory.mktemp("frames") / "frames.html"
    outer.write_text(FRAME % frames)
    dom = browse("--window-size=1600,1200", "--virtual-time-budget=10000", "--dump-dom", outer.as_uri())
    found = [json.loads(html.unescape(text)) for text in re.findall(r"<pre>(.*?)</pre>", dom, re.S)]
    assert sorted(one["width"] for one in found) == sorted(WIDTHS)
    return {one["width"]: one for one in found}


@in_a_browser
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(measured, width):
    assert measured[width]["scroll"] <= width
    assert measured[width]["tables"]


@in_a_browser
@pytest.mark.parametrize("width", WIDTHS)
def test_every_figure_is_drawn_once_and_legible(measured, width):
    figures = measured[width]["figures"]
    assert len(figures) == 12
    for figure in figures:
        assert figure["drawings"] == 1, figure
        assert figure["width"] > 300, figure
        assert figure["height"] > 150, figure
        assert figure["marks"] > 10, figure
        assert figure["least"] >= 9, figure  # pixels
        assert figure["out"] == [], figure
        assert figure["over"] == [], figure


@in_a_browser
def test_screenshots_are_light_and_dark(page, tmp_path):
    image = pytest.importorskip("PIL.Image")
    brightness = []
    for scheme in (1, 0):  # Blink's numbers for light and dark
        shot = tmp_path / f"{scheme}.png"
        setting = f"--blink-settings=preferredColorScheme={scheme}"
        browse("--window-size=1400,2400", setting, f"--screenshot={shot}", page.as_uri())
        with image.open(shot) as picture:
            assert len(picture.convert("RGB").getcolors(1 << 24)) > 50
            histogram = picture.convert("L").histogram()
            brightness.append(histogram.index(max(histogram)))
    assert brightness[0] > 240
    assert brightness[1] < 40
