"""One pass of a step through the network and back: the same numbers in less memory, or nearly so in less time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from ctta._core.method import Method
from ctta._core.precision import bf16_where_it_pays
from ctta._cost.checkpointing import checkpointed
from ctta._cost.deep_graph import DeepGraph
from ctta.methods.palm.choices import PalmSettings


class Pass:
    """The logits of a batch, with what it takes to go back to some of the adapted tensors.

    `logits` belong to the graph; `leaf` has the same values and is cut off from it, so that each pass of a step is
    backpropagated on its own and freed before the next. A `second` pass keeps what `memory` says.
    """

    def __init__(
        self, method: Method[PalmSettings], images: Tensor, names: Collection[str], *, second: bool = False
    ) -> None:
        self.method, self.images, self.memory = method, images, method.settings.memory
        self.names = () if second and self.memory == "lowest" else names
        self.graph = DeepGraph(method.model, self.run) if second and self.memory == "low" and names else None
        self.logits = self.graph.output if self.graph else self.run()
        self.leaf = self.logits.detach().requires_grad_()

    def run(self) -> Tensor:
        """Logits, with a graph to the wanted tensors; to all where blocks run again and look at them anew."""
        method, to_all = self.method, self.memory == "lowest" and self.names
        with ExitStack() as stack:
            stack.enter_context(method.graph_to(method.adapted if to_all else self.names))
            if self.memory == "lowest":
                stack.enter_context(checkpointed(method.model))
            if method.settings.speed == "fast":
                stack.enter_context(bf16_where_it_pays(self.images.device.type))
            return method.forward(self.images)

    def complete(self, names: Collection[str]) -> None:
        """Have the whole graph to these tensors: what was not kept of it is run again."""
        if not self.names or (self.graph and not self.graph.complete()):
            self.names = names
            self.logits = self.run()


def backward(loss: Tensor, passes: Sequence[Pass], names: Collection[str]) -> dict[str, Tensor]:
    """Gradients of a loss of the passes' leaves for some tensors, one pass after the other."""
    found: dict[str, Tensor] = {}
    leaves = torch.autograd.grad(loss, [one.leaf for one in passes], allow_unused=True)
    for one, along in zip(passes, leaves, strict=True):
        if along is None or not names:
            continue
        if one.memory != "normal":
            one.complete(names)
        for name, gradient in one.method.gradients(one.logits, names, along=along, checked=False).items():
            found[name] = found[name] + gradient if name in found else gradient
    return found
