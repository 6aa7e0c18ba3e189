"""Update rules against torch.optim."""

import pytest
import torch

from ctta.optim import AdamState, adam, sgd, sign_step

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


def test_update_rules_leave_their_arguments_alone():
    theta, (gradient, *_) = draws(3)
    state, velocity = AdamState(theta * 0.1, theta**2, 4), theta * 0.2
    held = [t.clone() for t in (theta, gradient, state.mean, state.square, velocity)]
    sign_step(theta, gradient, 0.1, weight_decay=0.1)
    adam(theta, gradient, 0.1, state, weight_decay=0.1)
    sgd(theta, gradient, 0.1, velocity, weight_decay=0.1)
    for now, before in zip((theta, gradient, state.mean, state.square, velocity), held, strict=True):
        assert torch.equal(now, before)
