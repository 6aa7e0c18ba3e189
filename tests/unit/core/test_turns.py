"""Turns: what an adapter does happens whole or not at all, whoever else is at it, whatever stops it."""

import copy
import os
import pickle
import random
import sys
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import ctta
from ctta.checks.networks import NETWORKS

RESNET = NETWORKS["resnet"]
METHODS = [entry.name for entry in ctta.list_methods()]
FEWER_VIEWS = {"cotta": {"views": 1}, "dss": {"views": 1}}
MEMORIES = {"refine_after": 4, "queue_size": 16, "bank_size": 16}
STREAM = RESNET.stream((4, 4, 4))


def adapter_of(name, model=None, **settings):
    return ctta.adapt(model or RESNET.make(), name, **FEWER_VIEWS.get(name, {}), **settings)


def tensors(adapter):
    return {key: value.clone() for key, value in adapter.method.state().tensors.items()}


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(value, other[key]) for key, value in one.items())


# ------------------------------------------------------------------ networks that keep features


@dataclass
class Record:
    last: Any = None


class Keeper:
    """Keeps the output of a layer in every kind of container there is."""

    def __init__(self):
        self.seen, self.record, self.recent = {"deep": [()]}, Record(), deque(maxlen=2)

    def see(self, _module, _inputs, output):
        self.seen["deep"] = [(output, {"again": output})]
        self.record.last = output
        self.recent.append(output)


def keeping():
    net = RESNET.make()
    net.keeper = Keeper()
    net.bn1.register_forward_hook(net.keeper.see)
    net(STREAM[0])  # once with gradients
    return net


@pytest.mark.parametrize("name", METHODS)
def test_networks_that_keep_features_in_containers_work_with_every_method(name):
    adapter, plain = adapter_of(name, keeping()), adapter_of(name)
    new = tensors(adapter)
    assert torch.equal(adapter(STREAM[0]), plain(STREAM[0]))
    assert torch.equal(copy.deepcopy(adapter)(STREAM[1]), pickle.loads(pickle.dumps(adapter))(STREAM[1]))
    assert torch.equal(adapter.freeze()(STREAM[1]), adapter.predict(STREAM[1]))
    adapter.reset()
    assert equal(tensors(adapter), new)
    assert adapter.batches == 0


def test_a_reset_keeps_the_networks_it_has_and_gives_them_the_values_of_the_source():
    adapter = adapter_of("cotta", teacher_momentum=0.0, restore=0.0, lr=0.1)
    teacher, anchor, source = adapter.method.teacher, adapter.method.anchor, tensors(adapter)
    adapter(STREAM[0])
    moved = tensors(adapter)
    assert not torch.equal(moved["teacher/conv1.weight"], source["teacher/conv1.weight"])
    adapter.reset()
    assert adapter.method.teacher is teacher
    assert adapter.method.anchor is anchor
    assert equal(tensors(adapter), source)


def test_a_buffer_that_two_modules_share_survives_a_reset():
    net = RESNET.make()
    mask = torch.ones(3)
    net.conv1.register_buffer("mask", mask)
    net.bn1.register_buffer("mask", mask)
    adapter = adapter_of("tent", net)
    adapter(STREAM[0])
    adapter.reset()
    assert adapter.model.bn1.mask is adapter.model.conv1.mask


# ------------------------------------------------------------------ interruptions

SOURCES = os.path.dirname(ctta.__file__)
INTERRUPTED = [
    ("tent", {}),
    ("palm", {"eta": 1e9, "memory": "lowest"}),
    ("law", {}),
    ("cotta", {"confidence": 1.0}),
    ("sft", {"mode": "train"}),
    ("ecotta", {}),
    ("adacontrast", {"train_mode": "all", **MEMORIES}),
]


