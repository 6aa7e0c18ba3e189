"""ResNeXt-29 for 32 x 32 images (Xie et al., 2017) as in AugMix and RobustBench: 4 groups, base width 32."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from ctta.models.normalise import Normalise
from ctta.models.resnet import shortcut

GROUPS = 4
EXPANSION = 4


class Bottleneck(nn.Module):
    """1 x 1, grouped 3 x 3, 1 x 1, beside a shortcut."""

    def __init__(self, width_in: int, planes: int, stride: int) -> None:
        super().__init__()
        inner = planes // 2 * GROUPS
        width = planes * EXPANSION
        self.conv_reduce = nn.Conv2d(width_in, inner, 1, bias=False)
        self.bn_reduce = nn.BatchNorm2d(inner)
        self.conv_conv = nn.Conv2d(inner, inner, 3, stride, 1, groups=GROUPS, bias=False)
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


class ResNeXt29(nn.Module):
    """Images in [0, 1], normalised inside to (x - 0.5) / 0.5: N x 3 x 32 x 32 -> N x classes."""

    def __init__(self, classes: int = 100) -> None:
        super().__init__()
        self.conv_1_3x3 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn_1 = nn.BatchNorm2d(64)
        self.stage_1 = self._stage(64, 64, 1)
        self.stage_2 = self._stage(64 * EXPANSION, 128, 2)
        self.stage_3 = self._stage(128 * EXPANSION, 256, 2)
        self.classifier = nn.Linear(256 * EXPANSION, classes)
        self.normalise = Normalise((0.5,) * 3, (0.5,) * 3)  # outside the state dict, as in the checkpoints

    @staticmethod
    def _stage(width_in: int, planes: int, stride: int) -> nn.Sequential:
        first = Bottleneck(width_in, planes, stride)
        return nn.Sequential(first, *(Bottleneck(planes * EXPANSION, planes, 1) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = F.relu(self.bn_1(self.conv_1_3x3(self.normalise(x))))
        x = self.stage_3(self.stage_2(self.stage_1(x)))
        return self.classifier(x.mean((2, 3)))  # type: ignore[no-any-return]
