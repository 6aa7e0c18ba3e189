"""What one step did: the value of `adapter.last`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, repr=False)
class Report:
    """What the last call of an adapter did, readable as attributes, as a mapping, or as JSON (`to_dict`).

    Fields a method has nothing to say about keep their empty default.
    """

    method: str
    """Registry name of the method."""
    batch: int
    """Which batch this was since the last reset, from 1."""
    samples: int
    """Images in the batch."""
    skipped: bool = False
    """Whether the step was undone. The prediction was still returned."""
    reason: str | None = None
    """Why it was undone."""
    skipped_steps: int = 0
    """How many steps were undone since the last reset, this one included."""
    selected: tuple[str, ...] = ()
    """Tensors selected for adaptation in this batch."""
    learning_rates: dict[str, float] = field(default_factory=dict)
    """Learning rate of every adaptable tensor in this batch (the mean where rates are per element)."""
    scores: dict[str, float] = field(default_factory=dict)
    """Score of every adaptable tensor: PALM's Z."""
    importance: dict[str, float] = field(default_factory=dict)
    """Importance of every adaptable tensor: PALM's i (the mean over its elements)."""
    shares: dict[str, float] = field(default_factory=dict)
    """Shares of the adaptable parameters: `selected` now, `moved` now, `ever_selected` since the reset."""
    losses: dict[str, float] = field(default_factory=dict)
    """The terms of the loss and their `total`."""
    kept: int | None = None
    """Samples that passed the entropy filter."""
    eta: float | None = None
    """Selection threshold in force, after `eta="auto"` and scaling."""
    temperature: float | None = None
    """Temperature in force."""
    notes: tuple[str, ...] = ()
    """Anything else worth knowing, in words: an empty entropy filter, parameters the model never used."""

    def __repr__(self) -> str:
        what = f"skipped: {self.reason}" if self.skipped else f"{len(self.selected)} tensors selected"
        numbers = {**self.losses, **{f"{name} share": share for name, share in self.shares.items()}}
        facts = "".join(f", {name} {value:.4g}" for name, value in numbers.items())
        kept = "" if self.kept is None else f", kept {self.kept} of {self.samples}"
        return f"Report({self.method}, batch {self.batch}, {what}{facts}{kept})"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON-ready data."""
        return dataclasses.asdict(self)

    def __getitem__(self, name: str) -> Any:
        if name not in self.keys():
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> tuple[str, ...]:
        """Return the names of the fields."""
        return tuple(item.name for item in dataclasses.fields(self))