def lines_of(call, stop=0):
    """Run a call and count the lines of ctta it runs; raise KeyboardInterrupt before line number `stop`."""
    count = 0

    def at_line(_frame, event, _value):
        nonlocal count
        if event == "line":
            count += 1
            if count == stop:
                raise KeyboardInterrupt
        return at_line

    before = sys.gettrace()  # the coverage of this worker's other tests hangs on it
    sys.settrace(lambda frame, *_: at_line if frame.f_code.co_filename.startswith(SOURCES) else None)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def everything(adapter):
    """All that can be seen of an adapter, beside its tensors."""
    modules = list(adapter.model.modules())
    modes = [(module.training, len(module._forward_hooks), len(module._forward_pre_hooks)) for module in modules]
    counted = (adapter.batches, adapter.skipped_steps, adapter.last, adapter.state_dict()["adapter"].tolist())
    return modes, [vars(module).get("forward") for module in modules], counted


@pytest.mark.parametrize("work", ["step", "reset"])
@pytest.mark.parametrize(("name", "settings"), INTERRUPTED, ids=[name for name, _ in INTERRUPTED])
def test_an_interruption_at_any_line_leaves_what_was_before_or_what_is_after(name, settings, work):
    begun = adapter_of(name, **settings)
    begun(STREAM[0])
    work_of = {"step": lambda adapter: adapter(STREAM[1]), "reset": lambda adapter: adapter.reset()}[work]
    done = copy.deepcopy(begun)
    count = lines_of(lambda: work_of(done))
    outcomes = [(tensors(adapter), everything(adapter)) for adapter in (begun, done)]
    expected = [adapter(STREAM[2]) for adapter in (copy.deepcopy(begun), copy.deepcopy(done))]
    draw = random.Random(0)
    for _ in range(2):  # anywhere, and near the end, where a step begins to count
        for stop in (draw.randint(1, count), draw.randint(count - 40, count)):
            adapter = copy.deepcopy(begun)
            with pytest.raises(KeyboardInterrupt):
                lines_of(lambda adapter=adapter: work_of(adapter), stop)
            found = tensors(adapter), everything(adapter)
            kind = [k for k in (0, 1) if equal(found[0], outcomes[k][0]) and found[1] == outcomes[k][1]]
            assert kind, f"neither before nor after, at line {stop} of {count}"
            assert torch.equal(adapter(STREAM[2]), expected[kind[0]])
            assert adapter.batches == outcomes[kind[0]][1][2][0] + 1
            assert not in_threads(lambda adapter=adapter: adapter.predict(STREAM[0]))


def test_an_interruption_at_the_first_and_last_lines_keeps_no_thread_waiting():
    begun = adapter_of("tent")
    done = copy.deepcopy(begun)
    count = lines_of(lambda: done(STREAM[0]))
    for stop in [*range(1, 12), *range(count - 12, count + 1)]:
        adapter = copy.deepcopy(begun)
        with pytest.raises(KeyboardInterrupt):
            lines_of(lambda adapter=adapter: adapter(STREAM[0]), stop)
        done = adapter.batches
        adapter(STREAM[1])
        assert adapter.batches == done + 1
        assert not in_threads(lambda adapter=adapter: adapter.predict(STREAM[0]))


class Interrupted(nn.Module):
    """Interrupts its fourth pass, and the attempt to put things back after it."""

    passes, stopping = 0, False

    def __init__(self):
        super().__init__()
        self.net = RESNET.make()

    def forward(self, x):
        self.passes += 1
        self.stopping = self.passes == 4
        if self.stopping:
            raise KeyboardInterrupt
        return self.net(x)

    def train(self, mode=True):  # called when an interrupted step is put back
        if self.stopping:
            self.stopping = False
            raise KeyboardInterrupt
        return super().train(mode)


def test_putting_back_that_is_interrupted_too_is_finished_before_the_next_use():
    adapter, plain = adapter_of("tent", Interrupted(), steps=2), adapter_of("tent", steps=2)
    adapter(STREAM[0]), plain(STREAM[0])
    before, last = tensors(adapter), adapter.last
    with pytest.raises(KeyboardInterrupt):
        adapter(STREAM[1])
    assert not equal(tensors(adapter), before)
    assert (adapter.batches, adapter.last) == (1, last)
    saved = adapter.state_dict()
    assert all(torch.equal(saved[key], value) for key, value in before.items())
    assert torch.equal(adapter(STREAM[1]), plain(STREAM[1]))


# ------------------------------------------------------------------ threads


def in_threads(*works):
    """Run functions at the same time; return what they raised."""
    errors, start = [], threading.Barrier(len(works))

    def run(work):
        start.wait()
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    return errors


