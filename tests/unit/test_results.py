"""The pages with results, their figures and the README's table say what the kept rows say."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

from ctta.bench import archive
from ctta.bench.published import experiment

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "benchmarks" / "evidence").glob("*.jsonl"))


@pytest.fixture(scope="module")
def results():
    return runpy.run_path(str(ROOT / "docs" / "results.py"))


def test_the_page_says_what_the_rows_say(results):
    for page, text in results["render"]().items():
        assert page.read_text() == text, "run `make docs`"


def test_the_readme_says_what_the_rows_say(results):
    readme = results["README"].read_text()
    assert readme == results["render_readme"](), "run `make docs`"
    assert results["MARKED"].search(readme)


def test_the_figures_are_those_of_the_rows(results):
    there = {file.name: file.read_text() for file in results["FIGURES"].iterdir()}
    assert there == results["figures"](), "run `make docs`"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_row_has_a_manifest_and_the_command_that_makes_it_again(file):
    kept = archive.read(file)
    words = shlex.split(kept.command)
    assert words[:3] == ["ctta", "reproduce", kept.result.experiment.name]
    assert experiment(words[2])
    for cell in kept.cells:
        manifest = cell["manifest"]
        assert {"cell", "settings", "seed", "threads"} <= manifest.keys()
        assert all(re.fullmatch(r"[0-9a-f]{12,}", manifest[name]) for name in ("weights", "stream"))


def test_a_directive_without_rows_says_so_and_an_unknown_one_is_refused(results):
    assert results["fill"]("{{error table3: PALM}} {{tables table3}}") == "not run Not run yet."
    with pytest.raises(ValueError, match="but got picture"):
        results["fill"]("{{picture speed}}")
