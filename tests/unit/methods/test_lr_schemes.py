"""PALM with other learning rates and other selections: each against a plain loop, with all it keeps."""

import itertools
import math

import pytest
import torch
from tests.conftest import fixed_augment, golden_net, golden_stream
from tests.reference.literal_palm import prepare
from torch import nn

import ctta
from ctta.checks.networks import NETWORKS
from ctta.methods.palm.choices import PalmSettings
from ctta.optim import Adafactor, Lars, Prodigy, sign_step

F64 = torch.float64
KAPPA = 5e-4
EVERY = ["fixed", "autolr", "lars", "prodigy", "adafactor", "torch:RMSprop", "torch:NAdam", "torch:Adafactor"]


@pytest.fixture(scope="module")
def stream64():
    return [x[:6, :, ::2, ::2] for x in golden_stream(F64)[:4]]  # float64 convolutions are slow


def palm(dtype=F64, model=None, **settings):
    settings = {"augment": fixed_augment, "preset": "cifar10-c", **settings}
    return ctta.adapt(golden_net(dtype) if model is None else model, "palm", **settings)


def plain_loop(batches, update, lam=0.01):
    """Logits before each update of all conv and norm layers on PALM's loss; `update` moves the parameters."""
    model, named = prepare(golden_net(F64))
    answers = []
    for x in batches:
        logits, view = model(x), model(fixed_augment(x))
        p, log_p = logits.softmax(1), logits.log_softmax(1)
        entropy = -(p * log_p).sum(1)
        loss = -lam * logits.shape[1] * (p * view.log_softmax(1)).sum(1).mean()
        if (entropy < 0.4).any():
            loss = loss + entropy[entropy < 0.4].mean()
        model.zero_grad()
        loss.backward()
        update(named)
        answers.append(logits.detach())
    return answers, {name: value.detach() for name, value in named.items()}


def assert_same_run(adapter, batches, update, tolerance=1e-10):
    answers, weights = plain_loop(batches, update)
    for x, expected in zip(batches, answers, strict=True):
        assert (adapter(x) - expected).abs().max() < tolerance
    for name, value in weights.items():
        assert (adapter.model.get_parameter(name) - value).abs().max() < tolerance, name


def with_optimizer(kind, *, fresh, **options):
    held = []

    def update(named):
        if fresh or not held:
            held[:] = [kind(list(named.values()), **options)]
        held[0].step()

    return update


# ---------------------------------------------------------------- each scheme is what it says


def test_fixed_is_full_adaptation_at_one_rate(stream64):
    update = with_optimizer(torch.optim.Adam, fresh=True, lr=KAPPA)
    adapter = palm(lr_scheme="fixed")
    assert_same_run(adapter, stream64, update)
    assert set(adapter.last.learning_rates.values()) == {KAPPA}
    assert adapter.last.shares["moved"] == adapter.last.shares["selected"] == 1.0
    assert adapter.last.scores == {}  # there was no stage one
    adapter = palm(lr_scheme="fixed", scheme_lr=1e-3, optimizer_state="persistent", weight_decay=0.01)
    assert_same_run(adapter, stream64, with_optimizer(torch.optim.Adam, fresh=False, lr=1e-3, weight_decay=0.01))


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("name", ["SGD", "RMSprop", "Adagrad", "AdamW", "NAdam", "ASGD", "Rprop", "Adafactor"])
def test_a_torch_optimiser_by_name_equals_a_plain_loop_with_it(name, fresh, stream64):
    kind = getattr(torch.optim, name)
    options = {} if name == "Rprop" else {"weight_decay": 0.01}
    adapter = palm(lr_scheme=f"torch:{name}", optimizer_state="fresh" if fresh else "persistent", **options)
    assert_same_run(adapter, stream64, with_optimizer(kind, fresh=fresh, **options))
    adapter = palm(lr_scheme=f"torch:{name}", scheme_lr="kappa")
    decay = {"weight_decay": 0.0} if name == "AdamW" else {}  # the setting says 0, torch's own default does not
    assert_same_run(adapter, stream64[:3], with_optimizer(kind, fresh=False, lr=KAPPA, **decay))
    assert set(adapter.last.learning_rates.values()) == {KAPPA}


