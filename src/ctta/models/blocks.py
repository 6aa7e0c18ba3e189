"""The blocks of a network: what the paper's figure of learning rates groups by."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ctta.errors import UnsupportedModelError
from ctta.models.stages import find_stages


def blocks(model: nn.Module) -> dict[str, str]:
    """Block of every parameter: its residual block where stages are known, else the top of its path.

    Outside the stages (stem, head) it is the module that holds the parameter.
    """
    names = [name for name, _ in model.named_parameters()]
    try:
        return {name: place.block for name, place in find_stages(model).places(model).items()}
    except UnsupportedModelError:
        return {name: name.partition(".")[0] for name in names}


def mean_by_block(model: nn.Module, values: Mapping[str, float]) -> dict[str, float]:
    """Mean of the tensors' values in every block, in the order of the network."""
    groups: dict[str, list[float]] = {}
    for name, block in blocks(model).items() if values else ():
        if name in values:
            groups.setdefault(block, []).append(values[name])
    return {block: sum(found) / len(found) for block, found in groups.items()}
