"""Engines: the same rows wherever cells run, and one cell's end is not the end of the others."""

import dataclasses
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from tests.bench_kit import MODEL, read, write_model

from ctta.bench.cell import Cell, prepare
from ctta.bench.local import THREAD_VARIABLES, Local, share
from ctta.bench.plan import from_words, tasks
from ctta.bench.ray_engine import Ray, anywhere, cell_rows
from ctta.bench.store import Store
from ctta.bench.workers import longest_first
from ctta.errors import DataError, StoreError

WORDS = {"images": 20, "batch_size": 10, "corruptions": "contrast,brightness"}


def plan(model, methods="source,tent,palm", **words):
    return tasks(from_words({**WORDS, "model": model, "methods": methods, **words}))


def run(engine, plan):
    events = []
    engine.run(plan, events.append)
    return events


def ends(events):
    return {event.task.cell.name: event.kind for event in events if event.kind in ("done", "failed", "lost")}


@pytest.mark.parametrize(
    ("processes", "threads", "expected"),
    [
        (None, None, (4, 1)),
        (None, 2, (2, 2)),
        (3, None, (3, 1)),
        (8, None, (8, 1)),
        (2, 3, (2, 3)),
        (1, None, (1, 4)),
    ],
)
def test_cores_are_divided_among_the_processes(processes, threads, expected, monkeypatch):
    monkeypatch.setattr("ctta.bench.local.cores", lambda: 4)
    monkeypatch.setattr("ctta.bench.local._physical_memory", lambda: 64 * 2**30)
    assert share(processes, threads) == expected


def test_no_more_processes_are_started_than_memory_holds(monkeypatch):
    monkeypatch.setattr("ctta.bench.local.cores", lambda: 64)
    monkeypatch.setattr("ctta.bench.local._physical_memory", lambda: 8 * 2**30)
    assert share(None, None) == (4, 16)


def test_one_process_runs_the_cells_in_order_and_tells_every_batch(tmp_path):
    events = run(Local(tmp_path / "b.db", processes=1), plan(write_model(tmp_path), "source,tent"))
    assert [event.kind for event in events] == ["begun", *["row"] * 4, "done"] * 2
    assert [event.row.batch for event in events if event.row] == [0, 1, 2, 3] * 2
    with Store(tmp_path / "b.db", read_only=True) as store:
        assert [(r.label, r.status) for r in store.cells()] == [("source", "done"), ("tent", "done")]


def test_what_is_done_is_not_run_again(tmp_path):
    cells = plan(write_model(tmp_path), "source,tent")
    run(Local(tmp_path / "b.db", processes=1), cells[:1])
    events = run(Local(tmp_path / "b.db", processes=1), cells)
    assert [event.kind for event in events] == ["done", "begun", *["row"] * 4, "done"]
    assert [event.kind for event in run(Local(tmp_path / "b.db", processes=8), cells)] == ["done", "done"]


def test_a_cell_runs_with_its_threads_and_those_of_this_process_are_as_they_were(tmp_path):
    before = torch.get_num_threads()
    seen = []
    cell = dataclasses.replace(plan(write_model(tmp_path), "source")[0].cell, threads=before + 1)
    Local(tmp_path / "b.db", processes=1).run(
        tasks([cell]), lambda event: event.row and seen.append(torch.get_num_threads())
    )
    assert set(seen) == {before + 1}
    assert torch.get_num_threads() == before


BRITTLE = """
from torch import nn


class Brittle(nn.Sequential):
    def forward(self, x):
        raise ZeroDivisionError("in the user's own code")
"""


def test_a_failing_cell_is_reported_and_the_others_go_on(tmp_path):
    sound, text = write_model(tmp_path), BRITTLE + MODEL.replace("nn.Sequential(", "Brittle(")
    brittle = write_model(tmp_path, text, "brittle.py")
    cells = [*plan(sound, "source"), *plan(brittle, "tent"), *plan(sound, "bn1")]
    events = run(Local(tmp_path / "b.db", processes=1), cells)
    assert ends(events) == {"source": "done", "tent": "failed", "bn1": "done"}
    assert "in the user's own code" in next(event.text for event in events if event.kind == "failed")
    with Store(tmp_path / "b.db", read_only=True) as store:
        assert {r.label: r.status for r in store.cells()} == {"source": "done", "tent": "failed", "bn1": "done"}


def test_a_cell_of_another_runner_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("ctta.bench.workers.POLL_SECONDS", 0.01)
    (task,) = plan(write_model(tmp_path), "source")
    with Store(tmp_path / "b.db") as other:
        other.claim(task.key, "source", {}, 4)
        events = []

        def tell(event):
            events.append(event.kind)
            if event.kind == "waiting" and events.count("waiting") == 2:
                other.release(task.key)  # the other runner was stopped

        Local(tmp_path / "b.db", processes=1).run([task], tell)
    assert events.count("waiting") == 2
    assert events[-1] == "done"


