"""What rows come to: stays in domains, means, shares, cost, forgetting; on rows made by hand."""

import copy

import numpy as np
import pytest
import torch
from tests.conftest import golden_net

import ctta
from ctta.bench.evaluation import BINS, BatchRow, Forgetting, with_source_statistics
from ctta.bench.metrics import Visit, share_of, visits_of
from ctta.bench.results import read_run
from ctta.bench.store import Store
from ctta.data import to_batch
from ctta.streams import CLEAN, embedded


def row(batch, domain, samples, wrong, **more):
    counts = more.pop("counts", {domain: [samples, wrong]})
    bins = [[0.0, 0.0, 0.0] for _ in range(BINS)]
    bins[-1] = [float(samples), 1.0 * samples, float(samples - wrong)]
    facts = {"confidence": 1.0, "nll": 1.0, "brier": 0.5, "bins": bins, "seconds": 0.1} | more
    return BatchRow(batch, domain, samples, wrong, counts, **facts)


@pytest.fixture
def summed(tmp_path):
    """Summary of hand-made rows, through a real store."""

    def summed(rows, domains=()):
        with Store(tmp_path / "s.sqlite") as store:
            store.claim("key", "label", {"settings": {}}, len(rows))
            store.append("key", rows, domains)
            store.finish("key")
            return read_run(store, store.cell("key"))

    return summed


def test_batches_of_one_domain_in_a_row_are_one_stay_weighted_by_samples():
    rows = [row(0, "fog-5", 10, 1), row(1, "fog-5", 5, 5), row(2, "snow-5", 10, 2)]
    assert visits_of(rows) == (Visit("fog-5", 15, 6), Visit("snow-5", 10, 2))
    assert visits_of(rows)[0].error == 40


def test_a_gradual_stream_comes_back_to_a_severity_and_every_stay_counts(summed):
    path = (1, 2, 3, 4, 5, 4, 3, 2, 1)
    found = summed([row(k, f"fog-{severity}", 10, severity) for k, severity in enumerate(path)])
    assert [visit.domain for visit in found.visits] == [f"fog-{s}" for s in path]
    assert found.mean == pytest.approx(10 * sum(path) / 9)
    assert found.mean_levels == pytest.approx(30)
    assert found.number("levels/5") == pytest.approx(50)
    assert found.error == {f"fog-{s}": pytest.approx(10 * s) for s in (1, 2, 3, 4, 5)}


def test_a_recurring_stream_counts_every_pass_and_pools_the_error_of_a_domain(summed):
    rows = [row(0, "fog-5", 10, 2), row(1, "snow-5", 10, 4), row(2, "fog-5", 10, 6), row(3, "snow-5", 10, 8)]
    found = summed(rows)
    assert [visit.error for visit in found.visits] == [20, 40, 60, 80]
    assert found.mean == 50
    assert found.error == {"fog-5": 40, "snow-5": 60}


def test_one_domain_met_twice_without_another_between_is_one_stay():
    assert len(visits_of([row(0, "fog-5", 10, 2), row(1, "fog-5", 10, 4)])) == 1


def test_mixed_batches_count_for_each_of_their_domains(summed):
    rows = [
        row(0, "mixed", 10, 4, counts={"snow-5": [6, 3], "fog-5": [4, 1]}),
        row(1, "fog-5", 2, 2),  # a batch that happens to hold one domain only
        row(2, "mixed", 8, 1, counts={"fog-5": [4, 0], "snow-5": [4, 1]}),
    ]
    found = summed(rows)
    assert found.visits == (Visit("fog-5", 10, 3), Visit("snow-5", 10, 4))
    assert found.mean == 35


def test_likelihood_and_calibration_weigh_samples_not_batches(summed):
    found = summed([row(0, "fog-5", 30, 0, nll=1.0, brier=0.0), row(1, "fog-5", 10, 10, nll=5.0, brier=2.0)])
    assert found.nll == pytest.approx(2.0)
    assert found.brier == pytest.approx(0.5)
    assert found.ece == pytest.approx(25)  # sure of 40, right in 30


def test_shares_are_means_over_batches_then_over_domains():
    shares = ((0, "fog-5", 0.1), (1, "fog-5", 0.3), (2, "fog-5", 0.2), (3, "snow-5", 0.6))
    rows = [row(k, d, 10, 0, shares={"selected": s, "moved": 1.0}) for k, d, s in shares]
    assert share_of(rows, "selected") == pytest.approx(40)
    assert share_of(rows, "moved") == pytest.approx(100)


def test_a_method_that_selects_nothing_is_summed_by_what_it_moves(summed):
    found = summed([row(k, "fog-5", 10, 0, shares={"moved": share}) for k, share in enumerate((0.25, 0.5, 0.75))])
    assert found.selected == found.moved == pytest.approx(50)
    assert found.ever_selected == pytest.approx(75)


def test_what_was_ever_selected_is_what_the_last_batch_says(summed):
    found = summed(
        [row(k, "fog-5", 10, 0, shares={"ever_selected": share}) for k, share in enumerate((0.1, 0.2, 0.4))]
    )
    assert found.ever_selected == pytest.approx(40)


def test_cost_is_the_median_batch_in_units_of_the_median_pass(summed):
    seconds, units = (0.9, 0.4, 0.5, 0.4), (0.05, None, 0.05, 4.0)
    rows = [row(k, "fog-5", 10, 0, seconds=s, unit=u) for k, (s, u) in enumerate(zip(seconds, units, strict=True))]
    found = summed(rows)
    assert found.seconds == {"median": pytest.approx(0.45), "p95": 0.9, "p99": 0.9}
    assert found.passes == pytest.approx(9.0)


