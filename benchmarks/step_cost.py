"""What a step costs: PALM as literal as its description, PALM here, and every other method, side by side.

Everything is timed round by round in one run and printed as ratios: to the literal step, and to a forward pass of
the same round (machines are shared, their seconds mean little). Peak memory above the loaded model is taken in a
process of its own for every row. PALM's threshold is the one that selects `--share` of the parameters on the first
batch, for the literal step too: an untrained network would otherwise select everything. Freed memory stays with
the process (`ctta.keep_freed_memory`), else a row's time would depend on which row ran before it; `--give-back`
measures a process that does without. Run with `make bench`.

    python benchmarks/step_cost.py --arch wrn-28-2 --batch 200 --rounds 7
    python benchmarks/step_cost.py --arch embedded --rows literal,exact,fast,law --no-memory
    python benchmarks/step_cost.py --arch wrn-28-2 --savings --no-memory      # each saving taken back alone
    python benchmarks/step_cost.py --arch resnet-20 --official ~/PALM/classification --rows official,exact

The last line also times the published code, for anyone who has it and what it imports. It is not part of this
repository and was not run here: the literal step stands in for it. With ATEN_CPU_CAPABILITY=avx2 and
ONEDNN_MAX_CPU_ISA=AVX2 in the environment a processor does without AVX-512 and its bfloat16 instructions.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import ctta
import without
from ctta._cost.allocator import keep_freed_memory
from ctta.augment import NAMED
from ctta.models import build, load
from without import WITHOUT

sys.path.append(str(Path(__file__).parents[1]))  # tests/reference is beside this folder, not in the package
from tests.reference.literal_palm import OfficialPalm

ARCHITECTURES = {
    "embedded": 200,
    "resnet-20": 200,
    "wrn-28-2": 200,
    "wrn-16-4": 200,
    "resnext-29": 32,
    "wrn-28-10": 16,
}
"""What `make bench` measures, with the batch size of each: the large ones would take minutes a round."""
PALM: dict[str, dict[str, Any]] = {
    "exact": {},
    "fast": {"speed": "fast"},
    "low memory": {"memory": "low"},
    "lowest memory": {"memory": "lowest"},
}
OTHERS = tuple(entry.name for entry in ctta.list_methods() if not entry.name.startswith("palm"))
ROWS = ("literal", *PALM, "unguarded", *OTHERS)
OFFICIAL, FOLDER = "official", "CTTA_OFFICIAL_PALM"
"""The row of the published code, and the variable that tells processes where it is."""
SAVINGS = ("literal", "exact", *WITHOUT)
MANY_VIEWS = ("cotta", "dss")
"""Rows that cost as much as all others together: timed in one round out of three."""


@dataclass(frozen=True)
class Setup:
    """A network, a batch for it, and the threshold that selects the wanted share of its parameters."""

    model: nn.Module
    x: Tensor
    eta: float


def setup(arch: str, batch: int, size: int, *, share: float = 0.0, eta: float | None = None) -> Setup:
    """Build everything from fixed seeds; the layout is torch's default, as in the published code.

    The threshold is the one that selects a share of the parameters on this batch, unless it is given.
    """
    torch.manual_seed(0)
    model = load("embedded:") if arch == "embedded" else build(arch, 10).eval()
    model = model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    x = torch.rand(batch, 3, size, size)
    if eta is None:
        probe = ctta.adapt(model, "palm", adapt_share=share)
        probe(x)
        eta = probe.last.eta if probe.last else None
    return Setup(model, x, 1.0 if eta is None else eta)


def published(folder: Path, given: Setup) -> Callable[[], object]:
    """One step of the published code, imported from its folder `classification`, as a call."""
    sys.path.insert(0, str(folder))
    method = importlib.import_module("methods.ours").OURS
    settings = SimpleNamespace(
        CORRUPTION=SimpleNamespace(DATASET="cifar10_c"),
        MODEL=SimpleNamespace(EPISODIC=False),
        OPTIM=SimpleNamespace(STEPS=1, METHOD="Adam", LR=5e-4, BETA=0.9, WD=0.0),
        OURS=SimpleNamespace(BETA3=0.5, THRESH=given.eta, TEMP=50.0, LAMBDA=0.01),
        TEST=SimpleNamespace(WINDOW_LENGTH=1),
    )
    on_cpu = given.x.device.type == "cpu"  # it asks for a GPU by name
    with mock.patch.object(Tensor, "cuda", lambda self: self) if on_cpu else nullcontext():
        step = method(settings, copy.deepcopy(given.model), 10)
    return lambda: step(given.x)


def contestant(row: str, given: Setup) -> Callable[[], object]:
    """One step of a row, as a call."""
    if row == "literal":
        generator = torch.Generator().manual_seed(0)
        augment = NAMED["cotta"]
        step = OfficialPalm(given.model, lambda x: augment(x, generator), eta=given.eta)
        return lambda: step(given.x)
    if row == OFFICIAL:
        return published(Path(os.environ[FOLDER]), given)
    if row in WITHOUT:
        return without.contestant(row, given.model, given.x, given.eta)
    if row in PALM:
        adapter = ctta.adapt(given.model, "palm", eta=given.eta, **PALM[row])
        return lambda: adapter(given.x)
    if row == "unguarded":
        bare = ctta.adapt(given.model, "palm", eta=given.eta)
        bare(given.x)  # settles the memory layout

        def unguarded() -> None:
            bare.method.begin()
            bare.method.step(given.x)

        return unguarded
    other = ctta.adapt(given.model, row)
    return lambda: other(given.x)


def cycle(row: str) -> int:
    """Batches after which a row's costs repeat: stage one may run in some only."""
    return int(ctta.methods.find("palm").resolve(None, PALM[row]).refresh) if row in PALM else 1


