"""The way of one cell from its words to rows in a store: a reader must be able to follow it."""

import sys
from dataclasses import is_dataclass
from pathlib import Path

import pytest
from tests.bench_kit import tiny, write_model

import ctta
from ctta.bench import cell, plan
from ctta.bench.local import Local
from ctta.bench.store import Store

HOUSE = Path(ctta.__file__).parent
DOORS = (
    *("adapter.py", "settings.py", "methods", "models", "data"),
    *("corruptions", "augment", "functional", "_core", "_cost"),
)
"""Rooms entered by one door: what happens behind it is followed by tests of their own (that of a PALM batch)."""


class Walk:
    """Files of ctta that are entered from other files of ctta, rooms behind a door counting once."""

    def __init__(self):
        self.files, self.records = {}, set()

    def __call__(self, frame, event, _):
        if event != "call" or not frame.f_code.co_filename.startswith(str(HOUSE)):
            return
        place = self.place(frame)
        caller = frame.f_back
        while caller is not None and self.place(caller) is None:  # out of torch, click, the standard library
            caller = caller.f_back
        if place is None or (caller is not None and self.room(self.place(caller)) in DOORS):
            return
        self.files.setdefault(self.room(place) if self.room(place) in DOORS else place, place)
        owner = frame.f_locals.get("self")
        if is_dataclass(owner) and type(owner).__module__.startswith("ctta.bench"):
            self.records.add(type(owner).__name__)

    @staticmethod
    def place(frame):
        name = frame.f_code.co_filename
        inside = name.startswith(str(HOUSE)) and frame.f_code.co_name != "<module>"
        return str(Path(name).relative_to(HOUSE)) if inside else None

    @staticmethod
    def room(place):
        return place.split("/")[0]


@pytest.fixture
def walked(tmp_path):
    words = {
        "model": write_model(tmp_path),
        "methods": "palm",
        "images": 10,
        "corruptions": "contrast",
        "clean": 10,
    }
    ctta.list_methods()  # the methods of the package are imported once
    walk = Walk()
    sys.setprofile(walk)
    try:
        tasks = plan.tasks(plan.from_words(words))
        Local(tmp_path / "b.db", processes=1).run(tasks, lambda event: None)
    finally:
        sys.setprofile(None)
    with Store(tmp_path / "b.db", read_only=True) as store:
        assert [record.status for record in store.cells()] == ["done"]
    return walk


def test_a_cell_crosses_few_files_and_records_from_its_words_to_its_rows(walked):
    doors = [name for name in walked.files if name in DOORS]
    files = sorted(set(walked.files) - set(doors))
    assert len(files) <= 14, files
    assert len(doors) <= 5, doors
    assert walked.records <= {"Cell", "Task", "BatchRow", "CellRecord", "Event"}


def test_a_cell_is_prepared_once_and_its_model_and_stream_are_loaded_once(tmp_path, monkeypatch):
    seen = []
    for name in ("prepare", "model_from", "source_from"):
        real = getattr(cell, name)

        def spy(*given, name=name, real=real, **named):
            seen.append(name)
            return real(*given, **named)

        monkeypatch.setattr(cell, name, spy)
    monkeypatch.setattr(plan, "prepare", cell.prepare)
    tasks = plan.tasks([tiny(write_model(tmp_path), seed=11)])
    Local(tmp_path / "b.db", processes=1).run(tasks, lambda event: None)
    assert sorted(seen) == ["model_from", "prepare", "source_from"]
