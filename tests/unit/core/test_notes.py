"""Reports: what a method notes may be on the device still; nothing of it is in the report."""

from dataclasses import dataclass

import pytest
import torch

import ctta
from ctta._core import checkpoint
from ctta.checks.networks import NETWORKS
from ctta.methods import Method, register

BN2D = NETWORKS["bn2d"]
OWN = {"first": torch.tensor(2.0, dtype=torch.bfloat16), "second": 1.5}
IMAGES = BN2D.stream((4,))[0]


@dataclass(frozen=True)
class NoSettings:
    """Nothing to set."""


@pytest.fixture
def noting(registry_as_it_was):
    @register("noting", paper="none", year=2000)
    class Noting(Method[NoSettings]):
        """Notes numbers of every kind, wherever they are."""

        adapts = "norm"

        def step(self, x):
            logits = self.forward(x)
            self.note(importance=OWN, kept=(logits[:, 0] > -torch.inf).sum(), eta=torch.tensor(0.5))
            self.note(losses={"total": logits.mean()}, shares={"moved": torch.tensor(True)})
            self.note_in_words("said at once")
            self.note_if(torch.tensor(True), "turned out true")
            self.note_if(torch.tensor(False), "turned out false")
            return logits

        def predict(self, x):
            self.note_in_words("said by a prediction")
            return self.forward(x)

    return Noting


def test_notes_may_be_tensors_and_come_into_the_report_as_numbers(noting):
    adapter = ctta.adapt(BN2D.make(), noting)
    logits = adapter(IMAGES)
    report = adapter.last
    assert (report.kept, type(report.kept)) == (4, int)
    assert (report.eta, report.importance) == (0.5, {"first": 2.0, "second": 1.5})
    assert report.losses["total"] == pytest.approx(float(logits.mean()))
    assert type(report.losses["total"]) is float
    assert isinstance(OWN["first"], torch.Tensor), "the method's own dict was changed"


def test_sentences_with_a_condition_are_there_if_it_holds_and_predictions_leave_none(noting):
    adapter = ctta.adapt(BN2D.make(), noting)
    adapter.predict(IMAGES)
    adapter(IMAGES)
    assert adapter.last.notes == ("said at once", "turned out true")
    adapter(IMAGES)
    assert adapter.last.notes == ("said at once", "turned out true")


def test_a_file_that_brings_something_of_the_source_to_a_method_that_takes_nothing_is_refused(tmp_path):
    ctta.adapt(BN2D.make(), "tent").save(tmp_path / "a")
    tensors, header = checkpoint.read(tmp_path / "a")
    checkpoint.write(tmp_path / "b", {**tensors, "source/0.weight": torch.zeros(1)}, header)
    with pytest.raises(ctta.StateError, match=r"Tent takes nothing of the source, but got \['0.weight'\]"):
        ctta.load(tmp_path / "b", BN2D.make())
