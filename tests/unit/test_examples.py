"""The examples run, and the benchmark measures."""

import json
import os
import runpy
import subprocess
import sys
import textwrap
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


def test_palm_without_one_of_its_savings_gives_the_same_result():
    # in a process of its own: the variants register themselves
    code = """
        import sys, torch, ctta
        sys.path.insert(0, "benchmarks")
        from without import WITHOUT, contestant
        torch.manual_seed(0)
        model = ctta.models.build("wrn-10-1", 4).double().eval()
        x = torch.rand(16, 3, 16, 16, dtype=torch.float64)
        exact = ctta.adapt(model, "palm", adapt_share=0.3)
        expected = [exact(x) for _ in range(4)]
        moved = exact.last.shares["moved"]
        assert 0 < moved < 1, moved
        for row in WITHOUT:
            step = contestant(row, model, x, exact.last.eta)
            for logits in expected:
                torch.testing.assert_close(step(), logits, rtol=0, atol=1e-9)
        print(len(WITHOUT), "the same")
    """
    assert "4 the same" in run("-c", textwrap.dedent(code))


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
