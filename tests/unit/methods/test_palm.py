"""PALM: the tests that pin the specification, every setting, and agreement with a plain reference."""

import itertools
import math

import pytest
import torch
from tests.conftest import fixed_augment, golden_net, golden_stream
from tests.reference.literal_palm import OfficialPalm, PaperPalm
from torch import nn

import ctta
from ctta._core.precision import bf16_pays
from ctta._cost.checkpointing import checkpoint_blocks, checkpointed
from ctta.checks.networks import NETWORKS
from ctta.methods.palm.choices import threshold_for_share

F64 = torch.float64


def palm(dtype=F64, model=None, **settings):
    settings.setdefault("augment", fixed_augment)
    return ctta.adapt(golden_net(dtype) if model is None else model, "palm", **settings)


def weights(adapter):
    return {name: p.detach().clone() for name, p in adapter.model.named_parameters()}


def run(adapter, batches):
    return torch.cat([adapter(x) for x in batches])


@pytest.fixture(scope="module")
def stream64():
    return [x[:8] for x in golden_stream(F64)]  # float64 convolutions are slow: a quarter of each batch


@pytest.mark.parametrize("network", ["bn2d", "residual", "groupnorm", "vit", "bn3d", "unused"])
@pytest.mark.parametrize("seed", [0, 1])
def test_official_variant_equals_the_plain_reference_on_other_networks_and_settings(network, seed):
    draw = torch.Generator().manual_seed(seed)
    u = torch.rand(6, generator=draw).tolist()
    settings = {
        "lr": 10 ** (-4 + 2 * u[0]),
        "alpha": u[1],
        "temperature": 1 + 60 * u[2],
        "lam": 0.5 * u[4],
        "weight_decay": 1e-3 * seed,
        "entropy_margin": 1.5 * u[5],
    }
    model = NETWORKS[network].make(F64)
    batches = NETWORKS[network].stream((8, 8, 5, 8, 8), F64)
    median = torch.tensor([*score_batch(model, batches[0], settings)]).median().item()
    settings["eta"] = 1.2 * median
    reference = OfficialPalm(model, fixed_augment, **settings)
    adapter = palm(model=model, **settings)
    for x in batches:
        expected = reference(x)
        assert (adapter(x) - expected).abs().max() < 1e-6
        assert list(adapter.last.selected) == reference.selected
        for name, rate in reference.rates.items():
            assert adapter.last.learning_rates[name] == pytest.approx(rate, rel=1e-6, abs=1e-15)
    assert 0 < len(reference.selected) < len(reference.named)


def score_batch(model, x, settings):
    adapter = palm(model=model, **settings)
    adapter(x)
    return adapter.last.scores.values()


@pytest.mark.parametrize("eta", [0.005, 0.02, 1.0])
def test_paper_variant_equals_the_equations_written_out(eta, stream64):
    settings = {"lr": 1e-3, "alpha": 0.6, "temperature": 20.0, "eta": eta, "lam": 0.05}
    reference = PaperPalm(golden_net(F64), fixed_augment, **settings)
    adapter = palm(variant="paper", **settings)
    for x in stream64[:8]:
        expected = reference(x)
        assert (adapter(x) - expected).abs().max() < 1e-6
        assert list(adapter.last.selected) == reference.selected


# ------------------------------------------------------------------ specification, section 17


@pytest.mark.parametrize("weight_decay", [0.0, 5e-4])
def test_spec_1_the_update_equals_a_freshly_built_adam(weight_decay, stream64):
    x = stream64[0]
    adapter = palm(weight_decay=weight_decay, lr=1e-2, eta=1e9)
    before = weights(adapter)
    reference = OfficialPalm(golden_net(F64), fixed_augment, lr=1e-2, eta=1e9, weight_decay=weight_decay)
    reference(x)
    adapter(x)
    for name, parameter in reference.named.items():
        assert not torch.equal(before[name], parameter)
        assert (adapter.method.adapted[name] - parameter).abs().max() < 1e-6


def test_spec_2_first_selection_gives_importance_one_at_alpha_half(stream64):
    adapter = palm(alpha=0.5, eta=1e9)
    adapter(stream64[0])
    assert all(i == pytest.approx(1.0) for i in adapter.last.importance.values())


