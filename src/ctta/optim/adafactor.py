"""Adafactor: Adam's second moment kept as row and column means, no first moment (Shazeer and Stern, 2018).

Two conventions are in use under this name. This is the paper's as Hugging Face's transformers has it: without a
learning rate the step is relative, about 1 % of the tensor's size. That of torch.optim.Adafactor, whose learning
rate is a cap on the relative step, is `torch:Adafactor`.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from ctta.optim.base import Rule


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

    options: ClassVar[dict[str, Any]] = {
        "lr": None, "weight_decay": 0.0, "scale_parameter": True, "warmup_init": False, "clip": 1.0,
        "decay": -0.8, "eps": (1e-30, 1e-3),
    }  # fmt: skip

    def move(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """Move one tensor; returns the rate."""
        group, state = self.param_groups[0], self.state[parameter]
        state["step"] = step = int(state.get("step", 0)) + 1
        rate = self.rate(parameter, step)
        squared = gradient * gradient + group["eps"][0]
        update = self.inverse(state, squared, math.pow(step, group["decay"])) * gradient
        if group["weight_decay"]:
            parameter.mul_(1 - group["weight_decay"] * rate)
        parameter.sub_(rate * update / (_rms(update) / group["clip"]).clamp(min=1.0))
        return rate

    def rate(self, parameter: Tensor, step: int) -> Tensor:
        """Learning rate of one tensor at a step counted from 1."""
        group = self.param_groups[0]
        relative = min(1e-6 * step if group["warmup_init"] else 1e-2, 1 / math.sqrt(step))
        rate = relative if group["lr"] is None else group["lr"]
        scale = _rms(parameter).clamp(min=group["eps"][1]) if group["scale_parameter"] else parameter.new_ones(())
        return rate * scale

    def inverse(self, state: dict[str, Tensor], squared: Tensor, weight: float) -> Tensor:
        """One over the root of the second moment, once the squared gradient had its weight in it.

        With two dimensions or more, `square` holds the means over the last dimension (n x 1) and `columns` those
        over the one before it (1 x m); else `square` is the moment itself.
        """
        moments = {"square": squared}
        if squared.dim() > 1:
            moments = {"square": squared.mean(-1, keepdim=True), "columns": squared.mean(-2, keepdim=True)}
        for key, found in moments.items():
            state[key] = torch.lerp(state.get(key, torch.zeros_like(found)), found, weight)
        if squared.dim() < 2:
            return state["square"].rsqrt()
        # two roots and their product: the product of the moments may be too small for float32
        rows = (state["square"] / state["square"].mean(-2, keepdim=True)).rsqrt()
        return rows * state["columns"].rsqrt()


def _rms(tensor: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(tensor)
    return norm / math.sqrt(max(tensor.numel(), 1))
