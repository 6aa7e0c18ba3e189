"""DSS, our reconstruction: the threshold, positive and negative learning, and what is left without them."""

import pytest
import torch
from tests.conftest import fixed_augment, golden_net, golden_stream

import ctta
from ctta.functional import complementary_classes, negative_learning
from ctta.methods import find

F64 = torch.float64


@pytest.fixture(scope="module")
def stream64():
    return [x[:8] for x in golden_stream(F64)[::3]]


def make(method="dss", **settings):
    return ctta.adapt(
        golden_net(F64), method, augment=fixed_augment, **{"confidence": 0, "restore": 0, **settings}
    )


def confidence(logits):
    return logits.softmax(1).amax(1)


def test_it_says_that_it_is_our_reconstruction():
    entry = find("dss")
    assert "our reconstruction" in entry.summary.lower()
    assert "our reconstruction" in entry.paper


def test_the_threshold_starts_at_one_over_classes_and_follows_the_teachers_confidence(stream64):
    adapter = make(tau_momentum=0.8)
    assert adapter.method.tau is None
    tau = 1 / 10
    for x in stream64:
        logits = adapter(x)
        tau = 0.8 * tau + 0.2 * confidence(logits).mean().item()
        assert adapter.method.tau == pytest.approx(tau)
        assert adapter.last.kept == int((confidence(logits) >= tau).sum())
    adapter.reset()
    assert adapter.method.tau is None


@pytest.mark.parametrize("loss", ["cross-entropy", "symmetric"])
def test_without_negative_learning_and_with_all_samples_kept_it_is_cotta(loss, stream64):
    settings = {"loss": loss, "teacher_momentum": 0.9, "lr": 1e-2, "confidence": 1.0, "views": 1}
    dss, cotta = make(tau_momentum=1.0, lam_n=0, **settings), make("cotta", **settings)
    for x in stream64:
        torch.testing.assert_close(dss(x), cotta(x), rtol=0, atol=1e-9)
        assert dss.last.kept == len(x)
    assert not torch.equal(dss.model.fc.weight, golden_net(F64).fc.weight)


@pytest.mark.parametrize("neg", [None, 0.02, 1.0])
def test_the_loss_is_the_one_described(neg, stream64):
    x, settings = stream64[0], {"tau_momentum": 0.0, "lam_n": 0.7, "nl_high": 0.4, "neg": neg}
    with torch.no_grad():
        l = golden_net(F64).train()(x)  # at the first batch the teacher is the student
    p = l.softmax(1)
    tau, threshold = confidence(l).mean(), 1 / 10 if neg is None else neg
    positive = negative = 0.0
    for row in p:
        high = row.max() >= tau
        ruled_out = {int(row.argmin()), *(row < threshold).nonzero().flatten().tolist()}
        positive += float(-(row * row.log()).sum()) if high else 0.0
        mean = sum(-float((1 - row[c] + 1e-8).log()) for c in ruled_out) / len(ruled_out)
        negative += (0.4 if high else 1.0) * mean
    adapter = make(**settings)
    adapter(x)
    assert 0 < adapter.last.kept < len(x)
    losses = adapter.last.losses
    assert losses["positive"] == pytest.approx(positive / len(x))
    assert losses["negative"] == pytest.approx(negative / len(x))
    assert losses["total"] == pytest.approx((positive + 0.7 * negative) / len(x))


def test_without_samples_of_high_quality_positive_learning_is_zero_and_the_step_goes_on(stream64):
    adapter = make(tau_momentum=1.0)
    adapter.method.tau = 1.1
    before = [p.detach().clone() for p in adapter.model.parameters()]
    adapter(stream64[0])
    assert adapter.last.kept == 0
    assert adapter.last.losses["positive"] == 0
    assert adapter.last.losses["total"] == adapter.last.losses["negative"] > 0
    assert any(not torch.equal(a, b) for a, b in zip(before, adapter.model.parameters(), strict=True))


def test_negative_learning_can_be_kept_from_samples_of_high_quality(stream64):
    adapter = make(tau_momentum=1.0, nl_high=0)
    adapter(stream64[0])
    assert adapter.last.kept == len(stream64[0])
    assert adapter.last.losses["negative"] == 0


def test_the_least_likely_class_is_ruled_out_even_where_none_is_below_the_threshold():
    q = torch.tensor([[0.5, 0.3, 0.2]])
    assert complementary_classes(q, 0.0).tolist() == [[False, False, True]]
    assert complementary_classes(q, 0.4).tolist() == [[False, True, True]]


def test_negative_learning_stays_finite_where_the_model_is_sure_of_a_class_that_is_ruled_out():
    logits = torch.tensor([[1000.0, 0.0]], requires_grad=True)
    loss = negative_learning(logits, torch.tensor([[True, False]])).sum()
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()
