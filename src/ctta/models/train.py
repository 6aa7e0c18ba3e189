"""Train a source model on clean images: a short, plain recipe that can be stopped and resumed.

SGD with Nesterov momentum and a one-cycle learning rate, random crops and flips, cross-entropy without label
smoothing (it would move the entropies that adaptation relies on). Early epochs may see smaller images, which
costs little accuracy and saves much time. Every random choice is a function of (seed, epoch).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn

from ctta._core import checkpoint
from ctta.data import Dataset, cifar10, cifar100, image_folder
from ctta.errors import DataError, StateError
from ctta.models import build
from ctta.settings import setting


@dataclass(frozen=True)
class TrainSettings:
    """The recipe."""

    epochs: int = setting(16, "Passes over the training images.", low=1)
    batch: int = setting(128, "Images per step.", low=2)
    lr: float = setting(0.2, "Peak of the one-cycle learning rate.", above=0.0)
    warmup: float = setting(0.2, "Share of the run in which the learning rate rises.", low=0.0, high=1.0)
    momentum: float = setting(0.9, "Nesterov momentum.", low=0.0, high=1.0)
    weight_decay: float = setting(5e-4, "Weight decay of convolutions and linear layers.", low=0.0)
    small_epochs: int = setting(0, "First epochs, at the smaller image size.", low=0)
    small_size: int = setting(24, "Height and width of images in those epochs.", low=8)
    padding: int = setting(4, "Pixels of reflection around an image before it is cropped again.", low=0)
    seed: int = setting(0, "Seed of weights, order, crops and flips.", low=0)


@dataclass(frozen=True)
class Split:
    """Images uint8 N x C x H x W and labels N, to train on and to test on."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: int


@dataclass(frozen=True)
class Progress:
    """Where training is: loss and accuracy over the batches of this epoch so far."""

    epoch: int
    batch: int
    batches: int
    loss: float
    accuracy: float
    seconds: float


