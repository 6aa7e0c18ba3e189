"""AdaContrast against a plain version with torch.optim and lists, and every promise of its own."""

import copy

import pytest
import torch
from tests.conftest import GoldenNet, golden_net, golden_stream
from torch import nn
from torch.nn import functional as F

import ctta
from ctta._core.layers import training
from ctta.augment import NAMED
from ctta.checks import check_method
from ctta.checks.networks import CLASSES, NETWORKS, Network
from ctta.functional import diversity, info_nce, neighbour_vote
from ctta.methods.adacontrast import write_ring

F64 = torch.float64
SMALL = {"queue_size": 31, "bank_size": 14, "neighbours": 3, "refine_after": 12, "lr": 0.02}


class TwoViews:
    """An augmentation without randomness whose first and second view differ."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return 0.8 * x.flip(-1) if self.calls % 2 else (x + 0.1).clamp(0, 1)


class PlainAdaContrast:
    """One step after the other as the description has it: lists, loops, torch.optim.SGD."""

    def __init__(self, model, augment, seed, *, queue_size, bank_size, neighbours, refine_after, **options):
        defaults = {
            "lr": 2e-4,
            "momentum": 0.9,
            "nesterov": True,
            "weight_decay": 1e-4,
            "ema": 0.999,
            "temperature": 0.07,
            "classification_weight": 1.0,
            "contrast_weight": 1.0,
            "diversity_weight": 1.0,
            "class_aware": True,
            "queue_labels": "new",
        }
        self.o = {**defaults, **options}
        self.model = copy.deepcopy(model)
        self.slow = copy.deepcopy(model).requires_grad_(False)
        self.augment = augment
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            **{name: self.o[name] for name in ("lr", "momentum", "nesterov", "weight_decay")},
        )
        generator = torch.Generator().manual_seed(seed)
        features = torch.randn(queue_size, 32, generator=generator, dtype=F64)
        self.queue = [row / row.norm() for row in features]
        self.labels = torch.randint(10, (queue_size,), generator=generator).tolist()
        self.queue_at = self.bank_at = self.seen = 0
        self.bank = []
        self.bank_size, self.neighbours, self.refine_after = bank_size, neighbours, refine_after

    @staticmethod
    def split(net: GoldenNet, x):
        x = F.relu(net.bn1(net.conv1(x)))
        features = net.layer3(net.layer2(net.layer1(x))).mean((2, 3))
        return features, net.fc(features)

    def vote(self, feature):
        def similarity(entry):
            return float(F.cosine_similarity(feature, entry[0], dim=0))

        best = sorted(self.bank, key=similarity, reverse=True)[: self.neighbours]
        return int((sum(probabilities for _, probabilities in best) / len(best)).argmax())

    def __call__(self, x):
        self.model.train()
        self.slow.train()
        with torch.no_grad():
            features, logits = self.split(self.model, x)
        if self.seen >= self.refine_after:
            labels = [self.vote(feature) for feature in features]
        else:
            labels = logits.argmax(1).tolist()
            self.seen += len(x)
        features, logits = self.split(self.model, self.augment(x))
        with torch.no_grad():
            for slow, fast in zip(self.slow.parameters(), self.model.parameters(), strict=True):
                slow.copy_(self.o["ema"] * slow + (1 - self.o["ema"]) * fast)
            keys = [key / key.norm() for key in self.split(self.slow, self.augment(x))[0]]
        negatives, old_labels = list(self.queue), list(self.labels)
        for key, label in zip(keys, labels, strict=True):
            self.queue[self.queue_at], self.labels[self.queue_at] = key, label
            self.queue_at = (self.queue_at + 1) % len(self.queue)
        theirs = self.labels if self.o["queue_labels"] == "new" else old_labels
        contrast = []
        for feature, key, label in zip(features, keys, labels, strict=True):
            query = feature / feature.norm()
            scores = [query @ key]
            scores += [
                query @ other
                for other, its in zip(negatives, theirs, strict=True)
                if not (self.o["class_aware"] and its == label)
            ]
            scores = torch.stack(scores) / self.o["temperature"]
            contrast.append(-scores.log_softmax(0)[0])
        classification = [-row.log_softmax(0)[label] for row, label in zip(logits, labels, strict=True)]
        mean = logits.softmax(1).mean(0)
        loss = (
            self.o["classification_weight"] * sum(classification) / len(x)
            + self.o["contrast_weight"] * sum(contrast) / len(x)
            + self.o["diversity_weight"] * (mean * torch.log(mean + 1e-8)).sum()
        )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            features, logits = self.split(self.slow, x)
            for entry in zip(features, logits.softmax(1), strict=True):
                if len(self.bank) < self.bank_size:
                    self.bank.append(entry)
                else:
                    self.bank[self.bank_at] = entry
                    self.bank_at = (self.bank_at + 1) % self.bank_size
            self.model.eval()
            return self.model(x)


CHANGES = {
    "defaults": {},
    "lr": {"lr": 0.005},
    "momentum": {"momentum": 0.5},
    "nesterov": {"nesterov": False},
    "weight_decay": {"weight_decay": 0.01},
    "ema": {"ema": 0.5},
    "temperature": {"temperature": 0.5},
    "queue_size": {"queue_size": 13},
    "bank_size": {"bank_size": 5},
    "neighbours": {"neighbours": 1},
    "refine_after": {"refine_after": 10_000},
    "classification_weight": {"classification_weight": 0.3},
    "contrast_weight": {"contrast_weight": 0.0},
    "diversity_weight": {"diversity_weight": 2.0},
    "class_aware": {"class_aware": False},
    "queue_labels": {"queue_labels": "old"},
}


@pytest.fixture(scope="module")
def stream64():
    return [x[:6, :, ::2, ::2] for x in golden_stream(F64)[:5]]


def adapter64(*, seed=4, **settings):
    settings = {**SMALL, "weak_view": "none", **settings}
    return ctta.adapt(golden_net(F64), "adacontrast", augment=TwoViews(), seed=seed, **settings)


@pytest.fixture(scope="module")
def default_logits(stream64):
    adapter = adapter64()
    return torch.stack([adapter(x) for x in stream64])


@pytest.mark.parametrize("name", CHANGES)
def test_several_steps_match_the_plain_version_whatever_the_settings(name, stream64, default_logits):
    ours, plain = (
        adapter64(**CHANGES[name]),
        PlainAdaContrast(golden_net(F64), TwoViews(), 4, **SMALL | CHANGES[name]),
    )
    logits = []
    for x in stream64:
        logits.append(ours(x))
        assert (logits[-1] - plain(x)).abs().max() < 1e-10
    method = ours.method
    for net, other in ((ours.model, plain.model), (method.momentum_model, plain.slow)):
        for key, value in other.state_dict().items():
            assert (net.state_dict()[key] - value).abs().max() < 1e-10, key
    assert (method.queue - torch.stack(plain.queue)).abs().max() < 1e-10
    assert method.queue_label.tolist() == plain.labels
    bank = torch.stack([F.normalize(feature, dim=0) for feature, _ in plain.bank])
    assert (method.bank[: method.bank_filled] - bank).abs().max() < 1e-10
    if name != "defaults":  # the setting does something
        assert (torch.stack(logits) - default_logits).abs().max() > 1e-8


# ---------------------------------------------------------------- the specification's test 15


def tiny(classes=4):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 3, 2), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(6, classes)).eval()


@pytest.mark.parametrize(("size", "first"), [(200, 7), (64, 17)])
def test_spec_15_the_neighbours_begin_to_vote_at_batch_7_of_200_and_17_of_64(size, first):
    adapter = ctta.adapt(tiny(), "adacontrast", queue_size=64)
    voted = []
    for _ in range(first + 1):
        adapter(torch.rand(size, 3, 6, 6))
        voted.append(any("vote of 10" in note for note in adapter.last.notes))
    assert voted == [False] * (first - 1) + [True] * 2
    assert adapter.method.seen == (first - 1) * size  # the counter stops there
    assert adapter.method.bank_filled == (first + 1) * size  # the bank goes on


def test_spec_15_the_prediction_is_made_after_the_step_with_running_statistics():
    source, x = tiny(), torch.rand(16, 3, 8, 8)
    adapter = ctta.adapt(
        source, "adacontrast", queue_size=64, lr=0.05, weak_view="none", augment=lambda v: 0.5 * v
    )
    logits = adapter(x)
    after = adapter.freeze()
    assert torch.equal(after.eval()(x), logits)
    assert torch.equal(adapter.predict(x), logits)
    assert not torch.allclose(after.train()(x), logits)  # statistics of the batch would answer otherwise
    # the weak view and the query moved the running statistics, in this order, each by a tenth
    norm = adapter.model[1]
    expected = source[1].running_mean
    for view in (x, 0.5 * x):
        expected = 0.9 * expected + 0.1 * source[0](view).mean((0, 2, 3)).detach()
    torch.testing.assert_close(norm.running_mean, expected)
    assert norm.num_batches_tracked == source[1].num_batches_tracked + 2
    assert not any(module.training for module in adapter.model.modules())


# ---------------------------------------------------------------- losses and memories


def unit(*shape, seed=0):
    return F.normalize(torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64), dim=1)


def test_masked_negatives_do_not_count():
    query, key, negatives = unit(5, 7), unit(5, 7, seed=1), unit(9, 7, seed=2)
    masked = torch.rand(5, 9, generator=torch.Generator().manual_seed(3)) < 0.5
    loss = info_nce(query, key, negatives, temperature=0.2, masked=masked)
    for row in range(5):
        kept = negatives[~masked[row]]
        alone = info_nce(query[row : row + 1], key[row : row + 1], kept, temperature=0.2)
        assert loss[row].item() == pytest.approx(alone.item(), abs=1e-12)


def test_a_row_without_negatives_has_loss_zero_and_a_finite_gradient():
    query = unit(3, 7).requires_grad_()
    masked = torch.zeros(3, 9, dtype=torch.bool)
    masked[1] = True
    loss = info_nce(query, unit(3, 7, seed=1), unit(9, 7, seed=2), temperature=0.07, masked=masked)
    loss.sum().backward()
    assert loss[1] == 0
    assert torch.all(query.grad[1] == 0)
    assert query.grad[0].abs().sum() > 0
    assert query.grad.isfinite().all()


def test_a_stream_of_one_class_masks_all_negatives_once_the_queue_is_full_and_goes_on():
    model = tiny()
    model[-1].bias.data[2] = 50.0  # whatever the picture, class 2
    adapter = ctta.adapt(model, "adacontrast", queue_size=8)
    adapter(torch.rand(8, 3, 8, 8))
    assert adapter.last.losses["contrast"] == 0
    assert not adapter.last.skipped


def test_diversity_prefers_predictions_that_share_the_classes():
    alike, spread = torch.zeros(4, 4), 9 * torch.eye(4)
    alike[:, 0] = 9
    assert diversity(spread) < diversity(alike)
    assert diversity(torch.tensor([[1e4, 0.0]])).isfinite()


def test_the_vote_is_the_same_in_chunks_of_any_size_and_survives_a_small_bank():
    features, bank, votes = unit(10, 6), unit(30, 6, seed=1), torch.rand(30, 4, dtype=F64)
    whole = neighbour_vote(features, bank, votes, count=5, chunk=64)
    torch.testing.assert_close(neighbour_vote(features, bank, votes, count=5, chunk=3), whole)
    few = neighbour_vote(features, bank[:2], votes[:2], count=5)
    torch.testing.assert_close(few, votes[:2].mean(0).expand(10, -1))


@pytest.mark.parametrize(("size", "batches"), [(7, [3, 3, 3, 3]), (4, [4, 4]), (3, [5, 2, 10]), (1, [2, 1])])
def test_a_ring_holds_the_latest_rows_oldest_overwritten_first(size, batches):
    ring, at, slots, written = torch.full((size,), -1), 0, [-1] * size, 0
    for count in batches:
        rows = torch.arange(written, written + count)
        at = write_ring(ring, rows, at)
        for value in rows.tolist():
            slots[value % size] = value
        written += count
        assert ring.tolist() == slots
        assert at == written % size


def test_memories_in_another_dtype_are_refused():
    adapter = ctta.adapt(NETWORKS["residual"].make(), "adacontrast")
    adapter(NETWORKS["residual"].stream((6,))[0])
    state = adapter.state_dict()
    for name in ("queue", "bank", "bank_vote"):
        with pytest.raises(ctta.StateError, match="cannot be gone on from"):
            adapter.load_state_dict({**state, name: state[name].double()})
    adapter.load_state_dict(state)


def test_memories_have_their_size_from_the_first_batch_on_and_never_grow():
    adapter = ctta.adapt(tiny(), "adacontrast", queue_size=20, bank_size=15, refine_after=8)
    for size in (8, 8, 30, 1):
        adapter(torch.rand(size, 3, 8, 8))
        method = adapter.method
        assert method.queue.shape == (20, 6)
        assert method.queue_label.shape == (20,)
        assert method.bank.shape == (15, 6)
        assert method.bank_vote.shape == (15, 4)
    assert (method.bank_filled, method.bank_next, method.queue_next) == (15, 47 % 15, 47 % 20)
    torch.testing.assert_close(method.queue.norm(dim=1), torch.ones(20))
    torch.testing.assert_close(method.bank_vote.sum(1), torch.ones(15))


def test_an_empty_bank_is_not_asked():
    adapter = ctta.adapt(tiny(), "adacontrast", queue_size=20, refine_after=0)
    x = torch.rand(6, 3, 8, 8)
    adapter(x)
    assert not adapter.last.notes
    adapter(x)
    assert adapter.last.notes == ("pseudo-labels by vote of 6 in 6 features",)


def test_reset_draws_the_same_queue_and_another_seed_another():
    x = torch.rand(4, 3, 8, 8)
    one, other = (ctta.adapt(tiny(), "adacontrast", queue_size=20, seed=seed) for seed in (1, 2))
    one(x)
    other(x)
    queue = one.method.queue.clone()
    one.reset()
    assert not len(one.method.queue)
    one(x)
    assert torch.equal(one.method.queue, queue)
    assert not torch.allclose(other.method.queue[4:], queue[4:])


def test_saved_while_the_neighbours_vote_it_goes_on_bit_for_bit(tmp_path):
    stream = list(torch.rand(6, 5, 3, 8, 8))
    adapter = ctta.adapt(tiny(), "adacontrast", queue_size=12, bank_size=11, refine_after=10, lr=0.01)
    for x in stream[:4]:
        adapter(x)
    adapter.save(tmp_path / "adapter")
    twin = ctta.load(tmp_path / "adapter", tiny())
    for x in stream[4:]:
        assert torch.equal(twin(x), adapter(x))
        assert twin.last == adapter.last
        assert twin.last.notes
    assert twin.method.bank_next == adapter.method.bank_next


# ---------------------------------------------------------------- views


def test_the_default_views_are_its_own_and_other_methods_keep_theirs(tmp_path):
    adapter = ctta.adapt(tiny(), "adacontrast", queue_size=8)
    assert adapter.method.augment is NAMED["adacontrast"]
    assert ctta.adapt(tiny(), "palm").method.augment is NAMED["cotta"]
    assert ctta.adapt(tiny(), "adacontrast", augment="cotta").method.augment is NAMED["cotta"]
    adapter.save(tmp_path / "adapter")
    assert ctta.load(tmp_path / "adapter", tiny()).method.augment is NAMED["adacontrast"]


def test_the_weak_view_flips_some_images_or_none():
    x = torch.rand(40, 3, 4, 4)
    method = ctta.adapt(tiny(), "adacontrast").method
    flipped = [torch.equal(a, b.flip(-1)) for a, b in zip(method.weak(x), x, strict=True)]
    assert 8 < sum(flipped) < 32
    kept = [torch.equal(a, b) for a, b in zip(method.weak(x), x, strict=True)]
    assert 8 < sum(kept) < 32
    assert method.weak(x[:, 0]).equal(x[:, 0])  # no image: nothing to mirror
    assert ctta.adapt(tiny(), "adacontrast", weak_view="none").method.weak(x) is x


def test_query_and_key_are_two_draws_of_the_augmentation():
    seen = []

    def watch(x):
        seen.append(x)
        return x

    x = torch.rand(4, 3, 8, 8)
    ctta.adapt(tiny(), "adacontrast", queue_size=8, augment=watch)(x)
    assert len(seen) == 2
    assert all(torch.equal(view, x) for view in seen)


# ---------------------------------------------------------------- networks


@pytest.mark.parametrize("name", ["vit", "mlp", "residual", "bn1d-head", "tied"])
def test_features_are_what_the_classifier_gets(name):
    method = ctta.adapt(NETWORKS[name].make(), "adacontrast").method
    x = NETWORKS[name].stream((4,))[0]
    features, logits = method.encode(x, method.model)
    head = [module for module in method.model.modules() if isinstance(module, nn.Linear)][-1]
    inputs = []
    hook = head.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    method.forward(x)
    hook.remove()
    torch.testing.assert_close(features, F.normalize(inputs[0], dim=1))
    torch.testing.assert_close(head(inputs[0]), logits)
    assert not any(module._forward_hooks for module in method.model.modules())


def conv_head():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, CLASSES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


class Squeezed(nn.Module):
    """A linear layer inside, a convolution as classifier."""

    def __init__(self):
        super().__init__()
        self.stem, self.gate, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 8), nn.Conv2d(8, CLASSES, 1)

    def forward(self, x):
        x = self.stem(x)
        x = x * self.gate(x.mean((2, 3))).sigmoid()[:, :, None, None]
        return self.head(x).mean((2, 3))


def test_a_network_without_linear_classifier_is_refused():
    network = Network("conv-head", conv_head, meets=frozenset({"conv or norm layers"}))
    assert check_method("adacontrast", networks=[network]) == 1
    adapter = ctta.adapt(Squeezed(), "adacontrast")
    before = adapter.state_dict()
    with pytest.raises(ctta.UnsupportedModelError, match=r"shape \(4, 5\), but that one returned shape \(4, 8\)"):
        adapter(torch.rand(4, 3, 8, 8))
    assert all(torch.equal(value, before[key]) for key, value in adapter.state_dict().items())
    unused = nn.Sequential(*conv_head())
    unused.spare = nn.Linear(2, 2)
    unused.forward = lambda x: nn.Sequential.forward(unused[:5], x)
    with pytest.raises(ctta.UnsupportedModelError, match="but none ran"):
        ctta.adapt(unused, "adacontrast", inplace=True)(torch.rand(4, 3, 8, 8))


def test_all_weights_and_biases_move_and_the_rest_on_request():
    x = NETWORKS["vit"].stream((4,))[0]
    named = ctta.adapt(NETWORKS["vit"].make(), "adacontrast", lr=0.1, queue_size=8)
    whole = ctta.adapt(NETWORKS["vit"].make(), "adacontrast", lr=0.1, queue_size=8, parameters="all")
    packed = {"attention.in_proj_weight", "attention.in_proj_bias"}
    assert whole.method.adapted.keys() - named.method.adapted.keys() == {"token", "position"} | packed
    before = dict(NETWORKS["vit"].make().named_parameters())
    for adapter in (named, whole):
        adapter(x)
        moved = {name for name, value in adapter.model.named_parameters() if not torch.equal(value, before[name])}
        assert moved == set(adapter.method.adapted)
        assert {"fc.weight", "fc.bias"} <= moved
        assert adapter.last.shares["moved"] == 1


def test_a_network_without_weights_and_biases_is_refused():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.head = nn.Parameter(torch.ones(3)), nn.Linear(3, 4)
            del self.head.weight, self.head.bias

    with pytest.raises(ctta.UnsupportedModelError, match='parameters="all"'):
        ctta.adapt(Odd(), "adacontrast")


# ---------------------------------------------------------------- modes


def one_pixel():
    """BatchNorm on a 1 x 1 map behind one on a larger map."""
    torch.manual_seed(0)
    head = [nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(6, 4)]
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), *head).eval()


def test_one_image_on_one_pixel_answers_with_running_statistics_and_leaves_them():
    adapter = ctta.adapt(one_pixel(), "adacontrast", queue_size=8)
    assert adapter(torch.rand(1, 3, 8, 8)).isfinite().all()
    first, second = (module for module in adapter.model if isinstance(module, nn.BatchNorm2d))
    assert first.num_batches_tracked == 2
    assert second.num_batches_tracked == 0
    assert torch.equal(second.running_mean, torch.zeros(6))
    adapter(torch.rand(2, 3, 8, 8))
    assert second.num_batches_tracked == 2


def test_train_mode_rests_layers_for_one_call_only_and_ends_without_a_trace_also_when_the_network_fails():
    net = one_pixel()

    def fail():
        with training(net):
            assert [module.training for module in net] == [False, True, False, True, False, False]
            net(torch.rand(1, 3, 8, 8))
            assert net[3].training
            net(torch.rand(1, 5, 8, 8))

    with pytest.raises(RuntimeError, match="channels"):
        fail()
    for module in net.modules():
        assert not module.training
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    with training(net, whole=True):
        assert all(module.training for module in net.modules())
    assert not any(module.training for module in net.modules())


def test_dropout_acts_on_request_and_draws_from_the_adapters_generator():
    x, net = NETWORKS["residual"].stream((6,))[0], NETWORKS["residual"]
    state = torch.get_rng_state()
    dry = net.make()
    for layer in dry.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    off, on, again = (
        ctta.adapt(model, "adacontrast", queue_size=8, lr=0.1, train_mode="all")
        for model in (dry, net.make(), net.make())
    )
    logits = on(x)
    assert not torch.equal(off(x), logits)  # of the same draws from the adapter's generator
    with torch.random.fork_rng():
        torch.manual_seed(999)
        assert torch.equal(again(x), logits)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(on.predict(x), logits)  # no dropout in the prediction


def test_under_autocast_every_tensor_gets_a_gradient_and_the_prediction_uses_the_new_weights():
    adapter = ctta.adapt(tiny(), "adacontrast", queue_size=8, lr=0.5)
    x = torch.rand(6, 3, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        old = adapter.predict(x)
        logits = adapter(x)
        assert torch.equal(adapter.predict(x), logits)
    assert not torch.equal(logits, old)
    assert all(rate == 0.5 for rate in adapter.last.learning_rates.values())


def test_the_report_names_the_terms_of_the_loss():
    adapter = ctta.adapt(tiny(), "adacontrast", queue_size=8, contrast_weight=0.5, diversity_weight=0.25)
    adapter(torch.rand(6, 3, 8, 8))
    losses = adapter.last.losses
    assert losses.keys() == {"classification", "contrast", "diversity", "total"}
    expected = losses["classification"] + 0.5 * losses["contrast"] + 0.25 * losses["diversity"]
    assert losses["total"] == pytest.approx(expected, rel=1e-5)


def test_with_batch_statistics_the_prediction_is_that_of_the_updated_weights_on_the_batch_alone():
    adapter = ctta.adapt(golden_net(F64), "adacontrast", bn_mode="batch", **SMALL)
    for x in golden_stream(F64)[:3]:
        assert torch.equal(adapter(x), adapter.predict(x))
    layers = [layer for layer in adapter.model.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert layers
    assert all(layer.running_mean is None for layer in layers)


def test_running_statistics_lag_behind_a_sudden_shift_and_batch_statistics_do_not():
    shifted = 0.2 * golden_stream(F64)[0] + 0.7
    still = {**SMALL, "lr": 0.0}
    expected = ctta.adapt(golden_net(F64), "bn1")(shifted)
    batch = ctta.adapt(golden_net(F64), "adacontrast", bn_mode="batch", **still)(shifted)
    running = ctta.adapt(golden_net(F64), "adacontrast", **still)(shifted)
    assert (batch - expected).abs().max() < 1e-9
    assert (running - expected).abs().max() > 0.1
