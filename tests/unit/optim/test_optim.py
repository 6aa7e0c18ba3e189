"""Update rules against torch.optim, and against runs of the package pytorch-optimizer."""

import math

import pytest
import torch
from tests import optim_cases
from tests.optim_cases import SHAPES, pull, start

import ctta
from ctta.optim import (
    Adafactor,
    AdamState,
    Lars,
    OptimizerState,
    Prodigy,
    adam,
    depth_factors,
    find_optimizer,
    sgd,
    sign_step,
    torch_step,
)
from ctta.optim.autolr import increasing

F64 = torch.float64


def draws(seed, steps=30):
    gen = torch.Generator().manual_seed(seed)
    theta = torch.randn(7, 3, dtype=F64, generator=gen)
    return theta, [torch.randn(7, 3, dtype=F64, generator=gen) for _ in range(steps)]


def follow(optimizer, parameter, gradients):
    values = []
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
        values.append(parameter.detach().clone())
    return values


@pytest.mark.parametrize("weight_decay", [0.0, 5e-4, 0.1])
@pytest.mark.parametrize("beta1", [0.9, 0.0])
def test_adam_equals_torch(weight_decay, beta1):
    theta, gradients = draws(0)
    parameter = torch.nn.Parameter(theta.clone())
    reference = torch.optim.Adam([parameter], lr=1e-2, betas=(beta1, 0.999), weight_decay=weight_decay)
    state = AdamState.zero(theta)
    for gradient, expected in zip(gradients, follow(reference, parameter, gradients), strict=True):
        theta, state = adam(theta, gradient, 1e-2, state, beta1=beta1, weight_decay=weight_decay)
        torch.testing.assert_close(theta, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9)])
@pytest.mark.parametrize("weight_decay", [0.0, 5e-4])
def test_spec_1_the_sign_step_is_the_first_step_of_adam_whatever_the_betas(weight_decay, betas):
    theta, gradients = draws(1, steps=1)
    gradients[0][0] = torch.tensor([0.0, 1e-8, -1e-9])
    parameter = torch.nn.Parameter(theta.clone())
    reference = torch.optim.Adam([parameter], lr=1e-2, betas=betas, weight_decay=weight_decay)
    expected = follow(reference, parameter, gradients)[0]
    torch.testing.assert_close(
        sign_step(theta, gradients[0], 1e-2, weight_decay=weight_decay), expected, rtol=0, atol=1e-6
    )


