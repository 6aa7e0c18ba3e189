"""`ctta warmup`: prepare what a method must learn from labelled source data."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ctta._version import __version__
from ctta.cli.progress import step_bar
from ctta.cli.recipe import recipe_options
from ctta.methods.ecotta.warmup import WarmupSettings
from ctta.settings import build


@click.command("warmup")
@click.argument("method", type=click.Choice(["ecotta"]))
@click.argument("model")
@click.argument("data")
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--weights", type=click.Path(dir_okay=False, path_type=Path), help="Weight file of MODEL.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads (default: torch's choice).")
@recipe_options(WarmupSettings)
def command(
    method: str, model: str, data: str, out: Path, weights: Path | None, threads: int | None, **recipe: Any
) -> None:
    """Train METHOD's own networks beside MODEL on DATA (cifar10, cifar100, or a folder), and write them to OUT.

    MODEL is what `ctta run` takes: an architecture with --weights, embedded:, file:PATH, torchvision:NAME, ... or
    FILE.py:FUNCTION. The run is saved beside OUT after every epoch (OUT.run); the same command continues it. A
    manifest (OUT with the ending .json) holds the recipe, the data and the clean test errors.

    Example: ctta warmup ecotta wrn-16-2 cifar10 meta.safetensors --weights source.safetensors
    """
    import torch

    from ctta._core.checkpoint import write_bytes
    from ctta.bench.resolve import model_from
    from ctta.methods.ecotta.warmup import Warmup
    from ctta.models.train import error_rate, load_split

    if threads:
        torch.set_num_threads(threads)
    settings = build(WarmupSettings, recipe, owner="warmup", lists="ctta warmup --help")
    warmup = Warmup(model_from(model, weights), settings)
    split = load_split(data)
    before = error_rate(warmup.model, split.test_images, split.test_labels)
    console = Console(stderr=True)
    resume = out.with_suffix(".run")
    with step_bar(console) as progress:
        task = progress.add_task("warming up", total=None)
        for now in warmup.run(split.train_images, split.train_labels, resume):
            words = f"epoch {now.epoch}, loss {now.loss:.3f}, accuracy {100 * now.accuracy:.1f} %"
            done = (now.epoch - 1) * now.batches + now.batch
            progress.update(task, total=settings.epochs * now.batches, completed=done, description=words)
            if now.batch == now.batches and not console.is_terminal:
                console.print(words)
    after = error_rate(warmup.model, split.test_images, split.test_labels)
    warmup.save(out)
    manifest = {
        "method": method,
        "model": model,
        "weights": None if weights is None else str(weights),
        "source": warmup.source,
        "data": data,
        "recipe": dataclasses.asdict(settings),
        "clean_test_error_before": before,
        "clean_test_error": after,
        "ctta": __version__,
        "torch": torch.__version__,
        "command": "ctta " + " ".join(sys.argv[1:]),
    }
    write_bytes(out.with_suffix(".json"), (json.dumps(manifest, indent=2) + "\n").encode())
    resume.unlink()
    click.echo(
        f"clean test error {100 * before:.2f} % -> {100 * after:.2f} %; adapt with "
        f"ctta.adapt(model, {method!r}, warmup={str(out)!r})"
    )
