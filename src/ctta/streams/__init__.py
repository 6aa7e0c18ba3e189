"""Streams of unlabelled batches whose distribution changes: seeded, hashed, resumable at any batch."""

from ctta.streams.scenarios import (
    SCENARIOS,
    Order,
    arrange,
    continual,
    correlated,
    gradual,
    make,
    mixed,
    recurring,
    reset_each_shift,
    single_sample,
)
from ctta.streams.sources import CLEAN, Corrupted, Domain, Source, embedded
from ctta.streams.stream import Batch, Stream

__all__ = [
    "CLEAN",
    "SCENARIOS",
    "Batch",
    "Corrupted",
    "Domain",
    "Order",
    "Source",
    "Stream",
    "arrange",
    "continual",
    "correlated",
    "embedded",
    "gradual",
    "make",
    "mixed",
    "recurring",
    "reset_each_shift",
    "single_sample",
]
