"""SFT: only the first stage moves, every setting is honoured, and nothing is computed that is not needed."""

import copy
import math

import pytest
import torch
from tests.conftest import GoldenNet, fixed_augment, flops, golden_net, golden_stream
from torch import nn
from torch.nn import functional as F

import ctta
from ctta.models import build

F64 = torch.float64
MARGIN = 0.4 * math.log(10)


@pytest.fixture(scope="module")
def stream64():
    return [x[:8, :, ::2, ::2].contiguous() for x in golden_stream(F64)[:4]]


def run(stream, model=None, augment=fixed_augment, **settings):
    adapter = ctta.adapt(golden_net(F64) if model is None else model, "sft", augment=augment, **settings)
    return adapter, [adapter(x) for x in stream]


def moved(adapter):
    before = dict(golden_net(F64).named_parameters())
    return {name for name, value in adapter.model.named_parameters() if not torch.equal(value, before[name])}


def reference(stream, *, names, optimizer, lam=0.01, margin=MARGIN, source_bn=False, steps=1):
    """SFT written with torch.optim and a full backward pass."""
    net = golden_net(F64).train(not source_bn)
    chosen = [value for name, value in net.named_parameters() if name.startswith(names)]
    opt = optimizer(chosen)
    answers = []
    for x in stream:
        for _ in range(steps):
            logits, view = net(x), net(fixed_augment(x))
            entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
            loss = -lam * (logits.softmax(1) * view.log_softmax(1)).sum(1).mean()
            if (entropy < margin).any():
                loss = loss + entropy[entropy < margin].mean()
            net.zero_grad()
            loss.backward()
            opt.step()
        answers.append(logits.detach())
    return net, answers


def nesterov(parameters):
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, nesterov=True)


def test_spec_11_only_first_stage_tensors_move_and_the_rest_is_bit_identical(stream64):
    adapter, _ = run(stream64)
    assert moved(adapter) == {name for name, _ in golden_net().named_parameters() if name.startswith("layer1.")}
    assert set(adapter.method.adapted) == moved(adapter)


@pytest.mark.parametrize(
    ("name", "stage"), [("wrn-10-1", "block1."), ("resnext-29", "stage_1."), ("resnet-18", "model.layer1.")]
)
def test_spec_11_the_first_stage_of_each_architecture_and_its_size(name, stage):
    with torch.device("meta"):
        model = build(name)
    adapted = ctta.adapt(model, "sft", inplace=True).method.adapted
    assert set(adapted) == {key for key, _ in model.named_parameters() if key.startswith(stage)}
    if name == "resnext-29":
        assert sum(value.numel() for value in adapted.values()) == 302_592


def test_spec_11_wrn_28_10_adapts_what_the_palm_repository_adapts():
    with torch.device("meta"):
        model = build("wrn-28-10")
    assert ctta.adapt(model, "sft", inplace=True).method.size == 1_640_672


@pytest.mark.parametrize("steps", [1, 2])
def test_it_equals_torch_optim_with_a_full_backward_pass(stream64, steps):
    net, expected = reference(stream64, names="layer1.", optimizer=nesterov, steps=steps)
    adapter, logits = run(stream64, steps=steps)
    assert max((a - b).abs().max() for a, b in zip(logits, expected, strict=True)) < 1e-10
    for name, value in net.named_parameters():
        if name.startswith("layer1."):
            assert (dict(adapter.model.named_parameters())[name] - value).abs().max() < 1e-10, name


def test_the_original_moves_the_stem_too_with_adam_decay_and_source_statistics(stream64):
    def adam(parameters):
        return torch.optim.Adam(parameters, lr=1e-3, weight_decay=1e-4)

    names = ("conv1.", "bn1.", "layer1.")
    _, expected = reference(stream64, names=names, optimizer=adam, source_bn=True)
    adapter, logits = run(stream64, variant="original")
    assert max((a - b).abs().max() for a, b in zip(logits, expected, strict=True)) < 1e-8
    assert {name.split(".")[0] for name in moved(adapter)} == {"conv1", "bn1", "layer1"}


@pytest.mark.parametrize(
    ("settings", "optimizer"),
    [
        ({"nesterov": False}, lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9)),
        ({"momentum": 0.0}, lambda p: torch.optim.SGD(p, lr=1e-3)),
        ({"lr": 1e-2}, lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True)),
        (
            {"weight_decay": 0.1},
            lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, nesterov=True, weight_decay=0.1),
        ),
        ({"optimizer": "adam", "momentum": 0.5}, lambda p: torch.optim.Adam(p, lr=1e-3, betas=(0.5, 0.999))),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_optimiser_settings_are_those_of_torch(stream64, settings, optimizer):
    _, expected = reference(stream64, names="layer1.", optimizer=optimizer)
    _, logits = run(stream64, **settings)
    assert max((a - b).abs().max() for a, b in zip(logits, expected, strict=True)) < 1e-8


