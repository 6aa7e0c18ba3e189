"""The declared state of a method as one flat set of tensors and scalars: read, check, restore, convert.

Reset, save, load, undo and device moves all go through these few functions, so that a method which declares
its state (`ctta._core.kept`) gets all of them.
"""

from __future__ import annotations

import copy
import sys
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from ctta._core.layers import AsItWas, all_finite, equal_bits, wide
from ctta.errors import StateError

if TYPE_CHECKING:
    from ctta._core.method import Method


@dataclass(frozen=True)
class State:
    """All a method keeps, flat: tensors by key ("model/conv1.weight", "rng") and JSON-ready scalars."""

    tensors: dict[str, Tensor]
    scalars: dict[str, Any]


def load(method: Method[Any], saved: State) -> None:
    """Continue from a saved state; one that does not fit is refused before anything changes."""
    check(method, saved)
    restore(method, saved)
    for name, item in method.kept().items():
        if item.check is not None and not item.check(method):
            raise StateError(
                f"The state's `{name}` cannot be gone on from ({item.help}) Use another copy, or begin anew."
            )


def check(method: Method[Any], state: State) -> None:
    """Refuse a state that does not fit the method and its model, before anything is changed."""
    now, kinds = method.state(), {name: item.kind for name, item in method.kept().items()}
    _require_keys("scalars", state.scalars, now.scalars)
    _require_types(method, state.scalars)

    def lasting(keys: Iterable[str]) -> list[str]:
        return [key for key in keys if kinds.get(key.partition("/")[0]) not in ("per tensor", "buffer")]

    _require_keys("tensors", lasting(state.tensors), lasting(now.tensors))
    for key, found in state.tensors.items():
        owner, _, name = key.partition("/")
        kind = kinds.get(owner)
        if kind == "buffer":
            continue
        if kind == "per tensor":
            of = method.adapted.get(name)
            if of is None or not _fits(found.shape, of.shape):
                raise StateError(f"The state has {key} of shape {tuple(found.shape)}: no such tensor is adapted.")
            wanted = wide(of).dtype, found.shape
        else:
            wanted = now.tensors[key].dtype, now.tensors[key].shape
        if wanted != (found.dtype, found.shape):
            raise StateError(
                f"Expected {key} to be {wanted[0]} of shape {tuple(wanted[1])}, but the state has "
                f"{found.dtype} of shape {tuple(found.shape)}."
            )
    if not all_finite(changed(method, state.tensors).values()):
        raise StateError("The state holds NaN or infinity, which no adapter saves: use another copy.")


def restore(method: Method[Any], state: State) -> None:
    """Continue from a state that fits; every tensor is copied."""
    device = next(iter(method.model.parameters()), torch.empty(0)).device
    parts: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, tensor in state.tensors.items():
        owner, _, name = key.partition("/")
        parts[owner][name] = tensor
    method.move({name: parts["model"][name] for name in method.adapted})
    set_buffers(method.model, parts["buffers"])
    for name, item in method.kept().items():
        part = parts[name]
        match item.kind:
            case "per tensor":
                own = {key: tensor.detach().to(device, copy=True) for key, tensor in part.items()}
                setattr(method, name, own)
            case "buffer":
                setattr(method, name, part[""].detach().to(device, copy=True) if "" in part else None)
            case "network":
                set_network(getattr(method, name), part)
            case "generator":
                getattr(method, name).restore(part[""])
            case "scalar":
                setattr(method, name, copy.deepcopy(state.scalars[name]))


def not_finite(method: Method[Any]) -> dict[str, Tensor]:
    """Copies of the tensors of a state that hold NaN or infinity now."""
    tensors = method.state().tensors
    if all_finite(tensors.values()):
        return {}
    return {key: value.detach().clone() for key, value in tensors.items() if not all_finite([value])}


