"""What a step of every method costs, in forward passes, and what the guards add.

Everything is measured side by side in one run, round by round, and printed as ratios to a forward pass in the
same round: machines are shared and their seconds mean little. Run with `make bench`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor, nn

import ctta
from ctta.models import build


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = perf_counter()
    call()
    return perf_counter() - start


def contestants(model: nn.Module, x: Tensor) -> dict[str, Callable[[], object]]:
    """One call a row: every method with its defaults, and PALM's bare step without the adapter's guards."""
    calls: dict[str, Callable[[], object]] = {}
    for entry in ctta.list_methods():
        with contextlib.suppress(ctta.UnsupportedModelError):  # the demo network has no named stages
            calls[entry.name] = functools.partial(ctta.adapt(model, entry.name), x)
    bare = ctta.adapt(model, "palm").method

    def step() -> None:
        bare.begin()
        bare.step(x)

    calls["palm, no guards"] = step
    return calls


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--arch", default="wrn-16-2")
    parser.add_argument("--size", type=int, default=32, help="image height and width")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model = build(arguments.arch, 10).eval()
    x = torch.rand(arguments.batch, 3, arguments.size, arguments.size)
    calls = contestants(model, x)
    ratios: dict[str, list[float]] = {name: [] for name in calls}
    for round_number in range(arguments.rounds + 2):  # the first two warm up
        with torch.inference_mode():
            unit = min(timed(lambda: model(x)) for _ in range(3))
        for name, call in calls.items():
            ratio = timed(call) / unit
            if round_number >= 2:
                ratios[name].append(ratio)
    print(f"batch {arguments.batch}, {arguments.arch}, {arguments.threads} threads; unit: one forward pass")
    for name, values in ratios.items():
        low, median, high = statistics.quantiles(values, n=4)
        print(f"{name:16} {median:6.2f}   (middle half {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
