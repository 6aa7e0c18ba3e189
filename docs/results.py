"""Write the pages with results, their figures and the table in the README from the kept rows of the study.

`docs/*.in.md` are the pages with directives in the place of numbers. WHICH is an experiment of `ctta reproduce`,
and its scale: `NAME`, `NAME@2000` at 2,000 images a domain, `NAME@2000x10` so in batches of 10; behind any of them
`+PRESET` for `--preset` (methods that have no such preset come with their own) and `/bf16` for `--precision bf16`
(without them rows of the preset `embedded`, and those in full precision, count alone):

    {{tables WHICH}}          the tables, and the commands that made them
    {{short WHICH}}           the lines of the first table only
    {{figures WHICH: A, B}}   figures by their names
    {{error WHICH: LABEL}}    mean error of a row, in %
    {{error WHICH: LABEL | fog}}    the same on one corruption alone, or at one severity (LABEL | 3)
    {{selected WHICH: LABEL}}       share of the adaptable parameters a row selects, in %
    {{clean WHICH: LABEL}}          accuracy on clean images with batch statistics, mean over tasks, in %

A test fails when page and rows differ. Run with `make docs`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ctta._core.precision import check_precision
from ctta.bench import archive
from ctta.bench.experiments import experiment
from ctta.bench.reproduction import Reproduction
from ctta.bench.table import Table
from ctta.methods import find
from ctta.report.collect import boards_of
from ctta.report.drawing import standalone
from ctta.report.figures import figures_of, styles_of

HERE = Path(__file__).parent
ROWS = HERE.parent / "benchmarks" / "evidence"
FORMS = sorted(HERE.glob("*.in.md"))
README = HERE.parent / "README.md"
FIGURES = HERE / "results"
DIRECTIVE = re.compile(r"\{\{(\w+) ([^}:]+?)(?:: ([^}]+))?\}\}")
WHICH = re.compile(r"([^@/+]+)(?:@(\d+)(?:x(\d+))?)?(?:\+([\w-]+))?(?:/(\w+))?")
PRESET = "embedded"
"""Settings of the methods where a directive does not say: those of the embedded model."""
NUMBERS = {"error": "mean", "selected": "selected", "clean": "clean_accuracy/batch_mean"}
"""What a directive with a number says, by the name of the number in a run."""
BATCH = "200"
"""Images a batch where a directive does not say: the paper's, on CIFAR."""
MARKED = re.compile(r"(<!-- (\{\{[^>]+\}\}) -->(\n?)).*?(<!-- end -->)", re.DOTALL)
"""Lines or words of the README that are written from the rows: the directive, and what follows from it."""


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
    return MARKED.sub(lambda found: found[1] + fill(found[2]) + found[3] + found[4], README.read_text())


def fill(text: str) -> str:
    """Put what the rows say in the place of every directive."""
    return DIRECTIVE.sub(lambda found: written(*(part or "" for part in found.groups())), text)


def written(what: str, which: str, rest: str) -> str:
    """What one directive stands for."""
    found = kept(which)
    if what in NUMBERS:
        label, _, where = (part.strip() for part in rest.partition(" | "))
        narrow = f"{'levels' if where.isdigit() else 'corruptions'}/{where}"
        return number_of(found, label, narrow if where else NUMBERS[what])
    if found is None:
        about = experiment(re.split("[@+/]", which)[0])
        return f"Not run yet: {about.title}." if what == "tables" else ""
    if what == "figures":
        return "\n\n".join(f"![{each}](results/{file_of(which, each)})" for each in names_in(rest))
    if what == "short":
        return "\n".join(line for line in found.tables[0].markdown().splitlines() if line.startswith("|"))
    if what != "tables":
        raise ValueError(f"Expected tables, short, figures, {', '.join(NUMBERS)} in a directive, but got {what}.")
    return f"{headed(found.tables)}\n```\n{found.command}\n```"