def test_a_store_that_cannot_be_written_stops_the_run(tmp_path):
    cells = plan(write_model(tmp_path), "source,bn1")
    (tmp_path / "b.db.snapshots").write_text("in the way")
    with pytest.raises(StoreError, match="same command again"):
        run(Local(tmp_path / "b.db", processes=1, snapshot_seconds=0), cells)


MORTAL = """
import os, signal
from pathlib import Path
from torch import nn


class Mortal(nn.Sequential):
    def forward(self, x):
        mark = Path(__file__).with_suffix(".died")
        if x.shape[0] == 7 and (ALWAYS or not mark.exists()) and os.environ["OMP_NUM_THREADS"] == "1":
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)  # several processes import torch, on a machine that may be busy
def test_processes_give_the_rows_of_one_and_a_killed_worker_costs_only_its_cell(tmp_path):
    model = write_model(tmp_path)
    once = write_model(
        tmp_path, MORTAL.replace("ALWAYS", "False") + MODEL.replace("nn.Sequential(", "Mortal("), "once.py"
    )
    ever = write_model(
        tmp_path, MORTAL.replace("ALWAYS", "True") + MODEL.replace("nn.Sequential(", "Mortal("), "ever.py"
    )
    sound = plan(model, "source,palm", seeds="0-1")
    # its last batch of each domain has seven images
    brittle = [*plan(once, "bn1", images=17), *plan(ever, "tent", images=17)]
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    events = run(Local(tmp_path / "two.db", processes=2, snapshot_seconds=0), [*brittle, *sound])
    assert {name: os.environ.get(name) for name in THREAD_VARIABLES} == before
    assert ends(events) == {"bn1": "done", "tent": "lost", "source": "done", "palm": "done"}
    lost = [(event.task.cell.method, event.again) for event in events if event.kind == "lost"]
    assert sorted(lost) == [("bn1", True), ("tent", False), ("tent", True)]
    assert all("SIGKILL" in event.text for event in events if event.kind == "lost")
    for task in sound:
        own = [event for event in events if event.task == task]
        assert [event.kind for event in own] == ["begun", *["row"] * 4, "done"]
        assert [event.row.batch for event in own if event.row] == [0, 1, 2, 3]

    run(Local(tmp_path / "one.db", processes=1), sound)
    two = read(tmp_path / "two.db")
    with Store(tmp_path / "two.db", read_only=True) as store:
        assert {record.manifest["processes"] for record in store.cells()} == {2}
    assert {task.key: two[task.key] for task in sound} == read(tmp_path / "one.db")
    assert two[brittle[0].key][1:4] == ("done", 4, 4)


def test_workers_begin_with_the_longest_cells_and_the_manifest_says_how_many_ran_at_once(tmp_path, fake_ray):
    cells = plan(write_model(tmp_path), "source,tent,palm,law")
    assert [task.cell.method for task in longest_first(cells)] == ["palm", "law", "tent", "source"]
    fake_ray()
    events = run(Ray(tmp_path / "ray.db"), cells)
    assert [event.task.cell.method for event in events if event.kind == "begun"] == [
        "palm",
        "law",
        "tent",
        "source",
    ]
    run(Local(tmp_path / "one.db", processes=1), cells[:1])
    for name, at_once in (("ray.db", 2), ("one.db", 1)):
        with Store(tmp_path / name, read_only=True) as store:
            assert {record.manifest["processes"] for record in store.cells()} == {at_once}


def test_without_the_package_the_ray_engine_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DataError, match=r"pip install \"ctta\[ray\]\""):
        Ray(tmp_path / "b.db").run([], lambda _: None)


class FakeRay:
    """Ray as the driver sees it, run in place: the driver's own logic without a cluster."""

    class exceptions:
        class RayError(Exception):
            pass

        class RayTaskError(RayError):
            def __init__(self, cause):
                self.cause = cause

        class WorkerCrashedError(RayError):
            pass

    def __init__(self, change=lambda result, _: result):
        self.change, self.cancelled = change, []

    def is_initialized(self):
        return True

    def cluster_resources(self):
        return {"CPU": 2.0}

    def remote(self, **_):
        return lambda function: SimpleNamespace(remote=lambda *arguments: Reference(function, arguments))

    def wait(self, references, num_returns, timeout):
        return references[:1], references[1:]

    def get(self, reference):
        return self.change(reference.function(*reference.arguments), reference.arguments[0])

    def cancel(self, reference, force):
        self.cancelled.append(reference)


@dataclass(frozen=True, eq=False)
class Reference:
    function: Callable
    arguments: tuple


@pytest.fixture
def fake_ray(monkeypatch):
    def install(change=lambda result, _: result):
        ray = FakeRay(change)
        monkeypatch.setattr("ctta.bench.ray_engine._package", lambda: ray)
        monkeypatch.setattr("ctta.bench.workers.POLL_SECONDS", 0.01)
        return ray

    return install


