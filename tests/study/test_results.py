"""The pages with results, their figures and the README's table say what the kept rows say."""

import json
import re
import runpy
import shlex
from pathlib import Path

import pytest

from ctta.bench import archive
from ctta.bench.cell import Cell, identity, key_of
from ctta.bench.experiments import experiment
from ctta.errors import SettingError

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


def test_the_line_of_a_sweep_is_named_by_its_method_not_by_one_of_its_points(results):
    drawing = results["drawings"](results["kept"]("lambda@2000/bf16"))["palm-lam"]
    assert ">palm: mean error by lam<" in drawing
    assert ">palm</text>" in drawing
    assert ">lambda = 0.01" not in drawing


@pytest.fixture(scope="module")
def kept_files(results):
    """Every file of the evidence, read once, by the name of its part."""
    return dict(zip((file.stem for file in FILES), map(results["archive"].read, FILES), strict=True))


def test_every_row_has_a_manifest_its_key_and_the_command_that_makes_it_again(kept_files):
    for kept in kept_files.values():
        words = shlex.split(kept.command)
        assert words[:3] == ["ctta", "reproduce", kept.experiment.name]
        for key, run in kept.runs.items():
            manifest = run.record.manifest
            assert key == key_of(identity(manifest)), "a store would know the row by it"
            assert {"cell", "scenario", "settings", "seed", "threads"} <= manifest.keys()
            assert all(re.fullmatch(r"[0-9a-f]{12,}", manifest[name]) for name in ("weights", "stream"))
            assert Cell.from_dict(run.cell).method == manifest["method"]


@pytest.fixture(scope="module")
def study():
    return runpy.run_path(str(ROOT / "benchmarks" / "evidence.py"))


def test_parts_that_are_done_are_parts_of_the_study_and_the_index_says_what_each_file_is(study, kept_files):
    index = study["index"]()
    assert list(index) == [name for name in study["STUDY"] if name in index]
    assert index == {name: {"title": kept.title, "command": kept.command} for name, kept in kept_files.items()}
    for name, kept in kept_files.items():
        labels = {result.label for result in kept.results}
        words = shlex.split(study["STUDY"][name])
        assert words[0] == kept.experiment.name
        assert "--only" not in words or set(words[words.index("--only") + 1].split(",")) == labels, name


def test_rows_that_came_out_otherwise_are_named_and_equal_ones_are_not(study, tmp_path, capsys):
    (source,) = [file for file in FILES if file.stem == "continual-bn1-full"]
    header, *cells = [json.loads(line) for line in source.read_text().splitlines()]
    cells[1]["stays"][3]["wrong"] += 1500
    cells[1]["stays"][3]["counts"]["defocus_blur-5"][1] += 1500
    other = tmp_path / source.name
    other.write_text("".join(json.dumps(line) + "\n" for line in (header, *cells)))
    kept = archive.read(source)
    assert list(study["compare"](kept, kept)) == []
    (line,) = study["compare"](kept, archive.read(other))
    assert line == "BN-1, seed 1: 21.99 % is kept, 22.99 % came out"
    assert capsys.readouterr().out.count("BN-1, seed 2: identical, 32,986 images wrong") == 2


def test_a_directive_without_rows_says_so_and_an_unknown_one_is_refused(results):
    text = results["fill"]("{{error table3: PALM}} {{tables table3}}{{figures table3: cost}}")
    assert text == f"not run Not run yet: {experiment('table3').title}."
    with pytest.raises(ValueError, match="but got picture"):
        results["fill"]("{{picture speed}}")


def in_bf16(line):
    """A line of a kept file as a run in bf16 would have it."""
    data = json.loads(line)
    if "manifest" in data:
        data["manifest"]["cell"]["precision"] = "bf16"
        data["key"] = f"h{data['key'][1:]}"
    else:
        data["command"] += " --precision bf16"
        data["rows"] = {place: [f"h{key[1:]}" for key in keys] for place, keys in data["rows"].items()}
    return json.dumps(data)


