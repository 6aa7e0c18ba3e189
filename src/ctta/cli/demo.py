"""`ctta demo`: a first run on real images and a real model, both inside the package."""

from __future__ import annotations

from typing import Any

import click

from ctta.cli.run import execute, shared_options

IMAGES = click.IntRange(1, 1000)


@click.command("demo")
@click.option("--images", type=IMAGES, default=600, show_default=True, help="Images per corruption, of 1,000.")
@shared_options
def command(**words: Any) -> None:
    """Send CIFAR-10 test images through 15 corruptions in a row, and compare methods that adapt to them.

    Images and weights are inside the package: nothing is downloaded. The settings of every method are its preset
    `embedded`, which was chosen on four other corruptions.

    Example: ctta demo --images 200
    """
    title = "Error (%) on 15 corruptions of CIFAR-10 in a row, severity 5, never reset"
    execute(model="embedded:", data="embedded", preset="embedded", name="demo", title=title, **words)
