"""`ctta train`: make a source model from clean images."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from ctta._core.checkpoint import write_bytes
from ctta._core.files import parsing
from ctta.cli.recipe import follow, training, write_manifest
from ctta.models.train import TrainSettings

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
INIT = "Weights to start from (another cycle of the same architecture) instead of random ones."
AVERAGE = "Do not train: average these weights (ends of cycles) and measure their statistics. May be repeated."


@click.command("train")
@click.argument("arch")
@click.option("--init", type=FILE, help=INIT)
@click.option("--average", "averaged", multiple=True, type=FILE, help=AVERAGE)
@training("train", TrainSettings)
def command(
    arch: str, data: str, out: Path, init: Path | None, averaged: tuple[Path, ...], settings: TrainSettings
) -> None:
    """Train ARCH on DATA (cifar10, cifar100, or a folder of images by class) and write the weights to OUT.

    The run is saved beside OUT after every epoch (OUT.run); the same command continues it. A manifest (OUT with
    the ending .json) holds the recipe, the data and the clean test error.

    Example: ctta train wrn-16-2 cifar10 source.safetensors --epochs 16 --small-epochs 10
    """
    from safetensors.torch import save

    from ctta.models import load, train, weight_hash

    split = train.load_split(data)
    model = train.new_model(arch, split.classes, settings.seed)
    if averaged:
        train.average(model, [load(arch, path).state_dict() for path in averaged])
        train.measure_statistics(model, split.train_images, settings)
    else:
        if init:
            model.load_state_dict(load(arch, init).state_dict())  # strict: another architecture is refused
        resume = out.with_suffix(".run")
        follow(train.train(model, split.train_images, split.train_labels, settings, resume), settings.epochs)
    error = train.error_rate(model, split.test_images, split.test_labels)
    write_bytes(out, save({key: value.contiguous() for key, value in model.state_dict().items()}))
    write_manifest(
        out,
        arch=arch,
        classes=split.classes,
        data=data,
        recipe=None if averaged else dataclasses.asdict(settings),
        **{"from": [_manifest_of(path) for path in (averaged or ([init] if init else []))]},
        clean_test_error=error,
        weight_hash=weight_hash(model),
    )
    click.echo(f"clean test error {100 * error:.2f} %, weights in {out}")


def _manifest_of(weights: Path) -> Any:
    """Return how weights were made, if that is written beside them, else their name."""
    path = weights.with_suffix(".json")
    with parsing(f"{path} is damaged", f"Delete it or write it again: it says how {weights.name} was made."):
        return json.loads(path.read_text()) if path.is_file() else weights.name
