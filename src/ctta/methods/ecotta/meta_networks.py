"""EcoTTA's meta networks: a frozen network in K parts, and beside each part a small network that may move.

The output of part k becomes BN_k(E_k(x)) + ConvBlock_k(x): E_k are the residual blocks of the part, ConvBlock_k
is a 3 x 3 convolution, BatchNorm and ReLU from the part's input. The meta networks are submodules of the model
they belong to and work through forward hooks on the first and the last block of their part, so that copies, device
moves and state dicts of the model take them along.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from ctta._core.layers import wide
from ctta._core.rng import BORROWED
from ctta._core.state import set_buffers
from ctta.errors import ModelError, SettingError, UnsupportedModelError
from ctta.models.stages import Stages

NAME = "meta_networks"
"""Attribute under which a model holds its meta networks."""
OPEN = 0.1
"""Shift of a ConvBlock that begins as a constant: above zero, where ReLU still lets its gradient through."""
PROBE_SIZES = (32, 64, 224)
"""Heights of the images that find out what goes into and comes out of each part."""

PUBLISHED: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {
    ((4, 4, 4), 4): (2, 2, 4, 4),  # WRN-28
    ((4, 4, 4), 5): (2, 2, 2, 2, 4),
    ((6, 6, 6), 4): (3, 3, 6, 6),  # WRN-40
    ((6, 6, 6), 5): (3, 3, 3, 3, 6),
    ((3, 4, 6, 3), 4): (3, 3, 5, 5),  # ResNet-50
    ((3, 4, 6, 3), 5): (2, 2, 4, 4, 4),
}
"""Splits of the EcoTTA paper: blocks per stage and number of parts -> blocks per part."""

Watch = Literal["off", "measure", "through", "cut", "beside"]


def split_blocks(counts: Iterable[int], parts: int | str) -> tuple[int, ...]:
    """Split the blocks of all stages into consecutive parts: how many blocks each part has.

    `counts` are the blocks per stage; `parts` is a number, or the sizes themselves with commas. The networks of
    the paper are split as there, others evenly, deeper parts taking what is left over; no part is empty.

    >>> split_blocks((4, 4, 4), 5), split_blocks((3, 4, 6, 3), 4), split_blocks((2, 2, 2), 5)
    ((2, 2, 2, 2, 4), (3, 3, 5, 5), (1, 1, 1, 1, 2))
    >>> split_blocks((1, 1), 5), split_blocks((2, 2), "1,3")
    ((1, 1), (1, 3))
    """
    stages = tuple(counts)
    total = sum(stages)
    words = [word.strip() for word in str(parts).split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise SettingError(f"Expected `parts` to be a number or sizes above 0, as in 5 or 2,2,4, not {parts!r}.")
    sizes = tuple(map(int, words))
    if len(sizes) == 1:
        each, left = divmod(total, count := min(sizes[0], total))
        return PUBLISHED.get((stages, sizes[0]), (each,) * (count - left) + (each + 1,) * left)
    if sum(sizes) != total:
        raise SettingError(
            f"Expected `parts` to share out the {total} blocks of this model ({stages} per stage), but "
            f"{parts!r} holds {sum(sizes)}."
        )
    return sizes


class Statistics(NamedTuple):
    """Mean and biased variance of each channel of a map, and how many values of a channel they are from."""

    mean: Tensor
    variance: Tensor
    values: int

    @classmethod
    def of(cls, x: Tensor) -> Statistics:
        """Measure a map, N x C x ...."""
        exact, over = wide(x.detach()), [0, *range(2, x.dim())]
        return cls(exact.mean(over), exact.var(over, correction=0), x.numel() // x.shape[1])

    def give(self, norm: nn.Module) -> None:
        """Make them what a BatchNorm falls back on when a batch has a single value per channel."""
        kind = "running" if norm.running_mean is not None else "source"
        getattr(norm, f"{kind}_mean").copy_(self.mean)
        getattr(norm, f"{kind}_var").copy_(self.variance)


class MetaNetwork(nn.Module):
    """BN_k and ConvBlock_k of one part: its input and its output E_k(x) -> BN_k(E_k(x)) + ConvBlock_k(x).

    Until it is `ready` it lets E_k(x) through unchanged. `watch` says what it does beside its work. "measure"
    finds the statistics `become_identity` needs. The others keep the drift, the mean of |output - E_k(x)|:
    "through" with the graph of the whole network behind it, "cut" with that of this meta network alone (the graph
    ends at its output), "beside" with that of this meta network alone, while the output keeps its graph.
    """

    ready: Tensor

    def __init__(self, width_in: int, width: int, stride: tuple[int, ...], generator: torch.Generator) -> None:
        super().__init__()
        conv: Any = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[len(stride)]
        norm = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[len(stride)]
        shape = {"kernel_size": 3, "stride": stride, "padding": 1, "bias": False}
        self.bn = norm(width)
        # skip_init: the constructor would draw from the global generator
        self.conv = nn.utils.skip_init(conv, width_in, width, **shape)  # type: ignore[no-untyped-call]
        self.conv_bn = norm(width)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu", generator=generator)
        self.register_buffer("ready", torch.tensor(False))
        self.measured: list[Statistics] = []  # of conv(x), of E_k(x)
        self.rest()

    def rest(self) -> None:
        """Stop watching, and forget what was seen."""
        self.watch: Watch = "off"
        self.measured.clear()
        self.drift: Tensor | None = None
        self.side: Tensor | None = None  # ConvBlock_k(x), from the first block of the part to the last
        self.side_alone: Tensor | None = None

    def conv_block(self, x: Tensor) -> Tensor:
        """ConvBlock_k(x)."""
        return F.relu(self.conv_bn(self.conv(x)))

    def enter(self, _module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Before the first block; the side branch runs now, as a block may change its input in place."""
        x = inputs[0]
        if self.watch == "measure":
            self.measured = [Statistics.of(self.conv(x))]
            return
        self.side = self.conv_block(x)
        if self.watch == "beside":
            self.side_alone = self.conv_block(x.detach())

    def leave(self, _module: nn.Module, _inputs: tuple[Any, ...], features: Tensor) -> Tensor:
        """After the last block: E_k(x) -> the part's new output."""
        if self.watch == "measure":
            self.measured.append(Statistics.of(features))
            return features
        out = self._combine(features, self.side)
        if self.watch != "off":
            fixed = features.detach()
            alone = self._combine(fixed, self.side_alone) if self.watch == "beside" else out
            self.drift = wide(alone - fixed).abs().mean()
        self.side = self.side_alone = None
        return out.detach() if self.watch == "cut" else out

    def _combine(self, features: Tensor, side: Tensor | None) -> Tensor:
        if side is None or side.shape != features.shape:
            got = None if side is None else tuple(side.shape[2:])
            raise ModelError(
                f"A part of the network gives maps of {tuple(features.shape[2:])} where its meta network gives "
                f"{got}: use images whose sides are a power of two, or other `parts`."
            )
        changed = self.bn(features) + side
        return torch.where(self.ready, changed.to(features.dtype), features)  # no waiting for the device

    @torch.no_grad()
    def become_identity(self) -> None:
        """Begin as the identity on the batch just measured: BN_k undoes itself, ConvBlock_k is a constant.

        The constant is not zero: behind its ReLU the block would have no gradient, and could never move.
        """
        of_conv, of_features = self.measured
        of_conv.give(self.conv_bn)
        of_features.give(self.bn)
        nn.init.zeros_(self.conv_bn.weight)
        nn.init.constant_(self.conv_bn.bias, OPEN)
        self.bn.weight.copy_((of_features.variance + self.bn.eps).sqrt())
        self.bn.bias.copy_(of_features.mean - OPEN)
        self.ready.fill_(True)


