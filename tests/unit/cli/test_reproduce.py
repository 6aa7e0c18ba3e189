"""`ctta reproduce`: what can run runs and continues, what cannot says why, and every substitute is labelled."""

import json
import sqlite3

import pytest
from click.testing import CliRunner

from ctta.bench.experiments import BEYOND, NAMES, Options, experiment, plan, preset_for
from ctta.bench.reproduction import Work
from ctta.bench.resolve import source_from
from ctta.bench.store import Store
from ctta.cli import cli
from ctta.data import catalogue
from ctta.errors import DataError, SettingError
from ctta.report.collect import collect
from ctta.report.figures import figures_of, styles_of
from ctta.report.page import render

MODEL = """
import torch
from ctta.models import build

def make():
    torch.manual_seed(0)
    return build("wrn-10-1").eval()
"""


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """A data folder with nothing in it."""
    monkeypatch.setenv("CTTA_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def stand_in(tmp_path, empty):
    """Words for a run of seconds: an untrained model, two corruptions, four images."""
    (tmp_path / "own.py").write_text(MODEL)
    return (
        *("--model", f"{tmp_path / 'own.py'}:make", "--dataset", "embedded", "--corruptions", "fog,contrast"),
        *("--images", "4", "--batch-size", "4", "--store", str(tmp_path / "r.sqlite")),
        *("--processes", "1", "--threads", "1"),
    )


def call(*words, code=0):
    result = CliRunner().invoke(cli, ["reproduce", *words], catch_exceptions=False)
    assert code is None or result.exit_code == code, result.output
    return result


def count(path, table):
    db = sqlite3.connect(path)
    try:
        return db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    finally:
        db.close()


# ---------------------------------------------------------------- plans


def test_without_weights_and_images_every_cell_says_what_it_needs_and_how_to_get_it(empty):
    for item in plan(experiment("gtta"), Options()):
        model = experiment("gtta").datasets[item.paper].model
        assert list(item.needs.values()) == [f"ctta data get {model}", f"ctta data get {item.paper}"]
    assert plan(experiment("table1"), Options())[0].needs["WRN-28-10 weights"] == "ctta data get wrn-28-10"


def test_weights_in_the_data_folder_are_used(empty):
    archive = catalogue.find("resnext-29").parts[0][0]
    path = empty / archive.folder / archive.name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"weights")
    item = plan(experiment("table2"), Options())[0]
    assert (item.cell.model, item.cell.weights) == ("resnext-29", str(path))
    assert list(item.needs.values()) == ["ctta data get cifar100-c"]


def test_forgetting_needs_the_clean_images_too(empty):
    needs = {item.paper: list(item.needs.values()) for item in plan(experiment("forgetting"), Options())}
    assert needs["cifar10-c"][-1] == "ctta data get cifar10"
    assert needs["cifar100-c"][-1] == "ctta data get cifar100"
    with pytest.raises(DataError, match="ctta data get cifar10"):
        source_from("cifar10-c", None, 0, clean=True)
    with pytest.raises(DataError, match="cannot fetch"):
        source_from("imagenet-c", None, 0, clean=True)


def test_cells_carry_the_papers_protocol(empty):
    cells = {item.paper: item.cell for item in plan(experiment("optimizers"), Options()) if item.row.row == "LARS"}
    assert {name: (c.batch_size, c.preset, c.data) for name, c in cells.items()} == {
        "cifar10-c": (200, "cifar10-c", "cifar10-c"),
        "cifar100-c": (200, "cifar100-c", "cifar100-c"),
        "imagenet-c": (64, "imagenet-c", "imagenet-c"),
    }
    assert cells["cifar10-c"].settings["lr_scheme"] == "lars"
    assert all(c.severity == 5 and c.images is None and c.seed == 0 for c in cells.values())
    assert {item.cell.scenario for item in plan(experiment("gtta"), Options())} == {"gradual"}
    assert {item.cell.scenario for item in plan(experiment("mixed"), Options())} == {"mixed"}
    clean = {item.paper: item.cell.clean for item in plan(experiment("forgetting"), Options())}
    assert clean == {"cifar10-c": 10_000, "cifar100-c": 10_000, "imagenet-c": 5_000}


