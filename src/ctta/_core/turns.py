"""Turns: one thread at a time works with an adapter, and what it does happens whole or not at all.

Whatever changes an adapter first writes down how to put it back (`Before`), and a single assignment at the end
makes the change count. Nothing that happens on the way, a Ctrl-C at any line included, can leave half of it: if
putting back is cut short too, the next turn finishes it first.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ctta._core.inputs import InputGuard
from ctta._core.method import Method
from ctta._core.report import Report

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A", bound="Turns")


class Done(NamedTuple):
    """What an adapter counts, and its last report."""

    batches: int = 0
    skipped_steps: int = 0
    last: Report | None = None


class Before(NamedTuple):
    """All that was there before a change: how to put tensors back, and the rest itself."""

    put_back: Callable[[], None]
    done: Done
    guard: InputGuard
    first_hook: int
    """Number of the next hook of any module: hooks from here on belong to what was cut short."""


class Turns(nn.Module):
    """What takes turns: a lock, what is done, and what was before if something is under way."""

    method: Method[Any]
    _guard: InputGuard
    _done: Done
    _before: Before | None
    _lock: Any  # a threading.RLock
    _under_way: bool

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._under_way = False
        self._before = None

    def __setstate__(self, saved: dict[str, Any]) -> None:
        super().__setstate__(saved)  # type: ignore[no-untyped-call]
        self._lock = threading.RLock()
        self._under_way = False

    @property
    def _counted(self) -> Done:
        """What counts now: of a turn that is under way, nothing does yet."""
        before = self._before
        return self._done if before is None else before.done

    def _remember(self, put_back: Callable[[], None]) -> None:
        """From here on nothing counts until the turn ends; `put_back` may be called twice."""
        self._before = Before(put_back, self._done, self._guard.copy(), RemovableHandle.next_id)

    def _put_back(self) -> None:
        """Return to what was before a turn that was cut short."""
        before = self._before
        if before is None:
            return
        with torch.inference_mode(False):
            self.method.rest(before.first_hook)
            before.put_back()
        self._done, self._guard = before.done, before.guard
        self._before = None


def turn(work: Callable[Concatenate[A, P], R]) -> Callable[Concatenate[A, P], R]:
    """Make a method a turn: other threads wait, it changes all it means to change or nothing."""

    @functools.wraps(work)
    def whole(self: A, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._lock._is_owned():
            if self._under_way:  # part of another turn of this thread
                return work(self, *args, **kwargs)
            self._lock.release()  # an interruption on the way out of the last turn kept it
        with self._lock:
            try:
                self._under_way = True
                self._put_back()
                result = work(self, *args, **kwargs)
                self._before = None  # now it counts
                return result
            except BaseException:
                self._put_back()
                raise
            finally:
                self._under_way = False

    return cast(Callable[Concatenate[A, P], R], whole)
