"""Properties that hold for any input: the mathematics under the methods."""

import math

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ctta.functional import (
    consistency,
    deviation,
    filtered_entropy,
    gradient_score,
    importance,
    moving_average,
    sensitivity,
    softmax_entropy,
    uniform_kl,
)
from ctta.methods.palm.choices import threshold_for_share

F64 = torch.float64
finite = st.floats(-1e3, 1e3)
magnitude = st.floats(0, 1e6) | st.floats(0, 1e-6)


@st.composite
def logits(draw, scale=1e3):
    rows, classes = draw(st.integers(1, 5)), draw(st.integers(2, 6))
    values = draw(st.lists(st.floats(-scale, scale), min_size=rows * classes, max_size=rows * classes))
    return torch.tensor(values, dtype=F64).view(rows, classes)


@given(logits())
def test_entropy_lies_between_zero_and_log_classes(l):
    entropy = softmax_entropy(l)
    assert entropy.isfinite().all()
    assert (entropy >= -1e-9).all()
    assert (entropy <= math.log(l.shape[1]) + 1e-9).all()


@given(logits(scale=50), st.floats(-5, 5))
def test_entropy_ignores_a_constant_added_to_the_logits(l, shift):
    torch.testing.assert_close(softmax_entropy(l), softmax_entropy(l + shift), atol=1e-6, rtol=1e-6)


@given(logits(), st.floats(0, 3))
def test_filtered_entropy_is_finite_below_its_margin_and_has_a_finite_gradient(l, margin):
    l.requires_grad_(True)
    for reduction in ("kept", "batch"):
        loss, kept = filtered_entropy(l, margin, reduction=reduction)
        (gradient,) = torch.autograd.grad(loss, l)
        assert loss.isfinite()
        assert loss <= margin + 1e-9
        assert gradient.isfinite().all()
        assert (gradient[~kept] == 0).all()


@given(logits(), st.floats(0, 3))
def test_kept_mean_times_share_is_the_batch_mean(l, margin):
    kept_mean, kept = filtered_entropy(l, margin, reduction="kept")
    batch_mean, _ = filtered_entropy(l, margin, reduction="batch")
    torch.testing.assert_close(kept_mean * kept.sum() / len(l), batch_mean)


@given(logits(scale=50), st.randoms(use_true_random=False))
def test_consistency_is_least_where_both_views_agree(l, random):
    other = l + torch.tensor([[random.uniform(-1, 1) for _ in range(l.shape[1])]], dtype=F64)
    assert consistency(l, other) >= consistency(l, l) - 1e-9


@given(logits(), st.floats(0.5, 1e3))
def test_divergence_from_uniform_is_never_negative_in_either_direction(l, temperature):
    for direction in ("u||p", "p||u"):
        assert uniform_kl(l, temperature, direction=direction) >= -1e-9


@given(logits(scale=20), st.floats(1, 100))
def test_eq_2_the_gradient_is_the_mean_cross_entropy_over_all_classes(l, temperature):
    l.requires_grad_(True)
    (ours,) = torch.autograd.grad(uniform_kl(l, temperature), l)
    classes = l.shape[1]
    entropies = [
        torch.nn.functional.cross_entropy(l / temperature, torch.full((len(l),), c)) for c in range(classes)
    ]
    (expected,) = torch.autograd.grad(sum(entropies) / classes, l)
    torch.testing.assert_close(ours, expected, atol=1e-12, rtol=1e-9)


@given(logits(scale=20), st.floats(1, 100))
def test_spec_4_ones_target_multiplies_value_and_gradient_by_the_classes(l, temperature):
    l.requires_grad_(True)
    ones, uniform = (uniform_kl(l, temperature, target_scale=scale) for scale in ("ones", "uniform"))
    (grad_ones,) = torch.autograd.grad(ones, l)
    (grad_uniform,) = torch.autograd.grad(uniform, l)
    torch.testing.assert_close(grad_ones, l.shape[1] * grad_uniform)
    torch.testing.assert_close(uniform_kl(l, reduction="sum"), len(l) * uniform_kl(l, reduction="mean"))


@given(magnitude, magnitude, st.floats(0, 1), st.floats(1e-12, 1e-3))
def test_spec_2_importance_is_bounded_by_alpha(s, h, alpha, eps):
    assume(alpha > 1e-6)
    s, h = torch.tensor(s, dtype=F64), torch.tensor(h, dtype=F64)
    average = moving_average([h], [s], alpha)
    (i,) = importance(deviation([s], average), average, eps)
    assert 0 <= i <= max(1.0, (1 - alpha) / alpha) * (1 + 1e-6)


@given(st.lists(st.tuples(finite, finite, magnitude), min_size=1, max_size=4), st.floats(0, 1))
def test_the_grouped_equations_are_those_of_the_paper_one_by_one(triples, alpha):
    theta, gradient, before = (
        [torch.tensor([value], dtype=F64) for value in column] for column in zip(*triples, strict=True)
    )
    current = sensitivity(theta, gradient)
    averages = moving_average(before, current, alpha)
    factors = importance(deviation(current, averages), averages)
    for t, g, h, average, factor in zip(theta, gradient, before, averages, factors, strict=True):
        s = (t * g).abs()
        torch.testing.assert_close(average, alpha * s + (1 - alpha) * h)
        expected = ((s - average).abs() + 1e-8) / (average + 1e-8)
        torch.testing.assert_close(factor, expected, rtol=1e-6, atol=1e-6)


@given(magnitude, magnitude, st.floats(0, 1))
def test_the_moving_average_lies_between_old_and_new(s, h, alpha):
    (average,) = moving_average([torch.tensor(h, dtype=F64)], [torch.tensor(s, dtype=F64)], alpha)
    assert min(s, h) * (1 - 1e-9) <= average <= max(s, h) * (1 + 1e-9)


@given(st.lists(finite, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_sensitivity_and_score_ignore_signs(values, random):
    theta = torch.tensor(values, dtype=F64)
    gradient = torch.tensor([random.uniform(-1, 1) for _ in values], dtype=F64)
    assert torch.equal(sensitivity([theta], [gradient])[0], sensitivity([-theta], [gradient])[0])
    assert gradient_score(gradient) == gradient_score(-gradient) >= 0


@given(
    st.dictionaries(st.text("abcdef", min_size=1), st.floats(0, 1e6), min_size=1, max_size=12),
    st.floats(0.001, 1),
    st.randoms(use_true_random=False),
)
@settings(max_examples=200)
def test_auto_eta_selects_something_and_no_threshold_comes_closer(scores, share, random):
    sizes = {name: random.randint(1, 1000) for name in scores}
    wanted = share * sum(sizes.values())
    eta = threshold_for_share(scores, sizes, wanted)

    def count(threshold):
        return sum(sizes[name] for name, score in scores.items() if score <= threshold)

    assert count(eta) > 0
    best = min(abs(count(score) - wanted) for score in scores.values())
    assert abs(count(eta) - wanted) <= best + 1e-9
