"""Write the pages with results, their figures and the table in the README from the kept rows of the study.

`docs/*.in.md` are the pages with directives in the place of numbers. NAME is an experiment of
`ctta reproduce`, `NAME@2000` the same at 2,000 images a domain:

    {{tables NAME}}          the tables, and the commands that made them
    {{short NAME}}           the lines of the first table only
    {{figures NAME: A, B}}   figures by their names
    {{error NAME: LABEL}}    mean error of a row, in %

A test fails when page and rows differ. Run with `make docs`.
"""

from __future__ import annotations

import re
import tempfile
from functools import cache
from pathlib import Path

from ctta.bench import archive
from ctta.bench.archive import Archive
from ctta.bench.store import Store
from ctta.bench.tables import mean_error
from ctta.report import svg
from ctta.report.collect import collect
from ctta.report.figures import figures_of, styles_of
from ctta.report.page import HALF, WIDE

HERE = Path(__file__).parent
ROWS = HERE.parent / "benchmarks" / "evidence"
FORMS = sorted(HERE.glob("*.in.md"))
README = HERE.parent / "README.md"
FIGURES = HERE / "results"
DIRECTIVE = re.compile(r"\{\{(\w+) ([^}@:]+?)(?:@(\d+))?(?:: ([^}]+))?\}\}")
MARKED = re.compile(r"(<!-- (\{\{[^>]+\}\}) -->\n).*?(<!-- end -->)", re.DOTALL)
"""A stretch of the README that is written from the rows: the directive, and what follows from it."""


def main() -> None:
    """Write pages, figures and the README's table."""
    for page, text in render().items():
        page.write_text(text)
    README.write_text(render_readme())
    FIGURES.mkdir(exist_ok=True)
    wanted = figures()
    for old in set(FIGURES.iterdir()) - {FIGURES / name for name in wanted}:
        old.unlink()
    for name, drawing in wanted.items():
        (FIGURES / name).write_text(drawing)


def render() -> dict[Path, str]:
    """Return the pages as Markdown."""
    head = "<!-- written by `make docs` from benchmarks/evidence -->\n"
    return {HERE / form.name.replace(".in.", "."): head + fill(form.read_text()) for form in FORMS}


def render_readme() -> str:
    """Return the README with its stretches of results written anew."""
    return MARKED.sub(lambda found: found[1] + fill(found[2]) + "\n" + found[3], README.read_text())


def fill(text: str) -> str:
    """Put what the rows say in the place of every directive."""
    return DIRECTIVE.sub(lambda found: written(found[1], found[2], found[3] or "", found[4] or ""), text)


def written(what: str, name: str, images: str, rest: str) -> str:
    """What one directive stands for."""
    found = kept(name, int(images) if images else None)
    if found is None:
        return "not run" if what == "error" else "Not run yet."
    if what == "error":
        runs = next(entry.runs for entry in found.entries if entry.label == rest)
        return f"{sum(map(mean_error, runs)) / len(runs):.1f}"
    if what == "figures":
        return "\n\n".join(f"![{each.strip()}](results/{file_of(name, images, each)})" for each in rest.split(","))
    if what == "short":
        return "\n".join(line for line in found.result.tables[0].markdown().splitlines() if line.startswith("|"))
    if what != "tables":
        raise ValueError(f"Expected tables, short, figures or error in a directive, but got {what}.")
    tables = "\n".join(table.markdown() for table in found.result.tables)
    return f"{tables}\n```\n{found.command}\n```"


@cache
def kept(name: str, images: int | None) -> Archive | None:
    """All kept rows of an experiment at one scale, None where there are none."""
    files = [archive.read(file) for file in sorted(ROWS.glob(f"{name}.*jsonl"))]
    fitting = [one for one in files if {cell["manifest"]["cell"]["images"] for cell in one.cells} == {images}]
    return archive.merge(fitting) if fitting else None


def file_of(name: str, images: str, figure: str) -> str:
    """Name of a figure's file."""
    return f"{name}{f'-{images}' if images else ''}-{figure.strip()}.svg"


def figures() -> dict[str, str]:
    """Every figure the pages show, by the name of its file."""
    out: dict[str, str] = {}
    for what, name, images, names in DIRECTIVE.findall("".join(form.read_text() for form in FORMS)):
        found = kept(name, int(images) if images else None)
        if what == "figures" and found is not None:
            drawn = drawings(found)
            out |= {file_of(name, images, each): drawn[each.strip()] for each in names.split(",")}
    return out


def drawings(found: Archive) -> dict[str, str]:
    """All figures that follow from some rows, as SVG."""
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "rows.sqlite") as store:
        archive.enter(found, store)
        boards = collect(store)
        styles = styles_of(boards)
        return {
            figure.name: svg.standalone(figure.draw(WIDE if figure.full else HALF), figure)
            for board in boards
            for figure in figures_of(board, styles)
        }


if __name__ == "__main__":
    main()