def changed(method: Method[Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a state, with 0 where the source is NaN or infinite and nothing has changed since.

    A mask of -inf, or weights that were never used, are the model's own affair: only what changed must be finite.
    A device is not waited for.
    """
    out = dict(tensors)
    for key in method.never_finite.keys() & tensors.keys():
        now = tensors[key].detach()
        before = method.never_finite[key].to(now.device)
        if now.shape == before.shape:
            same = ~before.isfinite() & ((now == before) | (now.isnan() & before.isnan()))
            out[key] = now.masked_fill(same, 0)
    return out


def convert(method: Method[Any], to: Callable[[Tensor], Tensor]) -> None:
    """Apply a conversion of tensors (another device, another dtype) to everything a method holds."""
    method.model._apply(to)  # type: ignore[no-untyped-call]
    named = dict(method.model.named_parameters())
    method.adapted = {name: named[name] for name in method.adapted}
    moved: dict[int, Tensor] = {}

    def once(tensor: Tensor) -> Tensor:  # the state it began with shares tensors with the source
        return moved[id(tensor)] if id(tensor) in moved else moved.setdefault(id(tensor), to(tensor))

    for held in ("source", "source_buffers", "learnt"):
        setattr(method, held, {name: once(value) for name, value in getattr(method, held).items()})
    first = {key: once(value) for key, value in method.beginning.tensors.items()}
    method.beginning = State(first, method.beginning.scalars)
    for name, item in method.kept().items():
        value = getattr(method, name)
        match item.kind:
            case "per tensor":
                setattr(method, name, {key: to(tensor) for key, tensor in value.items()})
            case "buffer" if value is not None:
                setattr(method, name, to(value))
            case "network":
                value._apply(to)
    method.never_finite = not_finite(method)


def held(method: Method[Any]) -> Callable[[], None]:
    """Return what puts back every tensor a method holds now, also where a conversion put another in its place."""
    attributes = vars(method).copy()  # a conversion makes new dicts
    networks = [AsItWas(network) for network in networks_of(method)]
    data = [(value, value.data) for network in networks_of(method) for value in network.parameters()]

    def put_back() -> None:
        vars(method).update(attributes)
        for network in networks:
            network.put_back()
        for value, before in data:
            value.data = before

    return put_back


def set_network(network: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Give a network's parameters and buffers these values."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(values[name])
    set_buffers(network, values)


def set_buffers(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Give a model's buffers these values, in place where they fit; those without a value become None.

    A buffer that several modules share has a value under its first name only.
    """
    shared: dict[int, tuple[Tensor, Tensor | None]] = {}
    with torch.no_grad():
        for prefix, module in model.named_modules():
            for leaf, now in module._buffers.items():
                if now is not None and id(now) in shared:
                    module._buffers[leaf] = shared[id(now)][1]
                    continue
                value = values.get(f"{prefix}.{leaf}" if prefix else leaf)
                if now is None or value is None or now.shape != value.shape or now.dtype != value.dtype:
                    module._buffers[leaf] = None if value is None else value.clone()
                else:
                    now.copy_(value)
                if now is not None:
                    shared[id(now)] = now, module._buffers[leaf]


def beginning(method: Method[Any]) -> State:
    """The state a method begins with: copies, or where it is that of the source model the same tensors."""
    now = method.state()
    source = {**dict(method.model.named_parameters()), **method.source_buffers, **method.source}
    tensors = {}
    for key, tensor in now.tensors.items():
        origin = source.get(key.partition("/")[2])
        tensors[key] = origin if origin is not None and equal_bits(tensor, origin) else tensor.clone()
    return State(tensors, copy.deepcopy(now.scalars))


def networks_of(method: Method[Any]) -> list[nn.Module]:
    """The model and every network kept beside it."""
    kept = [getattr(method, name) for name, item in method.kept().items() if item.kind == "network"]
    return [method.model, *kept]


class undisturbed:  # noqa: N801 - a context manager, used as a function
    """Put back whatever a prediction disturbs: the buffers of every network, the generators.

    Not a generator function: one that is cut short would put back late, whenever its traceback is let go of.
    """

    def __init__(self, method: Method[Any]) -> None:
        self.networks = networks_of(method)
        # the buffers themselves, not their ids: a freed one's id may be that of the tensor that replaced it
        self.before = [{k: (b, b._version, b.clone()) for k, b in n.named_buffers()} for n in self.networks]
        kept = [getattr(method, name) for name, item in method.kept().items() if item.kind == "generator"]
        self.drawn = [(item, item.state()) for item in kept]

    def put_back(self) -> None:
        """Put it back now; a second time does no harm."""
        for network, before in zip(self.networks, self.before, strict=True):
            now = dict(network.named_buffers())
            same = (b is now.get(name) and b._version == version for name, (b, version, _) in before.items())
            if now.keys() != before.keys() or not all(same):
                set_buffers(network, {name: value for name, (*_, value) in before.items()})
        for item, state in self.drawn:
            item.restore(state)

    def __enter__(self) -> None:
        """Begin; what is put back was remembered when this was made."""

    def __exit__(self, *_: object) -> None:
        self.put_back()


def network_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of a network by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _fits(shape: torch.Size, parameter: torch.Size) -> bool:
    """Tell whether a tensor is a number, or as its parameter with some dimensions reduced to 1."""
    return not shape or (len(shape) == len(parameter) and all(map(lambda a, b: a in (1, b), shape, parameter)))


def _require_types(method: Method[Any], scalars: Mapping[str, Any]) -> None:
    """Refuse scalars of another type than their annotation names."""
    try:
        hints = get_type_hints(type(method))
    except (NameError, TypeError):  # a method of a user's, with names known to his type checker alone
        return
    for name, value in scalars.items():
        if not is_of_type(value, hints.get(name, Any)):
            raise StateError(f"Expected `{name}` in the state to be {hints[name]}, but got {value!r:.80}.")


def is_of_type(value: Any, hint: Any) -> bool:
    """Tell whether a value from JSON is of a type; numbers must be finite.

    >>> is_of_type({"a": 1}, dict[str, int]), is_of_type("x", float | None)
    (True, False)
    """
    kind, inner = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        return any(is_of_type(value, part) for part in inner)
    if kind is Literal:
        return value in inner
    if kind in (list, dict):
        items = value.values() if type(value) is dict else value
        return type(value) is kind and all(is_of_type(item, inner[-1]) for item in items)
    if hint in (int, float):
        most = sys.float_info.max if type(value) is float else 2**63 - 1
        return type(value) in (int, hint) and abs(value) <= most
    return not isinstance(hint, type) or type(value) is hint


def _require_keys(what: str, given: Iterable[str], expected: Iterable[str]) -> None:
    missing, unknown = sorted(set(expected) - set(given)), sorted(set(given) - set(expected))
    if missing or unknown:
        raise StateError(
            f"The state does not fit this method and model: of its {what}, missing {missing[:3] or 'nothing'}, "
            f"unknown {unknown[:3] or 'nothing'}."
        )
