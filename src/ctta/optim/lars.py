"""LARS: a learning rate for each tensor from the norms of the tensor and its gradient (You et al., 2017)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ctta.optim.base import Rule


class Lars(Rule):
    """Momentum at the rate lr * trust ||w|| / (||g|| + wd ||w|| + eps) of each tensor; `lr` where a norm is 0.

    The rate is part of the velocity, as in the paper. `skip_1d` leaves biases and the scales of norm layers to
    plain momentum without weight decay, as most implementations do. The default of `lr` is the usual one of
    implementations; the paper tunes it.

    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> w.grad = torch.tensor([0.0, 2.0])
    >>> Lars([w], lr=1.0).step()
    >>> w.detach()
    tensor([3.0000, 3.9950])
    """

    options: ClassVar[dict[str, Any]] = {
        "lr": 1e-3, "momentum": 0.9, "weight_decay": 0.0, "trust": 1e-3, "skip_1d": False, "eps": 1e-9,
    }  # fmt: skip

    def move(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """Move one tensor; returns the rate."""
        group, state = self.param_groups[0], self.state[parameter]
        rate, decay = parameter.new_full((), group["lr"]), group["weight_decay"]
        if not (group["skip_1d"] and parameter.dim() < 2):
            w, g = torch.linalg.vector_norm(parameter), torch.linalg.vector_norm(gradient)
            scaled = group["lr"] * group["trust"] * w / (g + decay * w + group["eps"])
            rate = torch.where((w > 0) & (g > 0), scaled, rate)
            gradient = gradient + decay * parameter if decay else gradient
        step = rate * gradient
        state["velocity"] = group["momentum"] * state["velocity"] + step if "velocity" in state else step
        parameter.sub_(state["velocity"])
        return rate
