"""What is said of models and values that cannot be worked with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ctta.errors import ModelError, UnsupportedModelError


def describe_value(value: Any) -> str:
    """Describe a value for an error message: a tensor by shape, dtype and device, the rest by type."""
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {tuple(value.shape)} on {value.device}"
    return f"a {type(value).__module__}.{type(value).__qualname__}"


def require_usable(model: Any, inplace: bool) -> None:
    """Refuse what is no model, and models with tensors of kinds that cannot be adapted."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"Expected a torch.nn.Module, but got a {type(model).__qualname__}.")
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedModelError(
            "A scripted model hides its layers, so nothing can be adapted: pass the module it was made from."
        )
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    if any(is_lazy(value) for value in tensors.values()):
        raise ModelError("The model has lazy layers that have not seen a batch: run it once before adapting.")
    for name, value in tensors.items():
        if value.layout != torch.strided:
            raise ModelError(
                f"Expected a model of dense tensors, but {name} has layout {value.layout}: hold it as "
                f"{name}.to_dense(), and make it sparse in the forward pass if need be."
            )
    if inplace and any(parameter.is_inference() for parameter in model.parameters()):
        raise ModelError(
            "The model was built under torch.inference_mode(), so its weights cannot move in place: "
            "leave out `inplace=True`, or build it outside inference mode."
        )


def failed_forward(model: nn.Module, x: Tensor, error: Exception) -> ModelError:
    """The model raised; if it reads statistics that a method took away, say what to do."""
    reads = "running_" in str(error) or "NoneType" in str(error)
    taken = reads and any("source_mean" in module._buffers for module in model.modules())
    hint = (
        ". This method normalises with the statistics of the batch and took `running_mean` and `running_var` "
        "of the BatchNorm layers away, but the model seems to read them itself: use the layers as torch has "
        'them, or pass bn_mode="source" (where the method has it), or choose the method "source".'
    )
    return ModelError(
        f"The model raised {type(error).__name__} on a batch of shape {tuple(x.shape)}, {x.dtype}: {error}"
        f"{hint if taken else ''}"
    )


def no_logits(found: Any, samples: int) -> ModelError:
    """The model returned something else."""
    return ModelError(
        f"Expected the model to return logits, a floating tensor of shape ({samples}, classes) with at least "
        f"2 classes, but got {describe_value(found)}. Wrap the model so that it returns its logits only."
    )


def no_layers(method: str, model: nn.Module, group: str) -> UnsupportedModelError:
    """The model has nothing that the method adapts."""
    layers = {"norm": "normalisation", "conv": "convolution", "conv-norm": "convolution or normalisation"}
    return UnsupportedModelError(
        f"{method} adapts the parameters of {layers.get(group, 'all')} layers, and {type(model).__name__} has "
        "none. Choose another method (see `ctta methods`)."
    )


def failed_backward(model: nn.Module, error: Exception) -> ModelError:
    """The backward pass raised."""
    return ModelError(
        f"Expected {type(model).__name__} to have a backward pass, but it raised {type(error).__name__}: {error} "
        "Its forward must not change in place what the backward pass needs; methods without a backward pass "
        '("bn1", "source") take the model as it is.'
    )


def no_gradient(model: nn.Module, count: int) -> ModelError:
    """No adapted tensor reaches the logits."""
    return ModelError(
        f"The logits of {type(model).__name__} depend on none of the {count} adapted tensors: its forward must "
        "neither detach, nor run under no_grad, nor use reentrant checkpointing, nor end in layers without a "
        "backward pass (quantised ones)."
    )