def test_what_was_not_measured_is_none_not_zero(summed):
    found = summed([row(0, "fog-4", 10, 0)])
    assert found.passes is None
    assert found.memory is None
    assert found.number("levels/5") is None
    assert found.clean_error == {}


def test_importance_is_the_mean_over_the_batches_of_a_domain(summed):
    rows = [
        row(0, "fog-5", 10, 0, importance={"block1": 1.0, "block2": 0.0}),
        row(1, "fog-5", 10, 0, importance={"block1": 0.5, "block2": 0.0}),
        row(2, "snow-5", 10, 0, importance={"block1": 0.2, "block2": 0.4}),
    ]
    expected = {"fog-5": {"block1": 0.75, "block2": 0.0}, "snow-5": {"block1": 0.2, "block2": 0.4}}
    assert summed(rows).importance == expected


def test_forgetting_is_summed_as_the_last_and_the_mean(summed):
    rows = [row(0, "fog-5", 10, 0), row(1, "snow-5", 10, 0, skipped=True)]
    after = [
        (0, {"domain": "fog-5", "clean_error": 10.0, "clean_error_source_statistics": 20.0}),
        (1, {"domain": "snow-5", "clean_error": 30.0, "clean_error_source_statistics": 50.0}),
    ]
    found = summed(rows, after)
    means = {"batch_last": 30.0, "batch_mean": 20.0, "source_last": 50.0, "source_mean": 35.0}
    assert found.clean_error == means
    assert found.skipped == 1


def clean_part(source, count):
    from ctta.streams import Order, arrange

    chosen = arrange(np.asarray(source.labels), Order())[:count]
    return to_batch(source.images(CLEAN, chosen)), torch.from_numpy(source.labels[chosen])


def test_before_any_adaptation_source_statistics_give_the_error_of_the_source_model():
    net, source = golden_net().eval(), embedded()
    images, labels = clean_part(source, 30)
    plain = 100 * (net(images).argmax(1) != labels).double().mean().item()
    found = Forgetting(net, source, 30, 30).measure(ctta.adapt(net, "bn1"))
    assert found["clean_error_source_statistics"] == pytest.approx(plain)
    assert found["clean_samples"] == 30
    trained = copy.deepcopy(net).train()
    batch = 100 * (trained(images).argmax(1) != labels).double().mean().item()
    assert found["clean_error"] == pytest.approx(batch)


def test_forgetting_is_measured_on_the_adapted_weights_and_changes_nothing():
    net, source = golden_net().eval(), embedded()
    images, labels = clean_part(source, 20)
    adapter = ctta.adapt(net, "tent", lr=0.3)
    adapter(images)
    before = {name: value.clone() for name, value in adapter.model.state_dict().items()}
    found = Forgetting(net, source, 20, 20).measure(adapter)
    after = adapter.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    adapted = copy.deepcopy(net)
    adapted.load_state_dict(
        {n: v for n, v in adapter.freeze().state_dict().items() if "running" not in n and "tracked" not in n},
        strict=False,
    )
    expected = 100 * (adapted.eval()(images).argmax(1) != labels).double().mean().item()
    assert found["clean_error_source_statistics"] == pytest.approx(expected)
    assert not torch.equal(adapted(images), net(images))


LARGE_STEPS = {
    "adacontrast": {"lr": 0.1, "queue_size": 8, "bank_size": 8, "neighbours": 2, "refine_after": 2},
    "cotta": {"lr": 0.1, "views": 2, "confidence": 0.0, "teacher_momentum": 0.5},
    "dss": {"lr": 0.1, "views": 2, "confidence": 0.0, "teacher_momentum": 0.5},
    "palm": {"adapt_share": 0.5, "lr": 0.1},
    "source": {},
    "bn1": {},
}


def moved_by(method, net):
    """An adapter that has seen two batches with a large step size."""
    adapter = ctta.adapt(net, method, **LARGE_STEPS.get(method, {"lr": 0.1}))
    for seed in range(2):
        adapter(torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(seed)))
    return adapter


@pytest.mark.parametrize("method", [entry.name for entry in ctta.list_methods()])
def test_whatever_moved_is_measured_under_source_statistics(method):
    net = golden_net().eval()
    adapter = moved_by(method, net)
    twin = with_source_statistics(adapter, net)
    weights, answering, source = (dict(m.named_parameters()) for m in (twin, adapter.freeze(), net))
    answering = {name.removeprefix("teacher."): value for name, value in answering.items()}
    assert all(torch.equal(value, answering[name]) for name, value in weights.items())
    moved = [name for name, value in weights.items() if name not in source or not torch.equal(value, source[name])]
    assert bool(moved) == (method not in ("source", "bn1"))
    buffers = dict(twin.named_buffers())
    assert all(torch.equal(value, buffers[name]) for name, value in net.named_buffers())


@pytest.mark.parametrize("method", [entry.name for entry in ctta.list_methods()])
def test_a_network_without_statistics_answers_under_source_statistics_as_it_predicts(method):
    net = golden_net().eval()
    for name, layer in list(net.named_modules()):
        if isinstance(layer, torch.nn.BatchNorm2d):
            parent, _, own = name.rpartition(".")
            setattr(net.get_submodule(parent), own, torch.nn.GroupNorm(2, layer.num_features))
    adapter = moved_by(method, net)
    images = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(9))
    assert torch.equal(with_source_statistics(adapter, net)(images), adapter.predict(images))
