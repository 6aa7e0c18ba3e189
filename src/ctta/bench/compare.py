"""Methods side by side on one stream: a generator of rows that tables, reports and tests consume."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

from torch import nn

import ctta
from ctta.adapter import Adapter
from ctta.streams import Batch, Stream


@dataclass(frozen=True)
class Row:
    """What every method did with one batch; `pass_seconds` is what Source, one forward pass, took."""

    batch: int
    domain: str
    samples: int
    pass_seconds: float
    wrong: dict[str, int]
    seconds: dict[str, float]
    shares: dict[str, float]
    skipped: dict[str, bool]


def compare(
    model: nn.Module, stream: Stream, methods: Mapping[str, Mapping[str, Any]], *, seed: int = 0
) -> Iterator[Row]:
    """Send a stream through several methods, each with its settings; yields a row a batch.

    `methods` maps a label to the keyword arguments of `ctta.adapt`, `method` (default: the label) among them.
    """
    adapters: dict[str, Adapter] = {}
    for label, given in methods.items():
        options = dict(given)
        adapters[label] = ctta.adapt(model, options.pop("method", label), seed=seed, **options)
    unit = next((label for label, adapter in adapters.items() if adapter.entry.name == "source"), None)
    unasked = {} if unit else {"": ctta.adapt(model, "source")}  # the unit of cost, where nobody asked for Source
    for batch in stream:
        done = {label: _timed_step(adapter, batch) for label, adapter in {**unasked, **adapters}.items()}
        yield Row(
            batch=batch.index,
            domain=batch.domain,
            samples=len(batch.labels),
            pass_seconds=done[unit or ""].seconds,
            wrong={label: done[label].wrong for label in adapters},
            seconds={label: done[label].seconds for label in adapters},
            shares={label: done[label].share for label in adapters},
            skipped={label: done[label].skipped for label in adapters},
        )


class _Step(NamedTuple):
    seconds: float
    wrong: int
    share: float
    skipped: bool


def _timed_step(adapter: Adapter, batch: Batch) -> _Step:
    if batch.reset:
        adapter.reset()
    start = perf_counter()
    predicted = adapter(batch.images).argmax(1).cpu()
    seconds = perf_counter() - start
    assert adapter.last is not None
    share = adapter.last.shares.get("selected", adapter.last.shares.get("moved", 0.0))
    return _Step(seconds, int((predicted != batch.labels).sum()), share, adapter.last.skipped)


@dataclass(frozen=True)
class Summary:
    """Errors in %, per domain in the order they came; cost in forward passes; shares in %."""

    error: dict[str, dict[str, float]]
    mean: dict[str, float]
    passes: dict[str, float]
    adapted: dict[str, float]
    skipped: dict[str, int]
    samples: int


def summarise(rows: Iterable[Row]) -> Summary:
    """Error per domain and its plain mean over domains (the paper's table mean), median cost, mean share."""
    rows = list(rows)
    labels = list(rows[0].wrong) if rows else []
    wrong: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(labels, 0))
    seen: dict[str, int] = defaultdict(int)
    for row in rows:
        seen[row.domain] += row.samples
        for label in labels:
            wrong[row.domain][label] += row.wrong[label]
    error = {domain: {label: 100 * wrong[domain][label] / seen[domain] for label in labels} for domain in seen}
    return Summary(
        error=error,
        mean={label: _mean([error[domain][label] for domain in error]) for label in labels},
        passes={label: _median([row.seconds[label] / row.pass_seconds for row in rows]) for label in labels},
        adapted={label: 100 * _mean([row.shares[label] for row in rows]) for label in labels},
        skipped={label: sum(row.skipped[label] for row in rows) for label in labels},
        samples=sum(seen.values()),
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