def timed(call: Callable[[], object], times: int = 1) -> float:
    """Seconds of one call, the mean of some."""
    start = perf_counter()
    for _ in range(times):
        call()
    return (perf_counter() - start) / times


def measure(given: Setup, rows: list[str], rounds: int) -> dict[str, list[float]]:
    """Seconds of every row and of a forward pass ("unit"), round by round; the first round warms up."""
    calls = {}
    for row in rows:
        try:
            calls[row] = contestant(row, given)
        except ctta.UnsupportedModelError:
            continue
    seconds: dict[str, list[float]] = {"unit": [], **{row: [] for row in calls}}
    for number in range(rounds + 1):
        with torch.inference_mode():
            found = {"unit": statistics.median(timed(lambda: given.model(given.x)) for _ in range(3))}
        due = [row for row in calls if row not in MANY_VIEWS or number % 3 == 1]
        found |= {row: timed(calls[row], cycle(row)) for row in due}
        if number:
            for row, value in found.items():
                seconds[row].append(value)
    return seconds


def peak_memory(row: str, arch: str, batch: int, size: int, eta: float, threads: int) -> float | None:
    """Highest memory of two steps above that of the loaded model, in MB; to be run in a process of its own."""
    torch.set_num_threads(threads)
    given = setup(arch, batch, size, eta=eta)  # finding it here would become the peak
    try:
        step = contestant(row, given)
    except ctta.UnsupportedModelError:
        return None
    gc.collect()  # what the set-up left behind must not be taken for part of the loaded model
    before = resident()
    step()
    step()
    return resident("VmHWM") - before


def in_own_process(*task: Any) -> float | None:
    """Run `peak_memory` in a new process that gives large blocks back to the system as soon as they are freed.

    Otherwise glibc keeps blocks of up to 32 MB for later, and the peak would depend on how well they fit.
    """
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**20)  # read by the new process when it starts
    try:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(peak_memory, task)
    finally:
        del os.environ["MALLOC_MMAP_THRESHOLD_"]


def resident(which: str = "VmRSS") -> float:
    """Memory of this process in MB, now or (VmHWM) at its highest (Linux).

    Not `getrusage`: its highest is that of the parent too, in a process that was started from a large one.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) / 1024


def report(arch: str, arguments: argparse.Namespace) -> None:
    """Measure one network and print its table."""
    batch = arguments.batch or ARCHITECTURES.get(arch, 200)
    rows = list(SAVINGS if arguments.savings else ROWS)
    if arguments.rows:
        rows = [row.strip() for row in arguments.rows.split(",")]
    given = setup(arch, batch, arguments.size, share=arguments.share)
    seconds = measure(given, rows, arguments.rounds)
    unit = seconds.pop("unit")
    literal = seconds.get("literal")
    print(f"\n{arch}, batch {batch}, {arguments.threads} threads, eta {given.eta:.3g}")
    print(f"{'':18}{'of literal':>11}{'forward passes':>16}{'(middle half)':>16}{'peak MB':>9}", flush=True)
    one = statistics.median(unit)
    for row, values in seconds.items():
        passes = [value / one for value in values]
        low, middle, high = (
            statistics.quantiles(passes, n=4, method="inclusive") if len(passes) > 1 else passes * 3
        )
        share = f"{statistics.median(values) / statistics.median(literal):.2f}" if literal else ""
        peak = None
        if not arguments.no_memory:
            peak = in_own_process(row, arch, batch, arguments.size, given.eta, arguments.threads)
        memory = "" if peak is None else f"{peak:.0f}"
        print(f"{row:18}{share:>11}{middle:>16.2f}{f'{low:.2f} to {high:.2f}':>16}{memory:>9}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--arch", help="networks, separated by commas (default: six)")
    parser.add_argument("--rows", help=f"some of: {'; '.join(ROWS)} (separated by commas)")
    parser.add_argument("--savings", action="store_true", help="exact PALM with each of its savings taken back")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, help="images (default: what the network allows)")
    parser.add_argument("--size", type=int, default=32, help="image height and width")
    parser.add_argument("--share", type=float, default=0.05, help="share of the parameters PALM is to select")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-memory", action="store_true", help="times only")
    parser.add_argument("--official", type=Path, metavar="FOLDER", help="`classification` of the published code")
    parser.add_argument("--give-back", action="store_true", help="leave freed memory to the system, as by default")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.official:
        os.environ[FOLDER] = str(arguments.official.resolve())
    if not arguments.give_back:
        keep_freed_memory()
    for arch in arguments.arch.split(",") if arguments.arch else ARCHITECTURES:
        report(arch, arguments)


if __name__ == "__main__":
    main()
