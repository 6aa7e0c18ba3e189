"""Warm up EcoTTA's meta networks on labelled source images, before deployment.

The source network stays frozen and normalises with batch statistics; its meta networks learn by cross-entropy.
SGD, a learning rate that rises during the first epoch and falls in steps, photometric augmentation. Every random
choice is a function of (seed, epoch), so that a run that was stopped goes on from its last epoch, bit for bit.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ctta._core import checkpoint
from ctta._core.layers import use_batch_statistics, wide
from ctta._core.learnt import fingerprint
from ctta._core.precision import in_precision
from ctta.augment.cotta import brightness, contrast, gray, hue, saturation
from ctta.errors import DataError, ModelError, SettingError, StateError
from ctta.methods.ecotta.ecotta import WARM_UP
from ctta.methods.ecotta.meta_networks import attach, meta_networks, watching
from ctta.models.stages import find_stages
from ctta.models.train import Progress
from ctta.settings import setting


@dataclass(frozen=True)
class WarmupSettings:
    """The recipe; the defaults are the published ones for CIFAR, but for `start`."""

    epochs: int = setting(10, "Passes over the source images.", low=1)
    batch: int = setting(64, "Images per step.", low=2)
    lr: float = setting(0.05, "Learning rate after the first epoch, in which it rises to it.", above=0.0)
    momentum: float = setting(0.9, "Momentum of sgd.", low=0.0, below=1.0)
    decay_at: str = setting("3,6,8", "Epochs after which the learning rate falls.", many=True)
    decay: float = setting(0.2, "Factor on the learning rate where it falls.", above=0.0, high=1.0)
    jitter: float = setting(0.4, "Share of the images whose colours are jittered.", low=0.0, high=1.0)
    blur: float = setting(0.2, "Share of the images that are blurred.", low=0.0, high=1.0)
    grayscale: float = setting(0.1, "Share of the images that lose their colours.", low=0.0, high=1.0)
    start: Literal["identity", "standard"] = setting(
        "identity", "Meta networks begin as the identity on the first batch, or as layers usually do."
    )
    bn_mode: Literal["batch", "source"] = setting("batch", "Statistics of the frozen network's BatchNorm.")
    parts: int | str = setting(5, "Number of parts, or the blocks of each; as for the method.", low=1, many=True)
    stages: str = setting("", "Names of the stages in order, where the model is of no known family.", many=True)
    precision: Literal["full", "bf16"] = setting(
        "full", "Numbers that convolutions and matrix products work with; weights and losses stay full."
    )
    seed: int = setting(0, "Seed of weights, order and augmentation.", low=0)

    def __post_init__(self) -> None:
        """Refuse epochs that are no numbers."""
        if not all(word.strip().isdecimal() for word in self.decay_at.split(",") if word):
            raise SettingError(f"Expected `decay_at` to be epochs, as in 3,6,8, but got {self.decay_at!r}.")

    def rate(self, epoch: int, batch: int, batches: int) -> float:
        """Learning rate of a batch; epochs and batches count from 0.

        >>> [round(WarmupSettings().rate(epoch, 4, 10), 6) for epoch in (0, 2, 3, 6, 8)]
        [0.025, 0.05, 0.01, 0.002, 0.0004]
        """
        if epoch == 0:
            return self.lr * (batch + 1) / batches
        falls = sum(int(word) <= epoch for word in self.decay_at.split(",") if word)
        return float(self.lr * self.decay**falls)


class Warmup:
    """Meta networks of one source model on their way to being warm: `run`, then `save` for the setting `warmup`.

    The model itself is copied, never touched.
    """

    def __init__(self, model: nn.Module, settings: WarmupSettings) -> None:
        self.settings, self.source = settings, fingerprint(model)
        stages = find_stages(model, settings.stages)
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        if settings.bn_mode == "batch":
            use_batch_statistics(self.model)
        self.networks = attach(self.model, stages, settings.parts, settings.seed)

    def run(self, images: Tensor, labels: Tensor, resume: Path | None = None) -> Iterator[Progress]:
        """Train; yields after every batch. `images` uint8 N x C x H x W, `labels` N whole numbers.

        With `resume` the state is saved there after every epoch, and a run that finds it goes on from it.
        """
        s = self.settings
        batches = len(images) // s.batch
        if batches == 0 or len(labels) != len(images):
            raise DataError(
                f"Expected at least one batch of {s.batch} images and a label for each, but got {len(images)} "
                f"images and {len(labels)} labels."
            )
        parameters = list(self.networks.requires_grad_(True).parameters())
        optimizer = torch.optim.SGD(parameters, lr=s.lr, momentum=s.momentum)
        first = self._restore(resume, optimizer) if resume is not None and resume.exists() else 0
        for epoch in range(first, s.epochs):
            self.networks.train()
            generator = torch.Generator().manual_seed(s.seed * 100_003 + epoch)
            order = torch.randperm(len(images), generator=generator)[: batches * s.batch]
            begun, total, correct = perf_counter(), 0.0, 0
            for batch, chosen in enumerate(torch.split(order, s.batch)):
                x = photometric(images[chosen].float().div_(255), s.jitter, s.blur, s.grayscale, generator)
                if epoch == batch == 0:
                    self._start(x.to(parameters[0]))
                optimizer.param_groups[0]["lr"] = s.rate(epoch, batch, batches)
                loss, right = self._step(x.to(parameters[0]), labels[chosen].to(parameters[0].device), optimizer)
                if not math.isfinite(loss):
                    raise ModelError(f"The warm-up diverged in epoch {epoch + 1}, its loss is {loss}: lower `lr`.")
                total, correct, seen = total + loss, correct + right, batch + 1
                accuracy, seconds = correct / (seen * s.batch), perf_counter() - begun
                yield Progress(epoch + 1, seen, batches, total / seen, accuracy, seconds)
            if resume is not None:
                self._save_run(resume, optimizer, epoch + 1)
        self.networks.eval().requires_grad_(False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the meta networks as one safetensors file, whole or not at all."""
        recipe = asdict(self.settings)
        header = {"model": type(self.model).__name__, "parts": self.settings.parts, "recipe": recipe}
        WARM_UP.write(path, self.networks.state_dict(), self.source, header)

    def _start(self, x: Tensor) -> None:
        networks = meta_networks(self.model)
        if self.settings.start == "identity":
            with torch.no_grad(), watching(networks, "measure"):
                self.model(x.clone())
        for network in networks:
            network.become_identity() if network.measured else network.ready.fill_(True)

    def _step(self, x: Tensor, labels: Tensor, optimizer: torch.optim.SGD) -> tuple[float, int]:
        with in_precision(self.settings.precision, x.device.type):
            logits = wide(self.model(x.clone()))
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.item(), int((logits.argmax(1) == labels).sum())

    def _save_run(self, path: Path, optimizer: torch.optim.SGD, epoch: int) -> None:
        tensors = {f"meta/{name}": value for name, value in self.networks.state_dict().items()}
        for index, state in optimizer.state_dict()["state"].items():
            if (velocity := state.get("momentum_buffer")) is not None:  # there is none without momentum
                tensors[f"velocity/{index:04d}"] = velocity
        checkpoint.write(path, tensors, {**self._identity(), "epoch": epoch})

    def _restore(self, path: Path, optimizer: torch.optim.SGD) -> int:
        tensors, header = checkpoint.read(path)
        if {key: header.get(key) for key in self._identity()} != self._identity():
            raise StateError(
                f"{path} holds a run of another source model or with other settings ({header.get('settings')}): "
                "give those it was started with, or another path."
            )
        self.networks.load_state_dict({k[5:]: value for k, value in tensors.items() if k.startswith("meta/")})
        for index, parameter in enumerate(self.networks.parameters()):
            if (velocity := tensors.get(f"velocity/{index:04d}")) is not None:
                optimizer.state[parameter]["momentum_buffer"] = velocity.to(parameter.device)
        return int(header["epoch"])

    def _identity(self) -> dict[str, object]:
        return {"kind": "ecotta warm-up run", "source": self.source, "settings": asdict(self.settings)}