def test_a_directive_may_name_scale_and_precision(results):
    def parts(text):
        what, which, rest = results["DIRECTIVE"].fullmatch(text).groups()
        return what, *results["WHICH"].fullmatch(which).groups(), rest

    assert parts("{{tables table1}}") == ("tables", "table1", None, None, None, None, None)
    assert parts("{{tables table1@2000}}") == ("tables", "table1", "2000", None, None, None, None)
    assert parts("{{tables table1@2000x10}}") == ("tables", "table1", "2000", "10", None, None, None)
    assert parts("{{tables pseudo-labels/bf16}}") == ("tables", "pseudo-labels", None, None, None, "bf16", None)
    assert parts("{{error table1@2000x10/bf16: a/b}}") == ("error", "table1", "2000", "10", None, "bf16", "a/b")
    assert parts("{{short gtta@10+a-long/bf16}}") == ("short", "gtta", "10", None, "a-long", "bf16", None)
    assert results["file_of"]("speed", "cost") == "speed-cost.svg"
    assert results["file_of"]("speed@2000x10+long/bf16", "cost") == "speed-2000x10-long-bf16-cost.svg"
    with pytest.raises(ValueError, match="but got table1@many"):
        results["fill"]("{{tables table1@many}}")


def test_a_row_that_was_not_run_has_no_error(results):
    assert results["fill"]("{{error speed: refresh 4}} {{error speed@1x1: exact}}") == "not run not run"


def test_a_directive_means_rows_of_its_own_precision_alone(results, tmp_path, monkeypatch):
    name, label = "continual-source-full", "Source"
    (source,) = [file for file in FILES if file.stem == name]
    monkeypatch.setitem(results["fill"].__globals__, "ROWS", tmp_path)

    def forget():
        results["kept"].cache_clear()
        results["every"].cache_clear()

    forget()
    fill, command = results["fill"], archive.read(source).command
    try:
        half = "\n".join(map(in_bf16, source.read_text().splitlines()))
        (tmp_path / f"{name}.bf16.jsonl").write_text(half)
        assert fill("{{tables table1}}").startswith("Not run yet")
        assert fill("{{tables table1@2000/bf16}}").startswith("Not run yet")
        assert fill("{{tables table1@2000x10/bf16}}").startswith("Not run yet")
        assert f"```\n{command} --precision bf16\n```" in fill("{{tables table1/bf16}}")
        assert "(results/table1-bf16-cost.svg)" in fill("{{figures table1/bf16: cost}}")
        forget()
        (tmp_path / source.name).write_bytes(source.read_bytes())
        assert f"```\n{command}\n```" in fill("{{tables table1}}")
        assert fill(f"{{{{error table1: {label}}}}}") == fill(f"{{{{error table1/bf16: {label}}}}}")
        with pytest.raises(SettingError, match="full or bf16, but got 'bf61'"):
            fill("{{tables table1/bf61}}")
    finally:
        forget()


def test_a_directive_means_rows_of_its_own_preset_alone(results):
    def cell(method, preset):
        return {"method": method, "preset": preset}

    fits = results["is_preset"]
    assert fits(cell("palm", "embedded"), "embedded")
    assert fits(cell("palm", "embedded-long"), "embedded-long")
    assert not fits(cell("palm", "embedded-long"), "embedded")
    assert not fits(cell("palm", "embedded"), "embedded-long")
    assert fits(cell("bn1", "embedded"), "embedded-long"), "BN-1 has nothing to set"


def test_a_directive_may_ask_for_one_severity_of_those_there_are(results):
    written, which = results["written"], "gtta@1000+embedded-long/bf16"
    assert [written("error", which, f"BN-1 | {severity}") for severity in (1, 5)] == ["13.4", "23.1"]
    with pytest.raises(ValueError, match="a number that the rows of BN-1 have"):
        written("error", which, "BN-1 | 6")


def test_a_directive_may_ask_for_one_corruption_the_selected_share_or_clean_accuracy(results):
    fill = results["fill"]
    assert fill("{{error table1/bf16: BN-1 | fog}} {{error table1/bf16: BN-1 | brightness}}") == "16.0 11.4"
    assert 0 < float(fill("{{selected speed: exact}}")) < 100
    assert fill("{{clean forgetting@2000/bf16: Source (batch statistics)}}") == "91.2"
    assert fill("{{error differences@2000/bf16: KL(p||u)}}") == "20.7", "a row may have the sign in its name"
    with pytest.raises(ValueError, match="but got mist"):
        fill("{{error table1/bf16: BN-1 | mist}}")
