"""The order of the samples within a domain."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Order:
    """`shuffled` is the official PALM order (seed 1), `stored` that of CoTTA; the rest correlate labels."""

    kind: Literal["shuffled", "stored", "sorted", "dirichlet"] = "shuffled"
    seed: int = 1
    concentration: float = 0.1
    slots: int = 50


def arrange(labels: Indices, order: Order) -> Indices:
    """Permutation of 0..N-1 in which the samples of a domain come.

    >>> arrange(np.zeros(10_000, dtype=np.int64), Order())[:4].tolist()
    [8709, 8573, 3061, 7879]
    """
    if order.kind == "stored":
        return np.arange(len(labels))
    if order.kind == "shuffled":
        # the standard library's shuffle: the permutation the official code draws for every corruption
        places = list(range(len(labels)))
        random.Random(order.seed).shuffle(places)
        return np.array(places, dtype=np.int64)
    shuffled = arrange(labels, Order("shuffled", order.seed))
    if order.kind == "sorted":
        return shuffled[np.argsort(labels[shuffled], kind="stable")]
    return _dirichlet(labels, shuffled, order)


def _dirichlet(labels: Indices, shuffled: Indices, order: Order) -> Indices:
    """Spread each class over time slots with Dirichlet shares: small concentrations make runs of one class."""
    draw = np.random.default_rng(order.seed)
    slots: list[list[Indices]] = [[] for _ in range(order.slots)]
    for label in np.unique(labels):
        members = shuffled[labels[shuffled] == label]
        shares = draw.dirichlet(np.full(order.slots, order.concentration))
        cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for slot, part in zip(slots, np.split(members, cuts), strict=True):
            slot.append(part)
    parts = [slot[i] for slot in slots for i in draw.permutation(len(slot))]
    return np.concatenate(parts)
