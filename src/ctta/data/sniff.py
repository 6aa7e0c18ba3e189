"""What a file is, told from its first bytes: the difference between a tar file and a web page that says sorry."""

from __future__ import annotations

import re
from pathlib import Path

from ctta.errors import DataError

HEAD = 512
"""Bytes needed to tell: a tar file carries its mark at offset 257."""

FORMATS = {
    "gzip": ("a gzip file", rb"\x1f\x8b"),
    "zip": ("a zip file", rb"PK\x03\x04"),
    "npy": ("a .npy array", rb"\x93NUMPY"),
    "png": ("a PNG image", rb"\x89PNG\r\n\x1a\n"),
    "jpeg": ("a JPEG image", rb"\xff\xd8\xff"),
    "lfs": ("a Git LFS pointer instead of the file itself", rb"version https://git-lfs"),
    "pickle": ("a Python pickle", rb"\x80[\x02-\x05]"),
    "tar": ("a tar file", rb"(?s:.{257}ustar)"),
    "html": ("a web page", rb"(?i)[\xef\xbb\xbf \t\r\n]*<(!doctype|html|head|body|!--|\?xml|script|meta|title)"),
    "zeros": ("nothing but zero bytes", rb"\x00+\Z"),
    "text": ("a text file", rb"[\t\r\n -~]+\Z"),
    "empty": ("an empty file", rb"\Z"),
    "unknown": ("bytes of no known format", rb""),
}
"""The name of each format in a sentence, and how its files begin; the first that fits names a file."""

KINDS = {
    "tar": ("a tar file", {"tar", "gzip"}),
    "checkpoint": ("a PyTorch checkpoint", {"zip", "pickle", "tar"}),
    "npy": ("a .npy array", {"npy"}),
    "png": ("a PNG image", {"png"}),
}
"""For each kind we ask for: its name in a sentence, and the formats that pass. A .tar may well be compressed."""


def sniff(head: bytes) -> str:
    r"""Name the format of a file's first bytes.

    >>> sniff(b"  <!DOCTYPE html><title>Quota exceeded</title>"), sniff(b"\x93NUMPY\x01"), sniff(b"")
    ('html', 'npy', 'empty')
    """
    return next(name for name, (_, magic) in FORMATS.items() if re.match(magic, head[:HEAD]))


def head_of(path: Path) -> bytes:
    """Read the first bytes of a file."""
    with path.open("rb") as file:
        return file.read(HEAD)


def problem(head: bytes, kind: str | None) -> str | None:
    """Return "expected a ..., got a ..." where the first bytes do not fit a kind; any bytes fit None."""
    expected, formats = KINDS[kind] if kind else ("", FORMATS.keys())
    found = sniff(head)
    return None if found in formats else f"expected {expected}, got {FORMATS[found][0]}"


def require(path: Path, kind: str, cure: str) -> None:
    """Refuse a file whose first bytes are not of the kind, saying what it is instead and how to mend it."""
    if not path.is_file():
        raise DataError(f"There is no file {path}. {cure}")
    if wrong := problem(head_of(path), kind):
        raise DataError(f"{path}: {wrong}. {cure}")


def read_bytes(path: Path, cure: str, expected: str | None = None) -> bytes:
    """Read a whole file. Where binary data are `expected`, refuse what is clearly none of any kind."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}. {cure}") from error
    if expected and (found := sniff(data)) in ("html", "lfs", "empty", "zeros", "text", "gzip", "zip", "tar"):
        raise DataError(f"{path}: expected {expected}, got {FORMATS[found][0]}. {cure}")
    return data
