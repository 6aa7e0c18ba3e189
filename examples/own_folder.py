"""A model of your own on a folder of your own images: what would fog and blur do to it, and what adapting mends.

Without a folder it makes a small one from the images that come with ctta, so that it runs offline.
Run: python examples/own_folder.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

import ctta

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def main(folder: Path) -> None:
    """Compare the model as it is with the adapted one, batch by batch, on corrupted copies of the images."""
    model = ctta.models.load("embedded:")  # yours: any nn.Module that maps images in [0, 1] to logits
    images = ctta.data.image_folder(folder)  # one subfolder a class; the sorted names are the classes 0, 1, 2, ...
    # constants of the corruptions by image size: cifar (32 pixels), tiny-imagenet (64), imagenet (224)
    source = ctta.streams.Corrupted(images, profile="cifar")
    stream = ctta.streams.continual(source, corruptions=["fog", "motion_blur", "contrast"], batch_size=50)
    print(f"{len(images)} images of {len(images.classes)} classes, {len(stream)} batches")
    methods: dict[str, dict[str, Any]] = {"source": {}, "bn1": {}, "palm": {"adapt_share": 0.05}}
    for method, settings in methods.items():
        adapter = ctta.adapt(model, method, **settings)
        counts: dict[str, list[int]] = {}
        for row in ctta.evaluate(adapter, stream):  # a row a batch: errors, losses, shares, learning rates, time
            for domain, (samples, wrong) in row.counts.items():
                total = counts.setdefault(domain, [0, 0])
                total[0] += samples
                total[1] += wrong
        errors = ", ".join(
            f"{domain} {100 * wrong / samples:.1f} %" for domain, (samples, wrong) in counts.items()
        )
        print(f"{method:8} error: {errors}")


def small_folder(root: Path, images_per_class: int = 10) -> Path:
    """Write a few images that come with ctta as PNG files, one subfolder a class."""
    pixels, labels = ctta.data.embedded_sample()
    for number, name in enumerate(CLASSES):
        folder = root / name
        folder.mkdir()
        for k, image in enumerate(pixels[labels == number][:images_per_class]):
            Image.fromarray(image).save(folder / f"{k}.png")
    return root


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as place:
            main(small_folder(Path(place)))