@pytest.mark.parametrize("alpha", [0.5, 0.7, 0.9])
def test_spec_2_importance_never_raises_the_rate_above_kappa_for_alpha_of_half_or_more(alpha, stream64):
    adapter = palm(alpha=alpha, eta=1e9)
    for x in stream64:
        adapter(x)
        assert all(0 <= i <= 1 + 1e-12 for i in adapter.last.importance.values())


def test_spec_2_alpha_one_gives_eps_over_s_and_alpha_zero_one_plus_s_over_eps(stream64):
    x = stream64[0]
    for alpha, expected in ((1.0, lambda s: 1e-8 / (s + 1e-8)), (0.0, lambda s: 1 + s / 1e-8)):
        adapter = palm(alpha=alpha, eta=1e9, granularity="element")
        theta = {name: value.clone() for name, value in adapter.method.source.items()}
        adapter.method.begin()
        logits = adapter.model(x)
        gradients = adapter.method.gradients(ctta.functional.uniform_kl(logits, 50.0, target_scale="ones"))
        adapter(x)
        for name, factor in adapter.method.importance.items():
            torch.testing.assert_close(factor, expected((theta[name] * gradients[name]).abs()))


def test_spec_3_official_keeps_a_stale_rate_where_paper_freezes(stream64):
    """A tensor selected in the first batch only."""
    probe = palm(eta=1e9)
    probe(stream64[0])
    first = probe.last.scores
    probe(stream64[1])
    name = max(first, key=lambda n: probe.last.scores[n] / first[n])
    eta = math.sqrt(first[name] * probe.last.scores[name])
    for unselected, stale in (("stale", True), ("zero", False)):
        # lr 0 in the first batch would move nothing; the scores of batch two then equal the probe's
        adapter = palm(eta=eta, unselected_lr=unselected)
        adapter(stream64[0])
        assert name in adapter.last.selected
        importance = adapter.last.importance[name]
        before = adapter.method.adapted[name].detach().clone()
        adapter(stream64[1])
        assert name not in adapter.last.selected
        assert adapter.last.importance[name] == (importance if stale else 0.0)
        assert torch.equal(adapter.method.adapted[name], before) is not stale


def test_spec_4_ones_target_scales_scores_by_the_number_of_classes(stream64):
    ones, uniform = palm(eta=0.12), palm(divergence="uniform", eta=0.12 / 10)
    ones(stream64[0])
    uniform(stream64[0])
    for name, score in ones.last.scores.items():
        assert score == pytest.approx(10 * uniform.last.scores[name])
    assert ones.last.selected == uniform.last.selected
    assert 0 < len(ones.last.selected) < len(ones.last.scores)


def test_spec_4_paper_eta_c_selects_what_official_selects_on_the_first_batch(stream64):
    official, scaled = palm(eta=0.12), palm(eta=0.12, variant="paper-eta-c")
    official(stream64[0])
    scaled(stream64[0])
    assert official.last.selected == scaled.last.selected
    assert scaled.last.eta == pytest.approx(0.012)


def test_spec_5_scores_fall_with_the_square_of_a_large_temperature_and_selection_grows(stream64):
    selected = set()
    for temperature in (50, 100, 200, 400, 800):
        adapter = palm(temperature=temperature, eta=0.02)
        adapter(stream64[0])
        assert selected <= set(adapter.last.selected)
        selected = set(adapter.last.selected)
    assert selected
    one, two = palm(temperature=400), palm(temperature=800)
    one(stream64[0])
    two(stream64[0])
    for name, score in one.last.scores.items():
        assert two.last.scores[name] / score == pytest.approx(0.25, rel=0.01)