def meta_networks(model: nn.Module) -> list[MetaNetwork]:
    """Return the meta networks of a model, in the order of their parts."""
    return [module for module in model.modules() if isinstance(module, MetaNetwork)]


@contextlib.contextmanager
def watching(networks: Iterable[MetaNetwork], watch: Watch) -> Iterator[None]:
    """Have meta networks watch the forward passes of a block."""
    for network in networks:
        network.watch = watch
    try:
        yield
    finally:
        for network in networks:
            network.watch = "off"


# ---------------------------------------------------------------- putting them into a model


def attach(model: nn.Module, stages: Stages, parts: int | str, seed: int) -> nn.ModuleList:
    """Give a model meta networks, not yet ready: they change nothing until then.

    The model itself is changed. Its parts are run once, on black images, to learn their shapes.
    """
    if meta_networks(model):
        raise UnsupportedModelError("The model holds meta networks already: pass the source model without them.")
    host, blocks = _host(model, stages), iter(stages.blocks)
    sizes = split_blocks((len(stage.blocks) for stage in stages.stages), parts)
    layout = [(names[0], names[-1]) for size in sizes if (names := list(itertools.islice(blocks, size)))]
    generator = torch.Generator().manual_seed(seed)
    made = []
    for (first, last), (given, returned) in zip(layout, _shapes(model, layout), strict=True):
        stride = tuple(round(a / b) for a, b in zip(given[2:], returned[2:], strict=True))
        meta, end = MetaNetwork(given[1], returned[1], stride, generator), model.get_submodule(last)
        like = next((p for p in end.parameters() if p.is_floating_point()), torch.empty(0))
        made.append(meta.to(like.device, like.dtype))
        model.get_submodule(first).register_forward_pre_hook(meta.enter)
        end.register_forward_hook(meta.leave)
    networks = nn.ModuleList(made).requires_grad_(False).eval()
    host.add_module(NAME, networks)
    return networks


