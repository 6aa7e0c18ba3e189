"""The features of a network: what it hands to its linear classifier, for any network that ends in one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from ctta._core.layers import wide
from ctta.errors import UnsupportedModelError

Call = tuple[Tensor, Tensor]
"""Input and output of one call of a layer."""

NEEDS = "The method reads the features in front of a linear classifier"
CURE = "Choose another method (see `ctta methods`)."


def require_linear(model: nn.Module) -> None:
    """Refuse a model without any linear layer."""
    if not any(isinstance(module, nn.Linear) for module in model.modules()):
        raise UnsupportedModelError(f"{NEEDS}, and {type(model).__name__} has no nn.Linear. {CURE}")


@contextmanager
def watch_linear(network: nn.Module) -> Iterator[list[Call]]:
    """Watch a forward pass: the list holds the last call of an nn.Linear, if there was one."""
    last: list[Call] = []

    def keep(_layer: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor], output: Tensor) -> None:
        last[:] = [(inputs[0] if inputs else named["input"], output)]

    with ExitStack() as hooks:
        for layer in network.modules():
            if isinstance(layer, nn.Linear):
                hooks.callback(layer.register_forward_hook(keep, with_kwargs=True).remove)
        yield last


def classifier_input(last: list[Call], logits: Tensor) -> Tensor:
    """Return the features, N x D in float32 or wider, if the last linear layer made the logits."""
    if not last or last[0][1].shape != logits.shape:
        found = f"that one returned shape {tuple(last[0][1].shape)}" if last else "none ran"
        raise UnsupportedModelError(
            f"{NEEDS}: expected the last nn.Linear of the forward pass to return logits of shape "
            f"{tuple(logits.shape)}, but {found}. {CURE}"
        )
    return wide(last[0][0])
