"""A first run that needs no data and no weights: gratings, a network trained on them in seconds, six shifts.

Synthetic on purpose and labelled so wherever it is shown: it proves that the pieces work together, not how
well a method does on photographs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ctta

SIZE = 24
ORIENTATIONS = 4
FREQUENCIES = (3.0, 4.5)
CLASSES = ORIENTATIONS * len(FREQUENCIES)

METHODS: dict[str, dict[str, Any]] = {
    "source": {},
    "bn1": {},
    "tent": {"lr": 1e-3},
    "palm": {"lr": 1e-3, "adapt_share": 0.5},
}

SHIFTS: dict[str, Callable[[Tensor], Tensor]] = {
    "noise": lambda x: x,
    "contrast": lambda x: 0.2 * x + 0.4,
    "blur": lambda x: F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False),
    "fog": lambda x: 0.25 * x + 0.7,
    "dark": lambda x: 0.35 * x**1.5,
    "pixelate": lambda x: F.interpolate(F.avg_pool2d(x, 2), scale_factor=2.0),
}
SENSOR_NOISE = {"noise": 0.5, "contrast": 0.1, "blur": 0.3, "fog": 0.1, "dark": 0.1, "pixelate": 0.25}


def corrupt(images: Tensor, shift: str, generator: torch.Generator) -> Tensor:
    """Shift the images and add the noise of a poor sensor."""
    noise = torch.randn(images.shape, generator=generator)
    return (SHIFTS[shift](images) + SENSOR_NOISE[shift] * noise).clamp(0, 1)


class Network(nn.Module):
    """A small residual network with BatchNorm: images N x 3 x 24 x 24 -> logits N x 8."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(2 * width)
        self.conv3 = nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(2 * width)
        self.fc = nn.Linear(2 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.relu(x + self.bn3(self.conv3(x)))
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


def gratings(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Coloured gratings, N x 3 x 24 x 24 in [0, 1]; the class is orientation and frequency."""
    labels = torch.randint(CLASSES, (samples,), generator=generator)

    def between(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(samples, *shape, generator=generator)

    angle = (labels % ORIENTATIONS) * (math.pi / ORIENTATIONS) + between(-0.25, 0.25)
    frequency = torch.tensor(FREQUENCIES)[labels // ORIENTATIONS] + between(-0.4, 0.4)
    phase = between(0.0, 2 * math.pi)
    axis = torch.linspace(-0.5, 0.5, SIZE)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    along = angle.cos()[:, None, None] * x + angle.sin()[:, None, None] * y
    wave = 0.5 + 0.5 * torch.sin(2 * math.pi * frequency[:, None, None] * along + phase[:, None, None])
    light, dark = between(0.55, 1.0, 3, 1, 1), between(0.0, 0.45, 3, 1, 1)
    images = dark + (light - dark) * wave[:, None]
    noise = 0.08 * torch.randn(images.shape, generator=generator)
    return (images + noise).clamp(0, 1), labels


def train_source(seed: int = 0, steps: int = 250) -> Iterator[nn.Module]:
    """Train the source model on clean gratings; yields it after every step, the last time in eval mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(1, steps + 1):
        images, labels = gratings(64, generator)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step == steps:
            model.eval()
        yield model


@dataclass(frozen=True)
class Row:
    """Errors of one batch under every method."""

    shift: str
    samples: int
    wrong: dict[str, int]
    seconds: dict[str, float]
    shares: dict[str, float]


def compare(model: nn.Module, *, batches: int = 8, batch_size: int = 100, seed: int = 1) -> Iterator[Row]:
    """Send one stream of shifts through every method side by side, never resetting; yields a row a batch."""
    from time import perf_counter

    generator = torch.Generator().manual_seed(seed)
    adapters = {name: ctta.adapt(model, name, **settings) for name, settings in METHODS.items()}
    for shift in SHIFTS:
        for _ in range(batches):
            images, labels = gratings(batch_size, generator)
            images = corrupt(images, shift, generator)
            wrong, seconds, shares = {}, {}, {}
            for name, adapter in adapters.items():
                start = perf_counter()
                logits = adapter(images)
                seconds[name] = perf_counter() - start
                wrong[name] = int((logits.argmax(1) != labels).sum())
                shares[name] = adapter.last.shares.get("selected", 0.0) if adapter.last else 0.0
            yield Row(shift, batch_size, wrong, seconds, shares)
