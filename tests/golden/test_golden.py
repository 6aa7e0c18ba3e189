"""Our methods against outputs of independent reference runs (see README.md beside this file)."""

import functools

import numpy as np
import pytest
import torch
from tests.conftest import GOLDEN, fixed_augment, golden_net, golden_stream

import ctta

PALM = {"lr": 5e-4, "alpha": 0.5, "temperature": 50, "eta": 1.0, "lam": 0.01, "weight_decay": 0}
CASES = {
    "bn1": ("bn1", {}),
    "tent_lr1e-3": ("tent", {"lr": 1e-3}),
    "tent_cifar10c": ("tent", {"preset": "palm-repo-cifar10-c"}),
    "palm_cifar10c": ("palm", {"preset": "cifar10-c"}),
    "palm_cifar100c": ("palm", {"preset": "cifar100-c"}),
    "palm_imagenetc": ("palm", {"preset": "imagenet-c"}),
    "palm_switching": ("palm", {**PALM, "eta": 0.12, "alpha": 0.7}),
    "palm_none_selected": ("palm", {**PALM, "eta": 1e-12}),
    "sft_cifar10c": ("sft", {"preset": "cifar10-c"}),
}
PALM_CASES = [name for name in CASES if name.startswith("palm")]


@functools.cache
def run(case: str, dtype: torch.dtype) -> tuple[ctta.Adapter, list[torch.Tensor], list[ctta.Report]]:
    method, settings = CASES[case]
    adapter = ctta.adapt(golden_net(dtype), method, augment=fixed_augment, **settings)
    logits, reports = [], []
    for x in golden_stream(dtype):
        logits.append(adapter(x))
        reports.append(adapter.last)
    return adapter, logits, reports


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("dtype", "key", "tolerance"),
    [(torch.float64, "logits_f64", 1e-6), (torch.float32, "logits_f32", 5e-3)],
    ids=["float64", "float32"],
)
def test_logits_match_the_reference_over_all_batches(case, dtype, key, tolerance):
    _, logits, _ = run(case, dtype)
    expected = torch.from_numpy(np.load(GOLDEN / f"{case}.npz")[key])
    assert (torch.stack(logits) - expected).abs().max() < tolerance


@pytest.mark.parametrize("case", CASES)
def test_final_weights_match_the_reference(case):
    adapter, _, _ = run(case, torch.float64)
    weights = dict(adapter.model.named_parameters())
    with np.load(GOLDEN / f"{case}.npz") as arrays:
        final = {key.removeprefix("final_f64/"): value for key, value in arrays.items() if "final" in key}
    for name, expected in final.items():
        assert np.abs(weights[name].detach().numpy() - expected).max() < 1e-6, name


@pytest.mark.parametrize("case", PALM_CASES)
def test_palm_selects_the_same_tensors_with_the_same_scores_and_rates(case):
    _, _, reports = run(case, torch.float64)
    with np.load(GOLDEN / f"{case}.npz") as arrays:
        names = arrays["tensor_names"]
        selected, scores, rates = arrays["selected"], arrays["score_f64"], arrays["lr_f64"]
    for batch, report in enumerate(reports):
        assert set(report.selected) == set(names[selected[batch]])
        np.testing.assert_allclose([report.scores[name] for name in names], scores[batch], rtol=1e-6)
        np.testing.assert_allclose([report.learning_rates[name] for name in names], rates[batch], rtol=1e-6)
