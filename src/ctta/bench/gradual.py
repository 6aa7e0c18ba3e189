"""The three ways to average a gradual stream; the paper's table is the plain mean over its nine-step sequence."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal


def gradual_mean(
    errors: Sequence[tuple[str, float]], weighting: Literal["sequence", "levels", "level5"] = "sequence"
) -> float:
    """Mean of (domain, error) in the order they came, a domain being named CORRUPTION-SEVERITY.

    `sequence` counts every visit once, so severities 1 to 4, met going up and coming down, count twice;
    `levels` gives every severity the same weight; `level5` is severity 5 alone.

    >>> steps = [("fog-4", 10.0), ("fog-5", 40.0), ("fog-4", 10.0)]
    >>> [gradual_mean(steps, w) for w in ("sequence", "levels", "level5")]
    [20.0, 25.0, 40.0]
    """
    if weighting == "sequence":
        return statistics.fmean(error for _, error in errors)
    levels = severity_means(errors)
    return levels["5"] if weighting == "level5" else statistics.fmean(levels.values())


def severity_means(errors: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Mean of (domain, error) at every severity, the lowest first.

    >>> severity_means([("fog-4", 10.0), ("fog-5", 40.0), ("fog-4", 20.0)])
    {'4': 15.0, '5': 40.0}
    """
    levels: dict[str, list[float]] = {}
    for domain, error in errors:
        levels.setdefault(domain.rpartition("-")[2], []).append(error)
    return {level: statistics.fmean(levels[level]) for level in sorted(levels)}
