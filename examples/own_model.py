"""Put three lines around a model of your own, watch what adaptation does, and keep the result.

Run: python examples/own_model.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import ctta


def main() -> None:
    """Adapt a trained model to fog, save it in the middle, go on, and freeze the result."""
    model = ctta.models.load("embedded:")  # any nn.Module that maps images in [0, 1] to logits
    stream = ctta.streams.continual(ctta.streams.embedded(), corruptions=["fog"], batch_size=100)

    # adapt_share instead of eta: a model of your own has no published threshold
    adapter = ctta.adapt(model, "palm", adapt_share=0.05)

    for batch in stream:
        logits = adapter(batch.images)  # predicts, then adapts
        error = (logits.argmax(1) != batch.labels).float().mean().item()
        report = adapter.last
        assert report is not None
        print(
            f"batch {batch.index}: error {100 * error:4.1f} %, selected {100 * report.shares['selected']:.1f} % "
            f"of the parameters, {report.kept} confident samples"
            + (f", skipped: {report.reason}" if report.skipped else "")
        )
        if batch.index == 4:  # a crash here would lose nothing
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "adapter.safetensors")
                adapter.save(path)
                adapter = ctta.load(path, model)

    plain = adapter.freeze()  # an ordinary nn.Module again
    images, labels = stream[0].images, stream[0].labels
    with torch.no_grad():
        before = (model(images).argmax(1) != labels).float().mean().item()
        after = (plain(images).argmax(1) != labels).float().mean().item()
    print(f"error in the fog: {100 * before:.1f} % before, {100 * after:.1f} % after")


if __name__ == "__main__":
    main()