@pytest.mark.parametrize("variant", ["official", "paper"])
def test_spec_6_an_empty_filter_gives_the_consistency_only_step_and_says_so(variant, stream64):
    x = stream64[0]
    adapter = palm(entropy_margin=0.0, variant=variant, eta=1e9)
    adapter(x)
    assert adapter.last.kept == 0
    assert adapter.last.losses["entropy"] == 0.0
    assert any("entropy margin" in note for note in adapter.last.notes)
    assert all(math.isfinite(value) for value in adapter.last.losses.values())
    if variant == "official":
        reference = OfficialPalm(golden_net(F64), fixed_augment, eta=1e9, entropy_margin=0.0)
        reference(x)
        for name, parameter in reference.named.items():
            assert (adapter.method.adapted[name] - parameter).abs().max() < 1e-9


@pytest.mark.parametrize("eta", [0.0, -1.0])
def test_spec_7_nothing_selected_leaves_the_weights_and_predicts_as_bn1(eta, stream64):
    adapter, bn1 = palm(eta=eta), ctta.adapt(golden_net(F64), "bn1")
    before = weights(adapter)
    for x in stream64[:3]:
        assert torch.equal(adapter(x), bn1(x))
    assert all(torch.equal(before[name], value) for name, value in weights(adapter).items())
    assert adapter.last.shares == {"selected": 0.0, "moved": 0.0, "ever_selected": 0.0}


def test_spec_8_lambda_zero_never_calls_the_augmentation(stream64):
    def explode(_):
        raise AssertionError("augmentation called")

    adapter, tiny = palm(lam=0.0, augment=explode), palm(lam=1e-300)
    for x in stream64[:3]:
        assert (adapter(x) - tiny(x)).abs().max() < 1e-12
    assert "consistency" not in adapter.last.losses


@pytest.mark.parametrize("size", [1, 8])
def test_spec_16_small_batches_run(size, stream64):
    adapter = palm(augment=None)
    for x in stream64[:3]:
        assert adapter(x[:size]).isfinite().all()
    assert not adapter.last.skipped


def test_spec_16_a_network_without_conv_or_norm_is_refused_with_a_reason():
    with pytest.raises(
        ctta.UnsupportedModelError, match="convolution or normalisation layers, and Linear has none"
    ):
        ctta.adapt(nn.Linear(4, 3), "palm")


# ------------------------------------------------------------------ consequences of the algebra (spec 7.5)


def test_scaling_the_whole_loss_changes_nothing_but_elements_near_zero(stream64):
    """The official step is a sign step: without entropy, lambda only scales the loss."""
    one, ten = palm(entropy_margin=0.0, lam=0.1), palm(entropy_margin=0.0, lam=1.0)
    for x in stream64[:3]:
        assert (one(x) - ten(x)).abs().max() < 1e-4


def test_no_weight_moves_more_than_kappa_per_batch(stream64):
    adapter = palm(lr=1e-3, eta=1e9)
    before = weights(adapter)
    for count, x in enumerate(stream64, 1):
        adapter(x)
        for name, value in weights(adapter).items():
            assert (value - before[name]).abs().max() <= count * 1e-3 * (1 + 1e-9)


def test_an_anchor_bounds_how_far_a_weight_can_ever_go(stream64):
    free, held = palm(lr=1e-2, eta=1e9), palm(lr=1e-2, eta=1e9, anchor=0.5)
    before = weights(held)

    def furthest(adapter):
        return max((value - before[name]).abs().max().item() for name, value in weights(adapter).items())

    for x in stream64:
        free(x), held(x)
        assert furthest(held) <= 1e-2 * (1 + 1e-9)
    assert furthest(free) > 3e-2


def test_an_anchor_of_one_never_leaves_the_source_weights(stream64):
    adapter, bn1 = palm(eta=1e9, anchor=1.0), ctta.adapt(golden_net(F64), "bn1")
    for x in stream64[:3]:
        assert torch.equal(adapter(x), bn1(x))


# ------------------------------------------------------------------ every setting does what it says


def changed(stream, **settings):
    """Largest difference to the default run over three batches."""
    base = {"eta": 0.12, "alpha": 0.7}
    return float((run(palm(**base), stream[:4]) - run(palm(**{**base, **settings}), stream[:4])).abs().max())


