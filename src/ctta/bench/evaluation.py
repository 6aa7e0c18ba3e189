"""Evaluation as a generator of rows: one row a batch, which progress bars, stores, reports and tests consume."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ctta._core.copies import copy_network
from ctta._core.layers import use_source_statistics
from ctta.adapter import Adapter
from ctta.data import to_batch
from ctta.models.stages import mean_by_block
from ctta.streams import CLEAN, Batch, Order, Source, Stream, arrange

BINS = 15
"""Bins of the calibration error, of equal width over confidence 0 to 1."""


@dataclass(frozen=True)
class BatchRow:
    """What a method did with one batch. Losses in nats; shares and probabilities 0 to 1; memory in MB."""

    batch: int
    domain: str
    samples: int
    wrong: int
    counts: dict[str, list[int]]
    """Samples and wrong ones of every domain in the batch."""
    confidence: float
    """Mean of the largest probability."""
    nll: float
    """Mean negative log-likelihood of the labels."""
    brier: float
    """Mean squared distance between probabilities and the one-hot label."""
    bins: list[list[float]]
    """Per confidence bin: samples, sum of confidences, correct ones."""
    seconds: float
    unit: float | None = None
    """Seconds of one bare forward pass of the source model, on batches where it was measured."""
    memory: float | None = None
    """Highest resident memory of the process so far (on CUDA: of its tensors)."""
    shares: dict[str, float] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    kept: int | None = None
    rates: dict[str, float] = field(default_factory=dict)
    """Mean learning rate of every block."""
    importance: dict[str, float] = field(default_factory=dict)
    """Mean importance i of every block, tensors that were not selected counted as 0."""
    skipped: bool = False
    reason: str | None = None

    @property
    def error(self) -> float:
        """Share of wrong predictions in %."""
        return 100 * self.wrong / self.samples

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain JSON-ready data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> BatchRow:
        """Return the row `to_dict` was made from; names this version does not know are left out."""
        known = {item.name for item in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})


def evaluate(adapter: Adapter, stream: Stream, start: int = 0) -> Iterator[BatchRow]:
    """Adapt through a stream from batch `start` on; yields a row a batch.

    >>> rows = list(ctta.evaluate(ctta.adapt(model, "palm"), ctta.streams.continual(source)))  # doctest: +SKIP
    """
    for batch in stream.resume(start):
        yield measure(adapter, batch)


def measure(adapter: Adapter, batch: Batch) -> BatchRow:
    """Let an adapter predict and adapt to one batch, and say how that went."""
    if batch.reset:
        adapter.reset()
    logits, seconds = _timed(adapter, batch.images.to(next(adapter.parameters()).device))
    report = adapter.last
    assert report is not None
    wrong = (logits.argmax(1).cpu() != batch.labels).tolist()
    counts: dict[str, list[int]] = {}
    for domain, missed in zip(batch.domains, wrong, strict=True):
        samples, so_far = counts.get(domain.name, (0, 0))
        counts[domain.name] = [samples + 1, so_far + missed]
    # PALM's figure: importance counts where the tensor was selected in this batch
    chosen = set(report.selected)
    importance = {name: value if name in chosen else 0.0 for name, value in report.importance.items()}
    return BatchRow(
        batch=batch.index,
        domain=batch.domain,
        samples=len(wrong),
        wrong=sum(wrong),
        counts=counts,
        **quality(logits, batch.labels),
        seconds=seconds,
        memory=_peak_memory(logits.device),
        shares=dict(report.shares),
        losses=dict(report.losses),
        kept=report.kept,
        rates=mean_by_block(adapter.model, report.learning_rates),
        importance=mean_by_block(adapter.model, importance),
        skipped=report.skipped,
        reason=report.reason,
    )


def quality(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """Confidence, negative log-likelihood, Brier score and calibration bins of N x classes logits."""
    log_p = logits.detach().double().log_softmax(1).cpu()
    p = log_p.exp()
    confidence, predicted = p.max(1)
    correct = (predicted == labels).double()
    # bin k holds confidences in (k / BINS, (k + 1) / BINS], as usual for the expected calibration error
    which = (confidence * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
    bins = torch.zeros(BINS, 3, dtype=torch.float64)
    bins.index_add_(0, which, torch.stack([torch.ones_like(confidence), confidence, correct], 1))
    truth = log_p.gather(1, labels[:, None]).squeeze(1)
    return {
        "confidence": confidence.mean().item(),
        "nll": -truth.mean().item(),
        "brier": (p.square().sum(1) - 2 * truth.exp() + 1).mean().item(),
        "bins": bins.tolist(),
    }


def pass_seconds(model: nn.Module, images: Tensor) -> float:
    """Seconds of one forward pass of a model in eval mode."""
    with torch.inference_mode():
        return _timed(model, images.to(next(model.parameters()).device).clone())[1]


def _timed(model: nn.Module, images: Tensor) -> tuple[Tensor, float]:
    """Return what a model answers, and after how many seconds."""
    _wait(images)
    start = perf_counter()
    logits: Tensor = model(images)
    _wait(logits)
    return logits, perf_counter() - start


def _wait(tensor: Tensor) -> None:
    """Wait until the device is done, so that the clock tells the truth."""
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)
    elif tensor.device.type == "mps":
        torch.mps.synchronize()


def _peak_memory(device: torch.device) -> float | None:
    """Highest memory so far in MB: of the process, or of its tensors on a CUDA device; None where unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


class Forgetting:
    """How the adapted weights do on clean images, without adapting (spec 13): the error with batch statistics and
    with the source model's statistics.
    """

    def __init__(self, model: nn.Module, source: Source, images: int, batch_size: int) -> None:
        self.order = arrange(np.asarray(source.labels), Order())[:images]
        self.model, self.source, self.batch_size = model, source, batch_size

    def measure(self, adapter: Adapter) -> dict[str, Any]:
        """Error in % under both statistics; the adapter is not changed."""
        with_source = with_source_statistics(adapter, self.model)
        wrong, samples = {"clean_error": 0, "clean_error_source_statistics": 0}, len(self.order)
        for start in range(0, samples, self.batch_size):
            part = self.order[start : start + self.batch_size]
            images, labels = to_batch(self.source.images(CLEAN, part)), torch.from_numpy(self.source.labels[part])
            wrong["clean_error"] += int((adapter.predict(images).argmax(1).cpu() != labels).sum())
            with torch.inference_mode():
                wrong["clean_error_source_statistics"] += int((with_source(images).argmax(1) != labels).sum())
        return {name: 100 * count / samples for name, count in wrong.items()} | {"clean_samples": samples}


def with_source_statistics(adapter: Adapter, source: nn.Module) -> nn.Module:
    """Return a copy of the network that answers, with the source model's BatchNorm statistics.

    A teacher that averages over views answers without them. EcoTTA's meta networks, which the source model does
    not have, go on with the statistics of the batch.
    """
    twin = copy_network(adapter.method.answering(), "Forgetting is measured on a copy").eval()
    use_source_statistics(twin, source)
    return twin
