"""Forward passes that keep only the ends of a network's blocks; backward passes run the blocks again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from ctta.errors import UnsupportedModelError
from ctta.models.stages import find_stages


def checkpoint_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks to run again: residual blocks where stages are known, else the members of sequences.

    Only the outermost count, and single layers do not: nothing would be saved, and running a layer again does not
    run its hooks. A network without sequences gives its own children; a plain chain of layers has no blocks.
    """
    try:
        named = dict(model.named_modules())
        return [named[name] for name in find_stages(model).blocks]
    except UnsupportedModelError:
        sequences: list[nn.Module] = [m for m in model.modules() if isinstance(m, nn.Sequential | nn.ModuleList)]
    found: list[nn.Module] = []
    inside: set[int] = set()
    for parent in sequences or [model]:
        for child in parent.children():
            if id(child) not in inside and any(True for _ in child.children()):
                found.append(child)
                inside |= {id(module) for module in child.modules()}
    return found


@contextmanager
def checkpointed(model: nn.Module) -> Iterator[None]:
    """Have the model's blocks keep only their inputs meanwhile; backward passes run them again."""
    blocks = checkpoint_blocks(model)
    own = [vars(block).get("forward") for block in blocks]  # rare: most have only the method of their class
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    try:
        yield
    finally:
        for block, forward in zip(blocks, own, strict=True):
            del block.forward
            if forward is not None:
                block.forward = forward


def plain_blocks(model: nn.Module) -> None:
    """Take `checkpointed` back where it was cut short."""
    for block in model.modules():
        forward = vars(block).get("forward")
        if isinstance(forward, partial) and forward.func is checkpoint:
            del block.forward
            if block.forward != forward.args[0]:  # it had one of its own
                block.forward = forward.args[0]
