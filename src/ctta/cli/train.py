"""`ctta train`: make a source model from clean images."""

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
from ctta.settings import build
from ctta.train import TrainSettings


@click.command("train")
@click.argument("arch")
@click.argument("data")
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads (default: torch's choice).")
@recipe_options(TrainSettings)
def command(arch: str, data: str, out: Path, threads: int | None, **recipe: Any) -> None:
    """Train ARCH on DATA (cifar10, cifar100, or a folder of images by class) and write the weights to OUT.

    The run is saved beside OUT after every epoch (OUT.run); the same command continues it. A manifest (OUT with
    the ending .json) holds the recipe, the data and the clean test error.

    Example: ctta train wrn-16-2 cifar10 source.safetensors --epochs 16 --small-epochs 10
    """
    import torch

    from ctta.models import weight_hash
    from ctta.train import error_rate, load_split, new_model, train

    if threads:
        torch.set_num_threads(threads)
    settings = build(TrainSettings, recipe, owner="train")
    split = load_split(data)
    model = new_model(arch, split.classes, settings.seed)
    console = Console(stderr=True)
    with step_bar(console) as progress:
        task = progress.add_task("training", total=None)
        resume = out.with_suffix(".run")
        for now in train(model, split.train_images, split.train_labels, settings, resume):
            progress.update(
                task,
                total=settings.epochs * now.batches,
                completed=(now.epoch - 1) * now.batches + now.batch,
                description=f"epoch {now.epoch}, loss {now.loss:.3f}, accuracy {100 * now.accuracy:.1f} %",
            )
            if now.batch == now.batches and not console.is_terminal:
                console.print(f"epoch {now.epoch}: loss {now.loss:.3f}, accuracy {100 * now.accuracy:.1f} %")
    error = error_rate(model, split.test_images, split.test_labels)
    manifest = {
        "arch": arch,
        "classes": split.classes,
        "data": data,
        "recipe": dataclasses.asdict(settings),
        "clean_test_error": error,
        "weight_hash": weight_hash(model),
        "ctta": __version__,
        "torch": torch.__version__,
        "command": "ctta " + " ".join(sys.argv[1:]),
    }
    write_weights(model, out, manifest)
    resume.unlink()
    click.echo(f"clean test error {100 * error:.2f} %, weights in {out}")


def write_weights(model: Any, out: Path, manifest: dict[str, Any]) -> None:
    """Write safetensors and manifest, both whole or not at all."""
    from safetensors.torch import save

    from ctta.checkpoint import write_bytes

    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    write_bytes(out, save(state))
    write_bytes(out.with_suffix(".json"), (json.dumps(manifest, indent=2) + "\n").encode())
