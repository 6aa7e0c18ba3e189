"""Write the pages with results, their figures and the table in the README from the kept rows of the study.

`docs/*.in.md` are the pages with directives in the place of numbers. NAME is an experiment of
`ctta reproduce`, `NAME@2000` the same at 2,000 images a domain, `NAME/bf16` and `NAME@2000/bf16` the same with
`--precision bf16` (without it the rows in full precision count alone):

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
from ctta.precision import check_precision
from ctta.report import svg
from ctta.report.collect import collect
from ctta.report.figures import figures_of, styles_of
from ctta.report.page import HALF, WIDE

HERE = Path(__file__).parent
ROWS = HERE.parent / "benchmarks" / "evidence"
FORMS = sorted(HERE.glob("*.in.md"))
README = HERE.parent / "README.md"
FIGURES = HERE / "results"
DIRECTIVE = re.compile(r"\{\{(\w+) ([^}@:/]+?)(?:@(\d+))?(?:/(\w+))?(?:: ([^}]+))?\}\}")
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
    return DIRECTIVE.sub(lambda found: written(*(part or "" for part in found.groups())), text)


def written(what: str, name: str, images: str, precision: str, rest: str) -> str:
    """What one directive stands for."""
    found = kept(name, int(images) if images else None, precision or "full")
    if found is None:
        return "not run" if what == "error" else "Not run yet."
    if what == "error":
        runs = next(entry.runs for entry in found.entries if entry.label == rest)
        return f"{sum(map(mean_error, runs)) / len(runs):.1f}"
    if what == "figures":
        files = {each.strip(): file_of(name, images, precision, each) for each in rest.split(",")}
        return "\n\n".join(f"![{each}](results/{file})" for each, file in files.items())
    if what == "short":
        return "\n".join(line for line in found.result.tables[0].markdown().splitlines() if line.startswith("|"))
    if what != "tables":
        raise ValueError(f"Expected tables, short, figures or error in a directive, but got {what}.")
    tables = "\n".join(table.markdown() for table in found.result.tables)
    return f"{tables}\n```\n{found.command}\n```"


@cache
def kept(name: str, images: int | None, precision: str = "full") -> Archive | None:
    """All kept rows of an experiment at one scale and in one precision, None where there are none."""
    check_precision(precision)
    files = [archive.read(file) for file in sorted(ROWS.glob(f"{name}.*jsonl"))]
    scaled = [one for one in files if {cell["manifest"]["cell"]["images"] for cell in one.cells} == {images}]
    fitting = [one for one in scaled if one.precisions == {precision}]
    return archive.merge(fitting) if fitting else None


def file_of(name: str, images: str, precision: str, figure: str) -> str:
    """Name of a figure's file."""
    return "-".join(part for part in (name, images, precision, figure.strip()) if part) + ".svg"


def figures() -> dict[str, str]:
    """Every figure the pages show, by the name of its file."""
    out: dict[str, str] = {}
    for what, name, images, precision, names in DIRECTIVE.findall("".join(form.read_text() for form in FORMS)):
        found = kept(name, int(images) if images else None, precision or "full")
        if what == "figures" and found is not None:
            drawn = drawings(found)
            out |= {file_of(name, images, precision, each): drawn[each.strip()] for each in names.split(",")}
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