def new_model(arch: str, classes: int, seed: int) -> nn.Module:
    """Return an untrained model whose weights depend on the seed alone (He initialisation)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(arch, classes)
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def load_split(data: str) -> Split:
    """Read `cifar10`, `cifar100`, or a folder with `train` and `test` (or `val`) folders of images by class."""
    opened: list[Dataset]
    if reader := {"cifar10": cifar10, "cifar100": cifar100}.get(data):
        opened = [reader(split="train"), reader(split="test")]
    else:
        root = Path(data)
        test = next((root / name for name in ("test", "val") if (root / name).is_dir()), None)
        if test is None or not (root / "train").is_dir():
            raise DataError(
                f"Expected cifar10, cifar100, or a folder that holds `train` and `test`, but got {data}."
            )
        opened = [image_folder(root / "train"), image_folder(test)]
    pixels, test_pixels = (
        torch.from_numpy(dataset.images(range(len(dataset)))).permute(0, 3, 1, 2).contiguous()
        for dataset in opened
    )
    labels, test_labels = (torch.from_numpy(dataset.labels) for dataset in opened)
    return Split(pixels, labels, test_pixels, test_labels, int(labels.max()) + 1)


def one_cycle(step: int, steps: int, peak: float, warmup: float) -> float:
    """Learning rate that rises linearly to its peak and falls to zero along a cosine.

    >>> [round(one_cycle(s, 10, 1.0, 0.2), 3) for s in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.038]
    """
    rise = max(1, round(warmup * steps))
    if step < rise:
        return peak * (step + 1) / rise
    return peak * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def augment(images: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Crop each image at random out of its reflection-padded self, and flip half of them: N x C x H x W."""
    count, _, height, width = images.shape
    padded = F.pad(images, [padding] * 4, mode="reflect") if padding else images
    top, left = torch.randint(2 * padding + 1, (2, count, 1), generator=generator)
    rows = top + torch.arange(height)
    columns = left + torch.arange(width)
    flip = torch.rand(count, generator=generator) < 0.5
    columns[flip] = columns[flip].flip(1)
    index = torch.arange(count)[:, None, None]
    return padded[index, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def train(
    model: nn.Module, images: Tensor, labels: Tensor, settings: TrainSettings, resume: Path | None = None
) -> Iterator[Progress]:
    """Train in place; yields after every batch. `images` uint8 N x C x H x W, `labels` N whole numbers.

    With `resume` the state is saved there after every epoch, and a run that finds it goes on from it.
    """
    s = settings
    # biases and normalisation do not decay
    decayed, plain = ([p for p in model.parameters() if (p.dim() > 1) == wide] for wide in (True, False))
    groups = [{"params": decayed, "weight_decay": s.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=s.lr, momentum=s.momentum, nesterov=s.momentum > 0)
    first = _restore(resume, model, optimizer, s) if resume is not None and resume.exists() else 0
    batches = len(images) // s.batch
    for epoch in range(first, s.epochs):
        model.train()
        generator = torch.Generator().manual_seed(s.seed * 100_003 + epoch)
        order = torch.randperm(len(images), generator=generator)
        start, total, correct = perf_counter(), 0.0, 0
        for batch, chosen in enumerate(torch.split(order[: batches * s.batch], s.batch)):
            x = augment(images[chosen].float().div_(255), s.padding, generator)
            if epoch < s.small_epochs:
                x = F.interpolate(x, size=(s.small_size, s.small_size), mode="bilinear", antialias=True)
            for group in optimizer.param_groups:
                group["lr"] = one_cycle(epoch * batches + batch, s.epochs * batches, s.lr, s.warmup)
            logits = model(x.contiguous(memory_format=torch.channels_last))
            loss = F.cross_entropy(logits, labels[chosen])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item()
            correct += int((logits.argmax(1) == labels[chosen]).sum())
            seen, seconds = batch + 1, perf_counter() - start
            yield Progress(epoch + 1, seen, batches, total / seen, correct / (seen * s.batch), seconds)
        if resume is not None:
            _save(resume, model, optimizer, epoch + 1, s)
    model.eval()


def average(model: nn.Module, states: Sequence[Mapping[str, Tensor]]) -> None:
    """Give a model the mean of several weights of its architecture (the ends of several cycles: SWA).

    Its BatchNorm statistics then belong to none of them: `measure_statistics` finds its own.
    """
    own = model.state_dict()
    floating = [key for key, value in own.items() if value.is_floating_point()]
    model.load_state_dict(own | {key: torch.stack([state[key] for state in states]).mean(0) for key in floating})


def measure_statistics(
    model: nn.Module, images: Tensor, settings: TrainSettings, batches: int = 60, batch: int = 256
) -> None:
    """Set the BatchNorm statistics to the mean over batches of training images, cropped and flipped."""
    generator = torch.Generator().manual_seed(settings.seed)
    order = torch.randperm(len(images), generator=generator)[: batches * batch]
    views = (
        augment(images[chosen].float().div_(255), settings.padding, generator)
        for chosen in torch.split(order, batch)
    )
    update_bn((view.contiguous(memory_format=torch.channels_last) for view in views), model)
    model.eval()


def error_rate(model: nn.Module, images: Tensor, labels: Tensor, batch: int = 200) -> float:
    """Share of images (uint8 N x C x H x W) the model in eval mode gets wrong, 0 to 1."""
    model.eval()
    with torch.inference_mode():
        answers = [model(part.float().div_(255)).argmax(1) for part in torch.split(images, batch)]
        return int((torch.cat(answers) != labels).sum()) / len(images)


def _save(path: Path, model: nn.Module, optimizer: torch.optim.SGD, epoch: int, settings: TrainSettings) -> None:
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    velocities = {name: state.get("momentum_buffer") for name, state in _velocities(optimizer)}
    tensors |= {name: value for name, value in velocities.items() if value is not None}  # none without momentum
    checkpoint.write(path, tensors, {"kind": "training", "epoch": epoch, "settings": asdict(settings)})


def _restore(path: Path, model: nn.Module, optimizer: torch.optim.SGD, settings: TrainSettings) -> int:
    tensors, header = checkpoint.read(path)
    if header.get("kind") != "training" or header["settings"] != asdict(settings):
        raise StateError(
            f"{path} holds a training run with other settings ({header.get('settings')}): give the settings it "
            "was started with, or another path."
        )
    model.load_state_dict({key.partition("/")[2]: t for key, t in tensors.items() if key.startswith("model/")})
    for name, state in _velocities(optimizer):
        if name in tensors:
            state["momentum_buffer"] = tensors[name]
    return int(header["epoch"])


def _velocities(optimizer: torch.optim.SGD) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield the name in a file and the state of every parameter."""
    for index, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        yield f"velocity/{index:04d}", optimizer.state[parameter]
