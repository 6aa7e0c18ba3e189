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
from ctta.streams.stream import CLEAN, Batch, Corrupted, Domain, Source, Stream, embedded

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
