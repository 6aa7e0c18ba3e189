"""LAW: the leak, the paper's reading, every setting, and what must not hurt it."""

import copy

import pytest
import torch
from tests.conftest import fixed_augment, golden_net, golden_stream
from tests.reference.literal_palm import prepare
from torch import nn
from torch.nn import functional as F

import ctta
from ctta.checks.networks import NETWORKS
from ctta.methods import find

F64 = torch.float64


@pytest.fixture(scope="module")
def stream64():
    return [x[:6] for x in golden_stream(F64)[::3]]


def law(model=None, **settings):
    settings.setdefault("augment", fixed_augment)
    return ctta.adapt(golden_net(F64) if model is None else model, "law", **settings)


def weights(adapter):
    return {name: p.detach().clone() for name, p in adapter.model.named_parameters()}


def gradients(adapter, loss_of):
    """Gradients of a loss of the model's logits at the adapter's weights, found without the method."""
    model = copy.deepcopy(adapter.model)
    named = dict(model.named_parameters())
    wanted = [named[name].requires_grad_(True) for name in adapter.method.adapted]
    return dict(zip(adapter.method.adapted, torch.autograd.grad(loss_of(model), wanted), strict=True))


def nll(model, x):
    logits = model(x)
    return F.cross_entropy(logits, logits.argmax(1))


def objective(model, x, coefficient):
    logits, view = model(x), model(fixed_augment(x))
    p = logits.softmax(1)
    entropy = -(p * logits.log_softmax(1)).sum(1).mean()
    return entropy - coefficient * (p * view.log_softmax(1)).sum(1).mean()


def test_spec_9_the_leak_adds_exactly_the_cross_and_square_terms_of_the_last_update(stream64):
    first, second = stream64[:2]
    leaky, clean = law(grad_leak=True), law(grad_leak=False)
    update = gradients(leaky, lambda model: objective(model, first, 0.01 * 10))
    for adapter in (leaky, clean):
        adapter(first)
    for name, value in leaky.method.fisher.items():
        assert torch.equal(value, clean.method.fisher[name]), "nothing has leaked at the first batch"
    score = gradients(leaky, lambda model: nll(model, second))
    for adapter in (leaky, clean):
        adapter(second)
    assert clean.method.leaked == {}
    for name, a in update.items():
        difference = leaky.method.fisher[name] - clean.method.fisher[name]
        torch.testing.assert_close(difference, 2 * score[name] * a + a * a, rtol=1e-6, atol=1e-14)


