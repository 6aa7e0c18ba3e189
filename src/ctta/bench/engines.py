"""Where cells run: on this machine, or on a Ray cluster. The store is the truth; an engine only fills it."""

from __future__ import annotations

from pathlib import Path

from ctta.bench.engine import Engine, Event, Tell
from ctta.bench.local import Local
from ctta.bench.ray_engine import Ray
from ctta.errors import SettingError
from ctta.settings import suggestion

ENGINES = ("local", "ray")

__all__ = ["ENGINES", "Engine", "Event", "Local", "Ray", "Tell", "engine"]


def engine(
    name: str,
    store: Path,
    *,
    processes: int | None = None,
    threads: int | None = None,
    address: str | None = None,
    snapshot_seconds: float | None = None,
) -> Engine:
    """Return an engine by name. `processes` and `threads` (of each) have defaults that fit the machine."""
    if name == "local":
        return Local(store, processes=processes, threads=threads, snapshot_seconds=snapshot_seconds)
    if name == "ray":
        return Ray(store, processes=processes, threads=threads, address=address)
    raise SettingError(f"There is no engine `{name}`.{suggestion(name, ENGINES)} Engines: {', '.join(ENGINES)}.")
