"""Which parameters of a model a method may move, and how its BatchNorm layers find their statistics."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from ctta.errors import UnsupportedModelError

K = TypeVar("K")
Group = Literal["none", "norm", "conv", "conv-norm", "all"]

NORM: tuple[type[nn.Module], ...] = (_BatchNorm, _InstanceNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_KINDS: dict[Group, tuple[type[nn.Module], ...]] = {
    "none": (),
    "norm": NORM,
    "conv": (_ConvNd,),
    "conv-norm": (*NORM, _ConvNd),
    "all": (nn.Module,),
}


def collect(model: nn.Module, group: Group) -> dict[str, nn.Parameter]:
    """Parameters owned directly by modules of a group, by name, in the order of `named_parameters`.

    A weight tied between modules appears once, under its first name. Parameters owned by a container (a
    ViT's tokens, the packed projection of nn.MultiheadAttention) belong to no group but "all". A parameter that
    holds NaN or infinity, such as a mask, stands still.
    """
    wanted = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, _KINDS[group])
        for parameter in _own_parameters(module)
        if parameter.is_floating_point() and parameter.numel() and all_finite([parameter])
    }
    return {name: value for name, value in model.named_parameters() if id(value) in wanted}


def weight_and_bias(parameters: dict[str, nn.Parameter], model: nn.Module) -> dict[str, nn.Parameter]:
    """Those of a model's parameters that are named weight or bias; refuses a model without any."""
    found = {name: value for name, value in parameters.items() if name.rpartition(".")[2] in ("weight", "bias")}
    if not found:
        words = f"Expected parameters named weight or bias, and {type(model).__name__} has none"
        raise UnsupportedModelError(f'{words}: pass parameters="all".')
    return found


def _own_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Parameters of the module itself, and those a parametrization (as weight_norm) makes them from."""
    yield from module.parameters(recurse=False)
    parametrizations = getattr(module, "parametrizations", None)
    if isinstance(parametrizations, nn.Module):
        yield from parametrizations.parameters()


def use_batch_statistics(model: nn.Module) -> None:
    """Normalise with the statistics of the batch at hand from now on, in train and in eval mode.

    The source statistics are kept aside for a batch that gives a layer a single value per channel (one image on a
    1 x 1 map): it has no variance, PyTorch refuses it, and the layer answers with its source statistics instead.
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.running_mean is not None:
            module.register_buffer("source_mean", module.running_mean, persistent=False)
            module.register_buffer("source_var", module.running_var, persistent=False)
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
            module.register_forward_pre_hook(_lend_source_statistics, with_kwargs=True)


def use_source_statistics(network: nn.Module, source: nn.Module) -> None:
    """Normalise with the source model's statistics from now on, in the BatchNorm layers the source model has."""
    layers: dict[str, Any] = dict(network.named_modules())
    for name, module in source.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is not None:
            layer = layers[name]
            for hooks in (layer._forward_pre_hooks, layer._forward_hooks):
                for key in [k for k, hook in hooks.items() if hook in (_lend_source_statistics, _take_back)]:
                    del hooks[key]
            layer.track_running_stats = module.track_running_stats
            for key, value in module.named_buffers(recurse=False):
                setattr(layer, key, value.clone())


def _lend_source_statistics(module: Any, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
    x = inputs[0] if inputs else named["input"]
    if x.numel() == x.shape[1]:
        if _take_back not in module._forward_hooks.values():  # rarely needed: only from now on
            module.register_forward_hook(_take_back, always_call=True)
        module.running_mean, module.running_var = module.source_mean, module.source_var


def _take_back(module: Any, _inputs: Any, _output: Any) -> None:
    if module.running_mean is not None:
        module.running_mean = module.running_var = None


@contextmanager
def training(*networks: nn.Module, whole: bool = False) -> Iterator[None]:
    """Put the BatchNorm layers of networks into train mode for a while, with `whole` all other layers too.

    They normalise with the statistics of the batch, and their running statistics follow it. A layer that gets a
    single value per channel, which PyTorch refuses to train on, answers with its running statistics instead.
    """
    resting: set[nn.Module] = set()

    def rest(layer: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        x = inputs[0] if inputs else named["input"]
        if layer.training and x.numel() == x.shape[1]:
            layer.training = False
            resting.add(layer)

    def resume(layer: nn.Module, _inputs: Any, _output: Any) -> None:
        if layer in resting:
            layer.training = True
            resting.remove(layer)

    with ExitStack() as stack:
        for network in networks:
            stack.callback(network.eval)
            if whole:
                network.train()
            for layer in network.modules():
                if isinstance(layer, _BatchNorm):
                    layer.train()
                    stack.callback(layer.register_forward_pre_hook(rest, with_kwargs=True).remove)
                    stack.callback(layer.register_forward_hook(resume, always_call=True).remove)
        yield


class AsItWas:
    """Remembers how a network is built and switched (modes, hooks, children, which tensors), not their values."""

    def __init__(self, network: nn.Module) -> None:
        self.modules = {module: vars(module).copy() for module in network.modules()}
        self.contents = {
            (module, name): value.copy()
            for module, attributes in self.modules.items()
            for name, value in attributes.items()
            if name.startswith("_") and isinstance(value, dict | set)  # torch's own
        }
        self.trained = [(parameter, parameter.requires_grad) for parameter in network.parameters()]

    def put_back(self) -> None:
        """Make the network that again."""
        for module, attributes in self.modules.items():
            for name in vars(module).keys() - attributes.keys():
                del vars(module)[name]
            vars(module).update(attributes)
        for (module, name), content in self.contents.items():
            held = vars(module)[name]  # hooks' handles know the very same dict
            held.clear()
            held.update(content)
        for parameter, trained in self.trained:
            parameter.requires_grad_(trained)


def at_rest(network: nn.Module, first_hook: int) -> None:
    """Put a network in eval mode, without hooks of this number and later."""
    network.eval()
    for module in network.modules():
        for name, hooks in vars(module).items():
            if name.startswith(("_forward_hooks", "_forward_pre_hooks")):
                for number in [number for number in hooks if number >= first_hook]:
                    del hooks[number]


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Tell whether no element of any floating tensor is NaN or infinite; waits for the device once."""
    _, flags = finite(dict(enumerate(tensors)))
    return flags is None or bool(flags.all())


def finite(tensors: Mapping[K, Tensor]) -> tuple[list[K], Tensor | None]:
    """Tell of tensors whether they have neither NaN nor infinity, without waiting for the device.

    Names of the floating ones (on the meta device they hold nothing), and booleans in their order, None for none.
    """
    found = {k: t.detach() for k, t in tensors.items() if t.is_floating_point() and t.numel() and not t.is_meta}
    if not found:
        return [], None
    looked_at = list(found.values())
    device = looked_at[0].device
    if device.type == "cpu":  # where the norm takes fifty times as long
        ends = map(torch.aminmax, looked_at)
        return list(found), torch.stack([low.isfinite() & high.isfinite() for low, high in ends])
    largest = torch._foreach_norm(looked_at, float("inf"))
    return list(found), torch.stack([norm.isfinite().to(device) for norm in largest])


def to_host(values: Sequence[Tensor]) -> list[float]:
    """Bring numbers or truth values, one or many a tensor, from their device, one after the other, all at once."""
    found = [value.detach().reshape(-1) for value in values]
    if not found:
        return []
    dtype = functools.reduce(torch.promote_types, {value.dtype for value in found}, torch.float32)
    return list(torch.cat([value.to(found[0].device, dtype) for value in found]).tolist())


def wide(tensor: Tensor) -> Tensor:
    """Return the tensor in float32 or wider: constants like 1e-8 and small steps do not survive half precision."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def equal_bits(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors are equal to the bit; complex ones never are, nor what holds no numbers (meta)."""
    alike = (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
    if not alike or one.is_complex() or one.is_meta:
        return False
    whole = INTEGERS[one.element_size()]
    return torch.equal(one.view(whole), other.view(whole))
