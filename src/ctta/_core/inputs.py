"""The guard at the door: which batches an adapter accepts, and what it says to the others."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ctta._core.precision import autocast_on
from ctta._core.refusals import describe_value
from ctta.errors import CttaError, InputError

Predict = Callable[[Tensor], Tensor]
Signature = tuple[int, int]  # rank of a batch, and size of its second dimension (channels)


class RangeWarning(UserWarning):
    """Images lie outside [0, 1], where the default augmentation would clip them."""


@dataclass
class InputGuard:
    """Checks batches for one model. Looks only: it never changes the model or the batch."""

    accepted: Signature | None = None
    warned: bool = False
    clipped: str = ""
    """Where the last batch lies, if an augmentation of ours would clip it."""

    def check(self, images: Any, model: nn.Module, predict: Predict) -> Tensor:
        """Return the batch, detached and ready for autograd, or refuse it."""
        if not isinstance(images, Tensor):
            raise InputError(f"Expected a batch as a torch.Tensor, but got {describe_value(images)}.")
        devices = {parameter.device for parameter in model.parameters()}
        tensors = itertools.chain(model.parameters(), model.buffers())
        dtype = next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32)
        dense = images.layout == torch.strided and not images.is_nested and not images.is_meta
        if not dense or images.dim() < 2 or images.dtype != dtype or devices - {images.device}:
            _check_kind(images, devices, dtype)
        if images.numel() == 0:
            raise InputError(f"Expected at least one image, but got an empty batch, {tuple(images.shape)}.")
        low, high = torch.stack(torch.aminmax(images.detach())).tolist()  # NaN shows in both
        if not (math.isfinite(low) and math.isfinite(high)):
            bad = int((~images.isfinite()).flatten(1).any(1).sum())
            raise InputError(
                f"Expected finite pixels, but {bad} of {len(images)} images hold NaN or infinity: leave them out."
            )
        self.clipped = f"[{low:.3g}, {high:.3g}]" if low <= -0.01 or high >= 1.01 else ""
        x = images.detach()
        x = x.clone() if x.is_inference() else x
        if (x.dim(), x.shape[1]) != self.accepted:
            self._check_signature(x, model, predict)
        return x.to(dtype)

    def remember(self, x: Tensor, model: nn.Module) -> None:
        """Hold later batches to the rank and channels of one that was as expected."""
        if hint(model) in (None, given := (x.dim(), x.shape[1])):
            self.accepted = given

    def warn(self, stacklevel: int) -> None:
        """Say once that a batch was clipped."""
        self.warned = True
        warnings.warn(
            f"Expected images in [0, 1], but these lie in {self.clipped}, and the default augmentation clips to "
            "[0, 1]. Put the normalisation inside the model, or pass `augment=`.",
            RangeWarning,
            stacklevel=stacklevel,
        )

    def _check_signature(self, x: Tensor, model: nn.Module, predict: Predict) -> None:
        """Compare rank and channels with what the model took before, or with its first convolution.

        The first convolution only hints at what a model takes (it may sit behind a reshape), so a first batch
        that differs from the hint is refused only if the model cannot answer it, or answers by accident: because
        a normalisation inside the model spreads one channel over several.
        """
        given, expected = (x.dim(), x.shape[1]), self.accepted or hint(model)
        if expected in (None, given):
            return
        rank, channels = expected
        if self.accepted is None and _answers(predict, x):
            by_accident = given == (rank, 1) and _answers(predict, x.expand(-1, channels, *x.shape[2:]))
            if not by_accident:
                return
        names = {2: "N x F", 3: "N x C x L", 4: "N x C x H x W", 5: "N x C x D x H x W"}
        raise InputError(
            f"Expected a batch of rank {rank} ({names.get(rank, 'N x ...')}) with {channels} channels, "
            f"but got shape {tuple(x.shape)}."
        )


def _check_kind(images: Tensor, devices: set[torch.device], dtype: torch.dtype) -> None:
    """Refuse a batch of another kind than the model's tensors, unless the caller's autocast takes it."""
    if images.layout != torch.strided or images.is_nested:
        raise InputError(f"Expected a dense tensor, but got layout {images.layout}: call .to_dense().")
    if images.dim() < 2:
        raise InputError(
            f"Expected a batch, N x C x H x W, but got shape {tuple(images.shape)}: "
            "add the batch dimension with images[None]."
        )
    if images.is_meta or (len(devices) == 1 and images.device not in devices):
        place = next(iter(devices), torch.device("cpu"))
        raise InputError(
            f'Expected images on {place}, where the model is, but got {images.device}: images.to("{place}").'
        )
    castable = images.is_floating_point() and autocast_on(images.device.type)
    if images.dtype != dtype and not castable:
        cure = "images.float() / 255" if images.dtype == torch.uint8 else f"images.to({dtype})"
        raise InputError(f"Expected {dtype} images, but got {images.dtype}: convert with {cure}.")


def _answers(predict: Predict, x: Tensor) -> bool:
    try:
        predict(x)
    except CttaError:
        return False
    return True


def hint(model: nn.Module) -> Signature | None:
    """Rank and channels the first convolution of a model would take, if it has one."""
    layers = (module for module in model.modules() if isinstance(module, _ConvNd))
    return next(((len(layer.kernel_size) + 2, layer.in_channels) for layer in layers), None)