@pytest.mark.parametrize("network", ["bn2d", "groupnorm", "vit"])
def test_paper_variant_equals_the_description_written_out(network):
    """Squared scores of samples, one weight a module, one Adam for the whole stream."""
    settings = {"lr": 1e-3, "tau": 0.7, "lam": 0.3, "weight_decay": 1e-3}
    source = NETWORKS[network].make(F64)
    adapter = law(source, variant="paper", **settings)
    model, named = prepare(source)
    optimizer = torch.optim.Adam([{"params": [p]} for p in named.values()], weight_decay=1e-3)
    total = {name: torch.zeros_like(p) for name, p in named.items()}
    for x in NETWORKS[network].stream((5, 5, 4, 5), F64):
        logits = model(x)
        losses = F.cross_entropy(logits, logits.argmax(1), reduction="none")
        for loss in losses:
            for name, g in zip(named, torch.autograd.grad(loss, named.values(), retain_graph=True), strict=True):
                total[name] += g**2 / len(x)
        modules = {name: name.rpartition(".")[0] for name in named}
        joined = {
            module: torch.cat([total[name].flatten() for name in named if modules[name] == module])
            for module in modules.values()
        }
        v = {module: g.mean().sqrt().item() for module, g in joined.items()}
        low, high = min(v.values()), max(v.values())
        optimizer.zero_grad()
        objective(model, x, 0.3).backward()
        for group, name in zip(optimizer.param_groups, named, strict=True):
            group["lr"] = 1e-3 * ((v[modules[name]] - low) / (high - low + 1e-8)) ** 0.7
        optimizer.step()
        assert (adapter(x) - logits.detach()).abs().max() < 1e-9
    for name, value in weights(adapter).items():
        torch.testing.assert_close(value, dict(model.named_parameters())[name].detach(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_the_official_step_is_that_of_a_new_adam_at_the_reported_rates(weight_decay, stream64):
    adapter = law(weight_decay=weight_decay)
    for x in stream64[:2]:
        before = weights(adapter)
        update = gradients(adapter, lambda model, x=x: objective(model, x, 0.1))
        adapter(x)
        rates = adapter.last.learning_rates
        assert min(rates.values()) == 0
        assert max(rates.values()) == pytest.approx(1e-3, rel=1e-4)
        for name, g in update.items():
            theta = before[name].clone().requires_grad_(True)
            theta.grad = g
            torch.optim.Adam([theta], lr=rates[name], weight_decay=weight_decay).step()
            torch.testing.assert_close(weights(adapter)[name], theta.detach(), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("scale", "factor"), [("one", 1), ("classes", 10), ("classes-squared", 100)])
def test_lam_scale_sets_the_weight_of_the_consistency_loss(scale, factor, stream64):
    adapter = law(lam=0.02, lam_scale=scale)
    adapter(stream64[0])
    losses = adapter.last.losses
    assert losses["total"] == pytest.approx(losses["entropy"] + 0.02 * factor * losses["consistency"])


@pytest.mark.parametrize(
    ("data", "classes", "official", "palm_repo"),
    [("cifar10-c", 10, 0.1, 1.0), ("cifar100-c", 100, 1.0, 100.0), ("imagenet-c", 1000, 10.0, 10000.0)],
)
def test_variants_and_presets_compose_to_the_published_coefficients(data, classes, official, palm_repo, stream64):
    def coefficient(**choice):
        return law(**choice).method.coefficient(classes)

    assert coefficient(preset=data) == pytest.approx(official)
    assert coefficient(preset=data, variant="palm-repo") == pytest.approx(palm_repo)
    assert coefficient(preset=f"palm-repo-{data}") == pytest.approx(palm_repo)
    entry = find("law")
    one, other = entry.resolve(f"palm-repo-{data}", {}), entry.resolve(data, {"variant": "palm-repo"})
    assert one == other
    assert entry.resolve(data, {"variant": "paper"}).lr == entry.resolve(data, {}).lr


def test_presets_carry_the_published_values():
    presets = find("law").presets
    assert {
        name: (presets[name]["lr"], presets[name]["tau"]) for name in ("cifar10-c", "cifar100-c", "imagenet-c")
    } == {
        "cifar10-c": (1e-3, 1.0),
        "cifar100-c": (5e-5, 0.6),
        "imagenet-c": (2e-4, 1.0),
    }


def test_lambda_zero_never_calls_the_augmentation(stream64):
    def never(x):
        raise AssertionError("called")

    adapter = law(lam=0, augment=never)
    adapter(stream64[0])
    assert adapter.last.losses.keys() == {"entropy", "total"}
    assert adapter.last.shares["moved"] > 0


def test_tau_bends_the_layer_weights(stream64):
    found = {}
    for tau in (0.0, 0.5, 1.0):
        adapter = law(tau=tau)
        adapter(stream64[0])
        found[tau] = torch.tensor(list(adapter.last.importance.values()), dtype=F64)
    assert (found[0.0] == 1).all()
    torch.testing.assert_close(found[0.5] ** 2, found[1.0])


def test_accumulate_decides_how_much_of_the_past_is_kept(stream64):
    kept = {}
    for share in (0.0, 0.5, 1.0):
        adapter = law(accumulate=share, grad_leak=False, lr=0)  # at rest, so that the batches give the same
        adapter(stream64[0])
        first = dict(adapter.method.fisher)
        adapter(stream64[1])
        kept[share] = adapter.method.fisher
    for name, value in first.items():
        torch.testing.assert_close(kept[0.5][name], kept[0.0][name] + 0.5 * value)
        torch.testing.assert_close(kept[1.0][name], kept[0.0][name] + value)


def test_module_unit_gives_weight_and_bias_one_rate(stream64):
    adapter = law(unit="module")
    adapter(stream64[0])
    rates = adapter.last.learning_rates
    assert rates["bn1.weight"] == rates["bn1.bias"]
    adapter = law(unit="tensor")
    adapter(stream64[0])
    assert adapter.last.learning_rates["bn1.weight"] != adapter.last.learning_rates["bn1.bias"]


def test_per_sample_information_is_at_least_that_of_the_batch_mean(stream64):
    mean, samples = law(), law(fim="per-sample")
    for adapter in (mean, samples):
        adapter(stream64[0])
    for name, value in samples.method.fisher.items():
        assert (value >= mean.method.fisher[name] - 1e-15).all()
        assert (value > mean.method.fisher[name]).any()


def test_more_steps_repeat_the_whole_procedure(stream64):
    once, twice = law(), law(steps=2)
    once(stream64[0])
    assert torch.equal(twice(stream64[0]), once(stream64[0]))
    assert all(torch.equal(value, once.method.fisher[name]) for name, value in twice.method.fisher.items())


def test_only_a_persistent_adam_keeps_moments(stream64):
    fresh, lasting = law(), law(adam_state="persistent")
    for adapter in (fresh, lasting):
        adapter(stream64[0])
        adapter(stream64[1])
    assert fresh.method.mean == {}
    assert set(lasting.method.updates.values()) == {2}


def test_reset_forgets_the_fisher_information_and_the_leaked_gradient(stream64):
    adapter = law()
    first = [adapter(x) for x in stream64]
    assert adapter.method.fisher.keys() == adapter.method.leaked.keys() == adapter.method.adapted.keys()
    adapter.reset()
    assert adapter.method.fisher == adapter.method.leaked == {}
    assert all(torch.equal(adapter(x), logits) for x, logits in zip(stream64, first, strict=True))


def test_a_single_tensor_has_nothing_to_compare_with_and_stays(stream64):
    layers = [nn.Conv2d(3, 4, 3, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)]
    adapter = law(nn.Sequential(*layers).double())
    before = weights(adapter)
    adapter(stream64[0])
    assert all(torch.equal(value, before[name]) for name, value in weights(adapter).items())
    assert adapter.last.shares == {"moved": 0.0}
    assert any("nothing moves" in note for note in adapter.last.notes)


def test_tensors_the_model_never_uses_are_skipped_and_named():
    network = NETWORKS["unused"]
    adapter = law(network.make())
    adapter(network.stream((4,))[0])
    assert not any(name.startswith("spare") for name in adapter.method.fisher)
    assert "spare.weight" in adapter.last.notes[0]
    assert adapter.last.learning_rates["spare.weight"] == 0


def test_an_information_that_overflows_undoes_the_step(stream):
    adapter = law(golden_net())
    adapter(stream[0][:8])
    before = dict(adapter.method.fisher)

    def huge(_module, _inputs, logits):
        if logits.requires_grad:
            logits.register_hook(lambda gradient: gradient * 1e28)

    hook = adapter.model.register_forward_hook(huge)
    assert adapter(stream[1][:8]).isfinite().all()
    hook.remove()
    assert adapter.last.reason.startswith("Fisher information is not finite")
    assert all(torch.equal(value, before[name]) for name, value in adapter.method.fisher.items())
