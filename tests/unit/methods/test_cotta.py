"""CoTTA: who answers, who moves, who is restored; and agreement with a plain reference."""

import copy
import threading

import pytest
import torch
from tests.conftest import fixed_augment, golden_net, golden_stream
from torch import nn

import ctta
from ctta.checks.networks import NETWORKS
from ctta.methods import find

F64 = torch.float64


@pytest.fixture(scope="module")
def stream64():
    return [x[:6] for x in golden_stream(F64)[::3]]


def cotta(model=None, **settings):
    settings.setdefault("augment", fixed_augment)
    settings.setdefault("views", 2)
    return ctta.adapt(golden_net(F64) if model is None else model, "cotta", **settings)


def values(module):
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def close(one, other, atol=1e-9):
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=0, atol=atol)


def test_spec_12_restoring_everything_returns_the_student_to_the_source(stream64):
    adapter = cotta(restore=1.0)
    source = values(adapter.model)
    for x in stream64:
        adapter(x)
        assert same(values(adapter.model), source)
    assert not same(values(adapter.method.teacher), source), "the teacher saw the student before it was restored"


@pytest.mark.parametrize("restore", [0.0, 1.0])
def test_spec_12_without_momentum_the_teacher_is_the_student_before_it_is_restored(restore, stream64):
    adapter, unrestored = cotta(teacher_momentum=0.0, restore=restore), cotta(teacher_momentum=0.0, restore=0.0)
    for method in (adapter, unrestored):
        method(stream64[0])
    assert same(values(adapter.method.teacher), values(unrestored.model))
    assert same(values(unrestored.method.teacher), values(unrestored.model))


@pytest.mark.parametrize("confidence", [0.0, 1.0])
def test_spec_12_the_output_is_the_teachers_before_the_update(confidence, stream64):
    adapter = cotta(
        confidence=confidence, teacher_momentum=0.5, lr=1e-2, weight_decay=1e-2
    )  # which moves a student that agrees, too
    for x in stream64:
        teacher = copy.deepcopy(adapter.method.teacher)
        with torch.no_grad():
            expected = teacher(fixed_augment(x)) if confidence else teacher(x)
            student = adapter.model(x)
        logits = adapter(x)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)
        if x is not stream64[0]:
            assert (logits - student).abs().max() > 1e-3


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "plain-sgd"])
@pytest.mark.parametrize("loss", ["cross-entropy", "symmetric"])
def test_the_run_equals_one_written_out_with_torch_optimisers(optimizer, loss, stream64):
    lr, decay = 1e-2, 1e-2
    student = golden_net(F64).train()  # in train mode BatchNorm normalises with the batch
    teacher = copy.deepcopy(student)
    optimizers = {
        "adam": lambda p: torch.optim.Adam(p, lr, betas=(0.8, 0.999), weight_decay=decay),
        "sgd": lambda p: torch.optim.SGD(p, lr, 0.8, weight_decay=decay, nesterov=True),
        "plain-sgd": lambda p: torch.optim.SGD(p, lr, 0.8, weight_decay=decay),
    }
    torchs = optimizers[optimizer](student.parameters())
    adapter = cotta(
        lr=lr,
        loss=loss,
        optimizer=optimizer.removeprefix("plain-"),
        nesterov=optimizer == "sgd",
        momentum=0.8,
        weight_decay=decay,
        teacher_momentum=0.9,
        restore=0.0,
        confidence=0.0,
    )
    for x in stream64:
        with torch.no_grad():
            t = teacher(x)
        l = student(x)
        value = -(t.softmax(1) * l.log_softmax(1)).sum(1).mean()
        if loss == "symmetric":
            value = (value - (l.softmax(1) * t.log_softmax(1)).sum(1).mean()) / 2
        torchs.zero_grad()
        value.backward()
        torchs.step()
        with torch.no_grad():
            for a, b in zip(teacher.parameters(), student.parameters(), strict=True):
                a.copy_(0.9 * a + 0.1 * b)
        assert (adapter(x) - t).abs().max() < 1e-9
        assert adapter.last.losses["total"] == pytest.approx(value.item())
    close(values(adapter.model), values(student))
    close(values(adapter.method.teacher), values(teacher))


def test_views_are_averaged_only_where_the_anchor_is_unsure(stream64):
    calls = []

    def counted(x):
        calls.append(len(x))
        return fixed_augment(x)

    x = stream64[0]
    with torch.no_grad():
        confidence = golden_net(F64).train()(x).softmax(1).amax(1).mean().item()
    for ap, expected in ((0.0, 0), (confidence - 1e-6, 0), (confidence + 1e-6, 5), (1.0, 5)):
        calls.clear()
        adapter = cotta(confidence=ap, views=5, augment=counted)
        adapter(x)
        assert len(calls) == expected
        assert ("averaged 5 views" in str(adapter.last.notes)) == (expected > 0)


def test_the_anchor_stays_the_source_and_the_classifier_moves(stream64):
    adapter = cotta(teacher_momentum=0.5, restore=0.0)
    source = values(golden_net(F64))
    for x in stream64:
        adapter(x)
    assert same(values(adapter.method.anchor), source)
    assert all(not torch.equal(value, source[name]) for name, value in values(adapter.model).items())


