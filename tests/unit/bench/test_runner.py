"""The runner: continued runs equal uninterrupted ones, and what goes wrong is noted where it belongs."""

import dataclasses
import json

import pytest
import torch
from tests.bench_kit import a_row, comparable, tiny, write_model

from ctta import list_methods
from ctta._core.precision import autocast_on
from ctta.bench import cell as cell_module
from ctta.bench import runner
from ctta.bench.cell import Cell, identity, key_of, prepare
from ctta.bench.evaluation import Forgetting
from ctta.bench.runner import _Pending, adapter_of, rows_of, run, run_task
from ctta.bench.store import Store
from ctta.errors import CttaError, SettingError, StateError, StoreError
from ctta.methods import find


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path)


def stop_at(batch, error=KeyboardInterrupt):
    def watch(_, row):
        if row.batch == batch:
            raise error

    return watch


FAST = """
import torch
from ctta.checks.networks import NETWORKS


def make():
    torch.manual_seed(0)
    model = NETWORKS["wide"].make()
    model.fc = torch.nn.Linear(104, 10)
    return model
"""
QUICK = {"cotta": {"views": 1}, "dss": {"views": 1}}
RESUMED = [(entry.name, QUICK.get(entry.name, {})) for entry in list_methods()] + [
    ("palm", {"lr_scheme": "prodigy"})
]


@pytest.mark.parametrize(("method", "settings"), RESUMED, ids=str)
def test_every_method_goes_on_from_any_batch_bit_for_bit_on_a_network_in_the_fast_layout(
    method, settings, tmp_path
):
    model = write_model(tmp_path, FAST, "fast.py")
    cell = tiny(model, method, images=4, batch_size=2, settings=settings)
    expected = rows_in(tmp_path / "whole.db", cell)
    assert rows_in(tmp_path / "stopped.db", cell, stops=(0, 1, 2)) == expected


@pytest.mark.parametrize(("method", "seconds"), [("source", 0.0), ("tent", 0.0), ("palm", 0.0), ("palm", 1e9)])
def test_stopped_anywhere_and_run_again_the_rows_are_those_of_an_uninterrupted_run(
    method, seconds, model, store, tmp_path
):
    cell = tiny(model, method, clean=20)
    with Store(tmp_path / "whole.db") as whole:
        run_task(prepare(cell), whole)
        expected = comparable(whole)
    for batch in (0, 1, 2):
        with pytest.raises(KeyboardInterrupt):
            run_task(prepare(cell), store, watch=stop_at(batch), snapshot_seconds=seconds)
    seen = []
    run_task(prepare(cell), store, watch=lambda _, row: seen.append(row.batch), snapshot_seconds=seconds)
    assert seen == ([3] if seconds == 0 else [0, 1, 2, 3])  # with snapshots only the rest is run
    assert comparable(store) == expected
    assert not store.snapshots.exists()


def test_a_finished_cell_is_not_run_again_and_a_cell_of_another_runner_is_left_alone(model, store, tmp_path):
    cell = tiny(model, "source")
    (key,) = run([cell], store)
    assert run([cell], store, watch=stop_at(0)) == [key]
    other = tiny(model, "source", seed=1)
    with Store(store.path) as runner_elsewhere:
        ready = prepare(other)
        runner_elsewhere.claim(ready.key, "source", ready.manifest, 4)
        assert not run_task(ready, store, watch=stop_at(0))
        with pytest.raises(StoreError, match="Another runner has source"):
            run([other], store)


def test_ctrl_c_gives_the_cell_back(model, store):
    with pytest.raises(KeyboardInterrupt):
        run_task(prepare(tiny(model)), store, watch=stop_at(1))
    assert store.db.execute("SELECT owner, status FROM cells").fetchall() == [(None, "running")]


def test_any_error_is_noted_raised_and_does_not_block_the_cell(model, store):
    with pytest.raises(ZeroDivisionError):
        run_task(prepare(tiny(model)), store, watch=stop_at(1, ZeroDivisionError("by nothing")))
    assert [(r.status, r.error) for r in store.cells()] == [("failed", "ZeroDivisionError: by nothing")]
    assert run_task(prepare(tiny(model)), store)
    assert [(r.status, r.error) for r in store.cells()] == [("done", None)]


def test_a_damaged_snapshot_costs_a_fresh_start_and_no_wrong_row(model, store, tmp_path):
    cell = tiny(model)
    with pytest.raises(KeyboardInterrupt):
        run_task(prepare(cell), store, watch=stop_at(2), snapshot_seconds=0)
    (snapshot,) = store.snapshots.iterdir()
    data = bytearray(snapshot.read_bytes())
    data[-5] ^= 1
    snapshot.write_bytes(data)
    run_task(prepare(cell), store, snapshot_seconds=0)
    with Store(tmp_path / "whole.db") as whole:
        run_task(prepare(cell), whole)
        assert comparable(store) == comparable(whole)