@pytest.mark.parametrize(
    "settings",
    [
        {"divergence": "uniform"},
        {"divergence": "p||u", "temperature": 1.0, "eta": 3.0},
        {"divergence": "sum"},
        {"eta_scale": "classes"},
        {"granularity": "element"},
        {"average_init": "first"},
        {"optimizer_state": "persistent"},
        {"weight_decay": 0.1},
        {"entropy_margin": 2.0},
        {"margin_unit": "log-classes"},
        {"entropy_reduction": "batch", "entropy_margin": 1.5},
        {"consistency_scale": "one"},
        {"consistency_detach": "clean"},
        {"consistency_detach": "view"},
        {"consistency_samples": "kept", "entropy_margin": 1.5},
        {"modules": "norm"},
        {"modules": "all"},
        {"bn_mode": "source"},
        {"returned_logits": "after"},
        {"lr": 1e-3},
        {"lam": 0.5},
        {"anchor": 0.1},
    ],
    ids=lambda s: "-".join(f"{k}={v}" for k, v in s.items()),
)
def test_each_setting_changes_the_run(settings, stream64):
    assert changed(stream64, **settings) > 1e-9


@pytest.mark.parametrize(
    "settings",
    [{"memory": "low"}, {"memory": "lowest"}, {"memory": "lowest", "lam": 0.5}],
    ids=lambda s: "-".join(map(str, s.values())),
)
@pytest.mark.parametrize("network", ["bn2d", "residual", "groupnorm", "vit", "bn3d", "unused"])
def test_what_memory_says_changes_nothing(network, settings):
    model, batches = NETWORKS[network].make(F64), NETWORKS[network].stream((6, 6, 4), F64)
    shared = {"eta": 0.05, "lr": 1e-2, "lam": settings.get("lam", 0.05)}
    plain, other = palm(model=model, **shared), palm(model=model, **{**shared, **settings})
    for x in batches:
        assert (plain(x) - other(x)).abs().max() < 1e-12
        assert plain.last.selected == other.last.selected
        assert plain.last.losses == pytest.approx(other.last.losses)
    moved = weights(plain)
    for name, value in weights(other).items():
        assert (value - moved[name]).abs().max() < 1e-12


def test_a_checkpointed_step_leaves_the_blocks_of_the_model_as_they_were():
    model = golden_net(F64)
    adapter = palm(model=model, memory="lowest")
    adapter(golden_stream(F64)[0][:8])
    assert not any("forward" in vars(module) for module in adapter.model.modules())
    plain = adapter.freeze()
    assert torch.equal(plain(golden_stream(F64)[1][:8]), adapter.predict(golden_stream(F64)[1][:8]))


def test_a_block_with_a_forward_of_its_own_gets_it_back():
    model = golden_net(F64)
    block = checkpoint_blocks(model)[0]
    own = block.forward
    block.forward = own
    with checkpointed(model):
        assert block.forward is not own
    assert vars(block)["forward"] == own


def test_refresh_selects_every_so_many_batches_and_keeps_rates_in_between(stream64):
    adapter = palm(refresh=3, eta=0.05)
    reports = []
    for x in stream64[:7]:
        adapter(x)
        reports.append(adapter.last)
    assert [bool(report.scores) for report in reports] == [True, False, False, True, False, False, True]
    for before, after in itertools.pairwise(reports):
        if not after.scores:
            assert after.selected == before.selected
            assert after.learning_rates == before.learning_rates
    assert all(report.losses["consistency"] > 0 for report in reports)


def test_refresh_goes_on_counting_after_a_save(stream64, tmp_path):
    adapter = palm(refresh=3, eta=0.05, augment="cotta")
    for x in stream64[:2]:
        adapter(x)
    adapter.save(tmp_path / "a.ctta")
    other = ctta.load(tmp_path / "a.ctta", golden_net(F64))
    for x in stream64[2:5]:
        assert torch.equal(adapter(x), other(x))


def test_under_the_callers_autocast_a_second_look_uses_the_moved_weights():
    adapter = palm(torch.float32, returned_logits="after", lr=0.05)
    x = golden_stream(torch.float32)[0]
    with torch.autocast("cpu", torch.bfloat16):
        after = adapter(x)
        assert torch.equal(after, adapter.predict(x))