def test_seeds_multiply_the_cells_and_a_slice_cuts_the_clean_images_too(empty):
    planned = plan(experiment("forgetting"), Options(dataset="embedded", images=50, seeds=(3, 4)))
    assert [(item.row.label, item.cell.seed) for item in planned][:2] == [
        ("Source (batch statistics)", 3),
        ("Source (batch statistics)", 4),
    ]
    assert {(item.cell.images, item.cell.clean) for item in planned} == {(50, 50)}


@pytest.mark.parametrize("options", [Options(dataset="embedded"), Options(model="embedded:")])
def test_either_word_brings_the_embedded_model_and_images_and_needs_nothing(options, empty):
    for name in NAMES:
        planned = plan(experiment(name), options)
        assert {(item.cell.model, item.cell.data, item.dataset) for item in planned} == {
            ("embedded:", "embedded", "embedded")
        }
        assert not any(item.needs for item in planned)
        assert all(item.cell.preset == preset_for(item.row.method, "embedded") for item in planned)
        assert {item.cell.batch_size for item in planned} == {200}


def test_the_embedded_model_keeps_its_preset_on_the_whole_of_cifar10_c(empty):
    planned = plan(experiment("table1"), Options(dataset="cifar10-c", model="embedded:"))
    assert {(item.cell.model, item.cell.data) for item in planned} == {("embedded:", "cifar10-c")}
    assert {item.row.method: item.cell.preset for item in planned}["palm"] == "embedded"
    assert plan(experiment("adapted"), Options(dataset="cifar10-c"))[0].cell.preset == "cifar10-c"


def test_a_preset_holds_for_the_methods_that_have_it_and_is_refused_where_none_has(empty):
    options = Options(dataset="embedded", preset="palm-repo-cifar10-c")
    presets = {item.row.method: item.cell.preset for item in plan(experiment("table1"), options)}
    assert presets["tent"] == "palm-repo-cifar10-c"
    assert presets["palm"] == "embedded"
    assert options.tag == "embedded.palm-repo-cifar10-c"
    with pytest.raises(SettingError, match="'embeded': known are cifar10-c, cifar100-c, embedded"):
        plan(experiment("table1"), Options(preset="embeded"))


def test_tables_1_to_3_share_their_cells_on_the_embedded_model(empty):
    options = Options(dataset="embedded")
    first, third = (plan(experiment(name), options) for name in ("table1", "table3"))
    assert [item.cell for item in first] == [item.cell for item in third]


def test_cells_that_experiments_share_are_one_task_and_end_all_of_them(stand_in, tmp_path):
    names = ("pseudo-labels", "adapted", "importance", "forgetting")
    small = {"images": 4, "corruptions": ("fog",), "batch_size": 4}
    work = Work([experiment(name) for name in names], Options(dataset="embedded", model=stand_in[1], **small))
    labels = {task.cell.name: task for task in work.tasks if not task.cell.clean}
    assert sorted(labels) == ["CoTTA", "PALM", "Pseudo-labels"]
    assert sorted(task.cell.name for task in work.tasks if task.cell.clean) == [
        "LAW",
        "PALM",  # measures forgetting too: another cell
        "Source (batch statistics)",
    ]
    palm = labels["PALM"].key
    assert all(palm in work.waiting(name) for name in names[:3])
    assert work.ended(labels["CoTTA"].key, "failed: no") == []
    assert work.ended(palm) == ["adapted", "importance"]
    assert work.ended(labels["Pseudo-labels"].key) == ["pseudo-labels"]
    assert len(work.waiting("forgetting")) == 3


