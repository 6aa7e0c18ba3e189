"""Random draws that depend on (seed, corruption, severity, image index) and on nothing else.

Philox is a generator with a counter. The key is made from seed, corruption and severity; the image index is the
highest word of the counter and the number of the draw the next. Every image so has numbers of its own, whatever
comes before it or beside it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray


def key(seed: int, name: str, severity: int) -> NDArray[np.uint64]:
    """128 bits that stand for a seed, a corruption and a severity."""
    digest = hashlib.blake2b(f"{seed}/{name}/{severity}".encode(), digest_size=16).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


class Draws:
    """The random numbers of some images. `stream` tells the several draws of one corruption apart."""

    def __init__(self, key: NDArray[np.uint64], indices: NDArray[np.int64]) -> None:
        self.indices = indices
        self._bits = Philox(key=key)
        self._generator = Generator(self._bits)
        self._state = self._bits.state  # taken before the first draw: its buffers are empty

    def _rows(self, stream: int) -> Iterator[int]:
        """Every image's row, once the generator stands where its numbers begin."""
        for row, index in enumerate(self.indices.tolist()):
            self._state["state"]["counter"][:] = (0, 0, stream, index)
            self._bits.state = self._state
            yield row

    def bits(self, count: int, stream: int = 0) -> NDArray[np.uint32]:
        """Random 32-bit words, N x count."""
        words = np.empty((len(self.indices), (count + 1) // 2), dtype=np.uint64)
        for row in self._rows(stream):
            words[row] = self._bits.random_raw(words.shape[1])
        return words.view(np.uint32)[:, :count]

    def normal(self, shape: tuple[int, ...], stream: int = 0) -> NDArray[np.float32]:
        """Standard normal numbers, N x shape."""
        out = np.empty((len(self.indices), *shape), dtype=np.float32)
        for row in self._rows(stream):
            self._generator.standard_normal(dtype=np.float32, out=out[row])
        return out

    def halves(self, shape: tuple[int, ...], stream: int = 0) -> NDArray[np.uint16]:
        """Random 16-bit words, N x shape."""
        count = math.prod(shape)
        return self.bits((count + 1) // 2, stream).view(np.uint16)[:, :count].reshape(len(self.indices), *shape)

    def uniform(self, shape: tuple[int, ...], stream: int = 0) -> NDArray[np.float32]:
        """Numbers in (-1, 1), odd multiples of 2^-16, N x shape."""
        out = self.halves(shape, stream).astype(np.float32)
        out += 0.5 - 2**15
        out *= 2.0**-15
        return out

    def unit(self, count: int, stream: int = 0) -> NDArray[np.float64]:
        """Numbers in [0, 1), N x count."""
        words = self.bits(2 * count, stream).copy().view(np.uint64)
        numbers: NDArray[np.float64] = (words >> np.uint64(11)).astype(np.float64)
        return numbers * 2.0**-53

    def below(self, end: int, shape: tuple[int, ...], stream: int = 0) -> NDArray[np.uint16]:
        """Whole numbers from 0 to end - 1, up to 64, N x shape; equally likely to one part in a thousand."""
        words = self.halves(shape, stream)
        if end & (end - 1) == 0:
            return words >> np.uint16(17 - end.bit_length())
        scaled: NDArray[np.uint32] = words * np.uint32(end)
        return (scaled >> np.uint32(16)).astype(np.uint16)