def test_a_runner_whose_cell_was_taken_over_stops_without_a_trace(model, store, tmp_path):
    cell = tiny(model)

    def lose(_, row):
        if row.batch == 1:
            store.db.execute("UPDATE cells SET owner = 'elsewhere:1:1:x'")

    assert not run_task(prepare(cell), store, watch=lose, snapshot_seconds=0)
    record = store.cells()[0]
    assert (record.status, record.done) == ("running", 2)


def test_a_snapshot_that_cannot_be_written_ends_in_a_store_error_that_says_what_to_do(model, store):
    store.snapshots.write_text("in the way")
    with pytest.raises(StoreError, match="run the same command again"):
        run_task(prepare(tiny(model)), store, snapshot_seconds=0)
    assert store.cells()[0].status == "failed"


def test_one_slow_snapshot_does_not_make_all_later_ones_rare(monkeypatch):
    class Sink:
        def append(self, *_, **__):
            pass

    monkeypatch.setattr(_Pending, "_save", lambda _: None)
    times = iter([0.0, 0.0, 10.0, 20.0, 20.001])  # made; slow flush 0 to 10; quick flush 20 to 20.001
    monkeypatch.setattr(runner, "perf_counter", lambda: next(times))
    pending = _Pending(Sink(), "k", None, 5.0)
    pending.flush(snapshot=True)
    assert pending.interval == pytest.approx(10 / runner.SNAPSHOT_SHARE)
    pending.flush(snapshot=True)
    assert pending.interval == 5.0


def test_the_source_model_is_as_it_was_after_a_cell_though_it_came_in_train_mode(model, store):
    source, _ = prepare(tiny(model)).load()
    before = {name: value.clone() for name, value in source.state_dict().items()}
    run([tiny(model, "source")], store)
    assert prepare(tiny(model)).load()[0] is source
    assert all(value.equal(before[name]) for name, value in source.state_dict().items())


def test_the_unit_of_cost_is_measured_first_and_then_takes_one_percent_of_the_time(model, store, monkeypatch):
    monkeypatch.setattr(runner, "measure", lambda _, batch: dataclasses.replace(a_row(batch.index), seconds=1.0))
    monkeypatch.setattr(runner, "pass_seconds", lambda *_, **__: 0.125)
    (key,) = run([tiny(model, "source", images=200, batch_size=5)], store)
    measured = [row.batch for row in store.batches(key) if row.unit]
    assert measured == [0, 12, 24, 37, 49, 62, 74]  # 80 seconds in all, 0.875 of them


def test_forgetting_is_measured_once_per_domain_and_once_where_all_are_mixed(model, store):
    (key,) = run([tiny(model, "source", clean=10)], store)
    assert [row["domain"] for row in store.domains(key)] == ["contrast-5", "brightness-5"]
    (key,) = run([tiny(model, "source", clean=10, scenario="mixed")], store)
    assert [row["domain"] for row in store.domains(key)] == ["mixed"]


def test_an_edited_model_or_method_file_makes_another_cell(model, tmp_path, registry_as_it_was):
    cell = tiny(model, "source")
    before = prepare(cell).key
    file = tmp_path / "own.py"
    file.write_text(file.read_text().replace("nn.ReLU()", "nn.Tanh()"))  # the same weights
    assert prepare(cell).key != before

    method = tmp_path / "mine.py"
    text = """
from ctta._core.method import Method
from ctta._core.registry import register
from ctta.methods.source import SourceSettings


@register("mine", paper="none", year=2025)
class Mine(Method[SourceSettings]):
    '''Nothing.'''

    def step(self, x):
        return self.forward(x)
"""
    method.write_text(text)
    own = tiny(model, "mine", imports=(str(method),))
    first, plain = prepare(own).key, prepare(tiny(model, "source")).key
    method.write_text(text + "# changed\n")
    assert prepare(own).key != first
    assert prepare(tiny(model, "source", imports=(str(method),))).key == plain  # not its file


def test_every_seed_of_a_folder_is_corrupted_anew_and_a_benchmark_on_disk_is_not(model, monkeypatch):
    seen = []
    real = cell_module.source_from
    monkeypatch.setattr(
        cell_module,
        "source_from",
        lambda data, profile, seed, clean: seen.append(seed) or real("embedded", None, 0),
    )
    cell_module._plan.cache_clear()
    cell_module._stream.cache_clear()
    for data in ("photos", "cifar10-c"):
        prepare(tiny(model, "source", data=data, seed=7))
    cell_module._plan.cache_clear()
    cell_module._stream.cache_clear()
    assert seen == [7, 0]


def test_a_grid_runs_here_into_a_store_of_the_moment(model):
    with Store.temporary() as store:
        keys = run([tiny(model, "source"), tiny(model, "bn1"), tiny(model, "source")], store)
        assert keys[0] == keys[2] != keys[1]
        assert [(record.label, record.status) for record in store.cells()] == [("source", "done"), ("bn1", "done")]
        folder = store.path.parent
    assert not folder.exists()


def test_what_was_changed_between_plan_and_run_is_refused_and_gives_no_row(model, store, tmp_path):
    task = prepare(tiny(model))
    write_model(tmp_path, (tmp_path / "own.py").read_text().replace("manual_seed(0)", "manual_seed(1)"))
    with pytest.raises(StateError, match="its weights and files differ"):
        run_task(task, store)
    assert [(record.status, record.done) for record in store.cells()] == [("failed", 0)]


