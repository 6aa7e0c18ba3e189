"""Calibration: whether a prediction made with 80 % confidence is right in 80 % of the cases."""

from __future__ import annotations

from collections.abc import Sequence


def expected_calibration_error(bins: Sequence[Sequence[float]]) -> float:
    """Expected calibration error, 0 to 1, from bins of (samples, sum of confidences, correct ones).

    >>> expected_calibration_error([[0, 0.0, 0], [10, 8.0, 6], [10, 9.5, 9]])
    0.125
    """
    samples = sum(count for count, _, _ in bins)
    return sum(abs(confidence - correct) for _, confidence, correct in bins) / samples if samples else 0.0
