"""What a file is, told from its first bytes: the difference between a tar file and a web page that says sorry."""

from __future__ import annotations

import re
from pathlib import Path

from ctta.errors import DataError

HEAD = 512
"""Bytes needed to tell: a tar file carries its mark at offset 257."""

KINDS = {
    "tar": ("a tar file", {"tar", "gzip"}),
    "checkpoint": ("a PyTorch checkpoint", {"zip", "pickle", "tar"}),
    "npy": ("a .npy array", {"npy"}),
    "png": ("a PNG image", {"png"}),
}
"""For each kind we ask for: its name in a sentence, and the formats that pass. A .tar may well be compressed."""

SPOKEN = {
    "html": "a web page",
    "lfs": "a Git LFS pointer instead of the file itself",
    "gzip": "a gzip file",
    "zip": "a zip file",
    "tar": "a tar file",
    "npy": "a .npy array",
    "png": "a PNG image",
    "jpeg": "a JPEG image",
    "pickle": "a Python pickle",
    "text": "a text file",
    "zeros": "nothing but zero bytes",
    "empty": "an empty file",
    "unknown": "bytes of no known format",
}

MAGIC = {
    "gzip": rb"\x1f\x8b",
    "zip": rb"PK\x03\x04",
    "npy": rb"\x93NUMPY",
    "png": rb"\x89PNG\r\n\x1a\n",
    "jpeg": rb"\xff\xd8\xff",
    "lfs": rb"version https://git-lfs",
    "pickle": rb"\x80[\x02-\x05]",
    "tar": rb"(?s:.{257}ustar)",
    "html": rb"(?i)[\xef\xbb\xbf \t\r\n]*<(!doctype|html|head|body|!--|\?xml|script|meta|title)",
    "zeros": rb"\x00+\Z",
    "text": rb"[\t\r\n -~]+\Z",
    "empty": rb"\Z",
}
"""How a file of each format begins; the first that fits names it."""


def sniff(head: bytes) -> str:
    r"""Name the format of a file's first bytes.

    >>> sniff(b"  <!DOCTYPE html><title>Quota exceeded</title>"), sniff(b"\x93NUMPY\x01"), sniff(b"")
    ('html', 'npy', 'empty')
    """
    return next((name for name, magic in MAGIC.items() if re.match(magic, head[:HEAD])), "unknown")


def head_of(path: Path) -> bytes:
    """Read the first bytes of a file."""
    with path.open("rb") as file:
        return file.read(HEAD)


def fits(head: bytes, kind: str | None) -> bool:
    """Say whether a file's first bytes can be those of a kind; any bytes fit None."""
    return kind is None or sniff(head) in KINDS[kind][1]


def problem(head: bytes, kind: str | None) -> str | None:
    """Return "expected a ..., got a ..." where the first bytes do not fit a kind, else None."""
    return None if kind is None or fits(head, kind) else f"expected {KINDS[kind][0]}, got {SPOKEN[sniff(head)]}"


def require(path: Path, kind: str, cure: str) -> None:
    """Refuse a file whose first bytes are not of the kind, saying what it is instead and how to mend it."""
    if not path.is_file():
        raise DataError(f"There is no file {path}. {cure}")
    if wrong := problem(head_of(path), kind):
        raise DataError(f"{path}: {wrong}. {cure}")


def read_bytes(path: Path, cure: str) -> bytes:
    """Read a whole file, or say why it cannot be."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}. {cure}") from error