def _host(model: nn.Module, stages: Stages) -> nn.Module:
    """Return the outermost module that may get another child: a container would run it, or miscount."""
    path = stages.blocks[-1].split(".")
    for depth in range(len(path) + 1):
        module = model.get_submodule(".".join(path[:depth]))
        if not isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            return module
    raise UnsupportedModelError(
        f"{type(model).__name__} is made of containers alone (down to {stages.blocks[-1]}), which leaves no place "
        "for meta networks: put it inside a module of its own that calls it."
    )


def _shapes(model: nn.Module, layout: list[tuple[str, str]]) -> list[tuple[torch.Size, torch.Size]]:
    """Shapes of what goes into and comes out of each part, from a run on black images."""
    stem = next((module for module in model.modules() if isinstance(module, _ConvNd)), None)
    if stem is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no convolution, which meta networks stand beside."
        )
    expected = [event for first, last in layout for event in (("into", first), ("out of", last))]
    seen: list[tuple[tuple[str, str], torch.Size]] = []

    def watch(event: tuple[str, str], _module: nn.Module, inputs: tuple[Any, ...], *outputs: Any) -> None:
        value = next(iter(outputs or inputs), None)
        seen.append((event, value.shape if isinstance(value, Tensor) else torch.Size()))

    hooks = []
    for event in expected:
        module = model.get_submodule(event[1])
        hook = module.register_forward_pre_hook if event[0] == "into" else module.register_forward_hook
        hooks.append(hook(functools.partial(watch, event)))
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    reason = ""
    try:
        for size in PROBE_SIZES:
            seen.clear()
            image = stem.weight.new_zeros(2, stem.in_channels, *[size] * len(stem.kernel_size))
            try:
                with torch.no_grad(), BORROWED, torch.random.fork_rng(devices=[]):
                    model(image)
            except Exception as error:  # noqa: BLE001 - whatever lies behind the last part need not fit this size
                reason = f" ({type(error).__name__}: {error})"
            if len(seen) >= len(expected):
                break
    finally:
        for handle in hooks:
            handle.remove()
        set_buffers(model, buffers)
    if [event for event, _ in seen] != expected:
        raise UnsupportedModelError(
            f"{type(model).__name__} does not run its blocks {layout[0][0]} to {layout[-1][1]} once each, in "
            f"the order of their names{reason}. Name its stages in order with `stages=`."
        )
    maps = [shape for _, shape in seen]
    if not all(3 <= len(shape) <= 5 for shape in maps):
        raise UnsupportedModelError(
            f"Meta networks stand between maps, N x C x H x W, and a part of {type(model).__name__} takes or "
            f"returns something else ({', '.join(str(tuple(shape)) for shape in maps)})."
        )
    return list(zip(maps[::2], maps[1::2], strict=True))
