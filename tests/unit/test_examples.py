"""The examples run, and the benchmark measures."""

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
        (
            ["benchmarks/step_cost.py", "--rounds", "2", "--batch", "8", "--size", "16", "--arch", "wrn-10-1"],
            "no guards",
        ),
    ],
    ids=lambda v: v[0] if isinstance(v, list) else "",
)
def test_it_runs(command, words):
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # the other worker wants its core
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert words in done.stdout


def test_the_reference_page_says_what_the_registry_says():
    build = runpy.run_path(str(ROOT / "docs" / "build.py"))
    assert build["PAGE"].read_text() == build["render"](), "run `make docs`"