OWN = {"lars": (Lars, 1e-3), "prodigy": (Prodigy, 1.0), "adafactor": (Adafactor, None)}


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("given", ["default", "kappa", 0.02])
@pytest.mark.parametrize("scheme", OWN)
def test_an_optimiser_of_ours_equals_a_plain_loop_with_it(scheme, fresh, given, stream64):
    kind, default = OWN[scheme]
    lr = {"default": default, "kappa": KAPPA}.get(given, given)
    state = "fresh" if fresh else "persistent"
    adapter = palm(lr_scheme=scheme, scheme_lr=given, optimizer_state=state, weight_decay=0.01)
    update = with_optimizer(kind, fresh=fresh, lr=lr, weight_decay=0.01)
    assert_same_run(adapter, stream64, update)


def test_adafactor_reports_the_rate_of_each_tensor(stream64):
    adapter = palm(lr_scheme="adafactor")
    sizes = {n: max(1e-3, p.square().mean().sqrt().item()) for n, p in adapter.model.named_parameters()}
    adapter(stream64[0])
    rates = adapter.last.learning_rates
    assert rates == pytest.approx({name: 0.01 * sizes[name] for name in rates}, rel=1e-12)


@pytest.mark.parametrize(("given", "lr"), [("default", 1.0), ("kappa", KAPPA)])
def test_spec_12_1_the_first_step_of_prodigy_is_3e_6_times_the_rate(given, lr, stream64):
    adapter = palm(lr_scheme="prodigy", scheme_lr=given)
    before = {name: value.detach().clone() for name, value in adapter.model.named_parameters()}
    adapter(stream64[0])
    for name in adapter.last.selected:
        step = (adapter.model.get_parameter(name) - before[name]).abs().max().item()
        assert step == pytest.approx(math.sqrt(10) * 1e-6 * lr, rel=1e-3)
    assert set(adapter.last.learning_rates.values()) == {1e-6 * lr}


@pytest.mark.parametrize("settings", [{"scheme_lr": "kappa"}, {"optimizer_state": "fresh"}])
def test_spec_12_1_prodigy_at_kappa_or_made_anew_every_batch_predicts_as_bn1(settings):
    bn1 = ctta.adapt(golden_net(), "bn1")
    adapter = palm(torch.float32, lr_scheme="prodigy", **settings)
    for x in [x[:16] for x in golden_stream()]:
        torch.testing.assert_close(adapter(x), bn1(x), rtol=0, atol=0.02)
        assert torch.equal(adapter.predict(x).argmax(1), bn1(x).argmax(1))


def test_an_optimiser_that_lasts_and_one_made_anew_part_at_the_second_update(stream64):
    for scheme in ("lars", "prodigy", "adafactor", "torch:Adam"):
        lasting, anew = palm(lr_scheme=scheme), palm(lr_scheme=scheme, optimizer_state="fresh")
        for batch, x in enumerate(stream64[:3]):
            assert torch.equal(lasting(x), anew(x)) == (batch < 2), scheme
        assert anew.method.slot_1 == {}
        assert anew.method.numbers == {}


# ---------------------------------------------------------------- AutoLR


def relative_changes(adapter, before):
    """Relative change of every layer, in the order of the layers."""
    layers = {}
    for name, value in before.items():
        change, size, count = layers.get(name.rpartition(".")[0], (0.0, 0.0, 0))
        moved = adapter.model.get_parameter(name).detach() - value
        layers[name.rpartition(".")[0]] = (
            change + moved.square().sum().item(),
            size + value.square().sum().item(),
            count + value.numel(),
        )
    return [math.sqrt(change / n) / max(1e-3, math.sqrt(size / n)) for change, size, n in layers.values()]


@pytest.mark.parametrize("state", ["fresh", "persistent"])
def test_autolr_makes_the_relative_change_of_layers_grow_with_depth(state, stream64):
    for scheme in ("autolr", "fixed"):
        adapter = palm(lr_scheme=scheme, optimizer_state=state, scheme_lr=1e-3)
        for x in stream64[:3]:
            before = {name: value.detach().clone() for name, value in adapter.method.adapted.items()}
            adapter(x)
            changes = relative_changes(adapter, before)
            grows = all(b >= a * (1 - 1e-9) for a, b in itertools.pairwise(changes))
            assert grows == (scheme == "autolr")
            assert adapter.last.learning_rates.keys() == before.keys()
        rates = adapter.last.learning_rates
        assert rates["bn1.weight"] == rates["bn1.bias"]
        assert (len(set(rates.values())) > 1) == (scheme == "autolr")
    # the geometric mean of all rates is the base rate: what one layer loses another gets
    layers = {name.rpartition(".")[0]: rate for name, rate in palm_rates(stream64).items()}
    assert sum(math.log(rate) for rate in layers.values()) / len(layers) == pytest.approx(math.log(KAPPA))


