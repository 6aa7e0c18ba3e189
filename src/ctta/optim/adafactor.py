"""Adafactor: Adam's second moment kept as row and column means, no first moment (Shazeer and Stern, 2018).

Two conventions are in use under this name. `adafactor` is the paper's as Hugging Face's transformers has it:
without a learning rate the step is relative, about 1 % of the tensor's size. `torch_adafactor` is that of
torch.optim.Adafactor: its learning rate is a cap on the relative step, and its first epsilon stands elsewhere.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class AdafactorState(NamedTuple):
    """Second moment of one tensor, and the number of steps taken.

    With two dimensions or more, `square` holds the means over the last dimension (n x 1) and `columns` those over
    the one before it (1 x m); else `square` is the moment itself and `columns` None.
    """

    square: Tensor
    columns: Tensor | None
    step: int

    @classmethod
    def zero(cls, parameter: Tensor) -> AdafactorState:
        """Return the state before the first step."""
        if parameter.dim() < 2:
            return cls(torch.zeros_like(parameter), None, 0)
        return cls(torch.zeros_like(parameter[..., :1]), torch.zeros_like(parameter[..., :1, :]), 0)


def adafactor_rate(
    parameter: Tensor,
    step: int,
    lr: float | None = None,
    *,
    scale_parameter: bool = True,
    warmup_init: bool = False,
    eps2: float = 1e-3,
) -> Tensor:
    """Learning rate of one tensor at a step counted from 1, Hugging Face's convention: any shape -> scalar.

    Without `lr` it is the relative step min(1e-2, 1/sqrt(t)), or min(1e-6 t, 1/sqrt(t)) with `warmup_init`.
    `scale_parameter` multiplies it by the root mean square of the tensor, at least `eps2`.

    >>> adafactor_rate(torch.tensor([3.0, -3.0]), step=1)
    tensor(0.0300)
    """
    rate = min(1e-6 * step if warmup_init else 1e-2, 1 / math.sqrt(step)) if lr is None else lr
    return rate * _rms(parameter).clamp(min=eps2) if scale_parameter else parameter.new_full((), rate)


def adafactor(
    parameter: Tensor,
    gradient: Tensor,
    state: AdafactorState,
    lr: float | None = None,
    *,
    scale_parameter: bool = True,
    warmup_init: bool = False,
    clip: float = 1.0,
    decay: float = -0.8,
    eps: tuple[float, float] = (1e-30, 1e-3),
    weight_decay: float = 0.0,
) -> tuple[Tensor, AdafactorState]:
    """Return the new parameter and the new state, Hugging Face's convention; `lr` None is its relative_step.

    >>> theta = torch.tensor([1.0, -1.0])
    >>> adafactor(theta, torch.tensor([0.5, 0.5]), AdafactorState.zero(theta))[0]
    tensor([ 0.9900, -1.0100])
    """
    step = state.step + 1
    rate = adafactor_rate(
        parameter, step, lr, scale_parameter=scale_parameter, warmup_init=warmup_init, eps2=eps[1]
    )
    after = _updated(state, gradient * gradient + eps[0], math.pow(step, decay))
    if after.columns is None:
        inverse = after.square.rsqrt()
    else:  # two roots and their product: the product of the moments may be too small for float32
        inverse = (after.square / after.square.mean(-2, keepdim=True)).rsqrt() * after.columns.rsqrt()
    update = inverse * gradient
    moved = parameter * (1 - weight_decay * rate) if weight_decay else parameter
    return moved - rate * update / (_rms(update) / clip).clamp(min=1.0), after


def torch_adafactor_rate(parameter: Tensor, step: int, lr: float = 1e-2, *, eps2: float = 1e-3) -> Tensor:
    """Learning rate of one tensor at a step counted from 1, torch's convention: any shape -> scalar.

    >>> torch_adafactor_rate(torch.tensor([3.0, -3.0]), step=100, lr=1.0)
    tensor(0.3000)
    """
    return min(lr, 1 / math.sqrt(step)) * _rms(parameter).clamp(min=eps2)


def torch_adafactor(
    parameter: Tensor,
    gradient: Tensor,
    state: AdafactorState,
    lr: float = 1e-2,
    *,
    clip: float = 1.0,
    decay: float = -0.8,
    eps: tuple[float | None, float] = (None, 1e-3),
    weight_decay: float = 0.0,
) -> tuple[Tensor, AdafactorState]:
    """Return the new parameter and the new state as torch.optim.Adafactor; eps[0] None is the dtype's own.

    >>> theta = torch.tensor([1.0, -1.0])
    >>> torch_adafactor(theta, torch.tensor([0.5, 0.5]), AdafactorState.zero(theta))[0]
    tensor([ 0.9900, -1.0100])
    """
    step = state.step + 1
    rate = torch_adafactor_rate(parameter, step, lr, eps2=eps[1])
    eps1 = torch.finfo(parameter.dtype).eps if eps[0] is None else eps[0]
    after = _updated(state, gradient * gradient, math.pow(step, decay))
    moment = after.square
    if after.columns is not None:
        moment = after.square * after.columns / after.square.mean(-2, keepdim=True).clamp(min=eps1)
    update = moment.clamp(min=eps1 * eps1).rsqrt() * gradient
    moved = parameter * (1 - weight_decay * lr) if weight_decay else parameter
    return moved - rate * update / (_rms(update) / clip).clamp(min=1.0), after


def _updated(state: AdafactorState, squared: Tensor, weight: float) -> AdafactorState:
    """Give the squared gradient its weight in the second moment."""
    if state.columns is None:
        return AdafactorState(torch.lerp(state.square, squared, weight), None, state.step + 1)
    rows, columns = squared.mean(-1, keepdim=True), squared.mean(-2, keepdim=True)
    return AdafactorState(
        torch.lerp(state.square, rows, weight), torch.lerp(state.columns, columns, weight), state.step + 1
    )


def _rms(tensor: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(tensor)
    return norm / math.sqrt(max(tensor.numel(), 1))
