"""Wide residual networks for 32 x 32 images (Zagoruyko and Komodakis, 2016), keys as in RobustBench."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Pre-activation block; where the width changes, both branches start from the activated input."""

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


class Group(nn.Module):
    """Blocks of one width; the first one carries the stride."""

    def __init__(self, count: int, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        blocks = [Block(width_in, width, stride), *(Block(width, width, 1) for _ in range(count - 1))]
        self.layer = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Run the blocks in order."""
        return self.layer(x)  # type: ignore[no-any-return]


class WideResNet(nn.Module):
    """WRN-depth-width: raw images in [0, 1] (no normalisation), N x 3 x 32 x 32 -> N x classes."""

    def __init__(self, depth: int = 28, width: int = 10, classes: int = 10) -> None:
        super().__init__()
        count = (depth - 4) // 6
        widths = (16, 16 * width, 32 * width, 64 * width)
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.block1 = Group(count, widths[0], widths[1], 1)
        self.block2 = Group(count, widths[1], widths[2], 2)
        self.block3 = Group(count, widths[2], widths[3], 2)
        self.bn1 = nn.BatchNorm2d(widths[3])
        self.fc = nn.Linear(widths[3], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.block3(self.block2(self.block1(self.conv1(x))))
        return self.fc(F.relu(self.bn1(x)).mean((2, 3)))  # type: ignore[no-any-return]
