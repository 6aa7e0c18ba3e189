"""`ctta demo`: a first run on real images and a real model, both inside the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ctta.cli.run import execute

METHODS = "source,bn1,tent,palm"


@click.command("demo")
@click.option("--methods", default=METHODS, show_default=True, help="Methods, separated by commas.")
@click.option(
    "--images",
    type=click.IntRange(1, 1000),
    default=600,
    show_default=True,
    help="Images per corruption, of 1,000.",
)
@click.option("--batch-size", type=click.IntRange(min=1), default=200, show_default=True, help="Images per batch.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of adapters and images.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads (default: torch's choice).")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Report folder."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read.")
def command(**words: Any) -> None:
    """Send CIFAR-10 test images through 15 corruptions in a row, and compare methods that adapt to them.

    Images and weights are inside the package: nothing is downloaded. The settings of every method are its preset
    `embedded`, which was chosen on four other corruptions.

    Example: ctta demo --images 200
    """
    execute(
        model="embedded:",
        data="embedded",
        preset="embedded",
        name="demo",
        title="Error (%) on 15 corruptions of CIFAR-10 in a row, severity 5, never reset",
        **words,
    )
