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
    "jpeg": ("a JPEG image", {"jpeg"}),
    "pickle": ("a Python pickle", {"pickle"}),
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

_MAGIC = (
    (b"\x1f\x8b", "gzip"),
    (b"PK\x03\x04", "zip"),
    (b"\x93NUMPY", "npy"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"version https://git-lfs", "lfs"),
    (b"\x80\x02", "pickle"),
    (b"\x80\x03", "pickle"),
    (b"\x80\x04", "pickle"),
    (b"\x80\x05", "pickle"),
)


def sniff(head: bytes) -> str:
    r"""Name the format of a file's first bytes.

    >>> sniff(b"  <!DOCTYPE html><title>Quota exceeded</title>"), sniff(b"\x93NUMPY\x01"), sniff(b"")
    ('html', 'npy', 'empty')
    """
    if not head:
        return "empty"
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    if head[257:262] == b"ustar":
        return "tar"
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if re.match(rb"<(!doctype|html|head|body|!--|\?xml|script|meta|title)", start):
        return "html"
    if not head.strip(b"\0"):
        return "zeros"
    if all(byte in b"\t\r\n" or 32 <= byte < 127 for byte in head):
        return "text"
    return "unknown"


def head_of(path: Path) -> bytes:
    """Read the first bytes of a file."""
    with path.open("rb") as file:
        return file.read(HEAD)


def fits(head: bytes, kind: str | None) -> bool:
    """Say whether a file's first bytes can be those of a kind; any bytes fit None."""
    return kind is None or sniff(head) in KINDS[kind][1]


def spoken(head: bytes) -> str:
    """Describe a file's first bytes for a sentence."""
    return SPOKEN[sniff(head)]


def require(path: Path, kind: str, cure: str) -> None:
    """Refuse a file whose first bytes are not of the kind, saying what it is instead and how to mend it."""
    if not path.is_file():
        raise DataError(f"There is no file {path}. {cure}")
    head = head_of(path)
    if not fits(head, kind):
        raise DataError(f"{path}: expected {KINDS[kind][0]}, got {spoken(head)}. {cure}")
