"""EcoTTA: meta networks beside a frozen network, with and without a warm-up."""

import copy
import math
import os
import pickle

import pytest
import torch
from tests.conftest import Block, GoldenNet, golden_net, golden_stream
from torch import nn
from torch.nn import functional as F

import ctta
from ctta._core import checkpoint
from ctta.bench.cell import Cell, prepare
from ctta.checks.networks import NETWORKS
from ctta.methods.ecotta.ecotta import NOT_WARM, WARM_UP, EcottaSettings
from ctta.methods.ecotta.meta_networks import attach, meta_networks, split_blocks
from ctta.models import build, find_stages, load

EMBEDDED_FILE = WARM_UP.file(EcottaSettings(warmup="embedded:"))

F64 = torch.float64


@pytest.fixture(scope="module")
def stream64():
    return [x[:8, :, ::2, ::2].contiguous() for x in golden_stream(F64)[:4]]


def run(stream, model=None, **settings):
    adapter = ctta.adapt(golden_net(F64) if model is None else model, "ecotta", **settings)
    return adapter, [adapter(x) for x in stream]


def furthest(some, others):
    return max((a - b).abs().max().item() for a, b in zip(some, others, strict=True))


# ---------------------------------------------------------------- parts


def test_the_networks_of_the_paper_are_split_as_there():
    assert split_blocks((4, 4, 4), 5) == (2, 2, 2, 2, 4)
    assert split_blocks((4, 4, 4), 4) == (2, 2, 4, 4)
    assert split_blocks((6, 6, 6), 5) == (3, 3, 3, 3, 6)
    assert split_blocks((6, 6, 6), 4) == (3, 3, 6, 6)
    assert split_blocks((3, 4, 6, 3), 5) == (2, 2, 4, 4, 4)
    assert split_blocks((3, 4, 6, 3), 4) == (3, 3, 5, 5)


@pytest.mark.parametrize("counts", [(1,), (1, 1, 1), (2, 2, 2, 2), (3, 3, 3), (18, 18, 18)])
@pytest.mark.parametrize("parts", [1, 3, 5, 7])
def test_other_networks_are_split_whole_and_evenly_with_the_larger_parts_last(counts, parts):
    sizes = split_blocks(counts, parts)
    assert sum(sizes) == sum(counts)
    assert len(sizes) == min(parts, sum(counts))
    assert list(sizes) == sorted(sizes)
    assert max(sizes) - min(sizes) <= 1


def test_parts_that_do_not_add_up_are_refused():
    for bad in (0, "-1", "two", "2,0", ""):
        with pytest.raises(ctta.SettingError, match="number or sizes above 0"):
            split_blocks((2, 2), bad)
    with pytest.raises(ctta.SettingError, match="share out the 4 blocks"):
        split_blocks((2, 2), "1,2")


def test_wrn_28_gets_the_widths_and_strides_of_the_paper():
    model = build("wrn-28-1")  # the paper's WRN-28-10, ten times narrower
    attach(model, find_stages(model), 5, seed=0)
    shapes = [(m.conv.in_channels, m.conv.out_channels, *m.conv.stride) for m in meta_networks(model)]
    assert shapes == [(16, 16, 1, 1), (16, 16, 1, 1), (16, 32, 2, 2), (32, 32, 1, 1), (32, 64, 2, 2)]


# ---------------------------------------------------------------- without a warm-up


def test_without_a_warm_up_the_first_batch_is_answered_as_by_the_source_network(stream64):
    for bn, method in (("batch", "bn1"), ("source", "source")):
        adapter = ctta.adapt(golden_net(F64), "ecotta", bn_mode=bn)
        expected = ctta.adapt(golden_net(F64), method)(stream64[0])
        assert torch.equal(adapter.predict(stream64[0]), expected)
        assert (adapter(stream64[0]) - expected).abs().max() < 1e-10
        assert NOT_WARM in adapter.last.notes
        assert "drift" not in adapter.last.losses  # zero, and its gradient nothing but rounding
        adapter(stream64[1])
        assert adapter.last.losses["drift"] > 0