@pytest.mark.parametrize(
    ("settings", "changed"),
    [
        ({"lam": 0.5}, {"lam": 0.5}),
        ({"lam": 0.05, "consistency_scale": "classes"}, {"lam": 0.5}),
        ({"entropy_margin": 0.7}, {"margin": 0.7 * math.log(10)}),
        ({"entropy_margin": 1.5, "margin_unit": "nats"}, {"margin": 1.5}),
        ({"bn_mode": "source"}, {"source_bn": True}),
    ],
    ids=str,
)
def test_loss_and_statistics_settings_are_honoured(stream64, settings, changed):
    _, expected = reference(stream64, names="layer1.", optimizer=nesterov, **changed)
    _, logits = run(stream64, **settings)
    assert max((a - b).abs().max() for a, b in zip(logits, expected, strict=True)) < 1e-10
    _, plain = run(stream64)
    assert any((a - b).abs().max() > 1e-9 for a, b in zip(logits, plain, strict=True))


def test_lambda_zero_never_calls_the_augmentation(stream64):
    def refuse(x):
        raise AssertionError("the view was made")

    adapter, _ = run(stream64, augment=refuse, lam=0)
    assert adapter.last.losses.keys() == {"entropy", "total"}
    with pytest.raises(AssertionError, match="the view was made"):
        run(stream64, augment=refuse)


def test_an_empty_filter_leaves_the_consistency_gradient_and_says_so(stream64):
    adapter, logits = run(stream64, entropy_margin=0.0)
    _, expected = reference(stream64, names="layer1.", optimizer=nesterov, margin=-1.0)
    assert max((a - b).abs().max() for a, b in zip(logits, expected, strict=True)) < 1e-10
    assert adapter.last.kept == 0
    assert "no sample below the entropy margin 0" in adapter.last.notes
    still, _ = run(stream64, entropy_margin=0.0, lam=0)
    assert moved(still) == set()


def test_the_stages_setting_moves_another_first_stage(stream64):
    for names in ("layer2,layer3", ["layer2", "layer3"]):
        adapter, _ = run(stream64[:1], stages=names)
        assert {name.split(".")[0] for name in moved(adapter)} == {"layer2"}
        assert adapter.settings.stages == "layer2,layer3"
    with pytest.raises(ctta.UnsupportedModelError, match="fc of GoldenNet has none"):
        run(stream64, stages="fc")
    with pytest.raises(ctta.SettingError, match="a string with commas or a list"):
        run(stream64, stages=3)


def test_a_network_without_stages_is_refused_by_name():
    with pytest.raises(
        ctta.UnsupportedModelError, match=r"Its top-level modules are: 0 \(Conv2d\), 1 \(Flatten\)"
    ):
        ctta.adapt(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten()), "sft")


def test_only_what_is_needed_is_computed():
    model, x = build("wrn-10-1"), torch.rand(2, 3, 32, 32)

    with torch.no_grad():
        unit = flops(lambda: model(x))
    surgical = flops(lambda: ctta.adapt(model, "sft")(x)) / unit
    full = flops(lambda: ctta.adapt(model, "sft", scope="stem-and-first-stage")(x)) / unit
    everything = flops(lambda: F.cross_entropy(model(x), torch.tensor([0, 1])).backward()) / unit
    assert surgical < full < 2 * everything
    assert surgical < 5.0  # two forward passes, input gradients everywhere, weight gradients in one stage of three


class Dropping(GoldenNet):
    """The golden network with dropout before its classifier."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        return self.fc(self.dropout(self.layer3(self.layer2(self.layer1(x))).mean((2, 3))))


def dropping():
    net = Dropping().double()
    net.load_state_dict(golden_net(F64).state_dict())
    return net


def test_train_mode_drops_in_steps_alone_and_repeats_with_the_seed(stream64):
    net, state = dropping(), torch.get_rng_state()
    runs = [run(stream64, net, mode="train", seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), state)
    (one, first), (_, again), (_, other) = runs
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], run(stream64, net)[1][0])
    assert torch.equal(one.predict(stream64[0]), one.predict(stream64[0]))
    assert not any(module.training for module in one.model.modules())


def test_train_mode_leaves_eval_mode_behind_when_a_step_is_interrupted(stream64):
    adapter = ctta.adapt(dropping(), "sft", mode="train")

    def interrupt(*_):
        raise KeyboardInterrupt

    hook = adapter.model.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        adapter(stream64[0])
    hook.remove()
    assert not any(module.training for module in adapter.model.modules())


def test_train_mode_resumes_bit_for_bit(stream64, tmp_path):
    adapter = ctta.adapt(dropping(), "sft", mode="train", seed=4)
    for x in stream64[:2]:
        adapter(x)
    adapter.save(tmp_path / "adapter")
    twin, copied = ctta.load(tmp_path / "adapter", dropping()), copy.deepcopy(adapter)
    for x in stream64[2:]:
        expected = adapter(x)
        assert torch.equal(twin(x), expected)
        assert torch.equal(copied(x), expected)
