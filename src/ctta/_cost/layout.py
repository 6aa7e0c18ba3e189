"""The order in which convolution weights lie in memory: the numbers are the same, the time is not."""

from __future__ import annotations

import torch
from torch import nn

WORTH_IT = 100_000
"""Convolution weights from which on another order saves time worth having."""


def use_fast_layout(model: nn.Module) -> bool:
    """Have 2-D convolutions compute channel by channel (channels_last) where that is faster; tell whether it is.

    That is so for networks of some size on a CPU. One that is in this layout already stays in it: False.
    """
    weights = [layer.weight for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    suits = all(value.device.type == "cpu" for value in model.parameters())
    in_it = all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)
    if not suits or in_it or sum(weight.numel() for weight in weights) < WORTH_IT:
        return False
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return True


def use_plain_layout(model: nn.Module) -> None:
    """Return to the default order, which models that call `view` inside may need."""
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