def test_every_meta_network_moves_and_nothing_else_does(stream64):
    adapter = ctta.adapt(golden_net(F64), "ecotta", entropy_margin=1.0)
    adapter(stream64[0])
    begun = {name: value.detach().clone() for name, value in adapter.method.adapted.items()}
    for x in stream64[1:]:
        adapter(x)
    for name, value in adapter.method.adapted.items():
        assert not torch.equal(value, begun[name]), f"{name} never moved"
        assert "meta_networks" in name
    held = dict(adapter.model.named_parameters())
    for name, value in golden_net(F64).named_parameters():
        assert torch.equal(held[name], value)
    assert len(meta_networks(adapter.model)) == 3  # never more parts than blocks


def test_a_first_batch_without_variance_waits_for_a_better_one():
    """One image whose last maps are a single pixel says nothing about the spread of a channel."""
    adapter = ctta.adapt(golden_net(F64), "ecotta", entropy_margin=1.0)
    pixel = torch.rand(1, 3, 4, 4, dtype=F64)
    before = adapter.state_dict()
    assert torch.equal(adapter(pixel), ctta.adapt(golden_net(F64), "bn1")(pixel))
    assert any("more than one value per channel" in note for note in adapter.last.notes)
    after = adapter.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items() if key != "adapter")
    adapter(torch.rand(4, 3, 16, 16, dtype=F64))
    assert adapter.last.shares["moved"] == 1.0
    assert adapter(pixel).isfinite().all()  # and then falls back on the statistics of that batch


def test_reset_starts_anew_the_same_way(stream64):
    adapter, first = run(stream64)
    adapter.reset()
    assert not any(m.ready for m in meta_networks(adapter.model))
    assert all(torch.equal(adapter(x), logits) for x, logits in zip(stream64, first, strict=True))


# ---------------------------------------------------------------- against a plain reference


class Plain(nn.Module):
    """The golden network with meta networks written into its forward pass, as plain layers."""

    def __init__(self, adapter):
        super().__init__()
        source = golden_net(F64)
        self.stem = nn.Sequential(source.conv1, source.bn1, nn.ReLU())
        self.parts = nn.ModuleList([source.layer1, source.layer2, source.layer3])
        self.fc = source.fc
        self.meta = nn.ModuleList()
        for meta in meta_networks(adapter.model):
            bn, conv_bn = (nn.BatchNorm2d(len(meta.bn.weight), dtype=F64) for _ in range(2))
            bn.load_state_dict(meta.bn.state_dict(), strict=False)
            conv_bn.load_state_dict(meta.conv_bn.state_dict(), strict=False)
            self.meta.append(nn.ModuleList([bn, copy.deepcopy(meta.conv), conv_bn]))
        self.double().train().requires_grad_(False)
        self.meta.requires_grad_(True)

    def forward(self, x, detach=False):
        x, drifts = self.stem(x), []
        for part, (bn, conv, conv_bn) in zip(self.parts, self.meta, strict=True):
            x = x.detach() if detach else x
            features = part(x)
            x = bn(features) + F.relu(conv_bn(conv(x)))
            drifts.append((x - features.detach()).abs().mean())
        return self.fc(x.mean((2, 3))), drifts


def filtered(logits, factor):
    entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
    return entropy[entropy < factor * math.log(10)].mean()


def warmed(seed=3):
    """An adapter whose meta networks are ready and anything but the identity."""
    adapter = ctta.adapt(golden_net(F64), "ecotta", entropy_margin=1.0)
    disturb(adapter, seed)
    return adapter


def disturb(adapter, seed=3):
    generator = torch.Generator().manual_seed(seed)
    for meta in meta_networks(adapter.model):
        meta.ready.fill_(True)
        for parameter in meta.parameters():
            parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)


def reference(stream, adapter, *, lr=5e-3, momentum=0.9, lambda_r=0.25, two_step=True, detach=True, margin=1.0):
    net = Plain(adapter)
    optimizer = torch.optim.SGD(net.meta.parameters(), lr=lr, momentum=momentum)
    answers = []
    for x in stream:
        if two_step and lambda_r:
            optimizer.zero_grad()
            for drift in net(x, detach)[1]:
                (lambda_r * drift).backward(retain_graph=True)
            optimizer.step()
        optimizer.zero_grad()
        logits, drifts = net(x)
        loss = filtered(logits, margin)
        if not two_step and lambda_r:
            loss = loss + lambda_r * sum(net(x, True)[1] if detach else drifts)
        loss.backward()
        optimizer.step()
        answers.append(logits.detach())
    return answers


