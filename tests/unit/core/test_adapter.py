"""The contract of `ctta.adapt`, `Adapter` and `ctta.load`."""

import copy
import io
import pickle
import threading

import numpy as np
import pytest
import torch
from tests.conftest import fixed_augment
from torch import nn

import ctta
from ctta.checks.networks import NETWORKS

METHODS = [entry.name for entry in ctta.list_methods()]
FEWER_VIEWS = {"cotta": {"views": 2}, "dss": {"views": 2}}  # the default of 32 takes most of a minute


def test_three_lines_around_a_model(net, stream):
    adapter = ctta.adapt(net, "palm", preset="cifar10-c")
    logits = adapter(stream[0])
    assert logits.shape == (32, 10)
    assert adapter.last.selected
    assert adapter.last.method == "palm"


def test_registry_entries_say_what_a_method_is_and_needs():
    entries = {entry.name: entry for entry in ctta.list_methods()}
    assert {"source", "bn1", "tent", "palm"} <= entries.keys()
    palm = entries["palm"]
    assert palm.year == 2025
    assert "PALM" in palm.paper
    assert palm.needs == {"conv or norm layers"}
    assert palm.settings["eta"].help
    assert {"cifar10-c", "cifar100-c", "imagenet-c", "embedded", "embedded-long"} == set(palm.presets)


def test_the_report_reads_as_attributes_as_a_mapping_and_as_json(net, stream):
    import json

    adapter = ctta.adapt(net, "palm")
    assert adapter.last is None
    adapter(stream[0])
    last = adapter.last
    assert last["selected"] == last.selected
    assert dict(last)["shares"] == last.shares
    assert set(last) == set(last.to_dict())
    assert json.loads(json.dumps(last.to_dict()))["batch"] == 1
    with pytest.raises(KeyError):
        last["nothing"]
    with pytest.raises(AttributeError):
        last.batch = 3
    assert last.losses.keys() == {"entropy", "consistency", "total"}
    assert 0 <= last.kept <= last.samples == 32


@pytest.mark.parametrize("method", METHODS)
def test_spec_10_reset_gives_a_bit_identical_run_on_the_whole_golden_stream(method, net, stream):
    adapter = ctta.adapt(net, method, **FEWER_VIEWS.get(method, {}))
    first = [adapter(x) for x in stream]
    adapter.reset()
    assert all(torch.equal(adapter(x), logits) for x, logits in zip(stream, first, strict=True))


def test_source_predicts_as_the_model_in_eval_mode(net, stream):
    adapter = ctta.adapt(net.train(), "source")
    with torch.no_grad():
        assert torch.equal(adapter(stream[0]), copy.deepcopy(net).eval()(stream[0]))


def test_bn1_predicts_as_the_model_in_train_mode_and_as_source_without_batchnorm(net, stream):
    with torch.no_grad():
        torch.testing.assert_close(ctta.adapt(net, "bn1")(stream[0]), copy.deepcopy(net).train()(stream[0]))
    plain, x = NETWORKS["groupnorm"].make(), NETWORKS["groupnorm"].stream((4,))[0]
    assert torch.equal(ctta.adapt(plain, "bn1")(x), ctta.adapt(plain, "source")(x))


def test_tent_moves_only_norm_layers_and_lowers_the_entropy(net, stream):
    adapter = ctta.adapt(net, "tent", lr=1e-3)
    entropies = []
    for _ in range(10):
        adapter(stream[0])
        entropies.append(adapter.last.losses["entropy"])
    assert entropies[-1] < entropies[0]
    assert all(".bn" in name or "bn1" in name or "down.1" in name for name in adapter.method.adapted)
    assert adapter.last.shares["moved"] == 1.0


def test_tent_with_nesterov_takes_a_first_step_of_1_9_times_lr(net, stream):
    adapter = ctta.adapt(net.double(), "tent", preset="imagenet-c")
    assert adapter.settings.optimizer == "sgd"
    x = stream[0].double()
    reference = ctta.adapt(net.double(), "tent", optimizer="sgd", momentum=0.0, nesterov=False, lr=2.5e-4)
    before = adapter.method.source["bn1.weight"]
    adapter(x)
    reference(x)
    step, plain = (before - a.method.adapted["bn1.weight"].detach() for a in (adapter, reference))
    torch.testing.assert_close(step, 1.9 * plain)


