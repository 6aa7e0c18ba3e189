"""The registry of methods: one frozen entry each, written by a decorator above the class."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args

from ctta._core.method import Method
from ctta.errors import SettingError
from ctta.settings import Settings, build, describe, suggestion

M = TypeVar("M", bound=type[Method[Any]])
Values = Mapping[str, Any]
Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True)
class MethodEntry:
    """What is known of a method before any model is there."""

    name: str
    paper: str
    year: int
    needs: frozenset[str]
    cost: float
    confidence: Confidence
    settings: Settings
    presets: Mapping[str, Values]
    variants: Mapping[str, Values]
    summary: str
    method: type[Method[Any]] = field(repr=False)
    settings_type: type = field(repr=False)

    def resolve(self, preset: str | None, values: Values) -> Any:
        """Settings from defaults, preset, variant, what the caller's choice implies, and the choice itself."""
        given, base = dict(values), dict[str, Any]()
        if preset is not None:
            base |= _pick("preset", preset, self.presets, self.name)
        if self.variants:
            variant = given.get("variant", base.get("variant", self.settings["variant"].default))
            base |= _pick("variant", variant, self.variants, self.name)
        if hasattr(self.settings_type, "implied"):
            base |= self.settings_type.implied(given)
        return build(self.settings_type, base | given, owner=self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return find, (self.name,)  # copied and pickled by name: an entry is what the registry says it is


_ENTRIES: dict[str, MethodEntry] = {}


def register(
    name: str,
    *,
    paper: str,
    year: int,
    needs: set[str] | None = None,
    cost: float = 4.0,
    confidence: Confidence = "medium",
    presets: Mapping[str, Values] | None = None,
    variants: Mapping[str, Values] | None = None,
) -> Callable[[M], M]:
    """Enter a method under a name. `needs` says in words what a model or stream must offer.

    `cost` is what a batch costs at most with the default settings, in forward passes (a backward pass through all
    layers counts two). `confidence` in that it is the published method: "high" where official code was read,
    "medium" where there was none, "low" for a reconstruction from a description. The settings class is read from
    the type argument: `Method[TentSettings]`. `variants` are bundles of settings chosen by the setting `variant`.
    """

    def enter(method: M) -> M:
        settings_type = _settings_type(method)
        for values in (*(presets or {}).values(), *(variants or {}).values()):
            build(settings_type, values, owner=name)
        if variants and "variant" not in describe(settings_type).names:
            raise SettingError(f"{name} has variants but no setting `variant` to choose among them.")
        if not method.__module__.startswith("ctta.methods."):
            _import_methods()  # their names are taken whether or not anyone asked for them yet
        taken = _ENTRIES.get(name)
        if taken and (taken.method.__module__, taken.method.__name__) != (method.__module__, method.__name__):
            raise SettingError(f"The name `{name}` is taken by {taken.method.__module__}.{taken.method.__name__}.")
        settings, summary = describe(settings_type), (method.__doc__ or "").strip().split("\n")[0]
        facts = (name, paper, year, frozenset(needs or ()), cost, confidence, settings)
        _ENTRIES[name] = MethodEntry(*facts, _frozen(presets), _frozen(variants), summary, method, settings_type)
        return method

    return enter


def list_methods() -> list[MethodEntry]:
    """All registered methods, oldest paper first."""
    _import_methods()
    return sorted(_ENTRIES.values(), key=lambda entry: (entry.year, entry.name))


def find(method: str | type[Method[Any]]) -> MethodEntry:
    """Return the entry of a method given by name or by class."""
    _import_methods()
    for entry in _ENTRIES.values():
        if method in (entry.name, entry.method):
            return entry
    if not isinstance(method, str):
        raise SettingError(f"{method!r} is not a registered method: put @register(...) above its class.")
    names = ", ".join(_ENTRIES)
    raise SettingError(f"There is no method `{method}`.{suggestion(method, _ENTRIES)} Methods: {names}.")


def _import_methods() -> None:
    """Import every file beside this one, so that a method in a new file needs no other change."""
    package = importlib.import_module("ctta.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"ctta.methods.{module.name}")


def _pick(what: str, name: str, choices: Mapping[str, Values], owner: str) -> Values:
    if not isinstance(name, str) or name not in choices:
        known = ", ".join(choices) or "none"
        raise SettingError(f"{owner} has no {what} `{name}`.{suggestion(str(name), choices)} Known: {known}.")
    return choices[name]


def _frozen(values: Mapping[str, Values] | None) -> Mapping[str, Values]:
    return MappingProxyType({name: MappingProxyType(dict(item)) for name, item in (values or {}).items()})


def _settings_type(method: type[Method[Any]]) -> type:
    arguments = [kind for base in getattr(method, "__orig_bases__", ()) for kind in get_args(base)]
    for kind in arguments:
        if isinstance(kind, type):
            return kind
    raise SettingError(f"Say which settings {method.__name__} takes: class {method.__name__}(Method[Settings]).")