def test_some_rows_can_be_chosen_by_their_labels_and_unknown_ones_are_refused(empty):
    options = Options(dataset="embedded", only=("PALM", "Source"))
    assert [item.row.label for item in plan(experiment("table1"), options)] == ["Source", "PALM"]
    assert options.tag == "embedded.PALM-Source"
    with pytest.raises(SettingError, match="table1 has no row Plam: its rows are Source, BN-1"):
        plan(experiment("table1"), Options(dataset="embedded", only=("Plam",)))


def test_one_dataset_can_be_chosen_and_a_foreign_one_is_refused(empty):
    assert {item.paper for item in plan(experiment("lambda"), Options(dataset="cifar100-c"))} == {"cifar100-c"}
    with pytest.raises(SettingError, match="table2 is about cifar100-c, not cifar10-c"):
        plan(experiment("table2"), Options(dataset="cifar10-c"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(), []),
        (Options(dataset="cifar10-c"), []),
        (Options(dataset="embedded"), ["embedded model and images, not the paper's"]),
        (Options(model="embedded:"), ["embedded model and images, not the paper's"]),
        (Options(model="a.py:f", dataset="embedded"), ["model a.py:f on embedded images, not the paper's"]),
        (Options(model="a.py:f"), ["model a.py:f, not the paper's"]),
        (Options(images=9), ["a slice: 9 images per domain"]),
        (Options(corruptions=("fog",), batch_size=8), ["1 of 15 corruptions: fog", "batches of 8"]),
        (Options(preset="imagenet-c"), ["settings of the preset imagenet-c"]),
        (Options(precision="bf16"), ["convolutions and matrix products in bfloat16"]),
    ],
)
def test_whatever_is_not_the_papers_experiment_is_labelled_and_filed_apart(options, words):
    assert options.labels == words
    assert bool(options.tag) == bool(words) or options.dataset == "cifar10-c"


def test_in_bf16_every_cell_is_and_its_files_are_named_so(empty):
    options = Options(dataset="embedded", images=9, precision="bf16", only=("PALM",), seeds=(0, 1))
    assert {item.cell.precision for item in plan(experiment("table1"), options)} == {"bf16"}
    assert options.tag == "embedded.9-images.bf16.PALM.seeds-0-1"
    assert {item.cell.precision for item in plan(experiment("table1"), Options())} == {"full"}


def test_names_of_files_stay_short_and_tell_any_rows_apart():
    rows = tuple(line.label for line in experiment("differences").rows)
    some = [Options(dataset="cifar10-c", only=chosen).tag for chosen in (rows, rows[:-1], rows[1:], rows[:9])]
    assert len(set(some)) == 4
    assert all(len(f"pseudo-labels.{tag}.jsonl") <= 143 for tag in some)
    assert all(tag.startswith("cifar10-c.") for tag in some)


# ---------------------------------------------------------------- the command


def test_list_names_every_experiment_and_json_carries_the_published_numbers():
    text = call("--list").stdout
    assert all(name in text for name in (*NAMES, *BEYOND))
    found = {item["name"]: item for item in json.loads(call("--list", "--json").stdout)}
    assert found["table1"]["published"]["cifar10-c"]["PALM"]["mean"] == 15.5


def test_what_cannot_run_is_said_with_the_command_and_no_number_of_ours(empty, tmp_path):
    found = call("table1", "--store", str(tmp_path / "r.sqlite"), code=3)
    assert "not run: needs WRN-28-10 weights, get them with: ctta data get wrn-28-10" in found.stdout
    data = json.loads(call("table1", "--store", str(tmp_path / "r.sqlite"), "--json", code=3).stdout)
    table = data["experiments"][0]["tables"][0]
    assert {line[2] for line in table["rows"]} == {"not run"}
    assert {line[4] for line in table["rows"]} == {None}
    assert data["experiments"][0]["not_run"][0]["commands"] == [
        "ctta data get wrn-28-10",
        "ctta data get cifar10-c",
    ]
    assert count(tmp_path / "r.sqlite", "cells") == 0