def test_the_sign_step_takes_one_rate_per_element():
    theta, rates = torch.ones(3), torch.tensor([0.0, 0.1, 0.2])
    torch.testing.assert_close(sign_step(theta, torch.ones(3), rates), theta - rates)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_sgd_equals_torch(nesterov, weight_decay):
    theta, gradients = draws(2)
    parameter = torch.nn.Parameter(theta.clone())
    reference = torch.optim.SGD([parameter], lr=1e-2, momentum=0.9, nesterov=nesterov, weight_decay=weight_decay)
    velocity = None
    for gradient, expected in zip(gradients, follow(reference, parameter, gradients), strict=True):
        theta, velocity = sgd(theta, gradient, 1e-2, velocity, nesterov=nesterov, weight_decay=weight_decay)
        torch.testing.assert_close(theta, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("case", optim_cases.CASES)
def test_a_hundred_steps_equal_those_of_pytorch_optimizer_written_down(case):
    expected = optim_cases.golden(case)
    assert optim_cases.travelled(expected) > 1e-3
    assert optim_cases.distance(optim_cases.ours(case), expected) < 1e-7


@pytest.mark.parametrize("case", optim_cases.CASES)
def test_a_hundred_steps_equal_those_of_pytorch_optimizer_where_it_is_installed(case):
    pytest.importorskip("pytorch_optimizer")
    assert optim_cases.distance(optim_cases.ours(case), optim_cases.theirs(case)) < 1e-7


def one_step(kind, theta, gradients, **options):
    """New values and the optimiser after one step from its start."""
    parameters = {name: torch.nn.Parameter(value.clone()) for name, value in theta.items()}
    optimizer = kind(list(parameters.values()), **options)
    for name, parameter in parameters.items():
        parameter.grad = gradients[name]
    optimizer.step()
    return {name: parameter.detach() for name, parameter in parameters.items()}, optimizer


def test_spec_12_1_the_first_step_of_prodigy_is_3e_6_times_the_sign():
    theta = start()
    gradients = {name: pull(name, value, 0) for name, value in theta.items()}
    for lr in (1.0, 5e-4):
        moved, optimizer = one_step(Prodigy, theta, gradients, lr=lr)
        assert optimizer.param_groups[0]["d"] == 1e-6
        for name, value in theta.items():
            expected = -math.sqrt(10) * 1e-6 * lr * gradients[name].sign()
            torch.testing.assert_close(moved[name] - value, expected, rtol=1e-5, atol=1e-15)


def test_an_option_that_a_rule_does_not_have_is_refused():
    with pytest.raises(TypeError, match=r"Lars takes lr, .* but got \['beta1'\]"):
        Lars([torch.zeros(2)], beta1=0.5)


def test_prodigy_without_any_gradient_moves_nothing_and_does_not_count():
    theta = start()
    moved, optimizer = one_step(Prodigy, theta, {name: torch.zeros_like(v) for name, v in theta.items()})
    assert optimizer.param_groups[0]["steps"] == 0
    assert all(torch.equal(moved[name], theta[name]) for name in theta)
    one_step(Prodigy, theta, dict.fromkeys(theta))  # tensors the loss does not use


def test_prodigy_estimates_one_distance_for_all_tensors():
    found = []
    for names in (["vector"], list(SHAPES)):
        parameters = {name: torch.nn.Parameter(start()[name]) for name in names}
        optimizer = Prodigy(list(parameters.values()))
        for step in range(1, 30):
            for name, parameter in parameters.items():
                parameter.grad = pull(name, parameter.detach(), step)
            optimizer.step()
        found.append((optimizer.param_groups[0]["d"], parameters["vector"].detach()))
    (alone, x), (together, y) = found
    assert alone > 1e-4
    assert not math.isclose(alone, together, rel_tol=1e-3)
    assert not torch.allclose(x, y, rtol=1e-6)


def test_adafactor_moves_a_tensor_by_a_hundredth_of_its_size_and_survives_no_gradient():
    theta = {"kernel": start()["kernel"]}
    moved, optimizer = one_step(Adafactor, theta, {"kernel": pull("kernel", theta["kernel"], 0)})
    size = (moved["kernel"] - theta["kernel"]).norm() / theta["kernel"].norm()
    assert 0.005 < size < 0.0101
    (state,) = optimizer.state.values()
    assert (state["square"].shape, state["columns"].shape) == ((3, 2, 3, 1), (3, 2, 1, 2))
    narrow = {"kernel": theta["kernel"].float()}
    still, _ = one_step(Adafactor, narrow, {"kernel": torch.zeros_like(narrow["kernel"])})
    assert torch.equal(still["kernel"], narrow["kernel"])


def test_lars_is_plain_momentum_where_a_norm_is_zero():
    zero, one = {"w": torch.zeros(3)}, {"w": torch.ones(3)}
    torch.testing.assert_close(one_step(Lars, zero, one, lr=0.1)[0]["w"], -0.1 * one["w"])
    assert torch.equal(one_step(Lars, one, zero, lr=0.1)[0]["w"], one["w"])


@pytest.mark.parametrize("seed", range(20))
def test_increasing_is_the_isotonic_regression_of_the_logarithms(seed):
    values = torch.rand(9, dtype=F64, generator=torch.Generator().manual_seed(seed)).mul(9).add(0.1).log()
    best = [max(min(values[j : k + 1].mean().item() for k in range(i, 9)) for j in range(i + 1)) for i in range(9)]
    found = increasing(values.exp().tolist())
    assert found == pytest.approx([math.exp(value) for value in best], rel=1e-12)
    assert increasing([]) == []


def test_depth_factors_order_the_relative_changes_of_layers_and_leave_a_right_order_alone():
    gen = torch.Generator().manual_seed(0)
    names = ["a.weight", "a.bias", "b.weight", "c.weight", "d.weight", "still.weight"]
    before = {name: torch.randn(4, 3, generator=gen, dtype=F64) for name in names}
    steps = dict(zip(names, (0.4, 0.3, 0.1, 0.2, 0.6, 0.0), strict=True))
    after = {
        name: value + steps[name] * torch.randn(4, 3, generator=gen, dtype=F64) for name, value in before.items()
    }
    factors = depth_factors(before, after)
    assert factors["a.weight"] == factors["a.bias"] < 1  # one layer, one rate
    assert factors["b.weight"] > 1
    assert factors["still.weight"] == 1
    scaled = {name: value + factors[name] * (after[name] - value) for name, value in before.items()}
    again = depth_factors(before, scaled)
    assert again == pytest.approx(dict.fromkeys(names, 1.0))
    assert depth_factors({}, {}) == {}


TORCH = [
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type)
    and issubclass(kind, torch.optim.Optimizer)
    and name not in ("Optimizer", "LBFGS", "SparseAdam", "Muon")
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", [*(f"torch:{name}" for name in TORCH), "lars", "prodigy", "adafactor"])
def test_an_optimiser_rebuilt_for_every_step_equals_one_that_lasts(name, dtype):
    theta = {key: value.to(dtype) for key, value in start().items()}
    parameters = {key: torch.nn.Parameter(value.clone()) for key, value in theta.items()}
    kind = find_optimizer(name)
    reference = kind(list(parameters.values()), lr=0.01)
    state = OptimizerState({}, {})
    for step in range(40):
        gradients = {key: pull(key, value.double(), step).to(dtype) for key, value in theta.items()}
        theta, _, state = torch_step(kind, theta, gradients, {"lr": 0.01}, state)
        for key, parameter in parameters.items():
            parameter.grad = gradients[key].clone()
        reference.step()
    for key, parameter in parameters.items():
        assert torch.equal(theta[key], parameter.detach()), key
        assert all(isinstance(number, float) for number in state.numbers[key].values())
        assert all(tensor.dtype == dtype for tensor in state.tensors[key].values())


@pytest.mark.parametrize(
    ("name", "words"), [("LBFGS", "closure"), ("SparseAdam", "sparse"), ("Adamm", "Did you mean")]
)
def test_torch_optimisers_that_cannot_be_used_are_refused_by_name(name, words):
    with pytest.raises(ctta.SettingError, match=words):
        find_optimizer(f"torch:{name}")


def test_update_rules_leave_their_arguments_alone():
    theta, (gradient, *_) = draws(3)
    state, velocity = AdamState(theta * 0.1, theta**2, 4), theta * 0.2
    held = [t.clone() for t in (theta, gradient, state.mean, state.square, velocity)]
    sign_step(theta, gradient, 0.1, weight_decay=0.1)
    adam(theta, gradient, 0.1, state, weight_decay=0.1)
    sgd(theta, gradient, 0.1, velocity, weight_decay=0.1)
    kept = OptimizerState({"w": {"exp_avg": state.mean, "exp_avg_sq": state.square}}, {"w": {"step": 4.0}})
    torch_step(torch.optim.Adam, {"w": theta}, {"w": gradient}, {"lr": 0.1, "weight_decay": 0.1}, kept)
    for kind in (Lars, Prodigy, Adafactor):
        torch_step(kind, {"w": theta}, {"w": gradient}, {"weight_decay": 0.1}, OptimizerState({}, {}))
    for now, before in zip((theta, gradient, state.mean, state.square, velocity), held, strict=True):
        assert torch.equal(now, before)
