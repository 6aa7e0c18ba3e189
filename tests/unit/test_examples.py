"""The examples run, and the benchmark measures."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["examples/own_model.py"], "error in the fog"),
        (["examples/own_method.py"], "keeps all of its"),
        (["examples/own_folder.py"], "palm     error: fog-5"),
        (
            [
                "benchmarks/step_cost.py",
                "--rounds",
                "2",
                "--batch",
                "8",
                "--size",
                "16",
                "--arch",
                "wrn-10-1",
                "--rows",
                "literal,unguarded",
            ],
            "unguarded",
        ),
    ],
    ids=lambda v: v[0] if isinstance(v, list) else "",
)
def test_it_runs(command, words):
    assert words in run(*command)


def test_the_notebook_runs_from_top_to_bottom():
    notebook = json.loads((ROOT / "examples" / "compare.ipynb").read_text())
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell.get("outputs") for cell in notebook["cells"])
    out = run("-c", "\n\n".join(code))
    assert out.count("contrast-5") == 7  # four methods end there, a line of the table, two batches of PALM


def run(*command):
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # the other worker wants its core
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_reference_page_says_what_the_registry_says():
    build = runpy.run_path(str(ROOT / "docs" / "build.py"))
    assert build["PAGE"].read_text() == build["render"](), "run `make docs`"
