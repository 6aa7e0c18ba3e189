"""The TensorBoard writer."""

import sys

import pytest
from tests.synthetic import rows_of

from ctta.bench.cell import Cell
from ctta.errors import DataError
from ctta.report import tensorboard


class Recorder:
    """Stands in for torch's SummaryWriter."""

    made: dict

    def __init__(self, folder, purge_step):
        self.scalars, self.closed = {}, False
        self.purge_step = purge_step
        self.made[folder] = self

    def add_scalar(self, tag, value, step):
        self.scalars.setdefault(tag, []).append((step, value))

    def close(self):
        self.closed = True


@pytest.fixture
def writer(tmp_path, monkeypatch):
    stub = type(sys)("torch.utils.tensorboard")
    stub.SummaryWriter = Recorder
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stub)
    monkeypatch.setattr(Recorder, "made", {}, raising=False)
    return tensorboard.Writer(tmp_path)


def test_rows_become_scalars_in_a_folder_a_cell(writer):
    cells = [Cell("palm", label="PALM/..", seed=seed) for seed in (0, 1)]
    rows = list(rows_of("palm", ("fog-5", "snow-5"), 2, seed=0))
    for cell in cells:
        for row in rows:
            writer(cell, row)
    writer.close()
    assert len(Recorder.made) == 2
    assert all("/../" not in folder for folder in Recorder.made)
    out = next(iter(Recorder.made.values()))
    assert out.closed
    assert out.scalars["error/batch"] == [(row.batch, row.error) for row in rows]
    wrong, samples = sum(row.wrong for row in rows), sum(row.samples for row in rows)
    assert out.scalars["error/running"][-1] == (3, pytest.approx(100 * wrong / samples))
    assert out.scalars["loss/total"][0][1] == rows[0].losses["total"]
    assert out.scalars["share/selected"][0][1] == 100 * rows[0].shares["selected"]
    assert out.scalars["rate/block1.0"][0][1] == rows[0].rates["block1.0"]


def test_a_continued_cell_writes_over_what_came_after_its_snapshot(writer):
    row = list(rows_of("palm", ("fog-5",), 5, seed=0))[3]
    with writer:
        writer(Cell("palm"), row)
    assert next(iter(Recorder.made.values())).purge_step == 3


def test_cells_that_differ_in_a_setting_never_share_a_folder():
    names = {tensorboard.run_name(Cell("palm", settings={"lr": lr})) for lr in (1e-3, 1e-4)}
    assert len(names) == 2


def test_without_tensorboard_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(DataError, match="pip install"):
        tensorboard.Writer(tmp_path)


@pytest.mark.filterwarnings("ignore")  # tensorboard's own
def test_event_files_can_be_read_back(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = list(rows_of("palm", ("fog-5",), 4, seed=0))
    with tensorboard.Writer(tmp_path) as writer:
        for row in rows:
            writer(Cell("palm"), row)
    (folder,) = tmp_path.iterdir()
    events = EventAccumulator(str(folder)).Reload()
    assert [event.step for event in events.Scalars("error/batch")] == [0, 1, 2, 3]
    assert events.Scalars("error/batch")[2].value == pytest.approx(rows[2].error, rel=1e-6)