def run_in_bf16(monkeypatch, pays):
    """A float32 run with speed="fast" on a machine where that pays, or not: dtypes seen, logits, reports."""
    monkeypatch.setattr("ctta._core.precision.bf16_pays", lambda device: pays)
    monkeypatch.setattr("ctta.methods.palm.palm.bf16_pays", lambda device: pays)
    adapter = ctta.adapt(golden_net(torch.float32), "palm", augment=fixed_augment, eta=0.05, speed="fast")
    seen = []
    adapter.model.conv1.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    stream = golden_stream(torch.float32)[:4]
    logits = [adapter(x) for x in stream]
    return adapter, set(seen), logits, stream


def test_bf16_computes_convolutions_in_it_and_keeps_weights_state_and_logits_wide(monkeypatch):
    adapter, seen, logits, stream = run_in_bf16(monkeypatch, pays=True)
    assert seen == {torch.bfloat16}
    assert {value.dtype for value in weights(adapter).values()} == {torch.float32}
    assert {value.dtype for value in adapter.method.average.values()} == {torch.float32}
    full = ctta.adapt(golden_net(torch.float32), "palm", augment=fixed_augment, eta=0.05, refresh=3)
    expected = [full(x) for x in stream]
    assert all(found.dtype == torch.float32 for found in logits)
    assert 0 < max((a - b).abs().max() for a, b in zip(logits, expected, strict=True)) < 0.2
    assert torch.equal(adapter.predict(stream[0]), adapter.freeze()(stream[0]))  # in full precision both


def test_bf16_changes_nothing_where_the_processor_does_not_gain_by_it_and_says_so(monkeypatch):
    adapter, seen, logits, stream = run_in_bf16(monkeypatch, pays=False)
    assert seen == {torch.float32}
    assert any("not faster with bfloat16" in note for note in adapter.last.notes)
    full = ctta.adapt(golden_net(torch.float32), "palm", augment=fixed_augment, eta=0.05, refresh=3)
    assert all(torch.equal(found, full(x)) for found, x in zip(logits, stream, strict=True))


def test_fast_is_stage_one_in_some_batches_everywhere_unless_told_otherwise(stream64):
    adapter = palm(speed="fast")
    assert adapter.settings.refresh == 3
    assert palm(speed="fast", refresh=1).settings.refresh == palm().settings.refresh == 1
    scored = [(adapter(x), bool(adapter.last.scores))[1] for x in stream64[:5]]
    assert scored == [True, False, False, True, False]


def test_the_settings_of_the_paper_come_first_and_are_few():
    groups = [setting.group for setting in ctta.methods.find("palm").settings]
    assert groups == sorted(groups, key=["paper", "difference", "cost"].index)
    assert len(groups) <= 30
    assert groups.count("paper") <= 12


def test_fast_with_nothing_selected_moves_nothing(stream64):
    adapter = palm(speed="fast", eta=0.0)
    start = weights(adapter)
    for x in stream64[:3]:
        adapter(x)
    assert all(torch.equal(value, start[name]) for name, value in weights(adapter).items())


def test_paper_variant_can_be_overridden_setting_by_setting():
    settings = palm(variant="paper", granularity="tensor").settings
    assert settings.granularity == "tensor"
    assert settings.optimizer_state == "persistent"


def test_presets_carry_the_published_values():
    table = {
        "cifar10-c": (5e-4, 0.5, 50, 1.0, 0.01, 0.0),
        "cifar100-c": (5e-4, 0.9, 100, 0.5, 0.01, 5e-4),
        "imagenet-c": (5e-5, 0.5, 1000, 0.3, 0.01, 0.0),
    }
    for preset, values in table.items():
        s = palm(preset=preset).settings
        assert (s.lr, s.alpha, s.temperature, s.eta, s.lam, s.weight_decay) == values
    assert palm(preset="cifar100-c", variant="paper").settings.weight_decay == 0.0
    assert palm(preset="cifar100-c", variant="paper", weight_decay=0.1).settings.weight_decay == 0.1


