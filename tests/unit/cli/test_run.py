"""`ctta run` on a model, data and methods of one's own, and what its words lead to."""

import json
import pickle
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import ctta
from ctta import streams
from ctta.bench.resolve import model_from, names_in, source_from
from ctta.cli import cli
from ctta.data import Arrays

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


def test_run_compares_methods_on_a_model_and_a_method_of_ones_own_and_saves_table_numbers_and_page(tmp_path):
    (tmp_path / "own_code.py").write_text(OWN)
    arguments = [
        "--model", f"{tmp_path / 'own_code.py'}:make", "--methods", "source,mine,palm", "--import",
        tmp_path / "own_code.py", "--set", "mine.mode=b", "--set", "palm.adapt_share=0.1", "--corruptions",
        "contrast,brightness", "--images", 20, "--batch-size", 10, "--out", tmp_path / "runs", "--json",
    ]  # fmt: skip
    result = invoke(*arguments)
    ctta._core.registry._ENTRIES.pop("mine")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    error, cost = data["summary"]["error"], data["summary"]["passes"]
    assert error.keys() == {"contrast-5", "brightness-5"}
    assert data["manifest"]["methods"]["palm"] == {"adapt_share": 0.1}
    assert data["manifest"]["scenario"]["images"] == 20
    assert error["contrast-5"]["source"] == error["contrast-5"]["mine"]
    means = {label: (error["contrast-5"][label] + error["brightness-5"][label]) / 2 for label in cost}
    assert data["summary"]["mean"] == pytest.approx(means)
    assert (data["summary"]["samples"], data["summary"]["skipped"]) == (40, dict.fromkeys(cost, 0))
    assert all(passes > 0 for passes in cost.values())
    assert data["summary"]["adapted"]["source"] == 0 < data["summary"]["adapted"]["palm"] <= 100
    assert json.loads((tmp_path / "runs" / "run.json").read_text()) == data
    assert "| error (%) |" in (tmp_path / "runs" / "run.md").read_text()
    page = Path(data["report"])
    assert page == tmp_path / "runs" / "run.html"
    assert all(f'<th scope="row">{label}</th>' in page.read_text() for label in cost)


def test_run_prints_a_table_for_people_and_where_the_page_is(tmp_path):
    (tmp_path / "plain_code.py").write_text(
        OWN.partition("@dataclass")[0] + "def make():\n    return build('wrn-10-1')\n"
    )
    result = invoke(
        "--model", f"{tmp_path / 'plain_code.py'}:make", "--methods", "bn1", "--scenario", "gradual",
        "--corruptions", "contrast", "--images", 4, "--batch-size", 4, "--threads", 1, "--out", tmp_path,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "forward passes" in result.stdout
    assert "contrast-3" in result.stdout
    assert result.stdout.splitlines()[-1].startswith(f"page in {tmp_path / 'run.html'}")


def test_a_method_that_fails_ends_in_exit_code_1_and_the_others_are_in_the_table(tmp_path):
    (tmp_path / "plain_code.py").write_text(
        "from torch import nn\ndef make():\n"
        "    return nn.Sequential(nn.AvgPool2d(32), nn.Flatten(), nn.Linear(3, 10))\n"
    )  # no norm layer and no convolution for PALM to adapt
    result = invoke(
        "--model", f"{tmp_path / 'plain_code.py'}:make", "--methods", "source,palm", "--corruptions", "contrast",
        "--images", 4, "--batch-size", 4, "--out", tmp_path, "--json",
    )  # fmt: skip
    assert result.exit_code == 1
    assert "UnsupportedModelError" in result.stderr
    assert json.loads(result.stdout)["summary"]["mean"].keys() == {"source"}


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda p: model_from(f"{p / 'own_code.py'}:nothing", None), ctta.ModelError, "no function `nothing`"),
        (lambda p: model_from(f"{p / 'own_code.py'}:wrong", None), ctta.ModelError, "but got a int"),
        (lambda p: model_from(f"{p / 'none.py'}:make", None), ctta.DataError, "no Python file"),
        (lambda p: source_from("photos/", None, 0), ctta.DataError, "There is no folder and no dataset `photos/`"),
        (lambda p: source_from("cifar10c", None, 0), ctta.DataError, "Did you mean `cifar10-c`"),
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
