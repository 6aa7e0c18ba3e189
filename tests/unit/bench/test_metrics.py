"""Numbers that sum up rows, against published values and plain references."""

import math

import pytest
import torch
from torch import nn

import ctta
from ctta.bench.evaluation import BINS, BatchRow, measure, quality
from ctta.bench.metrics import expected_calibration_error
from ctta.bench.reading import CellRecord
from ctta.bench.results import run_of
from ctta.streams import Batch, Domain

# mean source error per severity 1 to 5 in RobustBench
SOURCE = {
    "cifar10-c": (13.10, 18.66, 25.08, 32.36, 43.51),
    "cifar100-c": (26.19, 29.59, 33.24, 38.85, 46.45),
    "imagenet-c": (39.49, 49.79, 59.59, 71.80, 81.91),
}
PATH = (1, 2, 3, 4, 5, 4, 3, 2, 1)


def sequence(dataset, corruptions=("gaussian_noise", "fog", "jpeg_compression")):
    return [(f"{name}-{severity}", SOURCE[dataset][severity - 1]) for name in corruptions for severity in PATH]


def summed(steps):
    """A run with a batch of 10,000 images a step, and so many % wrong."""
    bins = [[0.0, 0.0, 0.0]] * BINS
    rows = [
        BatchRow(k, name, 10_000, round(100 * e), {name: [10_000, round(100 * e)]}, 1.0, 0.0, 0.0, bins, 0.1)
        for k, (name, e) in enumerate(steps)
    ]
    return run_of(CellRecord("key", "label", "done", {}, len(rows), len(rows), None, 0.0, 1.0), rows)


@pytest.mark.parametrize(
    ("dataset", "mean", "equal"),
    [("cifar10-c", 24.66, 26.54), ("cifar100-c", 33.58, 34.86), ("imagenet-c", 58.14, 60.52)],
)
def test_spec_13_the_gradual_mean_counts_every_stay_and_equal_weights_give_another_number(dataset, mean, equal):
    found = summed(sequence(dataset))
    assert found.mean == pytest.approx(mean, abs=0.005)
    assert found.mean_levels == pytest.approx(equal, abs=0.005)
    assert found.number("levels/5") == pytest.approx(SOURCE[dataset][4])


def test_the_mean_of_a_continual_stream_is_the_same_in_all_weightings():
    found = summed([("fog-5", 10.0), ("snow-5", 20.0)])
    assert found.mean == found.mean_levels == found.number("levels/5") == 15.0


def reference_quality(logits, labels):
    """Confidence, likelihood, Brier score and calibration error, one sample after another."""
    confidences, losses, briers, hits = [], [], [], []
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        top = max(row)
        total = sum(math.exp(value - top) for value in row)
        p = [math.exp(value - top) / total for value in row]
        confidences.append(max(p))
        hits.append(p.index(max(p)) == label)
        losses.append(-math.log(p[label]))
        briers.append(sum((value - (place == label)) ** 2 for place, value in enumerate(p)))
    ece = 0.0
    for k in range(BINS):
        inside = [n for n, c in enumerate(confidences) if k / BINS < c <= (k + 1) / BINS]
        if inside:
            gap = sum(confidences[n] for n in inside) - sum(hits[n] for n in inside)
            ece += abs(gap) / len(confidences)
    count = len(confidences)
    return sum(confidences) / count, sum(losses) / count, sum(briers) / count, ece


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("classes", [2, 10, 100])
def test_quality_and_calibration_agree_with_a_plain_reference(scale, classes):
    generator = torch.Generator().manual_seed(classes)
    logits = scale * torch.randn(300, classes, generator=generator)
    labels = torch.randint(classes, (300,), generator=generator)
    found = quality(logits, labels)
    confidence, nll, brier, ece = reference_quality(logits.double(), labels)
    assert found["confidence"] == pytest.approx(confidence, abs=1e-9)
    assert found["nll"] == pytest.approx(nll, abs=1e-9)
    assert found["brier"] == pytest.approx(brier, abs=1e-9)
    assert expected_calibration_error(found["bins"]) == pytest.approx(ece, abs=1e-9)
    assert sum(count for count, _, _ in found["bins"]) == 300


def test_a_sure_and_right_model_is_perfectly_calibrated_and_a_sure_and_wrong_one_is_not():
    logits = torch.full((4, 3), -1e4)
    logits[:, 1] = 1e4
    right, wrong = quality(logits, torch.ones(4).long()), quality(logits, torch.zeros(4).long())
    assert expected_calibration_error(right["bins"]) == 0
    assert right["nll"] == right["brier"] == 0
    assert expected_calibration_error(wrong["bins"]) == 1
    assert wrong["brier"] == 2
    assert math.isfinite(wrong["nll"])


def test_calibration_bins_can_be_summed_over_batches():
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(50, 5, generator=generator), torch.randint(5, (50,), generator=generator)
    whole = quality(logits, labels)["bins"]
    parts = [quality(logits[k : k + 10], labels[k : k + 10])["bins"] for k in range(0, 50, 10)]
    summed = [[sum(part[k][c] for part in parts) for c in range(3)] for k in range(BINS)]
    assert torch.tensor(summed) == pytest.approx(torch.tensor(whole))


def test_no_samples_no_calibration_error():
    assert expected_calibration_error([[0, 0.0, 0]] * BINS) == 0


class Told(nn.Module):
    """A classifier of images that show their answer: the class is the value of the first pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * nn.functional.one_hot(x[:, 0, 0, 0].long(), 3).float()


def test_in_a_mixed_batch_every_error_is_counted_for_the_domain_of_its_sample():
    fog, snow = Domain("fog", 5), Domain("snow", 3)
    shown = torch.tensor([0, 1, 2, 0, 1]).float().view(5, 1, 1, 1).expand(5, 3, 2, 2)
    labels = torch.tensor([1, 1, 0, 0, 1])  # the first and the third are missed
    batch = Batch(0, shown, labels, (fog, snow, fog, fog, snow), reset=False)
    row = measure(ctta.adapt(Told(), "source"), batch)
    assert row.counts == {"fog-5": [3, 2], "snow-3": [2, 0]}
    assert (row.samples, row.wrong) == (5, 2)
