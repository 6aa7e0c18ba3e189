"""What a batch crosses: one thread at a time works with an adapter, and what it does happens whole or not at all.

Whatever changes an adapter first writes down how to put it back (`Before`), and a single assignment at the end
makes the change count. Nothing that happens on the way, a Ctrl-C at any line included, can leave half of it: if
putting back is cut short too, the next turn finishes it first.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ctta._core.inputs import InputGuard
from ctta._core.layers import INTEGERS, all_finite
from ctta._core.method import Method
from ctta._core.registry import MethodEntry
from ctta._core.report import Report
from ctta._core.state import State, changed, network_tensors, networks_of, restore, undisturbed
from ctta._cost.layout import use_plain_layout
from ctta.errors import CttaError, NonFiniteError

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A", bound="Stepping")

COMPARED = ("cpu",)
"""Devices whose weights are compared with those of the source: others would be waited for, once a tensor."""


class Done(NamedTuple):
    """What an adapter counts, and its last report."""

    batches: int = 0
    skipped_steps: int = 0
    last: Report | None = None


class Before(NamedTuple):
    """All that was there before a change: how to put tensors back, and the rest itself."""

    put_back: Callable[[], None]
    """May be called twice."""
    done: Done
    guard: InputGuard
    first_hook: int
    """Number of the next hook of any module: hooks from here on belong to what was cut short."""


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
                if self._before is not None:
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


class Stepping(nn.Module):
    """What takes turns and steps: a lock, what is done, and what was before if something is under way."""

    entry: MethodEntry
    method: Method[Any]
    _guard: InputGuard
    _done: Done
    _before: Before | None
    _snapshot: dict[str, Tensor]
    _layout: Literal["given", "on trial", "fast", "plain"]
    _lock: Any  # a threading.RLock
    _under_way: bool

    # as in any object: were the model a submodule, train() would reach it
    __setattr__ = object.__setattr__  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self._lock, self._under_way, self._before = threading.RLock(), False, None

    def __setstate__(self, saved: dict[str, Any]) -> None:
        super().__setstate__(saved)  # type: ignore[no-untyped-call]
        self._lock, self._under_way, self._before = threading.RLock(), False, None

    @turn
    def forward(self, images: Tensor) -> Tensor:
        """Predict and adapt: N x C x H x W images -> N x classes logits, without graph."""
        method, guard, reason = self.method, self._guard, None
        with torch.inference_mode(False), torch.enable_grad():
            x = guard.check(images, method.model, self._predict)
            if self._layout == "on trial":
                self._settle_layout(x)
            before = self._open()
            method.notes, method.conditions, method.expected, method.view.clipped = {}, [], [], False
            for parameter in method.adapted.values():
                parameter.requires_grad_(True)  # even if the caller switched them off
            torch.clear_autocast_cache()  # weights cast before the last step, or without a graph, are stale
            try:
                logits = method.step(x)
                method.expect_finite("prediction", {"logits": logits})
                tensors = method.state().tensors
                method.expect_finite("state", changed(method, tensors) if method.never_finite else tensors)
                notes = method.settle()
            except NonFiniteError as error:
                logits, reason, notes = *self._undo(x, before, str(error)), {}
            finally:
                torch.clear_autocast_cache()
            if guard.clipped and method.view.clipped and not guard.warned:
                guard.warn(stacklevel=6)
            if guard.accepted != (x.dim(), x.shape[1]):
                guard.remember(x, method.model)
            skipped, batch = self._done.skipped_steps + (reason is not None), self._done.batches + 1
            report = Report(self.entry.name, batch, len(x), reason is not None, reason, skipped, **notes)
            self._done = Done(batch, skipped, report)
            return logits.detach()

    @turn
    def predict(self, images: Tensor) -> Tensor:
        """Predict without adapting: nothing changes."""
        with torch.inference_mode(False):
            return self._predict(self._guard.check(images, self.method.model, self._predict))

    # ---------------------------------------------------------------- the transaction

    @property
    def _counted(self) -> Done:
        """What counts now: of a turn that is under way, nothing does yet."""
        return before.done if (before := self._before) else self._done  # read once: threads

    def _open(self) -> State:
        """Begin a change of the whole state: write down what it is now, and how to put that back.

        The copies lie in tensors that are used again for every batch; weights that never moved need none.
        """
        state, source, reused = self.method.state(), self.method.source, self._snapshot
        unmoved: dict[str, Tensor] = {}
        copies: dict[str, Tensor] = {}
        for key, value in state.tensors.items():
            origin, old = source.get(key.removeprefix("model/")), reused.get(key)
            kind = value.shape, value.stride(), value.dtype, value.device
            if old is not None and kind == (old.shape, old.stride(), old.dtype, old.device):
                copies[key] = old.copy_(value)
                continue
            if origin is not None and value.device.type in COMPARED and origin.dtype == value.dtype:
                whole = INTEGERS[value.element_size()]
                if torch.equal(value.view(whole), origin.view(whole)):
                    unmoved[key] = origin
                    continue
            copies[key] = value.clone()
        self._snapshot = copies
        before = State({**unmoved, **copies}, copy.deepcopy(state.scalars))
        put_back = partial(restore, self.method, before)
        self._before = Before(put_back, self._done, copy.copy(self._guard), RemovableHandle.next_id)
        return before  # nothing counts until the end of the turn

    def _remember(self, put_back: Callable[[], None]) -> None:
        """Begin a change of another kind than a step: what cuts it short puts all back."""
        self._before = Before(put_back, self._done, copy.copy(self._guard), RemovableHandle.next_id)

    def _put_back(self) -> None:
        """Return to what was before a turn that was cut short."""
        if (before := self._before) is None:
            return
        with torch.inference_mode(False):
            self.method.rest(before.first_hook)
            before.put_back()
        self._done, self._guard = before.done, before.guard
        self._before = None

    def _undo(self, x: Tensor, before: State, reason: str) -> tuple[Tensor, str]:
        """Undo a step that is not finite, and predict without it.

        Weights that no longer predict anything are given up for those of the source, if they still do.
        """
        restore(self.method, before)
        logits = self._predict(x)
        if all_finite([logits]):
            return logits, reason
        restore(self.method, self.method.beginning)
        answer = self._predict(x)
        if all_finite([answer]):
            return answer, "logits are not finite: the adapted weights were given up for the source weights"
        restore(self.method, before)
        return logits, "logits are not finite, nor are those of the source model"

    # ---------------------------------------------------------------- predicting

    def _predict(self, x: Tensor) -> Tensor:
        """Logits of an accepted batch. What predicting disturbs (buffers, random generators) is put back."""
        self._settle_layout(x)
        try:
            with self._undisturbed(), torch.no_grad():
                return self.method.predict(x)
        finally:
            torch.clear_autocast_cache()  # a weight cast here has no graph, and must not meet the next step

    def _undisturbed(self) -> undisturbed:
        """Put back what predicting disturbs, be it cut short or not."""
        found = undisturbed(self.method)
        if self._before is None:
            self._remember(found.put_back)
        return found

    def _settle_layout(self, x: Tensor) -> None:
        """Before the first batch: a model that cannot work in the fast layout goes back to the plain one."""
        if self._layout != "on trial":
            return
        if self._answers(x):
            self._layout = "fast"
            return
        held = [(value, value.data) for net in networks_of(self.method) for value in network_tensors(net).values()]
        self._use_plain_layout()
        if not self._answers(x):  # the batch is bad, not the layout
            self._layout = "on trial"
            for value, data in held:
                value.data = data

    def _use_plain_layout(self) -> None:
        self._layout = "plain"
        for network in networks_of(self.method):
            use_plain_layout(network)

    def _answers(self, x: Tensor) -> bool:
        """Tell whether the model can work on two images of a batch."""
        try:
            with self._undisturbed(), torch.no_grad():
                self.method.forward(x[:2])
        except CttaError:
            return False
        return True