def photometric(
    images: Tensor, jitter: float, blurred: float, grayscale: float, generator: torch.Generator
) -> Tensor:
    """Jitter, blur and gray out shares of a batch: N x C x H x W in [0, 1] -> the same, a copy.

    Colour jitter: brightness, contrast and saturation by factors in [0.6, 1.4], hue by up to 0.1 of a turn, in an
    order drawn for the batch. Blur: 3 x 3, sigma in [0.1, 2]. Every image has its own strength.
    """
    count = len(images)
    lots = torch.rand(3, count, generator=generator)
    factors = 0.6 + 0.8 * torch.rand(3, count, 1, 1, 1, generator=generator)
    turns = 0.2 * torch.rand(count, 1, 1, generator=generator) - 0.1
    sigma = 0.1 + 1.9 * torch.rand(count, 1, 1, 1, generator=generator)
    order = torch.randperm(4, generator=generator).tolist()

    out = images.clone()
    some = lots[0] < jitter
    coloured, strengths = out[some], [*factors[:, some], turns[some]]
    for index in order:
        coloured = (brightness, contrast, saturation, hue)[index](coloured, strengths[index])
    out[some] = coloured
    some = lots[1] < blurred
    out[some] = blur(out[some], sigma[some])
    some = lots[2] < grayscale
    out[some] = gray(out[some]).expand_as(out[some])
    return out


def blur(x: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur with 3 x 3 taps, reflected at the border; `sigma` N x 1 x 1 x 1 in pixels."""
    side = torch.exp(-0.5 / sigma**2)
    x = F.pad(x, [1, 1, 1, 1], mode="reflect")
    for dim in (2, 3):
        left, middle, right = (x.narrow(dim, start, x.shape[dim] - 2) for start in range(3))
        x = (middle + side * (left + right)) / (1 + 2 * side)
    return x