def test_tent_steps_repeat_on_one_batch_and_return_the_logits_before_the_last(net, stream):
    twice, once = ctta.adapt(net, "tent", steps=2), ctta.adapt(net, "tent")
    once(stream[0])
    assert torch.equal(twice(stream[0]), once(stream[0]))


# ------------------------------------------------------------------ the caller's model


def test_inplace_adapts_the_callers_model_itself(net, stream):
    weight = net.conv1.weight
    before = weight.detach().clone()
    adapter = ctta.adapt(net, "palm", inplace=True)
    adapter(stream[0])
    assert net.conv1.weight is weight
    assert not torch.equal(weight, before)
    adapter.reset()
    assert torch.equal(weight, before)


def test_a_model_built_under_inference_mode_can_be_copied_but_not_moved_in_place(stream):
    with torch.inference_mode():
        model = NETWORKS["bn2d"].make()
    assert ctta.adapt(model, "palm")(torch.rand(2, 3, 12, 12)).shape == (2, 5)
    with pytest.raises(ctta.ModelError, match="built under torch.inference_mode"):
        ctta.adapt(model, "palm", inplace=True)


def test_a_model_that_cannot_be_copied_is_refused_with_the_cure():
    class Uncopyable(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)
            self.lock = threading.Lock()

        def forward(self, x):
            return self.conv(x).mean((2, 3))

    with pytest.raises(ctta.ModelError, match="Pass `inplace=True`"):
        ctta.adapt(Uncopyable(), "palm")
    assert ctta.adapt(Uncopyable(), "palm", inplace=True)(torch.rand(2, 3, 4, 4)).shape == (2, 4)


def test_freeze_gives_the_users_own_class_that_can_be_pickled_and_stands_alone(net, stream):
    adapter = ctta.adapt(net, "palm")
    adapter(stream[0])
    plain = adapter.freeze()
    assert type(plain) is type(net)
    assert not any(p.requires_grad for p in plain.parameters())
    again = pickle.loads(pickle.dumps(plain))
    assert torch.equal(again(stream[1]), adapter.predict(stream[1]))
    assert plain(stream[1][:1]).shape == (1, 10)


# ------------------------------------------------------------------ fitting in where the model was


def test_train_and_eval_change_nothing(net, stream):
    adapter, twin = ctta.adapt(net, "palm"), ctta.adapt(net, "palm")
    adapter.train()
    assert torch.equal(adapter(stream[0]), twin(stream[0]))
    adapter.eval()
    assert torch.equal(adapter(stream[1]), twin(stream[1]))


def test_switching_gradients_off_does_not_stop_adaptation(net, stream):
    adapter, twin = ctta.adapt(net, "palm"), ctta.adapt(net, "palm")
    adapter.requires_grad_(False)
    for x in stream[:2]:
        assert torch.equal(adapter(x), twin(x))


def test_parameters_buffers_and_device_are_those_of_the_model(net):
    adapter = ctta.adapt(net, "palm")
    assert next(adapter.parameters()).device.type == "cpu"
    assert dict(adapter.named_parameters()).keys() == dict(net.named_parameters()).keys()
    assert any("source_mean" in name for name, _ in adapter.named_buffers())
    assert "palm, GoldenNet, batches=0" in repr(adapter)


def test_an_adapter_is_a_part_of_another_module(net, stream):
    system = nn.Sequential(nn.Identity(), ctta.adapt(net, "palm"))
    system(stream[0])
    state = system.state_dict()
    expected = system(stream[1])
    other = nn.Sequential(nn.Identity(), ctta.adapt(net, "palm"))
    other.load_state_dict(state)
    assert torch.equal(other(stream[1]), expected)
    assert system.double()(stream[2].double()).dtype == torch.float64


def test_an_adapter_can_be_pickled_whole(net, stream):
    adapter = ctta.adapt(net, "palm", augment=fixed_augment)
    adapter(stream[0])
    twin = pickle.loads(pickle.dumps(adapter))
    assert torch.equal(twin(stream[1]), adapter(stream[1]))