@pytest.mark.parametrize(
    ("settings", "plain"),
    [
        ({}, {}),
        ({"lambda_r": 2.0}, {"lambda_r": 2.0}),
        ({"lambda_r": 0.0}, {"lambda_r": 0.0}),
        ({"lr": 0.05, "momentum": 0.5}, {"lr": 0.05, "momentum": 0.5}),
        ({"detach_parts": False}, {"detach": False}),
        ({"variant": "paper"}, {"two_step": False, "detach": False, "lambda_r": 0.5}),
        ({"two_step": False}, {"two_step": False}),
        ({"entropy_margin": 0.6}, {"margin": 0.6}),
    ],
    ids=str,
)
def test_it_equals_meta_networks_written_into_the_network_with_torch_optim(stream64, settings, plain):
    adapter = ctta.adapt(golden_net(F64), "ecotta", **{"entropy_margin": 1.0, **settings})
    disturb(adapter)
    expected = reference(stream64, adapter, **plain)
    assert furthest([adapter(x) for x in stream64], expected) < 1e-8
    if settings:
        assert furthest([warmed()(x) for x in stream64], expected) > 1e-7


def test_an_empty_filter_is_noted_and_moves_nothing_but_by_drift(stream64):
    adapter = ctta.adapt(golden_net(F64), "ecotta", entropy_margin=0.0, lambda_r=0.0)
    disturb(adapter)
    before = {name: value.detach().clone() for name, value in adapter.method.adapted.items()}
    adapter(stream64[0])
    assert adapter.last.kept == 0
    assert any("entropy margin" in note for note in adapter.last.notes)
    assert all(torch.equal(value, before[name]) for name, value in adapter.method.adapted.items())


def test_the_regulariser_pulls_towards_the_frozen_network(stream64):
    drifts = []
    adapter = ctta.adapt(golden_net(F64), "ecotta", entropy_margin=0.0, lambda_r=20.0, lr=0.05)
    disturb(adapter)
    for _ in range(5):
        adapter(stream64[0])
        drifts.append(adapter.last.losses["drift"])
    assert drifts[-1] < 0.9 * drifts[0]


# ---------------------------------------------------------------- as part of the model


def test_the_parts_setting_is_honoured(stream64):
    adapter, _ = run(stream64[:1], parts=2)
    assert [m.conv.in_channels for m in meta_networks(adapter.model)] == [8, 8]
    adapter, _ = run(stream64[:1], parts=[2, 1])
    assert [(m.conv.in_channels, m.conv.stride[0]) for m in meta_networks(adapter.model)] == [(8, 2), (16, 2)]


def test_the_stages_setting_is_honoured(stream64):
    adapter, _ = run(stream64[:1], stages="layer2,layer3")
    assert [m.conv.out_channels for m in meta_networks(adapter.model)] == [16, 32]


def test_copies_and_pickles_of_an_adapter_go_their_own_way(stream64):
    adapter = warmed()
    adapter(stream64[0])
    for twin in (copy.deepcopy(adapter), pickle.loads(pickle.dumps(adapter))):
        expected = copy.deepcopy(adapter)(stream64[1])
        before = adapter.state_dict()
        assert torch.equal(twin(stream64[1]), expected)
        after = adapter.state_dict()
        assert all(torch.equal(after[key], value) for key, value in before.items())


def test_a_model_that_holds_meta_networks_is_refused(stream64):
    adapter, _ = run(stream64[:1])
    with pytest.raises(ctta.UnsupportedModelError, match="meta networks already"):
        ctta.adapt(adapter.freeze(), "ecotta")


class Backwards(GoldenNet):
    def forward(self, x):
        self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return super().forward(x)


class Tokens(GoldenNet):
    """Its first stage works on vectors."""

    def __init__(self):
        super().__init__()
        self.layer1 = nn.Sequential(nn.Sequential(nn.Linear(8, 8)))

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer1(x.mean((2, 3)))[:, :, None, None] + x
        return self.fc(self.layer3(self.layer2(x)).mean((2, 3)))


