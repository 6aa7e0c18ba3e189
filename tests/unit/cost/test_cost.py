"""What a batch costs, counted in multiplications: it must not creep up, and it is what `ctta methods` says."""

import pytest
import torch
from tests.conftest import flops

import ctta
from ctta.models import load

SPECIFIED = {
    "source": 1,
    "bn1": 1,
    "tent": 2,
    "cotta": 36,
    "dss": 36,
    "adacontrast": 7,
    "sft": 4.6,
    "law": 8,
    "palm": 8,
    "ecotta": 3.5 * 1.27,  # the meta networks are large beside a WRN-16-2: they add 27 %
}
"""Forward passes a batch of the published methods; CoTTA and DSS where they average over views."""


@pytest.fixture(scope="module")
def model():
    return load("embedded:")


@pytest.fixture(scope="module")
def batches():
    stream = ctta.streams.continual(
        ctta.streams.embedded(), images=16, corruptions=["gaussian_noise", "fog"], batch_size=16
    )
    return [batch.images for batch in stream]


def forward_passes(model, batches, method, **settings):
    """Cost of a second batch, in forward passes."""
    adapter = ctta.adapt(model, method, preset="embedded", **settings)
    adapter(batches[0])
    with torch.no_grad():
        unit = flops(lambda: model(batches[1]))
    return flops(lambda: adapter(batches[1])) / unit


def test_every_method_has_a_specified_cost():
    assert {entry.name for entry in ctta.list_methods()} == set(SPECIFIED)


@pytest.mark.parametrize("method", SPECIFIED)
def test_a_batch_costs_what_the_method_is_known_to_cost_or_less(model, batches, method):
    assert forward_passes(model, batches, method) <= 1.02 * SPECIFIED[method]


def test_what_palm_does_not_move_saves_work(model, batches):
    costs = [forward_passes(model, batches, "palm", eta=eta) for eta in (1e9, 1.5, 0.5, 0.0)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < 5.1  # two passes and the backward pass of stage one


def test_palm_without_consistency_runs_no_view(model, batches):
    assert forward_passes(model, batches, "palm", lam=0) <= 5.1


def test_a_batch_between_refreshes_costs_no_stage_one(model, batches):
    full, between = (forward_passes(model, batches, "palm", refresh=n) for n in (1, 2))
    assert between < full - 1.9
