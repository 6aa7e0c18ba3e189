"""The page in a real browser, where one is found: it fits a phone, every figure is drawn, nothing complains."""

import html
import json
import os
import re
import shutil
import subprocess

import pytest
from tests.synthetic import add_cell, full_store

from ctta.report.page import render

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
BROWSER = os.environ.get("CTTA_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium found"),
    pytest.mark.timeout(900),
]
WIDTHS = (390, 820, 1400)

PROBE = """<script>addEventListener("load", () => {
  const drawn = e => { const r = e.getBoundingClientRect(); return r.width + r.height > 0; };
  const seen = e => { const r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0; };
  const figures = [...document.querySelectorAll("figure")].map(f => {
    const svg = [...f.querySelectorAll("svg")].filter(seen);
    const box = svg.length ? svg[0].getBoundingClientRect() : null;
    const texts = svg.length ? [...svg[0].querySelectorAll("text")].map(t => [t, t.getBoundingClientRect()]) : [];
    return {title: f.querySelector("h3").textContent, drawings: svg.length, width: box?.width, height: box?.height,
      marks: svg.length ? [...svg[0].querySelectorAll("path, rect, circle")].filter(drawn).length : 0,
      least: Math.min(...texts.map(([t]) => parseFloat(t.getAttribute("font-size")) * box.width /
        svg[0].viewBox.baseVal.width)),
      out: texts.filter(([t, r]) => r.left < box.left - 2 || r.right > box.right + 2).map(([t]) => t.textContent)};
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
        "--hide-scrollbars",
        "--enable-logging=stderr",
    ]
    done = subprocess.run([*command, *map(str, options)], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    with full_store(folder / "full.db", batches=3, seeds=2) as store:
        label = "a method whose name is far too long for any figure"
        add_cell(store, "tent", label=label, batches=3, settings={"lr": 7.0})
        path = folder / "page.html"
        path.write_text(render(store))
    return path


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


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(measured, width):
    assert measured[width]["scroll"] <= width
    assert measured[width]["tables"]


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
