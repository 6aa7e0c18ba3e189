"""Download one file: several sources, resumed, verified, and under its name only when it is whole.

The bytes gather in `NAME.part` beside the target. An interrupted download goes on from there next time when a
checksum is known to catch a part of something else. Of several processes, one downloads and the others wait.

This is not pooch, which begins a broken download of gigabytes anew, knows one source a file, waits for a server
that drips, and takes a web page for a file without a known hash: only the request, one line, would be its own.
"""

from __future__ import annotations

import errno
import http.client
import itertools
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ctta._version import __version__
from ctta.data import drive, sniff
from ctta.data.cache import BLOCK, Digests, Watcher, locked, make_folder, mismatch, silent, writing
from ctta.errors import DataError

DISK = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.EISDIR, errno.EFBIG}
"""Error numbers that speak of our disk, not of the network."""


class SourceError(Exception):
    """One source failed."""


class PassingError(SourceError):
    """One source failed, and may do better in a moment."""


@dataclass(frozen=True)
class Patience:
    """How long to bear with a source: attempts, seconds of silence, seconds to the next attempt (doubling).

    A server that sends fewer than `slowest` bytes a second during `timeout` seconds counts as silent.
    """

    attempts: int = 4
    timeout: float = 30.0
    wait: float = 1.0
    sleep: Callable[[float], None] = time.sleep
    slowest: float = 1000.0


def fetch(
    sources: Sequence[str],
    target: Path,
    *,
    kind: str | None = None,
    known: Digests | None = None,
    progress: Watcher = silent,
    patience: Patience | None = None,
) -> Path:
    """Bring the file to `target` from the first source that has it.

    A source is an http(s) or file:// address, a plain path, or `gdrive:ID`. `kind` is one of `sniff.KINDS`.
    """
    known, failures = known or Digests(), []
    part = Part(target.with_name(target.name + ".part"), kind, known, progress, patience or Patience())
    make_folder(target.parent)
    with locked(target, progress) as waited:
        if waited and known.checksum and target.is_file() and mismatch(target, known, progress) is None:
            return target  # the process we waited for brought it
        for source in sources:
            try:
                part.persist(source)
            except SourceError as error:
                failures.append(f"\n  {source}: {error}.")
                continue
            with writing(f"rename {part.path} to {target.name}"):
                os.replace(part.path, target)
            return target
        if not known.checksum:
            part.path.unlink(missing_ok=True)  # it could not be resumed safely
    where = "its source" if len(sources) == 1 else f"any of its {len(sources)} sources"
    raise DataError(f"Could not get {target.name} from {where}:{''.join(failures)}")


