"""Streams: the official orders, every scenario, and batches that can be made alone."""

from collections import Counter

import numpy as np
import pytest
import torch

import ctta
from ctta import streams
from ctta.streams import Domain, Order, arrange

CORRUPTIONS = ("fog", "snow", "contrast")


class Numbers:
    """A source whose pixels tell their index and domain."""

    name = "numbers"
    hash = "0123"

    def __init__(self, count=50, classes=5):
        self.labels = np.arange(count, dtype=np.int64) % classes

    def images(self, domain, indices):
        value = 16 * CORRUPTIONS.index(domain.corruption) + domain.severity
        out = np.zeros((len(indices), 4, 4, 3), dtype=np.uint8)
        out[..., 0], out[..., 1] = np.asarray(indices)[:, None, None], value
        return out


def seen(batch):
    """(index, corruption, severity) of every sample, read from the pixels."""
    pixels = (batch.images[:, :2, 0, 0] * 255).round().int().tolist()
    return [(i, CORRUPTIONS[v // 16], v % 16) for i, v in pixels]


def plan(scenario="continual", count=50, **options):
    options.setdefault("batch_size", 20)
    return streams.make(scenario, Numbers(count), corruptions=CORRUPTIONS, **options)


def test_the_official_shuffle_is_the_published_permutation():
    assert arrange(np.zeros(10_000, np.int64), Order())[:10].tolist() == [
        8709, 8573, 3061, 7879, 5676, 6834, 9043, 8801, 8390, 2025,
    ]  # fmt: skip
    assert arrange(np.zeros(5000, np.int64), Order())[:8].tolist() == [
        1154,
        2818,
        409,
        1116,
        1872,
        4822,
        2572,
        1287,
    ]


def test_the_order_draws_nothing_from_global_state():
    import random

    state = random.getstate()
    arrange(np.zeros(100, np.int64), Order())
    assert random.getstate() == state


def test_continual_visits_each_domain_once_with_a_ragged_last_batch():
    stream = plan()
    batches = list(stream)
    assert [len(b.labels) for b in batches] == [20, 20, 10] * 3
    assert [b.domain for b in batches] == ["fog-5"] * 3 + ["snow-5"] * 3 + ["contrast-5"] * 3
    for k in range(3):
        indices = [i for b in batches[3 * k : 3 * k + 3] for i, *_ in seen(b)]
        assert sorted(indices) == list(range(50))
        assert indices == arrange(Numbers().labels, Order()).tolist()
    assert all(torch.equal(b.labels, torch.tensor([i % 5 for i, *_ in seen(b)])) for b in batches)
    assert not any(b.reset for b in batches)
    assert batches[0].images.dtype == torch.float32
    assert batches[0].images.shape == (20, 3, 4, 4)
    assert stream.samples == 150


def test_stored_order_is_the_order_of_the_files():
    batch = plan(order=Order("stored"))[0]
    assert [i for i, *_ in seen(batch)] == list(range(20))


def test_gradual_goes_up_and_down_and_cotta_starts_from_five():
    severities = [1, 2, 3, 4, 5, 4, 3, 2, 1]
    domains = plan("gradual").domains
    assert [d.severity for d in domains] == severities * 3
    assert len(streams.gradual(Numbers()).domains) == 135
    assert [d.severity for d in plan("gradual", first="from5").domains] == [5, 4, 3, 2, 1] + severities * 2
    assert len(streams.gradual(Numbers(), first="from5").domains) == 131


def test_reset_each_shift_resets_before_every_domain_but_the_first():
    assert [b.index for b in plan("reset-each-shift") if b.reset] == [3, 6]


def test_recurring_repeats_the_continual_stream():
    once, thrice = list(plan()), list(plan("recurring", passes=3))
    assert len(thrice) == 3 * len(once)
    for k, batch in enumerate(thrice):
        assert torch.equal(batch.images, once[k % len(once)].images)


def test_mixed_holds_every_sample_of_every_domain_once_in_random_order():
    batches = list(plan("mixed"))
    samples = [s for b in batches for s in seen(b)]
    assert Counter(samples) == Counter((i, c, 5) for i in range(50) for c in CORRUPTIONS)
    assert batches[0].domain == "mixed"
    assert [d.corruption for d in batches[0].domains] == [c for _, c, _ in seen(batches[0])]
    assert [len(b.labels) for b in batches] == [20] * 7 + [10]
    assert [s for b in plan("mixed", seed=2) for s in seen(b)] != samples


def runs(stream):
    labels = torch.cat([b.labels for b in stream])
    return int((labels[1:] != labels[:-1]).sum())


def test_correlated_labels_come_in_runs():
    plain = runs(plan(count=200))
    dirichlet = runs(plan("correlated", count=200))
    ordered = runs(plan("correlated", count=200, kind="sorted"))
    assert ordered < dirichlet < 0.5 * plain
    for stream in (plan("correlated", count=200), plan("correlated", count=200, kind="sorted")):
        indices = [i for b in stream for i, c, _ in seen(b) if c == "fog"]
        assert sorted(indices) == list(range(200))


def test_asking_for_more_images_than_there_are_gives_correlated_labels_in_the_same_order():
    everything = [seen(batch) for batch in plan("correlated", count=50, images=50)]
    assert [seen(batch) for batch in plan("correlated", count=50, images=1000)] == everything


def test_part_of_a_domain_keeps_all_classes_even_when_labels_are_sorted():
    for options in ({}, {"kind": "sorted"}, {"kind": "dirichlet"}):
        scenario = "correlated" if options else "continual"
        stream = plan(scenario, count=500, images=100, **options)
        labels = torch.cat([b.labels for b in stream if b.domain == "fog-5"])
        assert len(labels) == 100
        assert set(labels.tolist()) == set(range(5))


def test_single_sample_gives_one_image_at_a_time():
    stream = plan("single-sample", images=7)
    assert [len(b.labels) for b in stream] == [1] * 21


@pytest.mark.parametrize("scenario", streams.SCENARIOS)
def test_a_stream_resumed_at_any_batch_equals_the_uninterrupted_one(scenario):
    stream = plan(scenario, images=30)
    whole = list(stream)
    assert len(whole) == len(stream)
    for k in {0, 1, len(stream) // 2, len(stream) - 1, len(stream)}:
        rest = list(plan(scenario, images=30).resume(k))
        assert [b.index for b in rest] == list(range(k, len(stream)))
        for ours, theirs in zip(rest, whole[k:], strict=True):
            assert torch.equal(ours.images, theirs.images)
            assert torch.equal(ours.labels, theirs.labels)
            assert ours.domains == theirs.domains
            assert ours.reset == theirs.reset


def test_the_hash_is_the_same_for_the_same_stream_and_differs_for_any_other():
    assert plan().hash == plan().hash
    other = Numbers()
    other.hash = "4567"
    hashes = {
        plan().hash,
        plan(batch_size=10).hash,
        plan(images=30).hash,
        plan(severity=4).hash,
        plan(order=Order("stored")).hash,
        plan(order=Order(seed=2)).hash,
        streams.continual(other, corruptions=CORRUPTIONS, batch_size=20).hash,
        streams.continual(Numbers(), corruptions=CORRUPTIONS[:2], batch_size=20).hash,
        *(plan(scenario).hash for scenario in streams.SCENARIOS if scenario != "continual"),
    }
    assert len(hashes) == 8 + len(streams.SCENARIOS) - 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "at least one image"),
        ({"images": 0}, "at least one image"),
        ({"scenario": "continuous"}, "Did you mean `continual`"),
        ({"scenario": "recurring", "passes": 0}, "Expected `passes`"),
        ({"scenario": "correlated", "concentration": 0}, "Expected `concentration`"),
    ],
)
def test_impossible_streams_are_refused(options, words):
    with pytest.raises(ctta.SettingError, match=words):
        plan(**options)


def test_an_unknown_corruption_is_refused_with_a_guess():
    with pytest.raises(ctta.SettingError, match="no corruption `fogg`. Did you mean `fog`"):
        streams.continual(Numbers(), corruptions=["fogg"])


def test_a_batch_that_is_not_there_is_an_index_error():
    with pytest.raises(IndexError, match="from 0 to 8, but got 9"):
        plan()[9]


def test_domains_are_named_by_corruption_and_severity():
    assert str(Domain("fog", 3)) == "fog-3"
    assert streams.CLEAN.name == "clean"


def test_a_source_is_another_one_under_another_seed_profile_or_other_numbers_of_its_images():
    clean = streams.embedded().clean
    numbers = np.arange(len(clean))
    made = [
        streams.Corrupted(clean),
        streams.Corrupted(clean, seed=1),
        streams.Corrupted(clean, profile="tiny-imagenet"),
        streams.Corrupted(clean, numbers=numbers[::-1]),
    ]
    assert len({source.hash for source in made}) == len(made)
    assert streams.Corrupted(clean, numbers=numbers).hash == made[0].hash
