"""`ctta run`: methods side by side on your own model and data."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ctta._version import __version__
from ctta.streams import SCENARIOS


@click.command("run")
@click.option("--model", required=True, help="embedded:, timm:NAME, ARCH with --weights, or FILE.py:FUNCTION.")
@click.option("--weights", type=click.Path(path_type=Path), help="Weight file of an architecture.")
@click.option("--data", default="embedded", show_default=True, help="A benchmark, or a folder of images by class.")
@click.option("--methods", default="source,bn1,tent,palm", show_default=True, help="Methods, separated by commas.")
@click.option("--preset", help="Settings of all of them: cifar10-c, cifar100-c, imagenet-c, embedded.")
@click.option("--set", "given", multiple=True, metavar="METHOD.NAME=VALUE", help="One setting; may be repeated.")
@click.option(
    "--scenario", type=click.Choice(list(SCENARIOS)), default="continual", show_default=True, help="Stream."
)
@click.option("--corruptions", help="Corruptions, separated by commas (default: the fifteen).")
@click.option("--severity", type=click.IntRange(1, 5), default=5, show_default=True, help="Of scenarios with one.")
@click.option("--images", type=click.IntRange(min=1), help="Images per domain (default: all).")
@click.option("--batch-size", type=click.IntRange(min=1), default=200, show_default=True, help="Images per batch.")
@click.option("--profile", help="Corruption constants: cifar, tiny-imagenet, imagenet (default: by size).")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of adapters and corruptions."
)
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads (default: torch's choice).")
@click.option("--import", "imports", multiple=True, type=click.Path(path_type=Path), help="FILE.py with a method.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Report folder."
)
@click.option("--name", default="run", show_default=True, help="Name of the report.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read.")
def command(**words: Any) -> None:
    """Compare methods on a stream of corrupted images: errors per domain, cost in forward passes, a saved report.

    Clean images (cifar10, a folder) are corrupted on the fly; benchmarks on disk (cifar10-c, ...) are read.

    Example: ctta run --model my_model.py:make --data photos/ --methods source,palm --set palm.adapt_share=0.05
    """
    execute(**words)


def execute(
    *,
    model: str,
    data: str,
    methods: str,
    images: int | None,
    batch_size: int,
    seed: int,
    threads: int | None,
    out: Path,
    name: str,
    as_json: bool,
    preset: str | None = None,
    weights: Path | None = None,
    given: tuple[str, ...] = (),
    scenario: str = "continual",
    corruptions: str | None = None,
    severity: int = 5,
    profile: str | None = None,
    imports: tuple[Path, ...] = (),
    title: str | None = None,
) -> None:
    """Run the comparison the words describe, show it and save it."""
    import torch

    from ctta import streams
    from ctta.bench.compare import compare, summarise
    from ctta.bench.resolve import methods_from, model_from, names_in, source_from
    from ctta.cli.comparison import follow, present, save
    from ctta.models import weight_hash

    if threads:
        torch.set_num_threads(threads)
    for file in imports:
        names_in(file)
    chosen = methods_from(methods, preset, given)
    options: dict[str, Any] = {"batch_size": batch_size, "images": images}
    if corruptions:
        options["corruptions"] = [part.strip() for part in corruptions.split(",")]
    if scenario != "gradual":
        options["severity"] = severity
    stream = streams.make(scenario, source_from(data, profile, seed), **options)
    network = model_from(model, weights)
    title = title or f"{model} on {data}, {scenario}, {stream.samples:,} images in {len(stream)} batches"
    console = Console(stderr=True)
    rows = follow(compare(network, stream, chosen, seed=seed), len(stream), title, console)
    summary = summarise(rows)
    manifest = {
        "command": "ctta " + " ".join(sys.argv[1:]),
        "model": model,
        "weight_hash": weight_hash(network),
        "stream": {"scenario": scenario, "hash": stream.hash, **stream.options},
        "methods": chosen,
        "seed": seed,
        "ctta": __version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }
    page = save(out, name, summary, manifest)
    present(summary, manifest, title, as_json, Console())
    console.print(f"saved {page} and {page.with_suffix('.json').name}", highlight=False)
