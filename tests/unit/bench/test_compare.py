"""Methods side by side: rows, summary, the report, and `ctta run` on a model, data and method of one's own."""

import io
import json
import pickle
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

import ctta
from ctta import streams
from ctta.bench.compare import compare, summarise
from ctta.bench.resolve import methods_from, model_from, names_in, source_from
from ctta.cli import cli
from ctta.cli.comparison import follow, markdown, table
from ctta.data import Arrays
from ctta.models import build

METHODS = {"source": {}, "bn1": {}, "mine": {"method": "palm", "adapt_share": 0.2}}


def small_stream(setting="continual", **options):
    draw = np.random.default_rng(0)
    data = Arrays(draw.integers(0, 256, (12, 32, 32, 3), dtype=np.uint8), np.arange(12) % 10)
    options = {"corruptions": ["brightness", "contrast"], "batch_size": 5, **options}
    return streams.make(setting, streams.Corrupted(data), **options)


@pytest.fixture(scope="module")
def rows():
    torch.manual_seed(0)
    return list(compare(build("wrn-10-1"), small_stream(), METHODS))


def test_a_row_says_what_every_method_did_with_a_batch(rows):
    assert [row.samples for row in rows] == [5, 5, 2, 5, 5, 2]
    assert [row.domain for row in rows] == ["brightness-5"] * 3 + ["contrast-5"] * 3
    for row in rows:
        assert row.wrong.keys() == row.seconds.keys() == METHODS.keys()
        assert all(0 <= wrong <= row.samples for wrong in row.wrong.values())
        assert row.pass_seconds > 0
        assert row.shares["source"] == 0 < row.shares["mine"]
        assert not any(row.skipped.values())


def test_the_mean_is_the_plain_mean_over_domains(rows):
    summary = summarise(rows)
    for label in METHODS:
        errors = [
            100 * sum(r.wrong[label] for r in rows if r.domain == d) / 12 for d in ("brightness-5", "contrast-5")
        ]
        assert [summary.error[d][label] for d in summary.error] == pytest.approx(errors)
        assert summary.mean[label] == pytest.approx(sum(errors) / 2)
    assert summary.samples == 24
    assert summary.skipped == dict.fromkeys(METHODS, 0)


def test_a_setting_that_asks_for_a_reset_gets_it():
    torch.manual_seed(0)
    model = build("wrn-10-1")
    once = list(compare(model, small_stream(corruptions=["contrast"]), {"tent": {"lr": 0.1}}))
    after = list(compare(model, small_stream("reset-each-shift"), {"tent": {"lr": 0.1}}))[3:]
    assert [row.wrong for row in after] == [row.wrong for row in once]


def test_tables_hold_every_number(rows):
    summary = summarise(rows)
    page = markdown(summary, {"seed": 0})
    assert "| brightness-5 |" in page
    assert "- seed: 0" in page
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table(summary, "title"))
    assert "forward passes" in console.export_text()


@pytest.mark.parametrize("terminal", [True, False])
def test_rows_are_followed_live_on_a_terminal_and_in_lines_elsewhere(rows, terminal, tmp_path):
    with (tmp_path / "out").open("w") as file:
        console = Console(file=file, force_terminal=terminal, width=100)
        assert follow(iter(rows), len(rows), "title", console) == rows
    text = (tmp_path / "out").read_text()
    assert "contrast-5" in text
    assert terminal or text.count("\n") == 2


OWN = '''
"""A model and a method of my own."""
from dataclasses import dataclass
from typing import Literal

from ctta.methods import Method, register, setting
from ctta.models import build


@dataclass(frozen=True)
class MineSettings:
    """What can be set."""

    mode: Literal["a", "b"] = setting("a", "A choice.")


@register("mine", paper="none", year=2026)
class Mine(Method[MineSettings]):
    """Do nothing."""

    statistics = "source"

    def step(self, x):
        return self.forward(x)


def make():
    return build("wrn-10-1")


def wrong():
    return 3
'''


def invoke(*arguments):
    return CliRunner().invoke(cli, ["run", *map(str, arguments)])


