"""Forgetting: how the adapted weights do on clean images, measured without adapting (spec 13)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from ctta._core.copies import copy_network
from ctta._core.layers import use_source_statistics
from ctta.adapter import Adapter
from ctta.data import to_batch
from ctta.streams import CLEAN, Source
from ctta.streams.orders import Order, arrange


class Forgetting:
    """Clean error of an adapter's weights, with batch statistics and with the source model's statistics."""

    def __init__(self, model: nn.Module, source: Source, images: int, batch_size: int) -> None:
        order = arrange(np.asarray(source.labels), Order())[:images]
        self.parts = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
        self.model, self.source = model, source

    def measure(self, adapter: Adapter) -> dict[str, Any]:
        """Error in % under both statistics; the adapter is not changed."""
        with_source = with_source_statistics(adapter, self.model)
        wrong = {"clean_error": 0, "clean_error_source_statistics": 0}
        for part in self.parts:
            images = to_batch(self.source.images(CLEAN, part))
            labels = torch.from_numpy(self.source.labels[part])
            wrong["clean_error"] += int((adapter.predict(images).argmax(1).cpu() != labels).sum())
            with torch.inference_mode():
                wrong["clean_error_source_statistics"] += int((with_source(images).argmax(1) != labels).sum())
        samples = sum(len(part) for part in self.parts)
        return {name: 100 * count / samples for name, count in wrong.items()} | {"clean_samples": samples}


def with_source_statistics(adapter: Adapter, source: nn.Module) -> nn.Module:
    """Return a copy of the network that answers, with the source model's BatchNorm statistics.

    A teacher that averages over views answers without them. EcoTTA's meta networks, which the source model does
    not have, go on with the statistics of the batch.
    """
    twin = copy_network(adapter.method.answering(), "Forgetting is measured on a copy").eval()
    use_source_statistics(twin, source)
    return twin
