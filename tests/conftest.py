"""Shared by all tests: one thread a worker, the golden network and stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import ctta
from ctta._core.registry import _ENTRIES
from ctta.bench.store import Store

torch.set_num_threads(1)
settings.register_profile("ctta", deadline=None, derandomize=True)  # machines are shared; runs repeat
settings.load_profile("ctta")

GOLDEN = Path(__file__).parent / "golden"


class Block(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.down: nn.Module = nn.Identity()
        if stride != 1 or width_in != width:
            self.down = nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.down(x))


class GoldenNet(nn.Module):
    """The network of the golden vectors: 19,954 parameters, 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(Block(8, 8, 1))
        self.layer2 = nn.Sequential(Block(8, 16, 2))
        self.layer3 = nn.Sequential(Block(16, 32, 2))
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def fixed_augment(x: Tensor) -> Tensor:
    """The augmentation of the golden vectors."""
    return 0.9 * x.flip(-1).clamp(0, 1)


def golden_net(dtype: torch.dtype = torch.float32) -> GoldenNet:
    net = GoldenNet()
    with np.load(GOLDEN / "model.npz") as arrays:
        net.load_state_dict({name: torch.from_numpy(value) for name, value in arrays.items()})
    return net.to(dtype)


def golden_stream(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    with np.load(GOLDEN / "inputs.npz") as arrays:
        images = arrays["images_uint8"].astype(np.float64) / 255
    return [torch.from_numpy(batch).to(dtype) for batch in images]


@pytest.fixture
def net() -> GoldenNet:
    return golden_net()


@pytest.fixture(scope="session")
def stream() -> list[Tensor]:
    return golden_stream()


@pytest.fixture
def registry_as_it_was():
    """Forget the methods a test enters."""
    ctta.list_methods()  # the methods of the package enter only once
    before = dict(_ENTRIES)
    yield
    _ENTRIES.clear()
    _ENTRIES.update(before)


@pytest.fixture
def store(tmp_path):
    """An empty store of results."""
    with Store(tmp_path / "bench.db") as opened:
        yield opened


def flops(call: Callable[[], object]) -> int:
    """Multiplications and additions of a call."""
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()