def test_run_compares_methods_on_a_model_and_a_method_of_ones_own(tmp_path):
    (tmp_path / "own_code.py").write_text(OWN)
    arguments = [
        "--model", f"{tmp_path / 'own_code.py'}:make", "--methods", "source,mine,palm", "--import",
        tmp_path / "own_code.py", "--set", "mine.mode=b", "--set", "palm.adapt_share=0.1", "--corruptions",
        "contrast,brightness", "--images", 20, "--batch-size", 10, "--out", tmp_path / "runs", "--json",
    ]  # fmt: skip
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["summary"]["error"].keys() == {"contrast-5", "brightness-5"}
    assert data["manifest"]["methods"]["palm"] == {"adapt_share": 0.1}
    assert data["manifest"]["stream"]["images"] == 20
    assert data["summary"]["error"]["contrast-5"]["source"] == data["summary"]["error"]["contrast-5"]["mine"]
    saved = json.loads((tmp_path / "runs" / "run.json").read_text())
    assert saved["summary"]["error"] == data["summary"]["error"]
    assert "| error (%) |" in (tmp_path / "runs" / "run.md").read_text()
    ctta._core.registry._ENTRIES.pop("mine")


def test_run_prints_a_table_for_people(tmp_path):
    (tmp_path / "plain_code.py").write_text(
        OWN.partition("@dataclass")[0] + "def make():\n    return build('wrn-10-1')\n"
    )
    result = invoke(
        "--model", f"{tmp_path / 'plain_code.py'}:make", "--methods", "bn1", "--scenario", "gradual",
        "--corruptions", "contrast", "--images", 4, "--batch-size", 4, "--threads", 1, "--out", tmp_path,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "forward passes" in result.output
    assert "contrast-3" in result.output


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda p: model_from(f"{p / 'own_code.py'}:nothing", None), ctta.ModelError, "no function `nothing`"),
        (lambda p: model_from(f"{p / 'own_code.py'}:wrong", None), ctta.ModelError, "but got a int"),
        (lambda p: model_from(f"{p / 'none.py'}:make", None), ctta.DataError, "no Python file"),
        (
            lambda p: source_from("nowhere", None, 0),
            ctta.DataError,
            "a folder of images by class, but got 'nowhere'",
        ),
        (lambda p: methods_from("palm", None, ["tent.lr=1"]), ctta.SettingError, "METHOD.SETTING=VALUE"),
        (lambda p: methods_from("palm", None, ["palm.lr"]), ctta.SettingError, "METHOD.SETTING=VALUE"),
    ],
)
def test_words_that_lead_nowhere_are_answered_with_what_would(call, error, words, tmp_path):
    (tmp_path / "own_code.py").write_text(OWN)
    with pytest.raises(error, match=words):
        call(tmp_path)
    ctta._core.registry._ENTRIES.pop("mine", None)


def test_a_file_of_ones_own_replaces_no_module_and_its_classes_can_be_pickled(tmp_path, monkeypatch):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        text = f"import torch\n\nclass Own:\n    folder = {folder!r}\n\nmake = torch.nn.Identity\n"
        (tmp_path / folder / "random.py").write_text(text)
    monkeypatch.chdir(tmp_path / "a")
    model_from("random.py:make", None)
    here, there = (names_in(tmp_path / folder / "random.py")["Own"] for folder in ("a", "b"))
    assert sys.modules["random"] is random
    for own in (here, there):
        assert type(pickle.loads(pickle.dumps(own()))) is own  # two files of one name do not hide each other
    assert names_in(Path("random.py"))["Own"].__module__ == here.__module__  # the same file, in other words


@pytest.mark.parametrize(
    "text",
    ["def (", "import no_such_module", "x = 1\nx.y", "import sys; sys.exit(3)", b"\xff\xfe", "\0", "if 1:\nx"],
)
def test_a_file_of_ones_own_that_cannot_be_imported_is_refused_in_words_and_leaves_no_module(tmp_path, text):
    file = tmp_path / "broken.py"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ctta.SettingError, match=r"broken.py cannot be imported: \w+(Error|Exit): .*Mend it"):
        names_in(file)
    assert not [name for name in sys.modules if name.startswith("ctta_file_broken")]


def test_the_embedded_images_are_numbered_as_in_the_test_set():
    """A domain of the embedded sample shows the pixels a whole CIFAR-10-C made with the same seed would have."""
    source = source_from("embedded", None, 0)
    numbers = source.numbers
    domain = streams.Domain("fog", 3)
    pixels = source.images(domain, np.arange(4))
    again = streams.Corrupted(Arrays(source.clean.images([3, 1]), [0, 0]), numbers=numbers[[3, 1]])
    assert np.array_equal(again.images(domain, np.arange(2)), pixels[[3, 1]])
    assert np.array_equal(source.images(streams.CLEAN, np.arange(4)), source.clean.images(range(4)))
