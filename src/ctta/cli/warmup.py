"""`ctta warmup`: prepare what a method must learn from labelled source data."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from ctta.cli.recipe import FILE, follow, training, write_manifest
from ctta.methods.ecotta.warmup import WarmupSettings


@click.command("warmup")
@click.argument("method", type=click.Choice(["ecotta"]))
@click.argument("model")
@click.option("--weights", type=FILE, help="Weight file of MODEL.")
@training("warmup", WarmupSettings)
def command(method: str, model: str, data: str, out: Path, weights: Path | None, settings: WarmupSettings) -> None:
    """Train METHOD's own networks beside MODEL on DATA (cifar10, cifar100, or a folder), and write them to OUT.

    MODEL is what `ctta run` takes: an architecture with --weights, embedded:, file:PATH, torchvision:NAME, ... or
    FILE.py:FUNCTION. The run is saved beside OUT after every epoch (OUT.run); the same command continues it. A
    manifest (OUT with the ending .json) holds the recipe, the data and the clean test errors.

    Example: ctta warmup ecotta wrn-16-2 cifar10 meta.safetensors --weights source.safetensors
    """
    from ctta.bench.resolve import model_from
    from ctta.methods.ecotta.warmup import Warmup
    from ctta.models.train import error_rate, load_split

    warmup, split = Warmup(model_from(model, weights), settings), load_split(data)
    before = error_rate(warmup.model, split.test_images, split.test_labels)
    resume = out.with_suffix(".run")
    follow(warmup.run(split.train_images, split.train_labels, resume), settings.epochs)
    after = error_rate(warmup.model, split.test_images, split.test_labels)
    warmup.save(out)
    write_manifest(
        out,
        method=method,
        model=model,
        weights=None if weights is None else str(weights),
        source=warmup.source,
        data=data,
        recipe=dataclasses.asdict(settings),
        clean_test_error_before=before,
        clean_test_error=after,
    )
    click.echo(
        f"clean test error {100 * before:.2f} % -> {100 * after:.2f} %; adapt with "
        f"ctta.adapt(model, {method!r}, warmup={str(out)!r})"
    )
