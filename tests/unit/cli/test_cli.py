"""The command line, as a person and as a program use it."""

import itertools
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

import ctta
from ctta.cli import VERBS, cli, main


def call(*arguments):
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_help_lists_every_verb_and_each_verb_shows_an_example():
    text = call("--help")
    for verb in VERBS:
        assert verb in text
        assert f"Example: ctta {verb}" in call(verb, "--help")
    assert ctta.__version__ in call("--version")


def test_methods_lists_the_registry():
    text = call("methods")
    for entry in ctta.list_methods():
        assert entry.name in text


def test_methods_lists_paper_year_needs_cost_and_confidence(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    printed = call("methods").splitlines()
    lines = {line.split()[0]: line + below for line, below in itertools.pairwise(printed) if line}
    for entry in ctta.list_methods():
        line = lines[entry.name]
        for fact in (*entry.needs, entry.paper, entry.method.adapts, f"{entry.cost:g}", entry.confidence):
            assert fact in line
    assert "2025" in lines["palm"]


def test_methods_json_carries_the_whole_registry():
    data = {item["name"]: item for item in json.loads(call("methods", "--json"))}
    assert data.keys() == {entry.name for entry in ctta.list_methods()}
    assert data["palm"]["presets"]["imagenet-c"]["temperature"] == 1000.0
    assert {"average", "importance", "rng"} <= data["palm"]["keeps"].keys()
    assert (data["tent"]["cost"], data["tent"]["confidence"]) == (2.0, "high")
    assert json.loads(call("methods", "palm", "--json")) == data["palm"]


@pytest.mark.parametrize("name", [entry.name for entry in ctta.list_methods()])
def test_methods_name_shows_settings_help_defaults_and_presets(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = call("methods", name)
    entry = next(e for e in ctta.list_methods() if e.name == name)
    for item in entry.settings:
        assert item.name in text
        assert str(item.default) in text
    for fact in (entry.paper, f"Adapts: {entry.method.adapts}", f"batch: {entry.cost:g}", entry.confidence):
        assert fact in text
    assert "cifar100-c" in text
    assert ("No settings." in text) == (not entry.settings)


def test_an_unknown_method_ends_in_one_sentence_and_exit_code_1(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["methods", "plam"])
    assert caught.value.code == 1
    assert capsys.readouterr().err.startswith("ctta: There is no method `plam`. Did you mean `palm`?")


def test_an_unknown_verb_is_a_usage_error():
    result = CliRunner().invoke(cli, ["runn"])
    assert result.exit_code == 2
    assert "There is no verb `runn`. Did you mean `run`?" in result.output


def test_doctor_shows_versions_devices_threads_and_extras():
    text = call("doctor")
    assert "torch" in text
    assert "cpu" in text
    assert "pip install ray" in text or "ray: " in text
    facts = json.loads(call("doctor", "--json"))
    assert facts["core"].keys() == {"torch", "numpy", "pillow", "safetensors", "pyyaml", "rich", "click"}
    assert facts["threads"]["torch"] >= 1
    assert facts["problems"] == []


def test_doctor_exits_with_1_when_a_core_part_is_missing(monkeypatch):
    from ctta.cli import doctor

    monkeypatch.setattr(doctor, "version_of", lambda name: None if name == "rich" else "1")
    result = CliRunner().invoke(cli, ["doctor"])
    assert result.exit_code == 1
    assert "rich is not installed: pip install rich" in result.output
    assert doctor.__name__


def test_doctor_finds_no_version_of_a_package_that_is_not_there():
    from ctta.cli.doctor import version_of

    assert version_of("surely-not-a-package") is None


def test_demo_prints_a_table_saves_a_report_and_speaks_json(tmp_path):
    text = call("demo", "--images", "4", "--batch-size", "4", "--methods", "bn1,palm", "--out", str(tmp_path))
    assert "never reset" in text
    assert "parameters adapted" in text
    assert text.splitlines()[-1].startswith(f"page in {tmp_path / 'demo.html'}")
    assert "Lowest mean error" in (tmp_path / "demo.html").read_text()
    assert "| mean |" in (tmp_path / "demo.md").read_text()
    data = json.loads((tmp_path / "demo.json").read_text())
    assert len(data["summary"]["error"]) == 15
    assert data["summary"]["mean"].keys() == {"bn1", "palm"}
    assert all(passes > 0 for passes in data["summary"]["passes"].values())
    assert data["manifest"]["methods"] == {name: {"preset": "embedded"} for name in ("bn1", "palm")}


def test_python_m_ctta_is_ctta():
    done = subprocess.run([sys.executable, "-m", "ctta", "--version"], capture_output=True, text=True, check=True)
    assert ctta.__version__ in done.stdout
