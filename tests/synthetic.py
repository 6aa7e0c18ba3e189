"""Stores filled with made-up rows, for tests of what reads them."""

from __future__ import annotations

import math
import random

from ctta.bench.cell import Cell
from ctta.bench.evaluation import BINS, BatchRow
from ctta.bench.store import Store

CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
METHODS = {  # error, forward passes
    "source": (43.5, 1.0),
    "bn1": (20.4, 1.1),
    "tent": (18.9, 3.2),
    "cotta": (16.2, 38.0),
    "adacontrast": (18.5, 16.0),
    "ecotta": (16.8, 4.4),
    "dss": (16.0, 41.0),
    "law": (15.7, 6.1),
    "sft": (15.4, 3.4),
    "palm": (14.9, 4.9),
}
BLOCKS = ("conv1", *(f"block{k}.{n}" for k in (1, 2, 3) for n in (0, 1)), "bn1")


def rows_of(method: str, domains, batches: int, seed: int, shift: float = 0.0, samples: int = 200):
    """Rows of a made-up cell: errors about the method's own, learning rates where the method has them."""
    draw = random.Random(f"{method}{seed}")
    base, passes = METHODS.get(method, (25.0, 5.0))
    for k in range(len(domains) * batches):
        domain = domains[k // batches]
        hard = 8 * math.sin(3 * (k // batches)) + shift
        wrong = round(samples * min(max((base + hard + draw.gauss(0, 2.5)) / 100, 0.01), 0.95))
        sure = min(0.98, 1 - wrong / samples + 0.08)
        selects = method in ("palm", "law", "sft")
        share = 0.04 + 0.02 * math.sin(k / 9) + 0.01 * draw.random()
        yield BatchRow(
            batch=k,
            domain=domain,
            samples=samples,
            wrong=wrong,
            counts={domain: [samples, wrong]},
            confidence=sure,
            nll=wrong / samples * 2.3,
            brier=wrong / samples * 1.2,
            bins=_bins(samples, wrong / samples),
            seconds=0.2 * passes * (1 + 0.1 * draw.random()),
            unit=0.2 if k % 50 == 0 else None,
            memory=400.0 + 10 * passes,
            shares={"selected": share, "moved": 2 * share, "ever_selected": min(1.0, 3 * share)}
            if selects
            else {},
            losses={"total": 0.3 + 0.1 * draw.random()},
            rates={name: 5e-4 / (n + 1) for n, name in enumerate(BLOCKS)} if selects else {},
            importance=(
                {name: round(draw.random() / (n + 1), 3) for n, name in enumerate(BLOCKS)}
                if method == "palm"
                else {}
            ),
        )


def _bins(samples: int, error: float) -> list[list[float]]:
    out = [[0.0, 0.0, 0.0] for _ in range(BINS)]
    for k in range(3, BINS):
        count = round(samples * (k - 2) / sum(range(1, BINS - 2)))
        sure = (k + 0.5) / BINS
        out[k] = [count, round(count * sure, 2), round(count * max(0.0, sure - error / 2))]
    return out


def add_cell(
    store: Store,
    method: str,
    *,
    label: str = "",
    seed: int = 0,
    domains=tuple(f"{name}-5" for name in CORRUPTIONS),
    batches: int = 4,
    settings: dict | None = None,
    clean: bool = False,
    finish: bool = True,
    shift: float = 0.0,
    scenario: str = "continual",
    precision: str = "full",
    **more,
) -> str:
    """Enter a made-up cell; returns its key."""
    cell = Cell(method, label=label, seed=seed, settings=settings or {}, scenario=scenario, precision=precision)
    rows = list(rows_of(method, domains, batches, seed, shift))
    manifest = {
        "weights": "4f1f4e31d3a1a7b2" * 4,
        "stream": f"{seed:016d}",
        "method": method,
        "settings": {"lr": 5e-4, "alpha": 0.5, "temperature": 50.0, "lam": 0.01, **(settings or {})},
        "seed": seed,
        "clean": 200 if clean else 0,
        "numbers": 1,
        "threads": 1,
        "ctta": "0.1.0",
        "label": cell.name,
        "cell": cell.to_dict(),
        "scenario": {"name": scenario, "batch_size": 200, "images": 200 * batches, "order": "shuffled"},
        "samples": 200 * len(rows),
        "torch": "2.13.0",
        **more,
    }
    key = f"{abs(hash((method, label, seed, str(settings), scenario, precision, str(more)))):016x}"[:16]
    store.claim(key, cell.name, manifest, len(rows))
    drift = METHODS.get(method, (25.0, 5.0))[0] % 1 / 4  # forgets more or less, by method
    measured = [
        (
            (n + 1) * batches - 1,
            {"domain": domain, "clean_error": 8 + n * drift, "clean_error_source_statistics": 9 + 2 * n * drift},
        )
        for n, domain in enumerate(domains)
    ]
    store.append(key, rows if finish else rows[:3], measured if clean else [])
    if finish:
        store.finish(key)
    return key


def full_store(path, *, batches: int, seeds: int, sweeps: bool = True) -> Store:
    """Ten methods on fifteen domains under a few seeds, sweeps of PALM, forgetting, and a cell that failed."""
    store = Store(path)
    for method in METHODS:
        for seed in range(seeds):
            add_cell(store, method, seed=seed, batches=batches, clean=True)
    for name, values in {
        "temperature": (1.0, 10.0, 100.0, 1000.0),
        "alpha": (0.1, 0.3, 0.7, 0.9),
        "lam": (0.0, 0.005, 0.05),
    }.items():
        for value in values if sweeps else ():
            add_cell(store, "palm", settings={name: value}, batches=batches, shift=abs(math.log10(value + 0.1)))
    key = add_cell(store, "cotta", label="cotta, slow", batches=batches, finish=False, settings={"lr": 1.0})
    store.fail(key, "ModelError: <too> slow & sad")
    return store