# ------------------------------------------------------------------ eta="auto"


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2, 0.5, 0.9, 1.0])
def test_auto_eta_selects_the_nearest_possible_share_on_the_first_batch(share, stream64):
    adapter = palm(adapt_share=share)
    adapter(stream64[0])
    scores, adapted = adapter.last.scores, adapter.method.adapted
    total = sum(p.numel() for p in adapted.values())
    possible = [
        sum(adapted[n].numel() for n, score in scores.items() if score <= level) / total
        for level in scores.values()
    ]
    best = min(abs(one - share) for one in possible)
    assert abs(adapter.last.shares["selected"] - share) == pytest.approx(best)


def test_auto_eta_is_found_once_kept_saved_and_forgotten_at_reset(stream64, tmp_path):
    adapter = palm(eta="auto", adapt_share=0.3)
    adapter(stream64[0])
    eta = adapter.last.eta
    adapter(stream64[7])
    assert adapter.last.eta == eta
    adapter.save(tmp_path / "a")
    twin = ctta.load(tmp_path / "a", golden_net(F64), augment=fixed_augment)
    twin(stream64[3])
    assert twin.last.eta == eta
    adapter.reset()
    adapter(stream64[7])
    assert adapter.last.eta != eta


def test_a_share_overrules_the_eta_of_a_preset_but_not_one_given_beside_it():
    assert palm(preset="imagenet-c", adapt_share=0.1).settings.eta == "auto"
    with pytest.raises(ctta.SettingError, match="either `eta` or `adapt_share`"):
        palm(eta=1.0, adapt_share=0.1)


def test_auto_eta_without_a_share_aims_at_the_default(stream64):
    adapter = palm(eta="auto")
    adapter(stream64[0])
    assert 0 < adapter.last.shares["selected"] < 0.15


def test_threshold_for_share_handles_zero_scores_and_a_single_tensor():
    assert threshold_for_share({"a": 0.0, "b": 2.0}, {"a": 5, "b": 5}, wanted=5) == 1.0
    assert threshold_for_share({"a": 3.0}, {"a": 5}, wanted=1) == pytest.approx(6.0)


# ------------------------------------------------------------------ which parameters


def test_only_convolutions_and_norm_layers_of_a_vit_like_model_are_adapted():
    adapter = ctta.adapt(NETWORKS["vit"].make(), "palm")
    assert {name.split(".")[0] for name in adapter.method.adapted} == {"patch", "norm1", "norm2"}


def test_parameters_the_model_never_uses_are_not_selected_and_named_in_the_report():
    adapter = ctta.adapt(NETWORKS["unused"].make(), "palm", eta=1e9)
    adapter(NETWORKS["unused"].stream((4,))[0])
    assert not any(name.startswith("spare") for name in adapter.last.selected)
    assert adapter.last.learning_rates["spare.weight"] == 0.0
    assert "spare.weight" in adapter.last.notes[0]


def test_a_tied_weight_is_one_tensor_and_stays_tied():
    adapter = ctta.adapt(NETWORKS["tied"].make(), "palm", eta=1e9)
    assert "first.weight" in adapter.method.adapted
    assert "second.weight" not in adapter.method.adapted
    adapter(NETWORKS["tied"].stream((4,))[0])
    assert adapter.model.first.weight is adapter.model.second.weight


def test_report_shares_count_selected_moved_and_ever_selected(stream):
    adapter = palm(torch.float32, eta=0.12, alpha=0.7)
    for x in stream[:2]:
        adapter(x)
    last, sizes = adapter.last, {n: p.numel() for n, p in adapter.method.adapted.items()}
    total = sum(sizes.values())
    assert last.shares["selected"] == pytest.approx(sum(sizes[n] for n in last.selected) / total)
    moved = sum(sizes[n] for n, rate in last.learning_rates.items() if rate > 0) / total
    assert last.shares["moved"] == pytest.approx(moved)
    assert last.shares["ever_selected"] >= last.shares["moved"] > last.shares["selected"]


@pytest.mark.parametrize("has", [True, False])
def test_bf16_pays_on_processors_with_instructions_for_it_only(monkeypatch, has):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False, raising=False)
    assert bf16_pays.__wrapped__("cpu") is has
    assert not bf16_pays.__wrapped__("mps")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has)
    assert bf16_pays.__wrapped__("cuda") is has
