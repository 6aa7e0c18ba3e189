"""The corruptions of Hendrycks & Dietterich (ICLR 2019), fifteen and four, on batches of images.

>>> import numpy as np
>>> from ctta.corruptions import corrupt
>>> images = np.zeros((2, 32, 32, 3), dtype=np.uint8)
>>> corrupt(images, "fog", severity=3).shape
(2, 32, 32, 3)

What a corruption draws at random depends on the seed, its name, the severity and the index of the image alone: any
slice, order, batch size or number of workers gives the same pixels.
"""

from __future__ import annotations

from ctta.corruptions.apply import corrupt
from ctta.corruptions.constants import CORRUPTIONS, DETERMINISTIC, EXTRA, GROUPS, PROFILES

__all__ = ["CORRUPTIONS", "DETERMINISTIC", "EXTRA", "GROUPS", "PROFILES", "corrupt"]
