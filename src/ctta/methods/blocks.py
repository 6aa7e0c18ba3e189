"""The blocks of a network, by the names of its parameters: what the paper's figure of learning rates groups by."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import nn

STAGE = re.compile(r"(block|stage_|layer)\d+")


def block_of(name: str) -> str:
    """Block of a parameter: its stage and the number within, or the top of its path where there is no stage.

    >>> [block_of(n) for n in ("block1.layer.0.conv1.weight", "model.layer2.1.bn1.bias", "conv1.weight")]
    ['block1.0', 'layer2.1', 'conv1']
    """
    parts = name.split(".")
    for place, part in enumerate(parts[:-1]):
        if STAGE.fullmatch(part):
            number = next((p for p in parts[place + 1 :] if p.isdigit()), None)
            return part if number is None else f"{part}.{number}"
    return parts[0]


def mean_by_block(model: nn.Module, values: Mapping[str, float]) -> dict[str, float]:
    """Mean of the tensors' values in every block, in the order of the network."""
    groups: dict[str, list[float]] = {}
    for name, _ in model.named_parameters():
        if name in values:
            groups.setdefault(block_of(name), []).append(values[name])
    return {block: sum(found) / len(found) for block, found in groups.items()}
