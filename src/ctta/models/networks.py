"""The architectures of the published source models, and normalisation as part of a model.

ResNets (He et al., 2016) for ImageNet with torchvision's keys and small ones for CIFAR. For 32 x 32 images
ResNeXt-29 (Xie et al., 2017) as in AugMix, and wide ResNets (Zagoruyko and Komodakis, 2016) as in RobustBench.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Normalise(nn.Module):
    """(x - mean) / std per channel, so that every adapter sees images in [0, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...] = IMAGENET_MEAN, std: tuple[float, ...] = IMAGENET_STD) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise images, N x C x H x W."""
        return (x - self.mean) / self.std


class Normalised(nn.Module):
    """A model behind its normalisation: images in [0, 1] in, logits out. Keys: `normalize.*`, `model.*`."""

    def __init__(self, model: nn.Module, normalise: Normalise | None = None) -> None:
        super().__init__()
        self.normalize = normalise or Normalise()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.model(self.normalize(x))  # type: ignore[no-any-return]


def shortcut(width_in: int, width: int, stride: int) -> nn.Sequential | None:
    """Return what brings the input to the shape of a block's output; None where it has it."""
    if stride == 1 and width_in == width:
        return None
    return nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, width_in: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = shortcut(width_in, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        """N x in x H x W -> N x planes x H/stride x W/stride."""
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 (which carries the stride, as in torchvision), 1 x 1, beside a shortcut."""

    expansion = 4

    def __init__(self, width_in: int, planes: int, stride: int) -> None:
        super().__init__()
        width = planes * self.expansion
        self.conv1 = nn.Conv2d(width_in, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        self.downsample = shortcut(width_in, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """N x in x H x W -> N x 4 planes x H/stride x W/stride."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class GroupedBottleneck(nn.Module):
    """1 x 1, 3 x 3 in 4 groups of base width 32, 1 x 1, beside a shortcut."""

    expansion = 4

    def __init__(self, width_in: int, planes: int, stride: int) -> None:
        super().__init__()
        inner, width = planes * 2, planes * self.expansion
        self.conv_reduce = nn.Conv2d(width_in, inner, 1, bias=False)
        self.bn_reduce = nn.BatchNorm2d(inner)
        self.conv_conv = nn.Conv2d(inner, inner, 3, stride, 1, groups=4, bias=False)
        self.bn = nn.BatchNorm2d(inner)
        self.conv_expand = nn.Conv2d(inner, width, 1, bias=False)
        self.bn_expand = nn.BatchNorm2d(width)
        self.downsample = shortcut(width_in, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """N x in x H x W -> N x 4 planes x H/stride x W/stride."""
        out = F.relu(self.bn_reduce(self.conv_reduce(x)))
        out = F.relu(self.bn(self.conv_conv(out)))
        out = self.bn_expand(self.conv_expand(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class PreActivationBlock(nn.Module):
    """Pre-activation block; where the width changes, both branches start from the activated input."""

    expansion = 1

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(width_in)
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.convShortcut = nn.Conv2d(width_in, width, 1, stride, bias=False) if width_in != width else None

    def forward(self, x: Tensor) -> Tensor:
        """N x in x H x W -> N x width x H/stride x W/stride."""
        active = F.relu(self.bn1(x))
        out = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return out + (x if self.convShortcut is None else self.convShortcut(active))  # type: ignore[no-any-return]


ResidualBlock = type[BasicBlock | Bottleneck | GroupedBottleneck | PreActivationBlock]


def _stage(block: ResidualBlock, width_in: int, planes: int, count: int, stride: int) -> nn.Sequential:
    width = planes * block.expansion
    return nn.Sequential(block(width_in, planes, stride), *(block(width, planes, 1) for _ in range(count - 1)))


class ResNet(nn.Module):
    """ImageNet ResNet; takes normalised images: N x 3 x H x W -> N x classes."""

    def __init__(self, block: ResidualBlock, counts: tuple[int, int, int, int], classes: int = 1000) -> None:
        super().__init__()
        e = block.expansion
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = _stage(block, 64, 64, counts[0], 1)
        self.layer2 = _stage(block, 64 * e, 128, counts[1], 2)
        self.layer3 = _stage(block, 128 * e, 256, counts[2], 2)
        self.layer4 = _stage(block, 256 * e, 512, counts[3], 2)
        self.fc = nn.Linear(512 * e, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


class CifarResNet(nn.Module):
    """ResNet-20/32/44/56/110 for 32 x 32 images: raw images in [0, 1], N x 3 x H x W -> N x classes."""

    def __init__(self, depth: int = 20, classes: int = 10) -> None:
        super().__init__()
        count = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(BasicBlock, 16, 16, count, 1)
        self.layer2 = _stage(BasicBlock, 16, 32, count, 2)
        self.layer3 = _stage(BasicBlock, 32, 64, count, 2)
        self.fc = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


class ResNeXt29(nn.Module):
    """Images in [0, 1], normalised inside to (x - 0.5) / 0.5: N x 3 x 32 x 32 -> N x classes."""

    def __init__(self, classes: int = 100) -> None:
        super().__init__()
        self.conv_1_3x3 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn_1 = nn.BatchNorm2d(64)
        self.stage_1 = _stage(GroupedBottleneck, 64, 64, 3, 1)
        self.stage_2 = _stage(GroupedBottleneck, 256, 128, 3, 2)
        self.stage_3 = _stage(GroupedBottleneck, 512, 256, 3, 2)
        self.classifier = nn.Linear(1024, classes)
        self.normalise = Normalise((0.5,) * 3, (0.5,) * 3)  # outside the state dict, as in the checkpoints

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = F.relu(self.bn_1(self.conv_1_3x3(self.normalise(x))))
        x = self.stage_3(self.stage_2(self.stage_1(x)))
        return self.classifier(x.mean((2, 3)))  # type: ignore[no-any-return]


class WideResNet(nn.Module):
    """WRN-depth-width: raw images in [0, 1] (no normalisation), N x 3 x 32 x 32 -> N x classes."""

    def __init__(self, depth: int = 28, width: int = 10, classes: int = 10) -> None:
        super().__init__()
        count = (depth - 4) // 6
        widths = (16, 16 * width, 32 * width, 64 * width)
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        stages = (_stage(PreActivationBlock, widths[k], widths[k + 1], count, min(k + 1, 2)) for k in range(3))
        self.block1, self.block2, self.block3 = (nn.Sequential(OrderedDict(layer=stage)) for stage in stages)
        self.bn1 = nn.BatchNorm2d(widths[3])
        self.fc = nn.Linear(widths[3], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.block3(self.block2(self.block1(self.conv1(x))))
        return self.fc(F.relu(self.bn1(x)).mean((2, 3)))  # type: ignore[no-any-return]
