"""The scenarios of the literature, functions from a source to a stream, and the order of samples in a domain."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ctta.corruptions import CORRUPTIONS, EXTRA
from ctta.corruptions.constants import require_known
from ctta.errors import SettingError
from ctta.streams.stream import Domain, Indices, Source, Stream

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
    return _one_after_another(source, domains, batch_size=batch_size, images=images, order=order)


def gradual(
    source: Source,
    *,
    corruptions: Sequence[str] | None = None,
    first: Literal["up", "from5"] = "up",
    **options: Any,
) -> Stream:
    """Severities 1 to 5 and back for every corruption (GTTA). `first="from5"`: CoTTA starts at 5 and goes down."""
    up_and_down, from_five = (1, 2, 3, 4, 5, 4, 3, 2, 1), (5, 4, 3, 2, 1)
    domains = [
        Domain(name, severity)
        for place, name in enumerate(_names(corruptions))
        for severity in (from_five if place == 0 and first == "from5" else up_and_down)
    ]
    plan = _one_after_another(source, domains, **options)
    return replace(plan, name="gradual", options={**plan.options, "first": first})


def reset_each_shift(source: Source, **options: Any) -> Stream:
    """As `continual`, with a reset before every domain."""
    plan = continual(source, **options)
    changes = np.flatnonzero(np.diff(plan.domain_of[plan.bounds[:-1]]))
    return replace(plan, name="reset-each-shift", resets=frozenset((changes + 1).tolist()))


def recurring(source: Source, *, passes: int = 3, **options: Any) -> Stream:
    """The continual stream again and again, never reset."""
    if passes < 1:
        raise SettingError(f"Expected `passes` to be a whole number of at least 1, but got {passes!r}.")
    plan = continual(source, **options)
    return replace(
        plan,
        name="recurring",
        domain_of=np.tile(plan.domain_of, passes),
        index_of=np.tile(plan.index_of, passes),
        bounds=_bounds(plan.options["images"], len(plan.domains) * passes, plan.options["batch_size"]),
        options={**plan.options, "passes": passes},
    )


def mixed(source: Source, *, seed: int = 1, batch_size: int = 200, **options: Any) -> Stream:
    """All domains of the continual stream, shuffled together once."""
    plan = continual(source, batch_size=batch_size, **options)
    order = arrange(plan.index_of, Order("shuffled", seed))
    return replace(
        plan,
        name="mixed",
        domain_of=plan.domain_of[order],
        index_of=plan.index_of[order],
        bounds=_bounds(plan.samples, 1, batch_size),
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
    order = Order(kind, seed, concentration, slots=max(1, -(-count // batch_size)))
    plan = continual(source, batch_size=batch_size, images=images, order=order, **options)
    return replace(plan, name="correlated")


def single_sample(source: Source, **options: Any) -> Stream:
    """The continual stream one image at a time."""
    return replace(continual(source, **{**options, "batch_size": 1}), name="single-sample")


SCENARIOS: dict[str, Callable[..., Stream]] = {
    function.__name__.replace("_", "-"): function
    for function in (continual, gradual, reset_each_shift, mixed, correlated, recurring, single_sample)
}


def make(name: str, source: Source, **options: Any) -> Stream:
    """Make a stream by the name of its scenario."""
    require_known("scenario", name, SCENARIOS)
    return SCENARIOS[name](source, **options)


def _names(corruptions: Sequence[str] | None) -> Sequence[str]:
    names = CORRUPTIONS if corruptions is None else corruptions
    for name in names:
        require_known("corruption", name, (*CORRUPTIONS, *EXTRA))
    return names


def _one_after_another(
    source: Source,
    domains: Sequence[Domain],
    *,
    batch_size: int = 200,
    images: int | None = None,
    order: Order | None = None,
) -> Stream:
    if batch_size < 1 or (images is not None and images < 1):
        raise SettingError(f"Expected at least one image a batch and a domain, but got {batch_size} and {images}.")
    order = order or Order()
    chosen = arrange(source.labels, order) if images is None else _part(source.labels, order, images)
    count = len(chosen)
    return Stream(
        name="continual",
        source=source,
        domains=tuple(domains),
        domain_of=np.repeat(np.arange(len(domains), dtype=np.int32), count),
        index_of=np.tile(chosen, len(domains)),
        bounds=_bounds(count, len(domains), batch_size),
        options={"batch_size": batch_size, "images": count, "order": order.kind, "order_seed": order.seed},
    )


def _part(labels: Indices, order: Order, images: int) -> Indices:
    """Take part of a domain, a sample of all classes, then put it in order."""
    first = arrange(labels, order if order.kind == "stored" else Order("shuffled", order.seed))[:images]
    return first if order.kind in ("shuffled", "stored") else first[arrange(labels[first], order)]


def _bounds(length: int, times: int, batch_size: int) -> Indices:
    """Cut a length into batches, so many times over; the last of each may be short."""
    starts = np.arange(times)[:, None] * length + np.arange(0, length, batch_size)
    return np.append(starts.ravel(), times * length)