def test_restored_elements_are_those_the_documented_draws_name(stream64):
    adapter, unrestored = cotta(restore=0.3, seed=7), cotta(restore=0.0, seed=7)
    for method in (adapter, unrestored):
        method(stream64[0])
    draws = torch.Generator().manual_seed(7)  # an augmentation of the caller's draws nothing from it
    free, source = values(unrestored.model), values(golden_net(F64))
    for name, value in values(adapter.model).items():
        mask = torch.rand(value.shape, generator=draws) < 0.3
        assert torch.equal(value, torch.where(mask, source[name], free[name])), name


def test_predict_says_what_the_next_step_says_and_draws_nothing(stream64):
    adapter = cotta(augment=None, restore=0.1)
    for x in stream64[:2]:
        before = adapter.method.rng.state()
        answer = adapter.predict(x)
        assert torch.equal(answer, adapter.predict(x))
        assert torch.equal(adapter.method.rng.state(), before)
        assert torch.equal(answer, adapter(x))
    assert "averaged 2 views" in str(adapter.last.notes)


def test_freeze_gives_the_teacher_that_answers_alike_every_time(stream64):
    adapter = cotta(augment=None, teacher_momentum=0.5, lr=1e-2)
    for x in stream64[:2]:
        adapter(x)
    plain, x = adapter.freeze(), stream64[2]
    answer = adapter.predict(x)
    assert torch.equal(plain(x), answer)
    assert torch.equal(plain(x), answer)
    assert same(values(plain.teacher), values(adapter.method.teacher))
    assert not any(p.requires_grad for p in plain.parameters())
    assert copy.deepcopy(plain).state_dict().keys() == plain.state_dict().keys()


def test_a_frozen_teacher_converts_like_any_module(stream64):
    adapter = cotta(confidence=1.0)
    adapter(stream64[0])
    answer = adapter.predict(stream64[1])
    logits = adapter.freeze().float()(stream64[1].float())
    assert logits.dtype == torch.float32
    assert (logits - answer).abs().max() < 1e-3


def test_parameters_without_the_names_weight_or_bias_stay_unless_all_are_asked_for():
    vit = NETWORKS["vit"].make()
    named, everything = cotta(vit), cotta(vit, parameters="all")
    left_out = {"token", "position", "attention.in_proj_weight", "attention.in_proj_bias"}
    assert everything.method.adapted.keys() - named.method.adapted.keys() == left_out
    assert named.method.adapted.keys() < everything.method.adapted.keys()


def test_a_model_with_no_weight_and_no_bias_is_refused_with_the_way_out():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.matrix = nn.Parameter(torch.randn(48, 5))

        def forward(self, x):
            return x.flatten(1) @ self.matrix

    with pytest.raises(ctta.UnsupportedModelError, match='parameters="all"'):
        cotta(Odd())
    assert cotta(Odd(), parameters="all", confidence=0)(torch.rand(3, 3, 4, 4)).shape == (3, 5)


def test_a_model_that_cannot_be_copied_is_refused_with_the_reason():
    net = golden_net()
    net.lock = threading.Lock()
    with pytest.raises(ctta.ModelError, match="needs copies of the model"):
        cotta(net, inplace=True)


def test_more_steps_repeat_the_whole_procedure(stream64):
    once, twice = cotta(restore=0.1), cotta(restore=0.1, steps=2)
    once(stream64[0])
    assert torch.equal(twice(stream64[0]), once(stream64[0]))
    assert same(values(twice.model), values(once.model))


def test_reset_returns_student_teacher_and_moments(stream64):
    adapter = cotta(restore=0.1, augment=None)
    first = [adapter(x) for x in stream64]
    assert adapter.method.mean
    adapter.reset()
    source = values(golden_net(F64))
    assert same(values(adapter.model), source)
    assert same(values(adapter.method.teacher), source)
    assert adapter.method.mean == adapter.method.velocity == {}
    assert all(torch.equal(adapter(x), logits) for x, logits in zip(stream64, first, strict=True))


def test_half_precision_models_run(stream):
    adapter = cotta(golden_net().bfloat16(), lr=1e-2, teacher_momentum=0.5)
    for x in stream[:2]:
        assert adapter(x[:4].bfloat16()).isfinite().all()
        assert not adapter.last.skipped
    assert {p.dtype for p in adapter.method.teacher.parameters()} == {torch.bfloat16}


def test_presets_carry_the_published_values():
    entry = find("cotta")
    found = {name: entry.resolve(name, {}) for name in ("cifar10-c", "cifar100-c", "imagenet-c")}
    assert [s.confidence for s in found.values()] == [0.92, 0.72, 0.1]
    assert [s.restore for s in found.values()] == [0.01, 0.01, 0.001]
    assert [s.lr for s in found.values()] == [1e-3, 1e-3, 0.01]
    assert {(s.teacher_momentum, s.views, s.momentum, s.nesterov) for s in found.values()} == {
        (0.999, 32, 0.9, True)
    }
    assert [(s.optimizer, s.loss) for s in found.values()] == [("adam", "cross-entropy")] * 2 + [
        ("sgd", "symmetric")
    ]
