"""The guard at the door: which batches an adapter accepts, and what it says to the others."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ctta._core.method import describe_value
from ctta._core.precision import autocast_on
from ctta.errors import CttaError, InputError

Signature = tuple[int, int]
"""Rank of a batch and size of its second dimension (channels)."""


class RangeWarning(UserWarning):
    """Images lie outside [0, 1], where the default augmentation would clip them."""


class InputGuard:
    """Checks batches for one model. Looks only: it never changes the model or the batch."""

    def __init__(self, model: nn.Module, predict: Callable[[Tensor], Tensor]) -> None:
        self.model = model
        self.predict = predict
        self.range = 0.0, 1.0
        self.warned = False
        self.accepted: Signature | None = None

    def check(self, images: Any) -> Tensor:
        """Return the batch, detached and ready for autograd, or refuse it."""
        if not isinstance(images, Tensor):
            raise InputError(f"Expected a batch as a torch.Tensor, but got {describe_value(images)}.")
        self._check_kind(images)
        self._check_values(images)
        x = images.detach()
        x = x.clone() if x.is_inference() else x
        self._check_signature(x)
        return x.to(self.dtype)

    def remember(self, x: Tensor) -> None:
        """Hold later batches to the rank and channels of one that was as expected."""
        if hint(self.model) in (None, signature(x)):
            self.accepted = signature(x)

    def copy(self) -> InputGuard:
        """Return a guard of the same model that remembers the same, and goes on by itself."""
        return copy.copy(self)

    @property
    def dtype(self) -> torch.dtype:
        """Floating dtype of the model, float32 if it has no parameters."""
        for tensor in itertools.chain(self.model.parameters(), self.model.buffers()):
            if tensor.is_floating_point():
                return tensor.dtype
        return torch.float32

    def _check_kind(self, images: Tensor) -> None:
        if images.layout != torch.strided or images.is_nested:
            raise InputError(f"Expected a dense tensor, but got layout {images.layout}: call .to_dense().")
        if images.dim() < 2:
            raise InputError(
                f"Expected a batch, N x C x H x W, but got shape {tuple(images.shape)}: "
                "add the batch dimension with images[None]."
            )
        if images.numel() == 0:
            raise InputError(f"Expected at least one image, but got an empty batch, {tuple(images.shape)}.")
        devices = {tensor.device for tensor in self.model.parameters()}
        if images.is_meta or (len(devices) == 1 and images.device not in devices):
            place = next(iter(devices), torch.device("cpu"))
            raise InputError(
                f'Expected images on {place}, where the model is, but got {images.device}: images.to("{place}").'
            )
        castable = images.is_floating_point() and autocast_on(images.device.type)
        if images.dtype != self.dtype and not castable:
            cure = "images.float() / 255" if images.dtype == torch.uint8 else f"images.to({self.dtype})"
            raise InputError(f"Expected {self.dtype} images, but got {images.dtype}: convert with {cure}.")

    def _check_values(self, images: Tensor) -> None:
        low, high = torch.stack(torch.aminmax(images.detach())).tolist()  # NaN shows in both
        if not (math.isfinite(low) and math.isfinite(high)):
            bad = int((~images.isfinite()).flatten(1).any(1).sum())
            raise InputError(
                f"Expected finite pixels, but {bad} of {len(images)} images hold NaN or infinity: leave them out."
            )
        self.range = low, high

    def warn_if_clipped(self, stacklevel: int) -> None:
        """Say once that the last batch did not lie in [0, 1], where an augmentation of ours clips."""
        low, high = self.range
        if self.warned or (low > -0.01 and high < 1.01):
            return
        warnings.warn(
            f"Expected images in [0, 1], but these lie in [{low:.3g}, {high:.3g}], and the default "
            "augmentation clips to [0, 1]. Put the normalisation inside the model, or pass `augment=`.",
            RangeWarning,
            stacklevel=stacklevel,
        )
        self.warned = True

    def _check_signature(self, x: Tensor) -> None:
        """Compare rank and channels with what the model took before, or with its first convolution.

        The first convolution only hints at what a model takes (it may sit behind a reshape), so a first batch
        that differs from the hint is refused only if the model cannot answer it, or answers by accident.
        """
        given = signature(x)
        expected = self.accepted or hint(self.model)
        if expected is None or given == expected:
            return
        if self.accepted is None and self._answers(x) and not self._broadcasts(x, expected):
            return
        names = {2: "N x F", 3: "N x C x L", 4: "N x C x H x W", 5: "N x C x D x H x W"}
        rank, channels = expected
        raise InputError(
            f"Expected a batch of rank {rank} ({names.get(rank, 'N x ...')}) with {channels} channels, "
            f"but got shape {tuple(x.shape)}."
        )

    def _broadcasts(self, x: Tensor, expected: Signature) -> bool:
        """Whether one channel is spread over several by a normalisation inside the model, unasked."""
        rank, channels = expected
        if x.dim() != rank or x.shape[1] != 1:
            return False
        return self._answers(x.expand(-1, channels, *x.shape[2:]))

    def _answers(self, x: Tensor) -> bool:
        try:
            self.predict(x)
        except CttaError:
            return False
        return True


def signature(x: Tensor) -> Signature:
    """Rank and channels of a batch."""
    return x.dim(), x.shape[1]


def hint(model: nn.Module) -> Signature | None:
    """Rank and channels the first convolution of a model would take, if it has one."""
    for module in model.modules():
        if isinstance(module, _ConvNd):
            return len(module.kernel_size) + 2, module.in_channels
    return None
