"""AutoLR: learning rates under which deeper layers change more (Ro and Choi, AAAI 2021), as PALM's paper tells it.

PALM's text says only that AutoLR wants the weight changes of the layers in increasing order, and that a scheme of
learning rates makes them so. Our reading: the relative change of a layer is the size of its step over the size of
its weights; where a layer would change more than a deeper one, both are brought to a common change, and the
learning rate of a layer is the base rate times wanted over found change. An order that is right is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

SMALLEST = 1e-3  # root mean square that counts for weights smaller than this, as in Adafactor


def depth_factors(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, float]:
    """Factor on the learning rate of each tensor, for a step from `before` to `after` at the base rate.

    A layer is all tensors of one module ("conv1.weight", "conv1.bias"); depth is the order of the names. Layers
    that do not change keep factor 1. Waits for the device once.

    >>> one = torch.ones(4)
    >>> found = depth_factors({"a.weight": one, "b.weight": one}, {"a.weight": one - 0.4, "b.weight": one - 0.1})
    >>> {name: round(factor, 4) for name, factor in found.items()}
    {'a.weight': 0.5, 'b.weight': 2.0}
    """
    layers: dict[str, list[str]] = {}
    for name in after:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    sums = [
        torch.stack([_square([after[n] - before[n] for n in names]), _square([before[n] for n in names])])
        for names in layers.values()
    ]
    found = []
    for names, (step, weight) in zip(layers.values(), torch.stack(sums).tolist() if sums else [], strict=True):
        size = sum(before[name].numel() for name in names)
        found.append(math.sqrt(step / size) / max(SMALLEST, math.sqrt(weight / size)))
    wanted = iter(increasing([change for change in found if change > 0]))
    factors = [next(wanted) / change if change > 0 else 1.0 for change in found]
    return {name: factor for names, factor in zip(layers.values(), factors, strict=True) for name in names}


def increasing(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never decreases, distances measured between logarithms (pooling neighbours).

    >>> [round(value, 6) for value in increasing([1.0, 8.0, 2.0, 9.0])]
    [1.0, 4.0, 4.0, 9.0]
    """
    pools: list[tuple[float, int]] = []  # mean logarithm, members
    for value in values:
        mean, count = math.log(value), 1
        while pools and pools[-1][0] > mean:
            other, members = pools.pop()
            mean, count = (mean * count + other * members) / (count + members), count + members
        pools.append((mean, count))
    return [math.exp(mean) for mean, count in pools for _ in range(count)]


def _square(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([(tensor * tensor).sum() for tensor in tensors]).sum()