def test_where_nothing_could_run_there_is_no_page_and_it_says_so(empty, tmp_path):
    page = tmp_path / "page.html"
    found = call("table1", "--store", str(tmp_path / "r.sqlite"), "--report", str(page), "--json", code=3)
    assert json.loads(found.stdout)["report"] is None
    assert "no cell is finished" in found.stderr
    assert not page.exists()


def test_no_experiment_an_unknown_one_and_weights_without_a_model_are_refused(empty, tmp_path):
    assert "Name an experiment" in call(code=2).output
    assert "--weights are those of --model" in call("table1", "--weights", "x.pt", code=2).output
    store = ("--store", str(tmp_path / "r.sqlite"))
    assert "over the store" in call("table1", *store, "--report", str(tmp_path / "r.sqlite"), code=2).output
    with pytest.raises(SettingError, match="expected `seeds` to be whole numbers"):
        call("table1", "--seeds", "one")
    with pytest.raises(SettingError, match="There is no experiment `tabel1`"):
        call("tabel1")
    assert "'half' is not one of 'full', 'bf16'" in call("table1", "--precision", "half", code=2).output


def test_an_experiment_runs_continues_and_is_saved_beside_the_store(stand_in, tmp_path):
    store = tmp_path / "r.sqlite"
    first = json.loads(call("pseudo-labels", *stand_in, "--seeds", "0-1", "--json").stdout)
    rows = count(store, "batches")
    found = first["experiments"][0]
    assert "own.py:make on embedded images, not the paper's; a slice: 4 images per domain" in found["title"]
    assert "2 of 15 corruptions: fog, contrast" in found["title"]
    table = found["tables"][0]
    palm = next(line for line in table["rows"] if line[1] == "PALM")
    ours, std, worst, paper, difference = palm[2:]
    assert table["columns"][2:] == ["ours", "std", "worst", "paper", "difference"]
    assert 0 <= ours <= worst <= 100
    assert std >= 0
    assert (paper, difference) == (15.5, pytest.approx(ours - 15.5))
    assert len(found["cells"]["embedded / PALM"]) == 2
    again = call("pseudo-labels", *stand_in, "--seeds", "0,1", "--json")
    assert json.loads(again.stdout) == first
    assert again.stderr == "4 of 4 cells were done before\n"
    assert count(store, "batches") == rows
    saved = {path.suffix for path in (tmp_path / "r.tables").iterdir()}
    assert saved == {".md", ".tex", ".csv"}
    assert all("4-images" in path.name for path in (tmp_path / "r.tables").iterdir())


def test_experiments_of_our_own_run_by_name(stand_in):
    (recurring,) = json.loads(call("recurring", *stand_in, "--only", "BN-1", "--json").stdout)["experiments"]
    assert recurring["title"].startswith("not in the paper: The fifteen corruptions three times over")
    assert recurring["tables"][0]["columns"][-3:] == ["pass 1", "pass 2", "pass 3"]
    words = ("differences", *stand_in, "--only", "official,rate per element,paper", "--json")
    (differences,) = json.loads(call(*words).stdout)["experiments"]
    (table,) = differences["tables"]
    assert table["columns"][2:4] == ["error", "from official"]
    official, *others = table["rows"]
    assert official[3] is None
    assert [row[3] for row in others] == [pytest.approx(row[2] - official[2]) for row in others]


