"""Axes with ticks a person would choose."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """One axis: its range, what it measures, its ticks (value and text), logarithmic or not."""

    low: float
    high: float
    name: str = ""
    ticks: tuple[tuple[float, str], ...] = ()
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value lies between 0 (low) and 1 (high)."""
        if self.log:  # what has no logarithm stands at the low end
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def nice_axis(values: Iterable[float], name: str, *, zero: bool = False, steps: int = 5) -> Axis:
    """Return an axis with round ticks that holds all values.

    >>> axis = nice_axis([12.0, 43.0], "error (%)")
    >>> axis.low, axis.high, [text for _, text in axis.ticks]
    (10.0, 50.0, ['10', '20', '30', '40', '50'])
    """
    found = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(found), max(found)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = (0.0, 1.0) if high == 0 else (low - abs(low) / 10, high + abs(high) / 10)
        low = min(low, 0.0) if zero else low
    step = _nice_step((high - low) / steps)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple((k * step, number(k * step, step)) for k in range(first, last + 1))
    return Axis(first * step, last * step, name, ticks)


def value_axis(values: Iterable[float], name: str) -> Axis:
    """Return an axis with a tick at every value; logarithmic where they span a factor of 20 or more.

    A 0 among values that otherwise do so stands at the low end, a little apart.

    >>> value_axis([1, 10, 100], "T").log, value_axis([0.1, 0.5, 0.9], "alpha").log
    (True, False)
    >>> axis = value_axis([0, 0.01, 0.1, 1], "lambda")
    >>> axis.log, [round(axis.place(value), 2) for value, _ in axis.ticks]
    (True, [0.0, 0.16, 0.56, 0.97])
    """
    found = sorted(set(values))
    low, high = next((value for value in found if value > 0), found[0]), found[-1]
    log = found[0] >= 0 and low > 0 and high / low >= 20
    if log:
        span = high / low
        ends = (low / span ** (0.2 if found[0] == 0 else 0.04), high * span**0.04)
    else:
        pad = (high - found[0]) * 0.04 or 1.0
        ends = (found[0] - pad, high + pad)
    return Axis(*ends, name, tuple((value, f"{value:g}") for value in found), log)


def log_axis(values: Sequence[float], name: str) -> Axis:
    """Return a logarithmic axis with ticks at 1, 2, 5, 10, ...; a plain one where the values span less than 8."""
    low, high = min(values), max(values)
    if low <= 0 or high / low < 8:
        return nice_axis(values, name, zero=True)
    marks = [d * 10.0**e for e in range(-9, 10) for d in (1, 2, 5)]
    first = max(m for m in marks if m <= low * 0.999)
    last = min(m for m in marks if m >= high * 1.001)
    return Axis(first, last, name, tuple((m, f"{m:g}") for m in marks if first <= m <= last), log=True)


def number(value: float, step: float) -> str:
    """Print a tick with as many digits as its step needs.

    >>> number(0.30000000000000004, 0.1), number(20.0, 5.0)
    ('0.3', '20')
    """
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:.{digits}f}" if abs(value) > step / 1e6 else "0"


def _nice_step(rough: float) -> float:
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
