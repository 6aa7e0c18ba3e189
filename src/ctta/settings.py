"""Typed settings: one frozen dataclass a method, from which checks, flags and tables follow.

::

    @dataclass(frozen=True)
    class TentSettings:
        lr: float = setting(1e-3, "Step size.", low=0.0)
        optimizer: Literal["adam", "sgd"] = setting("adam", "Which optimiser moves the weights.")

`describe` turns the class into plain data, `build` turns keyword arguments into a checked instance.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ctta.errors import SettingError

T = TypeVar("T")
Group = Literal["paper", "difference", "cost"]
FEW = 10
"""Settings up to which a message names them all."""


def setting(
    default: Any,
    help: str,  # the word people look for, and no builtin is needed here
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    aka: tuple[str, ...] = (),
    many: bool = False,
    group: Group = "paper",
) -> Any:
    """Declare one setting: its default, one sentence of help, and its range.

    `low` and `high` are inclusive bounds, `above` and `below` exclusive ones. `aka` are names people may try
    for it: they are not accepted, but answered with the right one. `many` is for a string that is a list of words
    or whole numbers: a list is accepted too, and kept as one string with commas. `group` says where lists show it:
    with the paper's own, with the differences between paper and code, or with what the method costs.
    """
    facts = {"help": help, "low": low, "high": high, "above": above, "below": below, "aka": aka, "many": many}
    return dataclasses.field(default=default, metadata={**facts, "group": group})


@dataclass(frozen=True)
class Setting:
    """What is known of one setting, as plain data."""

    name: str
    help: str
    default: Any
    types: tuple[type, ...]
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    aka: tuple[str, ...] = ()
    many: bool = False
    group: Group = "paper"

    @property
    def accepts(self) -> str:
        """The accepted values in words: 'a number in [0, 1]', '"adam" or "sgd"'."""
        number = "a number" if float in self.types else "a whole number" if int in self.types else ""
        words = [self._with_range(number)] if number else []
        words += [f'"{choice}"' for choice in self.choices]
        words += ["True or False"] if bool in self.types else []
        words += ["a string with commas" if self.many else "a string"] if str in self.types else []
        words += ["a list"] if self.many else []
        words += ["None"] if type(None) in self.types else []
        return " or ".join(words) if len(words) < 3 else ", ".join(words[:-1]) + " or " + words[-1]

    def check(self, value: Any) -> Any:
        """Return the value in its declared type, or refuse it."""
        if value is None and type(None) in self.types:
            return None
        if isinstance(value, str) and (value in self.choices or str in self.types):
            return value
        if self.many and isinstance(value, list | tuple) and all(type(item) in (str, int) for item in value):
            return ",".join(map(str, value))
        if isinstance(value, bool):
            if bool in self.types:
                return value
        elif isinstance(value, Integral) and int in self.types and self._in_range(int(value)):
            return int(value)
        elif isinstance(value, Real) and float in self.types and self._in_range(float(value)):
            return float(value)
        hint = suggestion(value, self.choices) if isinstance(value, str) else ""
        raise SettingError(f"Expected `{self.name}` to be {self.accepts}, but got {value!r}.{hint}")

    def _with_range(self, noun: str) -> str:
        lower = f"[{self.low:g}" if self.low is not None else f"({self.above:g}" if self.above is not None else ""
        upper = (
            f"{self.high:g}]" if self.high is not None else f"{self.below:g})" if self.below is not None else ""
        )
        if lower and upper:
            return f"{noun} in {lower}, {upper}"
        if self.above is not None:
            return f"{noun} above {self.above:g}"
        return noun if self.low is None else f"{noun} of at least {self.low:g}"

    def _in_range(self, value: float) -> bool:
        return (
            abs(value) <= sys.float_info.max
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )


class Settings(tuple[Setting, ...]):
    """The settings of a method in the order they are written, also by name: `settings["eta"].help`."""

    def __getitem__(self, key: Any) -> Any:
        """Return a setting by position or by name."""
        return dict(zip(self.names, self, strict=True))[key] if isinstance(key, str) else super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        return key in self.names if isinstance(key, str) else super().__contains__(key)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the settings."""
        return tuple(item.name for item in self)


def describe(settings_type: type) -> Settings:
    """List the settings of a dataclass, in the order they are written."""
    hints = get_type_hints(settings_type)
    found = []
    for item in dataclasses.fields(settings_type):
        hint, facts = hints[item.name], {"help": "", **item.metadata}
        parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        choices = tuple(choice for part in parts if get_origin(part) is Literal for choice in get_args(part))
        kinds = tuple(part for part in parts if get_origin(part) is not Literal)
        found.append(Setting(name=item.name, default=item.default, types=kinds, choices=choices, **facts))
    return Settings(found)


def build(settings_type: type[T], values: Mapping[str, Any], *, owner: str, lists: str = "") -> T:
    """Make checked settings; in errors, `owner` names the method, `lists` the command that prints all names."""
    known = {item.name: item for item in describe(settings_type)}
    for name in values:
        if name not in known:
            meant = [item.name for item in known.values() if name in item.aka]
            hint = f" Did you mean `{meant[0]}`?" if meant else suggestion(name, known)
            accepted = f"Accepted settings: {', '.join(known) or 'none'}."
            if len(known) > FEW:
                accepted = f"`{lists or f'ctta methods {owner}'}` lists all {len(known)}."
            raise SettingError(f"{owner} has no setting `{name}`.{hint} {accepted}")
    return settings_type(**{name: known[name].check(value) for name, value in values.items()})


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ' Did you mean `x`?' when a known name is close to the word, else nothing.

    >>> suggestion("temprature", ["eta", "temperature"])
    ' Did you mean `temperature`?'
    """
    close = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.5)
    return f" Did you mean `{close[0]}`?" if close else ""
