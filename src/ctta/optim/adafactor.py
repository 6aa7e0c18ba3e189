"""Adafactor: Adam's second moment kept as row and column means, no first moment (Shazeer and Stern, 2018).

Two conventions are in use under this name. This is the paper's as Hugging Face's transformers has it: without a
learning rate the step is relative, about 1 % of the tensor's size. That of torch.optim.Adafactor, whose learning
rate is a cap on the relative step, is `torch:Adafactor`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ctta.optim.base import Rule, Values


class Adafactor(Rule):
    """Adafactor without a first moment; `lr` None is the relative step min(1e-2, 1/sqrt(t)).

    `warmup_init` makes that min(1e-6 t, 1/sqrt(t)). `scale_parameter` multiplies the rate by the root mean square
    of the tensor, at least the second `eps`.

    >>> w = torch.nn.Parameter(torch.tensor([1.0, -1.0]))
    >>> w.grad = torch.tensor([0.5, 0.5])
    >>> Adafactor([w]).step()
    >>> w.detach()
    tensor([ 0.9900, -1.0100])
    """

    def __init__(
        self,
        params: Values,
        lr: float | None = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        warmup_init: bool = False,
        clip: float = 1.0,
        decay: float = -0.8,
        eps: tuple[float, float] = (1e-30, 1e-3),
    ) -> None:
        options = {"lr": lr, "weight_decay": weight_decay, "clip": clip, "decay": decay, "eps": eps}
        super().__init__(params, {**options, "scale_parameter": scale_parameter, "warmup_init": warmup_init})

    def move(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """Move one tensor; returns the rate."""
        group, state = self.param_groups[0], self.state[parameter]
        state["step"] = step = int(state.get("step", 0)) + 1
        rate = self.rate(parameter, step)
        inverse = self.inverse(state, gradient * gradient + group["eps"][0], math.pow(step, group["decay"]))
        update = inverse * gradient
        if group["weight_decay"]:
            parameter.mul_(1 - group["weight_decay"] * rate)
        parameter.sub_(rate * update / (_rms(update) / group["clip"]).clamp(min=1.0))
        return rate

    def rate(self, parameter: Tensor, step: int) -> Tensor:
        """Learning rate of one tensor at a step counted from 1."""
        group = self.param_groups[0]
        relative = min(1e-6 * step if group["warmup_init"] else 1e-2, 1 / math.sqrt(step))
        rate = relative if group["lr"] is None else group["lr"]
        if not group["scale_parameter"]:
            return parameter.new_full((), rate)
        return rate * _rms(parameter).clamp(min=group["eps"][1])

    def inverse(self, state: dict[str, Tensor], squared: Tensor, weight: float) -> Tensor:
        """One over the root of the second moment, once the squared gradient had its weight in it.

        With two dimensions or more, `square` holds the means over the last dimension (n x 1) and `columns` those
        over the one before it (1 x m); else `square` is the moment itself.
        """
        if squared.dim() < 2:
            state["square"] = torch.lerp(state.get("square", torch.zeros_like(squared)), squared, weight)
            return state["square"].rsqrt()
        for key, found in (
            ("square", squared.mean(-1, keepdim=True)),
            ("columns", squared.mean(-2, keepdim=True)),
        ):
            state[key] = torch.lerp(state.get(key, torch.zeros_like(found)), found, weight)
        # two roots and their product: the product of the moments may be too small for float32
        rows = (state["square"] / state["square"].mean(-2, keepdim=True)).rsqrt()
        return rows * state["columns"].rsqrt()


def _rms(tensor: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(tensor)
    return norm / math.sqrt(max(tensor.numel(), 1))
