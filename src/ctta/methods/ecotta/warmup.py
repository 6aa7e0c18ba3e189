"""Warm up EcoTTA's meta networks on labelled source images, before deployment.

The source network stays frozen and normalises with batch statistics; its meta networks learn by cross-entropy.
SGD, a learning rate that rises during the first epoch and falls in steps, photometric augmentation. Every random
choice is a function of (seed, epoch), so that a run that was stopped goes on from its last epoch, bit for bit.
"""

from __future__ import annotations

import copy
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
    """Meta networks of one source model on their way to being warm. The model itself is copied, never touched.

    ::

        warmup = Warmup(model, WarmupSettings())
        for progress in warmup.run(images, labels):
            print(progress.epoch, progress.loss)
        warmup.save("meta.safetensors")
        adapter = ctta.adapt(model, "ecotta", warmup="meta.safetensors")
    """

    def __init__(self, model: nn.Module, settings: WarmupSettings) -> None:
        self.settings = settings
        self.source = fingerprint(model)
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
        self.networks.requires_grad_(True)
        parameters = list(self.networks.parameters())
        optimizer = torch.optim.SGD(parameters, lr=s.lr, momentum=s.momentum)
        first = self._restore(resume, optimizer) if resume is not None and resume.exists() else 0
        device, dtype = parameters[0].device, parameters[0].dtype
        for epoch in range(first, s.epochs):
            self.networks.train()
            generator = torch.Generator().manual_seed(s.seed * 100_003 + epoch)
            order = torch.randperm(len(images), generator=generator)
            begun, total, correct = perf_counter(), 0.0, 0
            for batch in range(batches):
                chosen = order[batch * s.batch : (batch + 1) * s.batch]
                pixels = images[chosen].float().div_(255)
                x = photometric(pixels, s.jitter, s.blur, s.grayscale, generator).to(device, dtype)
                y = labels[chosen].to(device)
                if epoch == batch == 0:
                    self._start(x)
                for group in optimizer.param_groups:
                    group["lr"] = s.rate(epoch, batch, batches)
                with in_precision(s.precision, device.type):
                    logits = wide(self.model(x.clone()))
                loss = F.cross_entropy(logits, y)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total += loss.item()
                if not loss.isfinite():
                    raise ModelError(
                        f"The warm-up diverged in epoch {epoch + 1}, its loss is {loss.item()}: lower `lr`."
                    )
                correct += int((logits.argmax(1) == y).sum())
                seen = batch + 1
                yield Progress(
                    epoch + 1, seen, batches, total / seen, correct / (seen * s.batch), perf_counter() - begun
                )
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
        if self.settings.start == "standard":
            for network in networks:
                network.ready.fill_(True)
            return
        with torch.no_grad(), watching(networks, "measure"):
            self.model(x.clone())
        for network in networks:
            network.become_identity()

    def _save_run(self, path: Path, optimizer: torch.optim.SGD, epoch: int) -> None:
        tensors = {f"meta/{name}": value for name, value in self.networks.state_dict().items()}
        for index, parameter in enumerate(self.networks.parameters()):
            velocity = optimizer.state[parameter].get("momentum_buffer")
            if velocity is not None:  # there is none without momentum
                tensors[f"velocity/{index:04d}"] = velocity
        checkpoint.write(path, tensors, {**self._identity(), "epoch": epoch})

    def _restore(self, path: Path, optimizer: torch.optim.SGD) -> int:
        tensors, header = checkpoint.read(path)
        if {key: header.get(key) for key in self._identity()} != self._identity():
            raise StateError(
                f"{path} holds a run of another source model or with other settings ({header.get('settings')}): "
                "give those it was started with, or another path."
            )
        meta = {key.partition("/")[2]: value for key, value in tensors.items() if key.startswith("meta/")}
        self.networks.load_state_dict(meta)
        for index, parameter in enumerate(self.networks.parameters()):
            velocity = tensors.get(f"velocity/{index:04d}")
            if velocity is not None:
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
    out = images.clone()
    lot = torch.rand(3, count, generator=generator)
    factors = 0.6 + 0.8 * torch.rand(3, count, 1, 1, 1, generator=generator)
    turns = 0.2 * torch.rand(count, 1, 1, generator=generator) - 0.1
    sigma = 0.1 + 1.9 * torch.rand(count, 1, 1, 1, generator=generator)
    order = torch.randperm(4, generator=generator).tolist()

    some = lot[0] < jitter
    coloured = out[some]
    for index in order:
        if index < 3:
            coloured = (brightness, contrast, saturation)[index](coloured, factors[index, some])
        else:
            coloured = hue(coloured, turns[some])
    out[some] = coloured

    some = lot[1] < blurred
    out[some] = blur(out[some], sigma[some])

    some = lot[2] < grayscale
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