@dataclass(frozen=True)
class Part:
    """The file that gathers, and what is known of the whole."""

    path: Path
    kind: str | None
    known: Digests
    progress: Watcher
    patience: Patience

    def persist(self, source: str) -> None:
        """Fill the file from one source and verify it, trying again while that may help."""
        wait = self.patience.wait
        for left in reversed(range(self.patience.attempts)):
            resumed = self.path.exists()
            try:
                self._fill(source)
                wrong = sniff.problem(sniff.head_of(self.path), self.kind)
                if wrong := wrong or mismatch(self.path, self.known, self.progress):
                    self.path.unlink()  # so that it is never resumed
                    raise SourceError(wrong)
                return
            except SourceError as error:
                # Damage may come from the part an earlier run or another source left: then start afresh at once.
                afresh = resumed and not self.path.exists()
                if not left or not (afresh or isinstance(error, PassingError)):
                    raise
                if not afresh:
                    self.patience.sleep(wait)
                    wait *= 2

    def _fill(self, source: str) -> None:
        """Copy or download one source, telling a disk that refuses, which ends everything, from the network."""
        try:
            if source.startswith("gdrive:"):
                self._download(drive.ADDRESS.format(id=source.removeprefix("gdrive:")), confirm=True)
            elif source.startswith(("http://", "https://")):
                self._download(source)
            else:
                self._copy(local_path(source))
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: no address at all
            if isinstance(error, OSError) and error.errno in DISK:
                with writing(f"write {self.path}", ". What was downloaded so far is kept"):
                    raise
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, TimeoutError):
                raise PassingError("the server fell silent") from error
            # no network or no such host: waiting a few seconds will not bring it
            absent = isinstance(reason, (socket.gaierror, ConnectionRefusedError))
            raise (SourceError if absent else PassingError)(f"no connection ({reason})") from error

    def _copy(self, source: Path) -> None:
        if not source.is_file():
            raise SourceError("there is no such file")
        try:
            file = source.open("rb")
        except OSError as error:
            raise SourceError(f"it cannot be read ({error.strerror})") from error
        with file:
            self._receive(iter(lambda: file.read(BLOCK), b""), 0, source.stat().st_size)

    def _download(self, address: str, *, confirm: bool = False) -> None:
        """Download into the file, from where it ends if it may be resumed. `confirm` answers Drive's question."""
        size = self.known.size
        start = self.path.stat().st_size if self.path.exists() and self.known.checksum else 0
        if size is not None and start >= size:
            return  # complete already: only the check is left
        response = _open(address, start, self.patience.timeout)
        if response is None:
            return  # nothing beyond what we have: the check tells whether that is all
        with response:
            length = str(response.headers.get("Content-Length", ""))
            start = self._continued(response, start, length)
            blocks = self._blocks(response)
            first = _gather(blocks, sniff.HEAD)
            if start == 0 and sniff.sniff(first) == "html":
                page = (first + _gather(blocks, BLOCK)).decode("utf-8", "replace")
                if confirm and (answer := drive.confirmed(page, address)):
                    self._download(answer)
                    return
                expected = sniff.KINDS[self.kind][0] if self.kind else "a file"
                raise SourceError(f"expected {expected}, got a web page{drive.explain(page) if confirm else ''}")
            total = start + int(length) if length.isdigit() else size
            if size is not None and total != size:
                raise SourceError(f"expected {size:,} bytes, the server offers {total:,}")
            if start == 0 and first and (wrong := sniff.problem(first, self.kind)):
                raise SourceError(wrong)
            self._receive(itertools.chain([first], blocks), start, total)

    def _continued(self, response: Any, start: int, length: str) -> int:
        """Return where the answer begins: where we stopped, or at 0; a piece from another place is of no use."""
        if not start or response.status != http.HTTPStatus.PARTIAL_CONTENT:
            return 0
        whole = self.known.size is None or not length.isdigit() or start + int(length) == self.known.size
        if whole and str(response.headers.get("Content-Range", "")).startswith(f"bytes {start}-"):
            return start
        self.path.unlink()
        raise SourceError("the server resumes at another place")

    def _blocks(self, response: Any) -> Iterator[bytes]:
        """Yield the body as it comes, and give up a server that only keeps the connection alive."""
        begun, came, timeout = time.monotonic(), 0, self.patience.timeout
        while block := response.read1(BLOCK):
            yield block
            came += len(block)
            if time.monotonic() - begun > timeout:
                if came < self.patience.slowest * timeout:
                    raise PassingError(f"only {came:,} bytes came in {timeout:.0f} s")
                begun, came = time.monotonic(), 0

    def _receive(self, blocks: Iterable[bytes], start: int, total: int | None) -> None:
        """Write what a source sends behind the first `start` bytes."""
        done = start
        with self.path.open("ab" if start else "wb") as file:
            try:
                for block in blocks:
                    file.write(block)
                    done += len(block)
                    self.progress(f"downloading {self.path.name.removesuffix('.part')}", done, total)
                    if total is not None and done > total:
                        break  # no length was announced, and it may never end
            except (http.client.HTTPException, ConnectionError) as error:
                raise PassingError(f"the connection broke after {done:,} bytes ({error})") from error
        if total is not None and done < total:
            raise PassingError(f"the connection closed after {done:,} of {total:,} bytes")
        if total is not None and done > total:
            self.path.unlink()
            raise SourceError(f"expected {total:,} bytes, the server sends more")


class _WebOnly(urllib.request.HTTPRedirectHandler):
    """Follow redirects to web addresses only: urllib would follow one to ftp as well."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not newurl.startswith(("http://", "https://")):
            fp.close()
            raise SourceError(f"the server leads to {newurl}, which is no web address")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(address: str, start: int, timeout: float) -> Any:
    """Ask for an address from a byte on; return the answer, or None where nothing is left behind that byte."""
    headers = {"User-Agent": f"ctta/{__version__}", "Accept-Encoding": "identity"}
    headers |= {"Range": f"bytes={start}-"} if start else {}
    try:
        request = urllib.request.Request(address, headers=headers)
        return urllib.request.build_opener(_WebOnly).open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            return None
        busy = error.code in (408, 425, 429) or error.code >= 500
        raise (PassingError if busy else SourceError)(
            f"the server answered {error.code} {error.reason}"
        ) from error


def _gather(blocks: Iterator[bytes], least: int) -> bytes:
    """Take blocks until there are enough bytes, or no more."""
    found = b""
    while len(found) < least and (block := next(blocks, b"")):
        found += block
    return found


def local_path(source: str) -> Path:
    """Return the path of a file:// address or a plain path."""
    if source.startswith("file://"):
        return Path(unquote(urlsplit(source).path))
    return Path(source).expanduser()
