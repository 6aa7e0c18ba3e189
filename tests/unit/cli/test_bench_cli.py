"""`ctta bench`, as a person and as a program use it, and the files it exports."""

import csv
import json
import sys
import types

import pytest
from click.testing import CliRunner
from rich.console import Console
from tests.bench_kit import MODEL, a_row, read, write_model

from ctta.bench.evaluation import BatchRow
from ctta.bench.export import NESTED, export
from ctta.bench.plan import from_words, tasks
from ctta.bench.store import Store
from ctta.bench.workers import Event
from ctta.cli import cli
from ctta.cli.sweep import Sweep
from ctta.errors import DataError, SettingError, StoreError


def call(*arguments, code=0):
    result = CliRunner().invoke(cli, ["bench", *map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture
def words(tmp_path):
    model = write_model(tmp_path)
    small = ["--images", 20, "--batch-size", 10, "--corruptions", "contrast,brightness"]
    return ["--model", model, *small, "--processes", 1, "--threads", 1, "--store", tmp_path / "b.db"]


def test_a_grid_runs_ends_in_numbers_and_the_same_command_runs_nothing_again(words, tmp_path):
    grid = [*words, "--methods", "source,tent", "--seeds", "0-2"]
    first = call(*grid, "--json")
    data = json.loads(first.stdout)
    assert [line["label"] for line in data["lines"]] == ["source", "tent"]
    with Store(tmp_path / "b.db", read_only=True) as store:
        finished = {record.key: record.finished for record in store.cells("done")}
        for line in data["lines"]:
            errors = []
            for key in line["keys"]:
                rows = store.batches(key)
                wrong = {d: sum(r.wrong for r in rows if r.domain == d) for d in ("contrast-5", "brightness-5")}
                errors.append(sum(100 * count / 20 for count in wrong.values()) / 2)
            mean = sum(errors) / 3
            assert line["mean"] == pytest.approx(mean)
            assert line["worst"] == pytest.approx(max(errors))
            assert line["std"] == pytest.approx((sum((e - mean) ** 2 for e in errors) / 2) ** 0.5)
            assert line["seeds"] == [0, 1, 2]
    assert first.stderr.count("error") == 6  # a line a cell
    again = call(*grid, "--json")
    assert json.loads(again.stdout) == data
    assert again.stderr == "6 of 6 cells were done before\n"
    with Store(tmp_path / "b.db", read_only=True) as store:
        assert {record.key: record.finished for record in store.cells("done")} == finished


def test_the_table_shows_domains_mean_deviation_and_worst_and_says_it_is_a_slice(words):
    text = call(*words, "--methods", "source,bn1", "--seeds", "0,1").stdout
    for part in ("contrast-5", "brightness-5", "mean", "standard deviation", "worst seed", "20 images a domain"):
        assert part in text
    single = call(*words, "--methods", "source").stdout
    assert "standard deviation" not in single  # one seed has none


def test_a_dry_run_prints_plan_cost_and_what_is_done_and_writes_nothing(words, tmp_path):
    grid = [*words, "--methods", "source,palm"]
    assert "2 cells, 0 of them done" in call(*grid, "--dry-run").stdout
    assert not (tmp_path / "b.db").exists()
    call(*words, "--methods", "source")
    data = json.loads(call(*grid, "--dry-run", "--json").stdout)
    assert (data["cells"], data["done"], data["forward_passes"]) == (2, 1, 4 * 1 + 4 * 8)
    assert data["forward_passes_left"] == 4 * 8
    assert [item["status"] for item in data["plan"]] == ["done", "to do"]
    assert [item["batches_done"] for item in data["plan"]] == [4, 0]


def test_one_yaml_file_says_it_all_and_options_replace_its_words(words, tmp_path):
    file = tmp_path / "grid.yaml"
    model = words[1]
    file.write_text(
        f"model: '{model}'\nmethods: [source, tent]\nimages: 20\nbatch_size: 10\n"
        "corruptions: [contrast, brightness]\nset: {tent.lr: 1e-3}\n"
    )
    run = ["--store", tmp_path / "b.db", "--dry-run", "--json"]
    plan = json.loads(call(file, *run).stdout)["plan"]
    assert [item["cell"]["settings"] for item in plan] == [{}, {"lr": 0.001}]
    (item,) = json.loads(call(file, "--methods", "tent", "--images", 10, *run).stdout)["plan"]
    assert item["batches"] == 2


def test_a_failing_cell_ends_in_exit_code_1_and_the_others_are_in_the_table(words, tmp_path):
    text = MODEL.replace("nn.BatchNorm2d(8), ", "")  # nothing for tent to adapt
    model = write_model(tmp_path, text, "plain.py")
    result = call(*words, "--model", model, "--methods", "source,tent", "--json", code=1)
    data = json.loads(result.stdout)
    assert [line["label"] for line in data["lines"]] == ["source"]
    assert len(data["problems"]) == 1
    assert "1 of 2 cells did not finish" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--methods", "plam"],
        ["--seeds", "x"],
        ["--scenario", "continal"],
        ["missing.yaml"],
        ["--methods", "source", "--export", "rows.xls"],
    ],
)
def test_a_wrong_word_is_refused_before_anything_runs(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call(*arguments, code=1)
    assert isinstance(result.exception, SettingError)
    assert list(tmp_path.iterdir()) == []


METHOD = """
from ctta.methods import Method, register
from ctta.methods.source import SourceSettings


@register("{name}", paper="none", year=2026)
class Own(Method[SourceSettings]):
    '''The classes of batch statistics, moved on by so many places.'''

    def step(self, x):
        return self.forward(x).roll({turn}, 1)
"""


@pytest.mark.usefixtures("registry_as_it_was")
def test_methods_of_ones_own_files_run_beside_ours(words, tmp_path):
    for name, turn in (("same", 0), ("turned", 1)):
        (tmp_path / f"{name}.py").write_text(METHOD.format(name=name, turn=turn))
    files = ["--import", tmp_path / "same.py", "--import", tmp_path / "turned.py"]
    lines = json.loads(call(*words, *files, "--methods", "bn1,same,turned", "--json").stdout)["lines"]
    error = {line["label"]: line["mean"] for line in lines}
    assert error["same"] == error["bn1"] != error["turned"]
    (item,) = json.loads(call(*words, *files[:2], "--methods", "same", "--dry-run", "--json").stdout)["plan"]
    assert item["status"] == "done"


def test_in_bf16_every_line_table_plan_and_exported_row_says_so(words, tmp_path):
    half = [*words, "--methods", "source,palm", "--precision", "bf16"]
    found = call(*half, "--export", tmp_path / "half.jsonl")
    assert "on embedded, continual, 20 images a domain (bf16)" in " ".join(found.stdout.split())
    assert all("own.py:make (bf16), seed 0: error" in line for line in found.stderr.splitlines()[:2])
    assert "own.py:make (bf16)" in call(*half, "--dry-run").stdout
    full = call(*words, "--methods", "source,palm", "--export", tmp_path / "full.jsonl")
    assert "(bf16)" not in full.output
    lines = json.loads(call(*half, "--json").stdout)["lines"]
    assert {line["precision"] for line in lines} == {"bf16"}
    for name in ("half", "full"):
        rows = [json.loads(text) for text in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        assert [row["precision"] for row in rows] == [{"half": "bf16", "full": "full"}[name]] * 8
    assert len(read(tmp_path / "b.db")) == 4


def test_an_unknown_precision_is_refused_with_the_choices():
    assert "'half' is not one of 'full', 'bf16'" in call("--precision", "half", code=2).output


def test_tensorboard_gets_every_row_and_is_closed(words, tmp_path, monkeypatch):
    seen = []

    class Writer:
        def __init__(self, folder):
            seen.append(str(folder))

        def __call__(self, cell, row):
            seen.append((cell.method, row.batch))

        def close(self):
            seen.append("closed")

    module = types.ModuleType("ctta.report.tensorboard")
    module.Writer = Writer
    monkeypatch.setitem(sys.modules, "ctta.report.tensorboard", module)
    call(*words, "--methods", "source", "--tensorboard", tmp_path / "tb")
    assert seen == [str(tmp_path / "tb"), *[("source", batch) for batch in range(4)], "closed"]


# -------------------------------------------------------------------- while it runs


def sweep(words, tmp_path, **options):
    plan = tasks(from_words({"model": words[1], "images": 20, "batch_size": 10, "methods": "source,palm"}))
    return plan, Sweep(plan, Store(tmp_path / "live.db"), Console(width=150, record=True, **options))


def test_on_a_terminal_bars_show_what_runs_its_error_and_the_time_left(words, tmp_path):
    plan, live = sweep(words, tmp_path, force_terminal=True)
    with live, live.store:
        live(Event("begun", plan[0]))
        live(Event("row", plan[0], a_row(0, wrong=4)))
        live(Event("row", plan[0], a_row(1, wrong=2)))
        live.console.print(live.bars)
        text = live.console.export_text()
        live(Event("done", plan[0]))
        live.console.print(live.bars)
        after = live.console.export_text()
    assert "source on embedded" in text
    assert "error 30.00 %" in text  # six of twenty
    assert "0 of 2 cells, about" in text
    assert "palm on" not in text  # it does not run yet
    assert "1 of 2 cells, about" in after


def test_the_bars_make_way_for_other_output_and_come_back(words, tmp_path):
    _, live = sweep(words, tmp_path, force_terminal=True)
    with live.store, live:
        assert live.bars.live.is_started
        with live.aside():
            assert not live.bars.live.is_started
        assert live.bars.live.is_started
    assert not live.bars.live.is_started


def test_cells_that_were_done_are_counted_in_one_line(words, tmp_path):
    call(*words, "--methods", "source,bn1")
    text = call(*words, "--methods", "source,bn1,tent", "--json").stderr
    assert text.splitlines()[0] == "2 of 3 cells were done before"
    assert text.splitlines()[1].startswith("[3/3] tent on embedded (continual)")


def test_a_cell_that_goes_on_from_a_snapshot_counts_the_rows_it_has(words, tmp_path):
    plan, live = sweep(words, tmp_path)
    with live, live.store as store:
        store.claim(plan[0].key, "source", {}, plan[0].batches)
        store.append(plan[0].key, [a_row(0, wrong=10), a_row(1, wrong=10)])
        live(Event("begun", plan[0]))
        live(Event("row", plan[0], a_row(2, wrong=0)))
        standing = live.standings[plan[0].key]
        assert (standing.batches, standing.samples, standing.wrong) == (3, 30, 20)
        live(Event("lost", plan[0], text="its process was killed by SIGKILL", again=True))
        live(Event("waiting", plan[1], text="another runner has it"))
        live(Event("waiting", plan[1], text="another runner has it"))
        live(Event("failed", plan[1], text="ModelError: no"))
    text = live.console.export_text()
    assert "killed by SIGKILL, tried once more" in text
    assert text.count("another runner") == 1
    assert "ModelError: no" in text
    assert [event.kind for event in live.problems] == ["failed"]


# -------------------------------------------------------------------- exports


@pytest.fixture
def filled(words, tmp_path):
    call(*words, "--methods", "source,palm", "--clean", 10)
    return tmp_path / "b.db"


def back(line):
    """The batch row an exported line was made from."""
    return BatchRow.from_dict(line)


def test_jsonl_carries_every_row_and_what_it_takes_to_trace_it(filled, tmp_path):
    call("--store", filled, "--export", tmp_path / "rows.jsonl")
    lines = [json.loads(text) for text in (tmp_path / "rows.jsonl").read_text().splitlines()]
    with Store(filled, read_only=True) as store:
        for record in store.cells():
            own = [line for line in lines if line["key"] == record.key]
            assert [back(line) for line in own] == store.batches(record.key)
            for name in ("weights", "stream", "ctta", "settings", "seed", "method"):
                assert {json.dumps(line[name]) for line in own} == {json.dumps(record.manifest[name])}
    assert len(lines) == 8


def test_csv_round_trips_with_nested_columns_as_json(filled, tmp_path):
    call("--store", filled, "--export", tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    with Store(filled, read_only=True) as store:
        rows = [row for record in store.cells() for row in store.batches(record.key)]
    assert len(lines) == len(rows) == 8
    for line, row in zip(lines, rows, strict=True):
        assert int(line["wrong"]) == row.wrong
        assert float(line["nll"]) == row.nll
        assert line["skipped"] == str(row.skipped)
        for name in set(NESTED) - {"settings"}:
            assert json.loads(line[name]) == getattr(row, name)


def test_parquet_round_trips(filled, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    with Store(filled, read_only=True) as store:
        assert export(store, tmp_path / "rows.parquet") == 8
        rows = [row for record in store.cells() for row in store.batches(record.key)]
    lines = parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    for line in lines:
        line |= {name: json.loads(line[name]) for name in NESTED}
    assert [back(line) for line in lines] == rows


def test_without_pyarrow_parquet_says_how_to_get_it_and_leaves_no_file(filled, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with Store(filled, read_only=True) as store, pytest.raises(DataError, match=r"ctta\[export\]"):
        export(store, tmp_path / "rows.parquet")
    assert not (tmp_path / "rows.parquet").exists()


def test_an_export_of_a_grid_holds_its_cells_alone(words, filled, tmp_path):
    call(*words, "--methods", "palm", "--clean", 10, "--export", tmp_path / "rows.jsonl")
    lines = [json.loads(text) for text in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [line["method"] for line in lines] == ["palm"] * 4
    assert len(read(filled)) == 2


def test_numbers_that_are_not_finite_are_null_in_json(tmp_path):
    with Store(tmp_path / "b.db") as store:
        manifest = dict.fromkeys(("method", "seed", "settings", "weights", "stream", "ctta"), 0)
        cell = {"model": "m", "data": "d", "scenario": "continual"}
        store.claim("k", "palm", {**manifest, "settings": {}, "cell": cell}, 1)
        row = a_row(0).to_dict() | {"nll": float("nan"), "losses": {"entropy": float("inf")}}
        store.append("k", [BatchRow.from_dict(row)])
        export(store, tmp_path / "rows.jsonl")
    (line,) = [json.loads(text) for text in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert line["nll"] is None
    assert line["losses"] == {"entropy": None}


def test_a_target_that_cannot_be_written_or_is_of_no_known_kind_is_refused(filled, tmp_path):
    with Store(filled, read_only=True) as store:
        with pytest.raises(SettingError, match=r"\.csv, \.jsonl, \.parquet"):
            export(store, tmp_path / "rows.xls")
        with pytest.raises(StoreError, match="Could not write"):
            export(store, tmp_path / "no folder" / "rows.csv")
