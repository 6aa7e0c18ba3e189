"""The command line: one verb a file, imported only when it is called."""

from __future__ import annotations

import importlib
from typing import Any

import click

from ctta._version import __version__

VERBS = {
    "demo": "Adapt a small model to a changing stream: a first run that needs nothing.",
    "run": "Compare methods on your own model and data.",
    "reproduce": "Rebuild the tables and figures of the paper beside its published numbers.",
    "report": "Show what the runs of a store come to: one page, figures, tables.",
    "bench": "Run a grid of methods, models, streams and seeds; continues where it was stopped.",
    "train": "Train a source model on clean images.",
    "warmup": "Prepare what a method must learn from labelled source data (EcoTTA).",
    "data": "Get, make, list and verify datasets and checkpoints.",
    "methods": "List the methods, or one method's settings and presets.",
    "doctor": "Show versions, device, threads, extras, and what is missing.",
}


class Verbs(click.Group):
    """A group whose commands live in `ctta.cli.<verb>` and are imported when used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's file and return its command."""
        if cmd_name not in VERBS:
            from ctta.settings import suggestion

            ctx.fail(f"There is no verb `{cmd_name}`.{suggestion(cmd_name, VERBS)} Verbs: {', '.join(VERBS)}.")
        found: click.Command = importlib.import_module(f"ctta.cli.{cmd_name}").command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing any."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="ctta")
def cli() -> None:
    """Continual test-time adaptation for PyTorch classifiers.

    Example: ctta methods palm
    """


def main(*args: Any, **kwargs: Any) -> Any:
    """Run the command line; errors of ours end in one sentence and exit code 1."""
    from ctta._cost.allocator import keep_freed_memory
    from ctta.errors import CttaError

    keep_freed_memory()
    try:
        return cli(*args, **kwargs)
    except CttaError as error:
        click.echo(f"ctta: {error}", err=True)
        raise SystemExit(1) from None
