"""Where cells run: the options the verbs share that run many, and how they end after Ctrl-C."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

if TYPE_CHECKING:
    from ctta.bench.workers import Engine


@dataclass(frozen=True)
class Where:
    """What the options say of the engine."""

    engine: str
    address: str | None
    processes: int | None
    threads: int | None
    snapshots: float | None

    @property
    def each(self) -> int:
        """Threads of every process: they belong to what a cell is."""
        from ctta.bench.local import share

        return (self.threads or 1) if self.engine == "ray" else share(self.processes, self.threads)[1]

    def filling(self, store: Path) -> Engine:
        """Make the engine that fills a store."""
        from ctta.bench.local import Local
        from ctta.bench.ray_engine import Ray
        from ctta.bench.runner import SNAPSHOT_SECONDS

        if self.engine == "ray":
            return Ray(store, processes=self.processes, address=self.address)
        seconds = SNAPSHOT_SECONDS if self.snapshots is None else self.snapshots
        return Local(store, processes=self.processes, snapshot_seconds=seconds)


ENGINES = click.Choice(["local", "ray"])
AT_LEAST_1 = click.IntRange(min=1)
OPTIONS = (
    click.option("--engine", type=ENGINES, default="local", show_default=True, help="Where to run."),
    click.option("--address", help="Of a Ray cluster. [default: Ray on this machine]"),
    click.option("--processes", type=AT_LEAST_1, help="Cells at once. [default: fits the machine]"),
    click.option("--threads", type=AT_LEAST_1, help="CPU threads per process. [default: cores / processes]"),
    click.option("--snapshots", type=click.FloatRange(min=0), help="Least seconds between two. [default: 20]"),
)


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of the engines, which it gets as one argument `where`."""

    @functools.wraps(command)
    def called(**words: Any) -> Any:
        return command(where=Where(**{item.name: words.pop(item.name) for item in fields(Where)}), **words)

    return functools.reduce(lambda inner, option: option(inner), reversed(OPTIONS), called)


@contextlib.contextmanager
def stoppable(console: Console) -> Iterator[None]:
    """End with exit code 130 after Ctrl-C, and say that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        console.print("stopped; the same command continues")
        raise SystemExit(130) from None
