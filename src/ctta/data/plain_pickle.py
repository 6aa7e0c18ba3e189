"""Pickles of plain values and arrays, read without the unpickler: no name in a file is ever looked up.

An unpickler calls what the file names with what the file gives. Even if all it may name is numpy's own, numpy
trusts the state of a dtype or an array, and a crafted one reads and frees memory of the file's choice. Here the
standard library cuts the file into opcodes, and what the few a data file needs ask for is done by hand: texts,
bytes, numbers, lists, tuples, dicts keyed by text, and arrays, which are built from checked parts afterwards.
"""

from __future__ import annotations

import math
import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

PLAIN = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("SHORT_BINSTRING", "BINSTRING", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
"""Opcodes that put the value they carry on the stack. Strings of Python 2 come as latin1."""

MARK = object()
CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": (), "MARK": MARK}
NAMES = {
    "numpy ndarray",
    "numpy dtype",
    "numpy.core.multiarray _reconstruct",
    "numpy.core.numeric _frombuffer",  # protocol 5
    "_codecs encode",  # how Python 3 writes bytes in protocol 2
}


@dataclass(frozen=True)
class Name:
    """What the file wants imported; it only stands for it."""

    name: str


UINT8 = Name("uint8")
"""Stands for the one dtype an array may have."""


@dataclass
class Parts:
    """An array: empty first, then what its state says. Nothing of it is believed before `array` is called."""

    shape: Any = None
    fortran: Any = False
    data: Any = None

    def array(self) -> NDArray[np.uint8]:
        """Build the array, if its shape and the number of bytes fit each other."""
        shape, data = self.shape, self.data.encode("latin1") if isinstance(self.data, str) else self.data
        if type(shape) is not tuple or len(shape) > 32:
            raise ValueError("an array without shape")
        if not all(type(side) is int and 0 <= side < 2**40 for side in shape):
            raise ValueError("an array with impossible sides")
        if not isinstance(data, bytes | bytearray) or len(data) != math.prod(shape):
            raise ValueError("an array whose bytes do not fit its shape")
        return np.frombuffer(data, np.uint8).reshape(shape, order="F" if self.fortran else "C")


def load(data: bytes) -> Any:
    """Return the value of a pickle of protocol 2 to 5; ValueError, IndexError or KeyError if it is none.

    Arrays come as `Parts`. Keys of dicts are texts, also where the file has bytes.
    """
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    for opcode, argument, _ in pickletools.genops(data):
        match opcode.name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case name if name in PLAIN:
                stack.append(argument)
            case name if name in CONSTANTS:
                stack.append(CONSTANTS[name])
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case name:
                _combine(name, argument, stack)
    return stack.pop()


def _combine(name: str, argument: Any, stack: list[Any]) -> None:
    """Do an opcode that makes a container or takes values off the stack."""
    match name:
        case "EMPTY_LIST" | "EMPTY_DICT":
            stack.append([] if name == "EMPTY_LIST" else {})
        case "TUPLE1" | "TUPLE2" | "TUPLE3" | "TUPLE":
            stack.append(tuple(_take(stack, None if name == "TUPLE" else int(name[-1]))))
        case "APPEND" | "APPENDS":
            values = _take(stack, None if name == "APPENDS" else 1)
            _top(stack, list).extend(values)
        case "SETITEM" | "SETITEMS":
            values = _take(stack, None if name == "SETITEMS" else 2)
            _top(stack, dict).update(zip(map(_text, values[::2]), values[1::2], strict=True))
        case "GLOBAL" | "STACK_GLOBAL":
            asked = argument if name == "GLOBAL" else " ".join(map(_text, _take(stack, 2)))
            asked = asked.replace("numpy._core", "numpy.core")  # renamed in numpy 2; old files keep the old name
            if asked not in NAMES:
                raise ValueError(f"it asks for {asked.replace(' ', '.')}, which a data file has no need of")
            stack.append(Name(asked.rpartition(" ")[2]))
        case "REDUCE":
            stack.append(_made(*_take(stack, 2)))
        case "BUILD":
            (state,) = _take(stack, 1)
            _fill(stack[-1], state)
        case _:
            raise ValueError(f"it holds {name}, which a data file has no need of")


def _take(stack: list[Any], count: int | None = None) -> list[Any]:
    """Take the topmost values; without a count those above the topmost mark, and the mark."""
    values: list[Any] = []
    while len(values) != count and (value := stack.pop()) is not MARK:
        values.append(value)
    if count is not None and len(values) < count:
        raise ValueError("a value is missing")
    return values[::-1]


def _top(stack: list[Any], kind: type) -> Any:
    if type(stack[-1]) is not kind:
        raise ValueError(f"a {kind.__name__} is missing")
    return stack[-1]


def _text(key: Any) -> str:
    """Return a key as text. Nothing else is hashed: a nest of tuples would overrun the stack."""
    if type(key) not in (str, bytes):
        raise ValueError(f"a key that is a {type(key).__name__}, not a text")
    return key if isinstance(key, str) else key.decode("latin1")


def _made(call: Any, arguments: Any) -> Any:
    """Do what a call stands for: start an array, name its type, encode a text."""
    match call, arguments:
        case Name("_reconstruct"), (Name("ndarray"), (0,), _):
            return Parts()
        case Name("_frombuffer"), (data, Name("uint8"), shape, order):
            return Parts(shape, order == "F", data)
        case Name("dtype"), ("u1" | "uint8", *_):
            return UINT8
        case Name("encode"), (str(text), "latin1"):
            return text.encode("latin1")
    raise ValueError("it builds something other than an array of bytes")


def _fill(thing: Any, state: Any) -> None:
    """Take the state of an array; that of its type says nothing new."""
    match thing, state:
        case Parts(), (1, shape, Name("uint8"), fortran, data):
            thing.shape, thing.fortran, thing.data = shape, fortran, data
        case Name("uint8"), (3 | 4, "|", None, None, None, -1, -1, 0, *_):
            pass
        case _:
            raise ValueError("a state that neither an array of bytes nor its type has")
