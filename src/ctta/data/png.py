"""Read 8-bit RGB PNG files with zlib and numpy alone."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ctta._core.files import parsing
from ctta.data import sniff

Pixels = NDArray[np.uint8]
LARGEST = 100_000_000
"""Pixels of the largest image read: 300 MB."""


def read_png(path: Path, cure: str = "Use another copy.") -> Pixels:
    """Return the image, H x W x 3. Only 8-bit RGB without interlacing is read: what the CIFAR-10 package holds."""
    sniff.require(path, "png", cure)
    with parsing(f"{path}: a damaged PNG image", cure):
        return decode(path.read_bytes())


def decode(data: bytes) -> Pixels:
    """Decode the bytes of a PNG file; ValueError, IndexError, struct.error or zlib.error when they are damaged."""
    header, packed = b"", []
    position = 8
    while True:
        length, kind = struct.unpack_from(">I4s", data, position)
        body = data[position + 8 : position + 8 + length]
        (crc,) = struct.unpack_from(">I", data, position + 8 + length)
        if zlib.crc32(body, zlib.crc32(kind)) != crc:
            raise ValueError(f"the checksum of its part {kind.decode('ascii', 'replace')} is wrong")
        position += length + 12
        if kind == b"IHDR":
            header = body
        elif kind == b"IDAT":
            packed.append(body)
        elif kind == b"IEND":
            break
    width, height, *form = struct.unpack(">IIBBBBB", header)
    if form != [8, 2, 0, 0, 0]:
        raise ValueError("not 8-bit RGB without interlacing")
    if width * height > LARGEST:
        raise ValueError(f"{width} x {height} pixels are more than {LARGEST:,}")
    size = height * (1 + 3 * width)
    raw = zlib.decompressobj().decompress(b"".join(packed), size + 1)  # a bomb unpacks to far more
    if len(raw) != size:
        raise ValueError(f"{len(raw):,} bytes of pixels for {width} x {height}")
    return _unfilter(np.frombuffer(raw, np.uint8).reshape(height, 1 + 3 * width), width)


def _unfilter(raw: Pixels, width: int) -> Pixels:
    """Undo the row filters. A row depends on the one above, a pixel on its left neighbour (3 bytes back)."""
    height = len(raw)
    pixels = np.empty((height, width, 3), np.uint8)
    above = np.zeros((width, 3), np.uint8)
    for y in range(height):
        line = raw[y, 1:].reshape(width, 3)
        match int(raw[y, 0]):
            case 0:
                pixels[y] = line
            case 1:  # difference to the left: a running sum modulo 256
                np.cumsum(line, axis=0, dtype=np.uint8, out=pixels[y])
            case 2:
                np.add(line, above, out=pixels[y])
            case 3:
                pixels[y] = _average(line, above)
            case 4:
                pixels[y] = _paeth(line, above)
            case other:
                raise ValueError(f"row {y} has the unknown filter {other}")
        above = pixels[y]
    return pixels


def _average(line: Pixels, above: Pixels) -> Pixels:
    """Undo the filter "mean of left and above": sequential along the row, so in plain integers."""
    values, top = line.reshape(-1).tolist(), above.reshape(-1).tolist()
    for i in range(len(values)):
        left = values[i - 3] if i >= 3 else 0
        values[i] = (values[i] + (left + top[i]) // 2) & 255
    return np.array(values, np.uint8).reshape(line.shape)


def _paeth(line: Pixels, above: Pixels) -> Pixels:
    """Undo the Paeth filter: the neighbour nearest to left + above - corner."""
    values, top = line.reshape(-1).tolist(), above.reshape(-1).tolist()
    for i in range(3):
        values[i] = (values[i] + top[i]) & 255
    for i in range(3, len(values)):
        left, up, corner = values[i - 3], top[i], top[i - 3]
        p, q, r = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
        guess = left if p <= q and p <= r else up if q <= r else corner
        values[i] = (values[i] + guess) & 255
    return np.array(values, np.uint8).reshape(line.shape)