def test_a_state_dict_survives_torch_save(net, stream):
    adapter = ctta.adapt(net, "palm")
    adapter(stream[0])
    file = io.BytesIO()
    torch.save(adapter.state_dict(), file)
    file.seek(0)
    twin = ctta.adapt(net, "palm")
    twin.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(twin(stream[1]), adapter(stream[1]))
    assert twin.batches == adapter.batches == 2


# ------------------------------------------------------------------ state that does not fit


def changed(state, **more):
    return {**state, **more}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: {}, "made by Adapter.state_dict"),
        (lambda s: changed(s, adapter=torch.tensor([1, 2], dtype=torch.uint8)), "made by Adapter.state_dict"),
        (lambda s: {k: v for k, v in s.items() if k != "model/conv1.weight"}, r"missing \['model/conv1.weight'\]"),
        (lambda s: changed(s, extra=torch.zeros(1)), r"unknown \['extra'\]"),
        (
            lambda s: changed(s, **{"model/conv1.weight": torch.zeros(1)}),
            "Expected model/conv1.weight to be",
        ),
        (lambda s: {k: v for k, v in s.items() if k != "rng"}, r"missing \['rng'\]"),
        (lambda s: changed(s, **{"average/nowhere.weight": torch.zeros(1)}), "nowhere.weight"),
        (lambda s: changed(s, **{"average/bn1.weight": torch.zeros(3)}), "average/bn1.weight"),
        (lambda s: changed(s, rng=torch.zeros(3, dtype=torch.uint8)), "rng"),
        (lambda s: changed(s, rng=s["rng"].int()), "rng"),
        (lambda s: changed(s, rng=torch.zeros_like(s["rng"])), "generator"),
        (
            lambda s: changed(s, **{"average/bn1.weight": s["average/bn1.weight"].double()}),
            "Expected average/bn1.weight to be",
        ),
        (
            lambda s: changed(s, **{"average/bn1.weight": s["average/bn1.weight"] * float("nan")}),
            "NaN or infinity",
        ),
        (lambda s: changed(s, **{"buffers/bn1.source_mean": torch.zeros(3)}), "buffers/bn1.source_mean"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_before_anything_changes(change, words, net, stream):
    adapter, twin = ctta.adapt(net, "palm"), ctta.adapt(net, "palm")
    adapter(stream[0])
    state = adapter.state_dict()
    with pytest.raises(ctta.StateError, match=words):
        adapter.load_state_dict(change(state))
    assert all(torch.equal(value, state[key]) for key, value in adapter.state_dict().items())
    twin(stream[0])
    assert torch.equal(adapter(stream[1]), twin(stream[1]))


def test_the_state_of_another_method_is_refused(net):
    with pytest.raises(ctta.StateError, match="Expected a state of method `palm`, but got one of `tent`"):
        ctta.adapt(net, "palm").load_state_dict(ctta.adapt(net, "tent").state_dict())


# ------------------------------------------------------------------ steps that go wrong


def test_an_augmentation_that_yields_nan_undoes_the_step_and_the_prediction_comes(net, stream):
    adapter = ctta.adapt(net, "palm", augment=lambda x: x * float("nan"))
    expected = ctta.adapt(net, "bn1")
    for count, x in enumerate(stream[:3], 1):
        assert torch.equal(adapter(x), expected(x))
        assert adapter.last.skipped
        assert "gradient is not finite" in adapter.last.reason
        assert adapter.last.skipped_steps == adapter.skipped_steps == count
        assert adapter.last.selected == ()
    assert all(torch.equal(adapter.method.source[n], p) for n, p in adapter.method.adapted.items())


def test_a_model_that_overflows_still_answers_and_nothing_moves(net, stream):
    net.fc.weight.data.fill_(3e38)
    adapter = ctta.adapt(net, "palm")
    logits = adapter(stream[0])
    assert not logits.isfinite().all()
    assert adapter.last.skipped
    assert all(torch.equal(adapter.method.source[n], p) for n, p in adapter.method.adapted.items())


@pytest.mark.parametrize("optimizer_state", ["fresh", "persistent"])
def test_a_step_that_would_make_a_weight_infinite_is_undone(optimizer_state, net, stream):
    adapter = ctta.adapt(net, "palm", lr=3e38, alpha=0.0, optimizer_state=optimizer_state)
    adapter(stream[0])
    assert adapter.last.skipped
    assert "not finite" in adapter.last.reason
    assert all(torch.equal(adapter.method.source[n], p) for n, p in adapter.method.adapted.items())


@pytest.mark.parametrize(
    ("augment", "words"),
    [
        (lambda x: x[:1], "return a batch of 32 images"),
        (lambda x: x.double(), "float64"),
        (lambda x: None, "NoneType"),
    ],
)
def test_an_augmentation_that_returns_something_else_is_told_so_and_nothing_moves(augment, words, net, stream):
    adapter = ctta.adapt(net, "palm", augment=augment)
    state = adapter.state_dict()
    with pytest.raises(ctta.AugmentError, match=words):
        adapter(stream[0])
    assert all(torch.equal(value, state[key]) for key, value in adapter.state_dict().items())


def test_an_error_in_the_callers_augmentation_comes_through_and_nothing_moves(net, stream):
    calls = []

    def fails_later(x):
        calls.append(1)
        if len(calls) == 3:
            raise OSError("camera unplugged")
        return fixed_augment(x)

    adapter = ctta.adapt(net, "law", augment=fails_later, steps=2)
    adapter(stream[0])
    state = adapter.state_dict()
    with pytest.raises(OSError, match="camera unplugged"):
        adapter(stream[1])
    assert all(torch.equal(value, state[key]) for key, value in adapter.state_dict().items())
    assert adapter.batches == 1


def test_out_of_memory_comes_through_as_it_is(net, stream):
    def hungry(_module, _inputs):
        raise torch.OutOfMemoryError("no memory left")

    adapter = ctta.adapt(net, "palm")
    adapter.model.register_forward_pre_hook(hungry)
    with pytest.raises(torch.OutOfMemoryError):
        adapter(stream[0])


def test_weights_that_no_longer_predict_are_given_up_for_the_source(net, stream):
    adapter = ctta.adapt(net, "palm")
    adapter(stream[0])
    for parameter in adapter.method.adapted.values():
        parameter.data.fill_(1e30)  # as if finite steps had led to weights that overflow
    logits = adapter(stream[1])
    assert torch.equal(logits, ctta.adapt(net, "bn1")(stream[1]))
    assert adapter.last.skipped
    assert "given up for the source weights" in adapter.last.reason
    adapter(stream[2])
    assert not adapter.last.skipped


def test_a_model_that_normalises_its_input_in_place_adapts_as_one_that_does_not(net, stream):
    class Normalised(nn.Module):
        def __init__(self, in_place):
            super().__init__()
            self.net, self.in_place = copy.deepcopy(net), in_place

        def forward(self, x):
            return self.net(x.sub_(0.5).div_(0.5) if self.in_place else (x - 0.5) / 0.5)

    one, two = (ctta.adapt(Normalised(in_place), "palm", lam=0.5) for in_place in (True, False))
    held = stream[0].clone()
    for x in stream[:3]:
        assert torch.equal(one(x), two(x))
    assert torch.equal(one.predict(stream[3]), two.predict(stream[3]))
    assert torch.equal(stream[0], held)


def test_an_augmentation_in_place_or_under_inference_mode_does_no_harm(net, stream):
    @torch.inference_mode()
    def inference(x):
        return x * 0.5

    plain, in_place, inferred = (
        ctta.adapt(net, "palm", augment=augment)
        for augment in (lambda x: x * 0.5, lambda x: x.mul_(0.5), inference)
    )
    for x in stream[:2]:
        expected = plain(x)
        assert torch.equal(in_place(x), expected)
        assert torch.equal(inferred(x), expected)


def test_the_default_device_is_no_matter(net, stream):
    expected = ctta.adapt(net, "palm")
    adapter = ctta.adapt(net, "palm")
    for x in stream[:2]:
        with torch.device("meta"):
            logits = adapter(x)
        assert torch.equal(logits, expected(x))


def test_old_weight_norm_and_parametrizations_adapt_and_copy():
    from torch.nn.utils.parametrizations import weight_norm

    model = nn.Sequential(weight_norm(nn.Conv2d(3, 4, 3)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    adapter = ctta.adapt(model, "palm", eta=1e9)
    assert any("parametrizations" in name for name in adapter.method.adapted)
    x = torch.rand(4, 3, 8, 8)
    adapter(x)
    assert torch.equal(adapter.freeze()(x), adapter.predict(x))
    with pytest.warns(FutureWarning):
        old = torch.nn.utils.weight_norm(nn.Conv2d(3, 4, 3))
    adapter = ctta.adapt(nn.Sequential(old, nn.AdaptiveAvgPool2d(1), nn.Flatten()), "palm", eta=1e9)
    before = adapter.predict(x)
    adapter(x)
    assert not torch.equal(adapter.predict(x), before)
    assert torch.equal(copy.deepcopy(adapter)(x), adapter.freeze()(x))


def test_parameters_without_elements_are_left_out():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.nothing = nn.Conv2d(3, 4, 1), nn.LayerNorm(0)

        def forward(self, x):
            return self.conv(x).mean((2, 3)) + self.nothing(x.new_zeros(len(x), 0)).sum()

    adapter = ctta.adapt(Odd(), "palm", eta=1e9)
    adapter(torch.rand(2, 3, 4, 4))
    assert not adapter.last.skipped, adapter.last.reason


def test_scripted_models_and_adapters_in_adapters_are_refused(net):
    with pytest.warns(DeprecationWarning, match="torch.jit.trace"):
        scripted = torch.jit.trace(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten()), torch.rand(1, 3, 2, 2))
    with pytest.raises(ctta.UnsupportedModelError, match="scripted"):
        ctta.adapt(scripted, "palm")
    with pytest.raises(ctta.ModelError, match="holds an adapter already"):
        ctta.adapt(nn.Sequential(ctta.adapt(net, "bn1")), "palm")


def test_a_warning_made_an_error_undoes_the_step(net, stream):
    adapter = ctta.adapt(net, "palm")
    state = adapter.state_dict()
    for _ in range(2):
        with pytest.raises(ctta.RangeWarning):  # warnings are errors here
            adapter(stream[0] * 3)
    assert all(torch.equal(value, state[key]) for key, value in adapter.state_dict().items())


def test_an_adapter_converted_to_another_dtype_can_be_saved_and_loaded(net, stream, tmp_path):
    adapter = ctta.adapt(net, "palm")
    adapter.save(tmp_path / "float")
    adapter.double()
    adapter(stream[0].double())
    adapter.save(tmp_path / "double")
    with pytest.raises(ctta.StateError):
        ctta.load(tmp_path / "double", net)
    twin = ctta.load(tmp_path / "double", copy.deepcopy(net).double())
    assert torch.equal(twin(stream[1].double()), adapter(stream[1].double()))


def test_a_seed_may_be_a_numpy_number(net):
    assert ctta.adapt(net, "palm", seed=np.int64(3)).method.seed == 3


def test_the_report_prints_as_one_line(net, stream):
    adapter = ctta.adapt(net, "palm")
    adapter(stream[0])
    assert repr(adapter.last).startswith("Report(palm, batch 1, 27 tensors selected, entropy")
    assert len(repr(adapter.last)) < 300


def test_two_seeds_draw_two_augmentations(net, stream):
    one, two = ctta.adapt(net, "palm", seed=1, lam=1.0), ctta.adapt(net, "palm", seed=2, lam=1.0)
    one(stream[0]), two(stream[0])
    assert not torch.equal(one(stream[1]), two(stream[1]))


class _SameAddress(nn.Module):
    """Replaces its buffer in every forward pass by a tensor at the old one's address, if that is free."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        value = float(self.count) + 1
        address = id(self._buffers.pop("count"))
        tried = [torch.tensor(value)]
        while id(tried[-1]) != address and len(tried) < 1000:
            tried.append(torch.tensor(value))
        self._buffers["count"] = tried[-1]
        return self.body(x)


def test_a_buffer_that_a_prediction_replaces_is_put_back_even_if_the_new_one_has_its_address():
    adapter = ctta.adapt(_SameAddress(), "source")
    x = torch.rand(4, 3, 2, 2)
    adapter(x)  # from now on the buffer is one that nothing was ever written to, as are those that replace it
    count = float(adapter.model.count)
    adapter.predict(x)
    assert float(adapter.model.count) == count
