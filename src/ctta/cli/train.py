"""`ctta train`: make a source model from clean images."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ctta._core.files import parsing
from ctta._version import __version__
from ctta.cli.progress import step_bar
from ctta.cli.recipe import recipe_options
from ctta.models.train import TrainSettings
from ctta.settings import build


@click.command("train")
@click.argument("arch")
@click.argument("data")
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--init",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Weights to start from (another cycle of the same architecture) instead of random ones.",
)
@click.option(
    "--average",
    "averaged",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Do not train: average these weights (ends of cycles) and measure their statistics. May be repeated.",
)
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads (default: torch's choice).")
@recipe_options(TrainSettings)
def command(
    arch: str,
    data: str,
    out: Path,
    init: Path | None,
    averaged: tuple[Path, ...],
    threads: int | None,
    **recipe: Any,
) -> None:
    """Train ARCH on DATA (cifar10, cifar100, or a folder of images by class) and write the weights to OUT.

    The run is saved beside OUT after every epoch (OUT.run); the same command continues it. A manifest (OUT with
    the ending .json) holds the recipe, the data and the clean test error.

    Example: ctta train wrn-16-2 cifar10 source.safetensors --epochs 16 --small-epochs 10
    """
    import torch

    from ctta.models import load, weight_hash
    from ctta.models.train import average, error_rate, load_split, measure_statistics, new_model

    if threads:
        torch.set_num_threads(threads)
    settings = build(TrainSettings, recipe, owner="train", lists="ctta train --help")
    split = load_split(data)
    model = new_model(arch, split.classes, settings.seed)
    if averaged:
        average(model, [load(arch, path).state_dict() for path in averaged])
        measure_statistics(model, split.train_images, settings)
    else:
        if init:
            model.load_state_dict(load(arch, init).state_dict())  # strict: another architecture is refused
        _train(model, split, settings, out.with_suffix(".run"))
    error = error_rate(model, split.test_images, split.test_labels)
    manifest = {
        "arch": arch,
        "classes": split.classes,
        "data": data,
        "recipe": None if averaged else dataclasses.asdict(settings),
        "from": [_manifest_of(path) for path in (averaged or ([init] if init else []))],
        "clean_test_error": error,
        "weight_hash": weight_hash(model),
        "ctta": __version__,
        "torch": torch.__version__,
        "command": "ctta " + " ".join(sys.argv[1:]),
    }
    write_weights(model, out, manifest)
    out.with_suffix(".run").unlink(missing_ok=True)
    click.echo(f"clean test error {100 * error:.2f} %, weights in {out}")


def _train(model: Any, split: Any, settings: TrainSettings, resume: Path) -> None:
    """Train behind a progress bar, or a line an epoch where there is no terminal."""
    from ctta.models.train import train

    console = Console(stderr=True)
    with step_bar(console) as progress:
        task = progress.add_task("training", total=None)
        for now in train(model, split.train_images, split.train_labels, settings, resume):
            progress.update(
                task,
                total=settings.epochs * now.batches,
                completed=(now.epoch - 1) * now.batches + now.batch,
                description=f"epoch {now.epoch}, loss {now.loss:.3f}, accuracy {100 * now.accuracy:.1f} %",
            )
            if now.batch == now.batches and not console.is_terminal:
                console.print(f"epoch {now.epoch}: loss {now.loss:.3f}, accuracy {100 * now.accuracy:.1f} %")


def _manifest_of(weights: Path) -> Any:
    """Return how weights were made, if that is written beside them, else their name."""
    path = weights.with_suffix(".json")
    with parsing(f"{path} is damaged", f"Delete it or write it again: it says how {weights.name} was made."):
        return json.loads(path.read_text()) if path.is_file() else weights.name


def write_weights(model: Any, out: Path, manifest: dict[str, Any]) -> None:
    """Write safetensors and manifest, both whole or not at all."""
    from safetensors.torch import save

    from ctta._core.checkpoint import write_bytes

    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    write_bytes(out, save(state))
    write_bytes(out.with_suffix(".json"), (json.dumps(manifest, indent=2) + "\n").encode())
