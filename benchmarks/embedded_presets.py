"""Search the settings of a method for the embedded model, on the four extra corruptions only.

The fifteen corruptions that are reported never take part: speckle noise, Gaussian blur, spatter and saturate at
severity 5 do. Every combination of the given values is run on one stream; each result is added to
`benchmarks/embedded_presets.jsonl`, from which `--show` prints the table again. The presets `embedded` of the
methods are the best rows of that file (ties and near-ties: the value nearest to the published one).

    python benchmarks/embedded_presets.py palm --set eta=1,4 --set lr=5e-4,1e-3,2e-3
    python benchmarks/embedded_presets.py --show
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ctta
from ctta._cost.allocator import keep_freed_memory
from ctta.bench.cell import Cell
from ctta.bench.resolve import read_value
from ctta.bench.results import read_run
from ctta.bench.runner import run
from ctta.bench.store import Store
from ctta.corruptions import EXTRA

LOG = Path(__file__).with_suffix(".jsonl")


def combinations(given: list[str]) -> Iterator[dict[str, Any]]:
    """Every combination of NAME=VALUE,VALUE,... words."""
    names = [text.partition("=")[0] for text in given]
    values = [[read_value(value) for value in text.partition("=")[2].split(",")] for text in given]
    for chosen in itertools.product(*values):
        yield dict(zip(names, chosen, strict=True))


def search(
    method: str, given: list[str], data: str, images: int, passes: int, precision: str, threads: int
) -> Iterator[dict[str, Any]]:
    """Run every combination over the stream; yields one result each."""
    where = Cell(
        method,
        data=data,
        scenario="recurring",
        stream={"passes": passes},
        corruptions=tuple(sorted(EXTRA)),
        images=images,
        precision=precision,
        threads=threads,
    )
    with Store.temporary() as store:
        for values in combinations(given):
            cell = replace(where, settings=values)
            (key,) = run([cell], store, watch=lambda _, row: print(f"batch {row.batch + 1}", end="\r", flush=True))
            found = read_run(store, store.cell(key))
            yield {
                "method": method,
                "settings": values,
                "mean": round(found.mean, 3),
                "error": {domain: round(error, 2) for domain, error in found.error.items()},
                "by_pass": [round(found.in_pass.get(str(k + 1), 0.0), 2) for k in range(passes)],
                "adapted": round(found.selected, 2),
                "skipped": found.skipped,
                "data": data,
                "images": images,
                "passes": passes,
                "autocast": precision == "bf16",
                "weights": found.record.manifest["weights"][:12],
                "ctta": ctta.__version__,
            }


def show(results: list[dict[str, Any]]) -> None:
    """Print results, best first."""
    for result in sorted(results, key=lambda r: (r["method"], r["data"], r["images"], r["passes"], r["mean"])):
        settings = ", ".join(f"{name}={value}" for name, value in result["settings"].items()) or "defaults"
        where = (
            f"{result['data']} {result['images']} x {result['passes']}{' bf16' * result.get('autocast', False)}"
        )
        numbers = f"{result['mean']:6.2f} %  adapted {result['adapted']:5.1f} %"
        over = result.get("by_pass", [])
        trend = f"  (by pass {', '.join(map(str, over))})" if len(over) > 1 else ""
        print(f"{result['method']:12} {where:21} {numbers}  {settings}{trend}")


def main() -> None:
    """Search and print, or print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("method", nargs="?")
    parser.add_argument("--set", dest="given", action="append", default=[], metavar="NAME=VALUE,VALUE")
    parser.add_argument("--data", default="embedded", choices=["embedded", "cifar10"])
    parser.add_argument("--images", type=int, default=1000, help="images per corruption")
    parser.add_argument("--passes", type=int, default=2, help="times the four corruptions are gone through")
    parser.add_argument("--autocast", action="store_true", help="in bfloat16: half the time, for long streams")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="print the results so far")
    arguments = parser.parse_args()
    if arguments.show or not arguments.method:
        show([json.loads(line) for line in LOG.read_text().splitlines()])
        return
    keep_freed_memory()
    precision = "bf16" if arguments.autocast else "full"
    where = (arguments.data, arguments.images, arguments.passes, precision, arguments.threads)
    found = list(search(arguments.method, arguments.given, *where))
    with LOG.open("a") as file:
        file.writelines(json.dumps(result) + "\n" for result in found)
    show(found)


if __name__ == "__main__":
    main()
