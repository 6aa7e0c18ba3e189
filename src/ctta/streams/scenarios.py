"""The scenarios of the literature, functions from a source to a stream, and the order of samples in a domain."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ctta.corruptions import CORRUPTIONS, EXTRA
from ctta.errors import SettingError
from ctta.settings import suggestion
from ctta.streams.sources import Domain, Indices, Source
from ctta.streams.stream import Stream

UP_AND_DOWN = (1, 2, 3, 4, 5, 4, 3, 2, 1)
FROM_FIVE = (5, 4, 3, 2, 1)


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


# ---------------------------------------------------------------- the scenarios


def continual(
    source: Source,
    *,
    corruptions: Sequence[str] | None = None,
    severity: int = 5,
    batch_size: int = 200,
    images: int | None = None,
    order: Order | None = None,
) -> Stream:
    """One domain after another at one severity, never reset: the paper's main scenario (CTTA)."""
    domains = [Domain(name, severity) for name in _names(corruptions)]
    return _one_after_another("continual", source, domains, batch_size, images, order or Order())


def gradual(
    source: Source,
    *,
    corruptions: Sequence[str] | None = None,
    batch_size: int = 200,
    images: int | None = None,
    order: Order | None = None,
    first: Literal["up", "from5"] = "up",
) -> Stream:
    """Severities 1 to 5 and back for every corruption (GTTA). `first="from5"`: CoTTA starts at 5 and goes down."""
    domains = []
    for place, name in enumerate(_names(corruptions)):
        path = FROM_FIVE if place == 0 and first == "from5" else UP_AND_DOWN
        domains += [Domain(name, severity) for severity in path]
    return _one_after_another("gradual", source, domains, batch_size, images, order or Order(), first=first)


def reset_each_shift(source: Source, **options: Any) -> Stream:
    """As `continual`, with a reset before every domain."""
    plan = continual(source, **options)
    changes = np.flatnonzero(np.diff(plan.domain_of[plan.bounds[:-1]]))
    return _replace(plan, name="reset-each-shift", resets=frozenset((changes + 1).tolist()))


def recurring(source: Source, *, passes: int = 3, **options: Any) -> Stream:
    """The continual stream again and again, never reset."""
    if passes < 1:
        raise SettingError(f"Expected `passes` to be a whole number of at least 1, but got {passes!r}.")
    plan = continual(source, **options)
    steps = np.arange(passes)[:, None] * plan.samples
    bounds = np.append((plan.bounds[:-1][None] + steps).ravel(), passes * plan.samples)
    return _replace(
        plan,
        name="recurring",
        domain_of=np.tile(plan.domain_of, passes),
        index_of=np.tile(plan.index_of, passes),
        bounds=bounds,
        options={**plan.options, "passes": passes},
    )


def mixed(source: Source, *, seed: int = 1, batch_size: int = 200, **options: Any) -> Stream:
    """All domains of the continual stream, shuffled together once."""
    plan = continual(source, batch_size=batch_size, **options)
    order = arrange(np.zeros(plan.samples, dtype=np.int64), Order("shuffled", seed))
    return _replace(
        plan,
        name="mixed",
        domain_of=plan.domain_of[order],
        index_of=plan.index_of[order],
        bounds=_bounds([plan.samples], batch_size),
        options={**plan.options, "seed": seed},
    )


def correlated(
    source: Source,
    *,
    kind: Literal["sorted", "dirichlet"] = "dirichlet",
    concentration: float = 0.1,
    seed: int = 1,
    batch_size: int = 200,
    images: int | None = None,
    **options: Any,
) -> Stream:
    """The continual stream with labels in runs: sorted, or spread over time with Dirichlet shares."""
    if concentration <= 0:
        raise SettingError(f"Expected `concentration` to be a number above 0, but got {concentration!r}.")
    count = len(source.labels) if images is None else min(images, len(source.labels))
    slots = max(1, -(-count // batch_size))
    order = Order(kind, seed, concentration, slots)
    return _replace(
        continual(source, batch_size=batch_size, images=images, order=order, **options), name="correlated"
    )


def single_sample(source: Source, **options: Any) -> Stream:
    """The continual stream one image at a time."""
    return _replace(continual(source, **{**options, "batch_size": 1}), name="single-sample")


SCENARIOS: dict[str, Callable[..., Stream]] = {
    "continual": continual,
    "gradual": gradual,
    "reset-each-shift": reset_each_shift,
    "mixed": mixed,
    "correlated": correlated,
    "recurring": recurring,
    "single-sample": single_sample,
}


def make(name: str, source: Source, **options: Any) -> Stream:
    """Make a stream by the name of its scenario."""
    if name not in SCENARIOS:
        raise SettingError(
            f"There is no scenario `{name}`.{suggestion(name, SCENARIOS)} Scenarios: {', '.join(SCENARIOS)}."
        )
    return SCENARIOS[name](source, **options)


def _names(corruptions: Sequence[str] | None) -> Sequence[str]:
    names = CORRUPTIONS if corruptions is None else corruptions
    known = (*CORRUPTIONS, *EXTRA)
    for name in names:
        if name not in known:
            raise SettingError(
                f"There is no corruption `{name}`.{suggestion(name, known)} Known: {', '.join(known)}."
            )
    return names


def _one_after_another(
    name: str,
    source: Source,
    domains: Sequence[Domain],
    batch_size: int,
    images: int | None,
    order: Order,
    **more: Any,
) -> Stream:
    if batch_size < 1 or (images is not None and images < 1):
        raise SettingError(f"Expected at least one image a batch and a domain, but got {batch_size} and {images}.")
    # a part of the domain is the first images of its order, so that it is a sample of all classes
    chosen: Indices = arrange(source.labels, order) if images is None else _part(source.labels, order, images)
    return Stream(
        name=name,
        source=source,
        domains=tuple(domains),
        domain_of=np.repeat(np.arange(len(domains), dtype=np.int32), len(chosen)),
        index_of=np.tile(chosen, len(domains)),
        bounds=_bounds([len(chosen)] * len(domains), batch_size),
        options={
            "batch_size": batch_size,
            "images": len(chosen),
            "order": order.kind,
            "order_seed": order.seed,
            **more,
        },
    )


def _part(labels: Indices, order: Order, images: int) -> Indices:
    """Take part of a domain, then put it in order: sorting first would leave only the first classes."""
    if order.kind in ("shuffled", "stored"):
        return arrange(labels, order)[:images]
    chosen = arrange(labels, Order("shuffled", order.seed))[:images]
    return chosen[arrange(labels[chosen], order)]


def _bounds(lengths: Iterable[int], batch_size: int) -> Indices:
    """Cut each length into batches; the last of each may be short."""
    cuts, start = [0], 0
    for length in lengths:
        cuts += [start + min(stop, length) for stop in range(batch_size, length + batch_size, batch_size)]
        start += length
    return np.array(cuts, dtype=np.int64)


def _replace(plan: Stream, **changes: Any) -> Stream:
    return dataclasses.replace(plan, **changes)