def palm_rates(batches):
    adapter = palm(lr_scheme="autolr")
    adapter(batches[0])
    return adapter.last.learning_rates


def test_autolr_steps_are_sign_steps_at_the_reported_rates(stream64):
    adapter = palm(lr_scheme="autolr")
    _, named = prepare(golden_net(F64))
    held = {}
    plain_loop(stream64[:1], lambda tensors: held.update({n: v.grad.clone() for n, v in tensors.items()}))
    adapter(stream64[0])
    for name, value in named.items():
        expected = sign_step(value.detach(), held[name], adapter.last.learning_rates[name])
        torch.testing.assert_close(adapter.model.get_parameter(name).detach(), expected, rtol=0, atol=1e-12)


# ---------------------------------------------------------------- selection


def test_pseudo_label_selection_uses_the_gradient_of_the_predicted_class(stream64):
    model, named = prepare(golden_net(F64))
    loss = -model(stream64[0]).log_softmax(1).max(1).values.mean()
    gradients = torch.autograd.grad(loss, list(named.values()))
    scores = {name: g.abs().sum().item() for name, g in zip(named, gradients, strict=True)}
    eta = sorted(scores.values())[len(scores) // 2] * (1 + 1e-9)
    adapter = palm(selection="pseudo-label", eta=eta)
    adapter(stream64[0])
    assert adapter.last.scores == pytest.approx(scores, rel=1e-9)
    assert set(adapter.last.selected) == {name for name in scores if scores[name] <= eta}
    assert adapter.last.temperature == 1.0
    assert 0 < adapter.last.shares["moved"] < 1


def test_pseudo_label_selection_with_a_tiny_eta_selects_nothing_and_equals_bn1(stream64):
    adapter, bn1 = palm(selection="pseudo-label", eta=1e-12), ctta.adapt(golden_net(F64), "bn1")
    for x in stream64:
        assert torch.equal(adapter(x), bn1(x))
        assert adapter.last.selected == ()


def test_selection_none_is_palm_with_an_eta_nothing_exceeds(stream64):
    every, most = palm(selection="none", eta=1e-12), palm(eta=1e12)
    for x in stream64:
        assert torch.equal(every(x), most(x))
        assert every.last.eta is None
        assert len(every.last.selected) == len(every.method.adapted)
        assert every.last.learning_rates == most.last.learning_rates


@pytest.mark.parametrize("scheme", EVERY)
def test_a_scheme_may_be_given_a_selection_and_then_moves_only_what_it_selects(scheme, stream64):
    adapter = palm(lr_scheme=scheme, selection="uniform", eta=0.12, unselected_lr="zero")
    reference = palm(eta=0.12)
    reference(stream64[0])
    before = {name: value.detach().clone() for name, value in adapter.method.adapted.items()}
    adapter(stream64[0])
    assert adapter.last.selected == reference.last.selected
    assert 0 < adapter.last.shares["selected"] < 1
    for name, value in before.items():
        moved = not torch.equal(adapter.method.adapted[name], value)
        assert moved == (name in adapter.last.selected) == (adapter.last.learning_rates[name] > 0)


def test_a_scheme_keeps_adapting_what_was_selected_before_unless_told_to_freeze_it(stream64):
    stale = palm(lr_scheme="lars", selection="uniform", eta=0.12)
    frozen = palm(lr_scheme="lars", selection="uniform", eta=0.12, unselected_lr="zero")
    for x in golden_stream(F64):
        stale(x[:6, :, ::2, ::2]), frozen(x[:6, :, ::2, ::2])
        assert stale.last.shares["moved"] == stale.last.shares["ever_selected"]
        assert frozen.last.shares["moved"] == frozen.last.shares["selected"]
    assert stale.last.shares["moved"] > stale.last.shares["selected"]


# ---------------------------------------------------------------- state and refusals


@pytest.mark.parametrize("scheme", EVERY)
def test_reset_save_and_load_keep_all_of_a_scheme(scheme, tmp_path):
    stream = [x[:8] for x in golden_stream()[:5]]
    adapter = palm(torch.float32, lr_scheme=scheme, optimizer_state="persistent")
    first = [adapter(x) for x in stream]
    adapter.reset()
    assert all(torch.equal(adapter(x), expected) for x, expected in zip(stream[:3], first, strict=False))
    adapter.save(tmp_path / "adapter.safetensors")
    twin = ctta.load(tmp_path / "adapter.safetensors", golden_net(), augment=fixed_augment)
    assert all(torch.equal(twin(x), expected) for x, expected in zip(stream[3:], first[3:], strict=True))
    assert twin.last.learning_rates.keys() == adapter.last.learning_rates.keys()


def test_a_state_of_another_shape_is_refused():
    adapter = palm(torch.float32, lr_scheme="adafactor")
    adapter(golden_stream()[0])
    key = next(name for name in adapter.state_dict() if name.endswith("slot_1/conv1.weight"))
    state = adapter.state_dict()
    assert state[key].shape == (8, 3, 3, 1)  # row means
    state[key] = torch.zeros(8, 3, 3, 2)
    with pytest.raises(ctta.StateError, match="no such tensor is adapted"):
        adapter.load_state_dict(state)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr_scheme": "lasr"}, "Did you mean `lars`"),
        ({"lr_scheme": "torch:LBFGS"}, "closure"),
        ({"lr_scheme": "torch:SparseAdam"}, "sparse"),
        ({"lr_scheme": "torch:Optimizer"}, "no optimiser"),
        ({"lr_scheme": "torch:Muon"}, r"Muon refuses conv1.weight of shape \(8, 3, 3, 3\)"),
        ({"lr_scheme": "torch:Rprop", "weight_decay": 0.1}, "no weight decay"),
        ({"scheme_lr": 0.1}, "base rate of PALM is `lr`"),
        ({"scheme_lr": "kapa", "lr_scheme": "lars"}, "kappa"),
        ({"scheme_lr": -1.0, "lr_scheme": "lars"}, "at least 0"),
        ({"selection": "pseudo"}, "pseudo-label"),
    ],
)
def test_schemes_that_do_not_exist_or_do_not_fit_are_refused_before_any_batch(settings, words):
    with pytest.raises(ctta.SettingError, match=words):
        palm(**settings)


