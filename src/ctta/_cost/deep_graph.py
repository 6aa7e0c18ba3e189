"""A recorded pass that keeps only the deep part of its graph; the shallow part is run again for the gradient.

Maps shrink with depth, the work of a layer does not: the end of a graph takes little memory, and as long as it is
kept its layers need not run a second time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

KEPT = 5.0
"""What may be kept, in units of how much smaller the newest map is than the largest one. A pass works on several
of its largest maps at a time anyway, so what it keeps of smaller ones later adds nothing to the peak."""
NEGLIGIBLE = 1 / 64
"""Share of the largest map below which a tensor says nothing about the size of maps (statistics, say)."""


@dataclass
class Saved:
    """A place in the graph for a tensor that the backward pass needs."""

    shape: torch.Size
    tensor: Tensor | None

    def take(self) -> Tensor:
        """Return the tensor."""
        if self.tensor is None:
            raise RuntimeError("The graph is not complete: call `complete` before the backward pass.")
        return self.tensor


class DeepGraph:
    """The graph of a pass, complete from some layer on; `complete` runs the layers before it again."""

    def __init__(self, model: nn.Module, run: Callable[[], Tensor]) -> None:
        """Run the pass, and keep what it returns as `output`. Run again, it must do the same."""
        self.model, self.run = model, run
        self.saved: list[Saved] = []
        self.dropped = 0
        self._largest = self._newest = self._held = 0
        # what is there anyway takes no room
        self._places = Counter(tensor.untyped_storage().data_ptr() for tensor in model.parameters())
        with saved_tensors_hooks(self._keep, Saved.take):
            self.output = run()
        del self._places

    def complete(self) -> bool:
        """Have the whole graph, for one backward pass; False where the pass did not do the same again."""
        wanted = self.saved[: self.dropped]
        found: list[Tensor] = []

        def keep(tensor: Tensor) -> None:
            if len(found) < len(wanted):
                found.append(tensor.detach())

        def stop(_module: nn.Module, _inputs: Any) -> None:
            # not raised in `keep` already: torch would never let go of what that refers to
            if len(found) == len(wanted):
                raise EnoughSignal

        with ExitStack() as stack:
            for module in self.model.modules():
                # before any other hook, which might count on the pass to go on
                stack.callback(module.register_forward_pre_hook(stop, prepend=True).remove)
            stack.enter_context(saved_tensors_hooks(keep, _never))
            stack.enter_context(suppress(EnoughSignal))
            self.run()
        if [tensor.shape for tensor in found] != [saved.shape for saved in wanted]:
            return False
        for saved, tensor in zip(wanted, found, strict=True):
            saved.tensor = tensor
        self.saved, self.dropped = [], 0  # the graph alone holds them, and lets go of them one by one
        return True

    def _keep(self, tensor: Tensor) -> Saved:
        """Take the next tensor, and let go of the first ones if there is no room for all."""
        size = tensor.untyped_storage().nbytes()
        place = tensor.untyped_storage().data_ptr()
        if place not in self._places:
            self._held += size
            self._largest = max(self._largest, size)
            if size >= NEGLIGIBLE * self._largest:
                self._newest = size
        self._places[place] += 1
        self.saved.append(Saved(tensor.shape, tensor.detach()))  # with its graph it would hold on to itself
        while self._held > KEPT * (self._largest - self._newest):
            self._drop(self.saved[self.dropped])
        return self.saved[-1]

    def _drop(self, saved: Saved) -> None:
        storage = saved.take().untyped_storage()
        place = storage.data_ptr()
        self._places[place] -= 1
        if not self._places[place]:
            del self._places[place]
            self._held -= storage.nbytes()
        saved.tensor = None
        self.dropped += 1


class EnoughSignal(BaseException):
    """Ends a pass that has come as far as it is wanted; not an Exception, which a model might catch."""


def _never(_: Any) -> Tensor:
    raise RuntimeError("A pass that only completes a graph has no backward pass of its own.")