@pytest.mark.timeout(600)
def test_all_runs_from_end_to_end_without_a_person(stand_in, tmp_path):
    result = call("all", *stand_in, "--report", str(tmp_path / "page.html"), "--json")
    found = {item["experiment"]: item for item in json.loads(result.stdout)["experiments"]}
    assert tuple(found) == NAMES
    for name, item in found.items():
        assert "not the paper's; a slice: 4 images per domain" in item["title"]
        for table in item["tables"]:
            assert "not the paper's" in table["title"]
        assert item["not_run"] == []
        assert (tmp_path / "r.tables" / f"{name}.embedded.own-py-make.4-images.2-corruptions.batch-4.md").is_file()
        assert not any("not run" in line for table in item["tables"] for line in table["rows"]), name
    assert found["importance"]["tables"][0]["rows"][0][0] == "conv1"
    assert any("Selected share" in note for note in found["temperature"]["tables"][0]["notes"])
    assert len(json.loads(result.stdout)["experiments"][0]["tables"]) == 3
    once = [line for line in result.stderr.splitlines() if " PALM on embedded (continual)," in line]
    assert len(once) == 1  # eleven experiments have that row
    assert sum("PALM" in row for item in found.values() for row in item["cells"]) >= 11
    assert count(tmp_path / "r.sqlite", "cells") == len(result.stderr.splitlines())
    with Store(tmp_path / "r.sqlite", read_only=True) as store:
        assert (tmp_path / "page.html").read_text() == render(store)
        boards = collect(store)
        drawn = [[figure.name for figure in figures_of(board, styles_of(boards))] for board in boards]
    assert [board.facts["stream"] for board in boards] == ["continual", "gradual", "mixed"]
    everywhere = {"error-per-corruption", "error-over-stream", "selected-share", "cost", "calibration"}
    assert everywhere <= set(drawn[0]) & set(drawn[1]) & set(drawn[2])
    assert set(drawn[0]) - everywhere == {
        *("palm-temperature", "palm-alpha", "palm-lam", "importance-fog", "importance-contrast"),
        *("forgetting-batch", "forgetting-source"),
    }
    assert "importance-mixed" in drawn[2]
    # the methods are compared with one another, whatever else was tried
    assert [entry.label for entry in boards[0].headline] == [
        *("Source", "BN-1", "Tent (cont.)", "AdaContrast", "CoTTA", "EcoTTA", "SFT (cont.)", "DSS", "LAW", "PALM")
    ]
    assert {"Pseudo-labels", "LARS, rate kappa, kept", "alpha = 0"} <= {e.label for e in boards[0].variations}


def test_tables_are_printed_and_saved_when_their_experiment_is_complete(stand_in, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr("ctta.bench.table.Table.show", lambda table, _: shown.append((table.name, finished())))

    def finished():
        db = sqlite3.connect(tmp_path / "r.sqlite")
        try:
            return {label for (label,) in db.execute("SELECT label FROM cells WHERE status = 'done'")}
        finally:
            db.close()

    call("importance", "pseudo-labels", *stand_in)
    assert shown == [("importance-embedded", {"PALM"}), ("pseudo-labels", {"PALM", "Pseudo-labels"})]


def test_a_failed_cell_ends_in_exit_code_1_and_the_others_are_in_the_table(stand_in, tmp_path):
    text = MODEL.replace("from ctta.models import build", "from torch import nn").replace(
        'build("wrn-10-1")', "nn.Sequential(nn.AvgPool2d(32), nn.Flatten(), nn.Linear(3, 10))"
    )
    (tmp_path / "own.py").write_text(text)  # no norm layer and no convolution for PALM to adapt
    found = json.loads(call("adapted", *stand_in, "--json", code=1).stdout)["experiments"][0]
    (missing,) = found["not_run"]
    assert (missing["label"], missing["failed"]) == ("PALM", True)
    assert missing["reason"].startswith("failed: UnsupportedModelError: ")
    rows = {line[1]: line[2] for line in found["tables"][0]["rows"]}
    assert rows["PALM"] == "not run"
    assert rows["CoTTA"] > 0
    assert any(missing["reason"] in note for note in found["tables"][0]["notes"])


def test_a_model_that_cannot_be_made_fails_every_row_with_its_own_words(stand_in, tmp_path):
    (tmp_path / "own.py").write_text("def make():\n    raise ZeroDivisionError('in own code')\n")
    found = json.loads(call("pseudo-labels", *stand_in, "--json", code=1).stdout)["experiments"][0]
    assert {item["reason"] for item in found["not_run"]} == {"failed: ZeroDivisionError: in own code"}