def test_the_ray_driver_writes_what_its_tasks_return_as_the_local_engine_would(tmp_path, fake_ray):
    fake_ray()
    cells = plan(write_model(tmp_path), "source,palm", clean=10)
    events = run(Ray(tmp_path / "ray.db"), cells)
    assert ends(events) == {"source": "done", "palm": "done"}
    assert sum(event.kind == "row" for event in events) == 8
    run(Local(tmp_path / "local.db", processes=1), cells)
    assert read(tmp_path / "ray.db") == read(tmp_path / "local.db")
    assert [event.kind for event in run(Ray(tmp_path / "ray.db"), cells)] == ["done", "done"]


def test_the_ray_driver_reports_errors_lost_workers_and_rows_of_other_code(tmp_path, fake_ray):
    def change(result, task):
        if task.cell.method == "tent":
            raise FakeRay.exceptions.WorkerCrashedError
        if task.cell.method == "palm":
            raise FakeRay.exceptions.RayTaskError(ZeroDivisionError("there"))
        if task.cell.method == "bn1":
            return cell_rows(dataclasses.replace(task, manifest={**task.manifest, "weights": "others"}))
        return result

    fake_ray(change)
    broken = write_model(tmp_path, "def make():\n    return 3\n", "broken.py")
    cells = plan(write_model(tmp_path), "source,bn1,tent,palm")
    events = run(Ray(tmp_path / "b.db"), cells)
    assert ends(events) == {"source": "done", "bn1": "failed", "tent": "lost", "palm": "failed"}
    texts = {event.task.cell.name: event.text for event in events if event.text}
    assert "its weights differ" in texts["bn1"]
    assert texts["palm"] == "ZeroDivisionError: there"
    with Store(tmp_path / "b.db") as store:
        assert {r.label: r.status for r in store.cells()} == {
            "source": "done",
            "bn1": "failed",
            "tent": "running",  # given back: the next run takes it at once
            "palm": "failed",
        }
        assert all(store.batches(r.key) == [] for r in store.cells() if r.label != "source")
    assert cell_rows(dataclasses.replace(cells[0], cell=dataclasses.replace(cells[0].cell, model=broken)))[
        "error"
    ].startswith("ModelError")


def test_a_stopped_ray_driver_gives_its_cells_back(tmp_path, fake_ray):
    ray = fake_ray()
    cells = plan(write_model(tmp_path), "source,palm")

    def stop(event):
        if event.kind == "row":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Ray(tmp_path / "b.db").run(cells, stop)
    assert len(ray.cancelled) == 1
    with Store(tmp_path / "b.db") as store:
        owners = store.db.execute("SELECT label, status, owner FROM cells ORDER BY label").fetchall()
    assert owners == [("palm", "done", None), ("source", "running", None)]  # the longest comes first


def test_a_local_snapshot_is_no_use_to_a_ray_task_and_does_no_harm(tmp_path, fake_ray):
    fake_ray()
    cells = plan(write_model(tmp_path), "palm")

    def stop(event):
        if event.row and event.row.batch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Local(tmp_path / "b.db", processes=1, snapshot_seconds=0).run(cells, stop)
    run(Ray(tmp_path / "b.db"), cells)
    run(Local(tmp_path / "whole.db", processes=1), cells)
    assert read(tmp_path / "b.db") == read(tmp_path / "whole.db")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_on_a_real_ray_the_table_is_that_of_the_local_engine_though_a_worker_is_killed(tmp_path):
    pytest.importorskip("ray")
    text = MORTAL.replace("ALWAYS", "False") + MODEL.replace("nn.Sequential(", "Mortal(")
    model = write_model(tmp_path, text)
    words = ["--images", "17", "--batch-size", "10", "--corruptions", "contrast,brightness", "--seeds", "0-1"]
    words += ["--model", model, "--methods", "source,palm", "--threads", "1", "--json", "--processes", "1"]
    command = [sys.executable, "-m", "ctta", "bench", *words, "--engine", "ray", "--store", tmp_path / "ray.db"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "own.died").exists()  # Ray's worker did die, and its cell was run again
    assert [line["label"] for line in json.loads(done.stdout)["lines"]] == ["source", "palm"]
    run(Local(tmp_path / "local.db", processes=1), plan(model, "source,palm", images=17, seeds="0-1"))
    assert read(tmp_path / "ray.db") == read(tmp_path / "local.db")


def test_tasks_travel_between_processes():
    task = prepare(from_words({"methods": "palm", "set": ["palm.lr=1e-3"], "images": 10})[0])
    assert pickle.loads(pickle.dumps(task)) == task


def test_a_cell_for_a_ray_worker_has_full_paths_and_its_words_stay_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    own = Cell("palm", model="own.py:make", weights="w.safetensors", data="photos", imports=("mine.py",))
    sent = anywhere(own)
    assert sent.model == f"{tmp_path}/own.py:make"
    assert sent.weights == f"{tmp_path}/w.safetensors"
    assert sent.data == f"{tmp_path}/photos"
    assert sent.imports == (f"{tmp_path}/mine.py",)
    known = Cell("palm", model="timm:resnet18", data="cifar10-c")
    assert anywhere(known) == known