def headed(tables: Sequence[Table]) -> str:
    """Tables of one experiment under one heading; below it in which way they are not the paper's."""
    about, _, labels = tables[0].title.partition(" [")
    parts = [f"### {about[0].upper()}{about[1:]}", *([f"*{labels.removesuffix(']')}*"] if labels else [])]
    for table in tables:
        own = table.title.removeprefix(tables[0].title).removeprefix(", ")
        parts += [f"#### {own.capitalize()}"] if own else []
        parts.append(table.markdown().partition("\n\n")[2].strip())
    return "\n\n".join([*parts, ""])


def number_of(found: Reproduction | None, label: str, number: str) -> str:
    """A number of a row, mean over its seeds."""
    results = [one for one in found.results if one.label == label and one.runs] if found else []
    if not results:
        return "not run"
    mean = results[0].over(number)
    if mean is None:
        raise ValueError(f"Expected a number that the rows of {label} have, but got {number.rpartition('/')[2]}.")
    return f"{mean:.1f}"


@cache
def kept(which: str) -> Reproduction | None:
    """All kept rows of an experiment at one scale and in one precision, None where there are none."""
    parts = WHICH.fullmatch(which)
    if parts is None:
        raise ValueError(
            f"Expected NAME, NAME@IMAGES or NAME@IMAGESxBATCH, with +PRESET or /bf16 or without, but got {which}."
        )
    name, images, batch, preset, precision = parts.groups()
    check_precision(precision or "full")
    wanted = (int(images) if images else None, int(batch or BATCH), precision or "full")
    files = [one for one in every(ROWS) if one.experiment.name == name]
    fitting = [one for one in files if all(scale_of(cell) == wanted for cell in cells_of(one))]
    fitting = [one for one in fitting if all(is_preset(cell, preset or PRESET) for cell in cells_of(one))]
    # the title is that of the first: one that names the preset, if there is one
    fitting.sort(key=lambda one: all(cell["preset"] == PRESET for cell in cells_of(one)))
    return archive.merge(fitting) if fitting else None


@cache
def every(folder: Path) -> list[Reproduction]:
    """Every kept part of the study, in the order of its names."""
    found = [archive.read(file) for file in folder.glob("*.jsonl")]
    return sorted(found, key=lambda one: one.command.replace("'", ""))


def cells_of(found: Reproduction) -> list[dict[str, Any]]:
    """What was run, cell by cell."""
    return [run.cell for run in found.runs.values()]


def scale_of(cell: dict[str, Any]) -> tuple[int | None, int, str]:
    """Images a domain, images a batch and precision of a cell."""
    return cell["images"], cell["batch_size"], cell.get("precision", "full")


def is_preset(cell: dict[str, Any], preset: str) -> bool:
    """Whether a cell ran with a preset, or with the usual one because its method does not have it."""
    has = preset in find(cell["method"]).presets
    return bool(cell["preset"] == (preset if has else PRESET))


def file_of(which: str, figure: str) -> str:
    """Name of a figure's file."""
    return f"{re.sub('[@/+]', '-', which)}-{figure}.svg"


def names_in(text: str) -> list[str]:
    """Names separated by commas."""
    return [each.strip() for each in text.split(",")]


def figures() -> dict[str, str]:
    """Every figure the pages show, by the name of its file."""
    out: dict[str, str] = {}
    for what, which, names in DIRECTIVE.findall("".join(form.read_text() for form in FORMS)):
        if what == "figures" and (found := kept(which)) is not None:
            drawn = drawings(found)
            out |= {file_of(which, each): drawn[each] for each in names_in(names)}
    return out


def drawings(found: Reproduction) -> dict[str, str]:
    """All figures that follow from some rows, as SVG."""
    boards = boards_of(found.runs.values())
    styles = styles_of(boards)
    return {
        figure.name: standalone(figure.draw(), figure.title, figure.caption).decode()
        for board in boards
        for figure in figures_of(board, styles)
    }


if __name__ == "__main__":
    main()