def test_a_matrix_optimiser_takes_a_model_of_matrices():
    class Matrices(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(12, 6, bias=False), nn.Linear(6, 3, bias=False)

        def forward(self, x):
            return self.second(self.first(x.flatten(1)).relu())

    adapter = palm(model=Matrices(), lr_scheme="torch:Muon", modules="all")
    x = torch.rand(5, 3, 2, 2)
    adapter(x), adapter(x)
    assert adapter.last.shares["moved"] == 1.0
    assert adapter.last.learning_rates["first.weight"] == 1e-3


def test_a_model_with_an_unused_layer_and_half_precision_weights_works_with_every_scheme():
    for scheme in EVERY:
        network = NETWORKS["unused"]
        adapter = ctta.adapt(network.make(torch.bfloat16), "palm", lr_scheme=scheme, scheme_lr="kappa")
        for x in network.stream((4, 4, 4), torch.bfloat16):
            assert adapter(x).isfinite().all()
        assert not adapter.last.skipped
        assert 0 < adapter.last.shares["moved"] < 1


def test_another_scheme_implies_every_tensor_and_palm_does_not():
    entry = ctta.methods.find("palm")
    assert entry.resolve("cifar10-c", {}) == PalmSettings()
    assert entry.resolve(None, {"lr_scheme": "lars"}).selection == "none"
    assert entry.resolve(None, {"lr_scheme": "lars"}).optimizer_state == "persistent"
    assert entry.resolve(None, {"lr_scheme": "fixed"}).optimizer_state == "fresh"
    assert entry.resolve(None, {"lr_scheme": "lars", "selection": "uniform"}).selection == "uniform"
    assert entry.resolve(None, {"lr_scheme": "palm"}).selection == "uniform"
    both = entry.resolve("imagenet-c", {"lr_scheme": "fixed", "selection": "uniform", "adapt_share": 0.1})
    assert (both.eta, both.selection) == ("auto", "uniform")


@pytest.mark.parametrize("scheme", ["prodigy", "adafactor"])  # its LARS leaves out norm layers
def test_schemes_equal_a_plain_loop_with_pytorch_optimizer_where_it_is_installed(scheme, stream64):
    package = pytest.importorskip("pytorch_optimizer")
    kind, options = {
        "prodigy": (package.Prodigy, {"lr": 1.0}),
        "adafactor": (package.AdaFactor, {"betas": (None, 1 - 1e-9), "momentum_dtype": F64}),
    }[scheme]
    held = torch.get_default_dtype()
    torch.set_default_dtype(F64)  # its Prodigy sums in the default dtype
    try:
        adapter = palm(lr_scheme=scheme)
        assert_same_run(adapter, stream64, with_optimizer(kind, fresh=False, **options), tolerance=1e-9)
    finally:
        torch.set_default_dtype(held)