def test_the_error_of_a_cell_is_raised_even_if_it_cannot_be_noted(model, store, monkeypatch):
    def full(*_):
        raise StoreError("the disk is full")

    monkeypatch.setattr(store, "fail", full)
    with pytest.raises(CttaError, match="by us"):
        run_task(prepare(tiny(model)), store, watch=stop_at(0, CttaError("by us")))


# -------------------------------------------------------------------- in bfloat16


def rows_in(path, cell, stops=()):
    """Everything comparable of one cell, without its key."""
    with Store(path) as store:
        for batch in stops:
            with pytest.raises(KeyboardInterrupt):
                run_task(prepare(cell), store, watch=stop_at(batch), snapshot_seconds=0)
        run_task(prepare(cell), store, snapshot_seconds=0)
        (found,) = comparable(store).values()
    return found


@pytest.mark.parametrize("method", ["source", "palm"])
def test_in_bf16_rows_are_others_than_in_full_and_the_same_again_and_after_interruptions(method, model, tmp_path):
    full, half = (tiny(model, method, clean=20, precision=name) for name in ("full", "bf16"))
    expected = rows_in(tmp_path / "half.db", half)
    assert expected[4] != rows_in(tmp_path / "full.db", full)[4]
    assert expected == rows_in(tmp_path / "again.db", half)
    assert expected == rows_in(tmp_path / "stopped.db", half, stops=(0, 1, 2))


@pytest.mark.parametrize(("precision", "on"), [("full", False), ("bf16", True)])
def test_steps_unit_of_cost_and_forgetting_are_in_the_precision_and_the_caller_never_is(
    precision, on, model, monkeypatch
):
    seen = {}

    def spied(name, call):
        def spy(*given, **named):
            seen.setdefault(name, set()).add(autocast_on("cpu"))
            return call(*given, **named)

        return spy

    monkeypatch.setattr(runner, "measure", spied("steps", runner.measure))
    monkeypatch.setattr(runner, "pass_seconds", spied("unit", runner.pass_seconds))
    monkeypatch.setattr(Forgetting, "measure", spied("forgetting", Forgetting.measure))
    cell = tiny(model, "source", clean=10, precision=precision)
    source, stream = prepare(cell).load()
    for _ in rows_of(cell, source, stream, adapter_of(cell, source)):
        assert not autocast_on("cpu")
    assert seen == {"steps": {on}, "unit": {on}, "forgetting": {on}}


def test_the_callers_autocast_does_not_reach_a_cell_in_full(model, tmp_path):
    expected = rows_in(tmp_path / "plain.db", tiny(model, clean=10))
    with torch.autocast("cpu", torch.bfloat16):
        assert rows_in(tmp_path / "inside.db", tiny(model, clean=10)) == expected


def test_a_cell_is_what_decides_its_numbers_and_nothing_else(model, monkeypatch):
    cell = tiny(model)
    key = prepare(cell).key
    others = [
        {"method": "law"}, {"settings": {"lr": 0.1}}, {"settings": {"variant": "paper"}}, {"preset": "imagenet-c"},
        {"seed": 1}, {"clean": 10}, {"precision": "bf16"}, {"threads": 2}, {"images": 10}, {"scenario": "mixed"},
        {"corruptions": ("fog",)}, {"severity": 4},
    ]  # fmt: skip
    keys = {prepare(dataclasses.replace(cell, **other)).key for other in others}
    assert len(keys - {key}) == len(others)
    default = next(item.default for item in find("palm").settings if item.name == "lr")
    same = dataclasses.replace(cell, label="called otherwise", settings={"lr": default})
    assert prepare(same).key == key
    monkeypatch.setattr(cell_module, "NUMBERS", cell_module.NUMBERS + 1)
    assert prepare(cell).key != key


def test_the_key_of_a_cell_follows_from_its_manifest_without_running_it(model):
    ready = prepare(tiny(model, settings={"lr": 0.1}))
    manifest = json.loads(json.dumps(ready.manifest))
    assert key_of(identity(manifest)) == ready.key
    assert identity(manifest)["settings"] == {"lr": 0.1}
    # 0.1 wrote neither down; a setting added since, with a default, leaves the key as it was
    del manifest["precision"], manifest["numbers"], manifest["settings"]["alpha"]
    assert key_of(identity(manifest)) == ready.key


def test_a_cell_comes_back_from_plain_data_also_from_data_without_a_precision():
    cell = tiny("own.py:make", precision="bf16")
    data = json.loads(json.dumps(cell.to_dict()))
    assert Cell.from_dict(data) == cell
    del data["precision"]
    assert Cell.from_dict(data) == dataclasses.replace(cell, precision="full")


def test_a_cell_in_an_unknown_precision_is_refused_before_the_store_hears_of_it(model, store):
    with pytest.raises(SettingError, match="Expected a precision of full or bf16, but got 'fp8'"):
        run_task(prepare(tiny(model, precision="fp8")), store)
    assert store.cells() == []