def containers():
    block = nn.Sequential(nn.Conv2d(3, 3, 1))
    stages = {f"layer{n}": nn.Sequential(copy.deepcopy(block)) for n in (1, 2)}
    return nn.Sequential(*[nn.ModuleDict(stages)])


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Backwards, "once each, in the order of their names"),
        (Tokens, "stand between maps"),
        (containers, "made of containers alone"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), "no stages under a known name"),
    ],
    ids=["twice", "vectors", "containers", "no stages"],
)
def test_networks_that_cannot_have_meta_networks_are_refused_with_the_reason(model, words):
    with pytest.raises(ctta.UnsupportedModelError, match=words):
        ctta.adapt(model(), "ecotta")


class Halving(GoldenNet):
    """Loses a row where a strided convolution would keep it."""

    def __init__(self):
        super().__init__()
        self.layer2 = nn.Sequential(nn.Sequential(nn.MaxPool2d(2), Block(8, 16, 1)))


def test_an_image_size_that_does_not_suit_the_meta_networks_is_refused_in_words():
    adapter = ctta.adapt(Halving(), "ecotta")
    assert adapter(torch.rand(4, 3, 16, 16)).shape == (4, 10)
    with pytest.raises(ctta.ModelError, match="sides are a power of two"):
        adapter(torch.rand(4, 3, 15, 15))


def test_probing_leaves_no_trace_in_the_callers_random_state_or_in_buffers():
    state = torch.get_rng_state()
    model = NETWORKS["resnet"].make().train()
    adapter = ctta.adapt(model, "ecotta", inplace=True, bn_mode="source")
    assert torch.equal(torch.get_rng_state(), state)
    fresh = dict(NETWORKS["resnet"].make().named_buffers())
    assert all(torch.equal(value, fresh[name]) for name, value in adapter.model.named_buffers() if name in fresh)


# ---------------------------------------------------------------- the embedded model's meta networks


def test_the_embedded_model_comes_with_meta_networks_and_other_models_begin_without():
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    warm = ctta.adapt(load("embedded:"), "ecotta", preset="embedded")
    cold = ctta.adapt(load("embedded:"), "ecotta", preset="embedded", warmup="")
    assert not torch.equal(warm.predict(images), cold.predict(images))
    warm(images)
    assert NOT_WARM not in warm.last.notes
    other = ctta.adapt(golden_net(), "ecotta", preset="embedded")
    other(images)
    assert NOT_WARM in other.last.notes


def test_meta_networks_are_part_of_what_a_cell_is(tmp_path):
    file = tmp_path / "meta.safetensors"
    file.write_bytes(EMBEDDED_FILE.read_bytes())

    def key(warmup):
        return prepare(Cell("ecotta", settings={"warmup": warmup}, images=10, batch_size=10)).key

    before = key(str(file))
    assert key(str(file)) == before
    file.write_bytes(file.read_bytes() + b"\0")
    assert key(str(file)) != before
    assert prepare(Cell("ecotta", settings={"warmup": "embedded:"}, images=10, batch_size=10)).manifest["files"]


def test_a_saved_adapter_needs_its_warm_up_file_no_more_and_opens_none_that_a_file_names(tmp_path):
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    file = tmp_path / "warm.safetensors"
    file.write_bytes(EMBEDDED_FILE.read_bytes())
    adapter = ctta.adapt(load("embedded:"), "ecotta", warmup=str(file))
    first = adapter(images)
    adapter.save(tmp_path / "a")
    file.unlink()
    twin = ctta.load(tmp_path / "a", load("embedded:"))
    assert torch.equal(twin(images), adapter(images))
    assert (twin.last, twin.settings, twin.fingerprint) == (adapter.last, adapter.settings, adapter.fingerprint)
    twin.reset()
    assert torch.equal(twin(images), first)
    tensors, header = checkpoint.read(tmp_path / "a")
    old = {key: value for key, value in tensors.items() if not key.startswith("source/")}
    checkpoint.write(tmp_path / "old", old, header)
    os.mkfifo(file)  # whoever opened it would wait without end
    with pytest.raises(ctta.StateError, match="older ctta"):
        ctta.load(tmp_path / "old", load("embedded:"))
