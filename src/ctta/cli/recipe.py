"""Flags made from a settings class, for the verbs that follow a recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ctta.settings import describe


def recipe_options(settings_type: type) -> Callable[[Any], Any]:
    """One flag for every setting of a recipe, with its help and default."""

    def add(command: Any) -> Any:
        for item in reversed(describe(settings_type)):
            kind = click.Choice(item.choices) if item.choices else str if str in item.types else item.types[0]
            command = click.option(
                f"--{item.name.replace('_', '-')}",
                item.name,
                type=kind,
                default=item.default,
                show_default=True,
                help=item.help,
            )(command)
        return command

    return add