@pytest.mark.parametrize("name", ["tent", "law", "cotta", "sft"])
def test_threads_that_share_an_adapter_take_turns(name):
    shared, alone = adapter_of(name), adapter_of(name)
    x = STREAM[0]

    def step():
        for _ in range(4):
            shared(x)

    def look():
        for _ in range(2):
            shared.predict(x)
            copy.deepcopy(shared).freeze()
            twin = pickle.loads(pickle.dumps(shared))
            assert twin.batches == twin.last.batch if twin.last else twin.batches == 0
            adapter_of(name).load_state_dict(shared.state_dict())

    assert in_threads(step, step, look) == []
    for _ in range(8):
        alone(x)
    assert equal(tensors(shared), tensors(alone))
    assert shared.last == alone.last


def test_adapters_with_dropout_in_two_threads_run_as_they_run_alone():
    cases = [("sft", {"mode": "train"}), ("adacontrast", {"train_mode": "all", **MEMORIES})]
    alone = [adapter_of(name, **settings) for name, settings in cases]
    together = [copy.deepcopy(adapter) for adapter in alone]

    def stream(adapter):
        for _ in range(4):
            adapter(STREAM[0])

    for adapter in alone:
        stream(adapter)
    assert in_threads(*[lambda adapter=adapter: stream(adapter) for adapter in together]) == []
    for one, other in zip(alone, together, strict=True):
        assert equal(tensors(one), tensors(other))


# ------------------------------------------------------------------ refusals change nothing


def shape_of(model):
    parts = [
        (
            name,
            module.training,
            sorted(module._buffers),
            len(module._forward_hooks),
            len(module._forward_pre_hooks),
        )
        for name, module in model.named_modules()
    ]
    tracking = [getattr(module, "track_running_stats", None) for module in model.modules()]
    return parts, tracking, {n: p.requires_grad for n, p in model.named_parameters()}, list(model.state_dict())


class Scattered(nn.Module):
    """Layers without stages, a linear classifier, or (as asked) anything to adapt."""

    def __init__(self, weights=True):
        super().__init__()
        self.norm = nn.BatchNorm2d(3, affine=weights)
        self.conv = nn.Conv2d(3, 5, 1) if weights else nn.Identity()

    def forward(self, x):
        return self.conv(self.norm(x)).mean((2, 3))


REFUSED = {  # by every method that refuses models at all
    "no weights": (lambda: Scattered(weights=False), {}),
    "no stages": (Scattered, {}),
    "bad seed": (RESNET.make, {"seed": -1}),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_model_refused_in_place_is_left_as_it_was(name):
    refused = 0
    for make, options in REFUSED.values():
        model = make().train()
        model.register_forward_hook(lambda *_: None)
        before = shape_of(model)
        try:
            ctta.adapt(model, name, inplace=True, **options)
        except ctta.CttaError:
            refused += 1
            assert shape_of(model) == before
    assert refused >= (1 if name in ("source", "bn1") else 2)


# ------------------------------------------------------------------ answers in a buffer of the model


class Reusing(nn.Module):
    """Answers in one and the same tensor every time."""

    def __init__(self):
        super().__init__()
        self.net = RESNET.make()
        self.answer = None

    def forward(self, x):
        logits = self.net(x)
        if torch.is_grad_enabled():
            return logits
        if self.answer is None or self.answer.shape != logits.shape:
            self.answer = torch.empty_like(logits)
        return self.answer.copy_(logits)


class Holding(Reusing):
    """Does so with a graph, too."""

    def forward(self, x):
        logits = self.net(x)
        self.answer = torch.zeros_like(logits) if self.answer is None else self.answer.detach()
        return self.answer.copy_(logits)


@pytest.mark.parametrize("model", [Reusing, Holding])
@pytest.mark.parametrize("name", ["source", "bn1", "adacontrast"])
def test_earlier_answers_stay_when_a_model_reuses_its_output(name, model):
    adapter = adapter_of(name, model())
    for answer in (adapter, adapter.predict):
        first = answer(STREAM[0])
        held = first.clone()
        answer(STREAM[1])
        assert torch.equal(first, held)
