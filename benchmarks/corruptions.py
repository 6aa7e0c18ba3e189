"""How much faster a corruption is made than with `imagecorruptions-imaug`, image by image, at 32 and 224 pixels.

Both run in the same process, turn by turn, at severities 1, 3 and 5 of the ImageNet constants (the only ones that
package has), and only ratios are printed: machines are shared and their seconds mean little. With one thread
processor time is compared, with `--threads` more (which only this package can use) time by the clock.

"On average" can be read in three ways, and all are printed: the ratio of the mean times, where slow corruptions
count most; the mean of the ratios, where fast ones do; and the geometric mean. Two corruptions gain little at 224
pixels because the other package hands them to Pillow's C code: pixelate comes out level, and jpeg_compression
slower. It stays with this package's own codec all the same: Pillow's library resamples colour differently from the
one the published data were made with, and differs from them by a level on average.

    python -m venv /tmp/versus && /tmp/versus/bin/pip install imagecorruptions-imaug==1.1.5 -e .
    /tmp/versus/bin/python benchmarks/corruptions.py
"""

from __future__ import annotations

import argparse
import importlib
import math
import statistics
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ctta.corruptions import CORRUPTIONS, corrupt

SEVERITIES = (1, 3, 5)
Pictures = NDArray[np.uint8]


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call: of the processor if one thread works, so that other programs count less."""
    clock = process_time if torch.get_num_threads() == 1 else perf_counter
    start = clock()
    call()
    return clock() - start


def pictures(count: int, size: int) -> Pictures:
    """Smooth random pictures with some noise, count x size x size x 3."""
    generator = np.random.default_rng(0)
    coarse = torch.from_numpy(generator.random((count, 3, 8, 8)))
    smooth = torch.nn.functional.interpolate(coarse, (size, size), mode="bicubic").permute(0, 2, 3, 1).numpy()
    noisy = smooth * 255 + generator.normal(0, 8, smooth.shape)
    return np.ascontiguousarray(noisy.clip(0, 255).astype(np.uint8))


def other() -> Any:
    """The package to compare with, or None."""
    try:
        package = importlib.import_module("imagecorruptions")
    except ImportError:
        return None
    importlib.import_module("cv2").setNumThreads(1)
    return package


def seconds_here(name: str, images: Pictures) -> float:
    """Seconds per image with this package."""
    spent = sum(timed(lambda s=s: corrupt(images, name, s, profile="imagenet")) for s in SEVERITIES)  # type: ignore[misc]
    return spent / (len(images) * len(SEVERITIES))


def seconds_there(package: Any, name: str, images: Pictures) -> float:
    """Seconds per image with the other package."""
    spent = 0.0
    for severity in SEVERITIES:
        for image in images:
            spent += timed(lambda i=image, s=severity: package.corrupt(i, severity=s, corruption_name=name))  # type: ignore[misc]
    return spent / (len(images) * len(SEVERITIES))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    package = other()
    if package is None:
        print("imagecorruptions is not importable here; printing each corruption's share of the time instead.")
    for size, count, few in ((32, 512, 24), (224, 16, 4)):
        images = pictures(count, size)
        here: dict[str, list[float]] = {name: [] for name in CORRUPTIONS}
        there: dict[str, list[float]] = {name: [] for name in CORRUPTIONS}
        for name in CORRUPTIONS:
            seconds_here(name, images[:1])  # tables, overlays and compiled functions are made once
            if package is not None:
                seconds_there(package, name, images[:1])
        for _ in range(arguments.rounds):
            for name in CORRUPTIONS:
                here[name].append(seconds_here(name, images))
                if package is not None:
                    there[name].append(seconds_there(package, name, images[:few]))
        ours = {name: statistics.median(values) for name, values in here.items()}
        print(f"{size} pixels")
        if package is None:
            for name, value in ours.items():
                print(f"  {name:18} {value / sum(ours.values()):6.1%}")
            continue
        theirs = {name: statistics.median(values) for name, values in there.items()}
        ratios = {name: theirs[name] / ours[name] for name in CORRUPTIONS}
        for name, ratio in ratios.items():
            print(f"  {name:18} {ratio:6.1f} times as fast")
        print(f"  mean time          {sum(theirs.values()) / sum(ours.values()):6.1f}")
        print(f"  mean of ratios     {statistics.mean(ratios.values()):6.1f}")
        print(f"  geometric mean     {math.exp(statistics.mean(map(math.log, ratios.values()))):6.1f}")


if __name__ == "__main__":
    main()
