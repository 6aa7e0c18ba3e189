"""Small networks of many kinds, on which a method must either work or say why it does not."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ctta.models.networks import Normalise, WideResNet

CLASSES = 5
IMAGE = (3, 12, 12)
CLIP = (3, 4, 8, 8)

LAYERS = frozenset({"norm layers", "conv or norm layers", "linear classifier"})
MODEL_NEEDS = LAYERS | {"named stages"}
"""Needs a model can meet; the rest of an entry's `needs` concern data or streams."""


@dataclass(frozen=True)
class Network:
    """A recipe for a small network: how to build it, one sample's shape, and which needs it meets."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...] = IMAGE
    meets: frozenset[str] = LAYERS

    def make(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        """Build it with fixed weights and plausible source statistics, without touching global random state."""
        trained = _trained(self)
        with torch.random.fork_rng(devices=[]):
            model = self.build()
            model(torch.rand(2, *self.shape))  # what keeps tensors of a pass has some
        model.load_state_dict(trained)
        return model.eval().to(dtype)

    def stream(self, sizes: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensor]:
        """Batches of the given sizes, values in [0, 1], each darker or brighter than the one before."""
        generator = torch.Generator().manual_seed(seed)
        drawn = [torch.rand(size, *self.shape, generator=generator, dtype=torch.float64) for size in sizes]
        return [(x ** (0.5 + index % 3)).to(dtype) for index, x in enumerate(drawn)]


@functools.cache
def _trained(network: Network) -> dict[str, Tensor]:
    """Weights of a network, and statistics from a few batches in train mode."""
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.no_grad():
        torch.manual_seed(1)
        model = network.build()
        for _ in range(3):
            model(torch.rand(16, *network.shape))
    return model.state_dict()


def _conv(width_in: int, width: int, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(width_in, width, 3, stride, 1, bias=bias)


def _stem(norm: Callable[[int], nn.Module] = nn.BatchNorm2d, bias: bool = True) -> list[nn.Module]:
    return [_conv(3, 8, 1, bias), norm(8), nn.ReLU(), _conv(8, 8, 2, bias), norm(8), nn.ReLU()]


def _head() -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)]


class _Residual(nn.Module):
    """Two convolutions beside a shortcut, as in the paper's networks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn1 = _conv(3, 8, bias=False), nn.BatchNorm2d(8)
        self.conv1, self.bn2 = _conv(8, 8, bias=False), nn.BatchNorm2d(8)
        self.dropout, self.fc = nn.Dropout(0.5), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.stem(x)).relu()
        x = x + self.bn2(self.conv1(x)).relu()
        return self.fc(self.dropout(x.mean((2, 3))))  # type: ignore[no-any-return]


class _Block(nn.Module):
    """Two convolutions beside a shortcut; where the width changes, a projection."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(width_in, width, stride, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, bias=False), nn.BatchNorm2d(width)
        self.dropout = nn.Dropout(0.2)
        self.shortcut = nn.Conv2d(width_in, width, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.dropout(self.bn1(self.conv1(x)).relu())
        return (self.bn2(self.conv2(y)) + self.shortcut(x)).relu()  # type: ignore[no-any-return]


class _ResNet(nn.Module):
    """Stages layer1, layer2, ... of blocks (width, stride), as in torchvision's ResNets."""

    def __init__(self, stem: int, stride: int, *stages: list[tuple[int, int]]) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(3, stem, stride, bias=False), nn.BatchNorm2d(stem)
        self.depth, width = len(stages), stem
        for index, blocks in enumerate(stages):
            made = [_Block(before[0], *now) for before, now in itertools.pairwise([(width, 0), *blocks])]
            self.add_module(f"layer{index + 1}", nn.Sequential(*made))
            width = blocks[-1][0]
        self.fc = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x)).relu()
        for index in range(self.depth):
            x = self.get_submodule(f"layer{index + 1}")(x)
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


class _Unused(nn.Module):
    """Layers that no forward pass reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*_stem(), *_head())
        self.spare, self.spare_norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)  # type: ignore[no-any-return]


class _Stateful(nn.Module):
    """Changes a buffer in every forward pass, keeps a tensor of it, and normalises its input in place."""

    level: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(*_stem()), nn.Sequential(*_head())
        self.register_buffer("level", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.features = self.body(x.sub_(0.5).div_(0.25))
        self.level = 0.9 * self.level + 0.1 * self.features.detach().abs().mean()
        return self.head(self.features / self.level)  # type: ignore[no-any-return]


class _Tied(nn.Module):
    """One convolution weight under two names, one BatchNorm used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.second = _conv(3, 8), _conv(8, 8), _conv(8, 8)
        self.second.weight = self.first.weight
        self.norm, self.fc = nn.BatchNorm2d(8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(self.stem(x))).relu()
        x = self.norm(self.second(x)).relu()
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


class _Vit(nn.Module):
    """Patch embedding, class token, one attention block: parameters that belong to containers."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.position = nn.Parameter(torch.randn(1, 10, 16) * 0.02)
        self.norm1, self.attention = nn.LayerNorm(16), nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm2 = nn.LayerNorm(16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.mlp(self.norm2(x))
        return self.fc(x[:, 0])  # type: ignore[no-any-return]


def _bn1d_head() -> nn.Module:
    pooled, flat, linear = _head()
    return nn.Sequential(*_stem(), pooled, flat, nn.BatchNorm1d(8), linear)


def _bn3d() -> nn.Module:
    layers = [nn.Conv3d(3, 6, 3, padding=1), nn.BatchNorm3d(6), nn.ReLU(), nn.AdaptiveAvgPool3d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(6, CLASSES))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def _wrn() -> nn.Module:
    return nn.Sequential(Normalise((0.5,) * 3, (0.25,) * 3), WideResNet(10, 1, CLASSES))


_ALL = (
    Network("bn2d", lambda: nn.Sequential(*_stem(bias=False), *_head())),
    Network("residual", _Residual),
    Network("resnet", lambda: _ResNet(4, 1, [(4, 1), (4, 1)], [(6, 2)], [(8, 2)]), meets=MODEL_NEEDS),
    Network("wrn", _wrn, meets=MODEL_NEEDS),  # stages `1.block1` to `1.block3`, behind a normalisation
    # as many convolution weights as it takes to be computed in the fast layout, on maps of a few pixels
    Network("wide", lambda: _ResNet(64, 4, [(8, 2)], [(104, 2)]), meets=MODEL_NEEDS),
    Network("bn1d-head", _bn1d_head),
    Network("bn3d", _bn3d, shape=CLIP),
    Network("groupnorm", lambda: nn.Sequential(*_stem(lambda c: nn.GroupNorm(2, c)), *_head())),
    Network("vit", _Vit),
    Network("unused", _Unused),
    Network("tied", _Tied),
    Network("stateful", _Stateful),
    Network(
        "no-norm",
        lambda: nn.Sequential(*_stem(lambda _: nn.Identity()), *_head()),
        meets=LAYERS - {"norm layers"},
    ),
    Network("mlp", _mlp, meets=frozenset({"linear classifier"})),
)
NETWORKS: dict[str, Network] = {network.name: network for network in _ALL}
