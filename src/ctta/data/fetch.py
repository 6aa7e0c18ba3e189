"""Download one file: several sources, resumed, verified, and under its name only when it is whole.

The bytes gather in `NAME.part` beside the target. An interrupted download leaves that file and goes on from it
next time (HTTP Range) when a checksum is known to catch a part of something else; the final name appears only by a
rename after size and checksum fit. Of several processes that want one file, one downloads and the others wait.
"""

from __future__ import annotations

import errno
import http.client
import itertools
import os
import shutil
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
from ctta.data.cache import BLOCK, Digests, Progress, locked, make_folder, mismatch, silent
from ctta.errors import DataError

AGENT = f"ctta/{__version__}"

DISK = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.EISDIR, errno.EFBIG}
"""Error numbers that speak of our disk, not of the network."""


class SourceError(Exception):
    """One source failed. `again` says whether the same source may do better in a moment."""

    def __init__(self, reason: str, *, again: bool = False) -> None:
        super().__init__(reason)
        self.again = again


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
    progress: Progress = silent,
    patience: Patience | None = None,
    cure: str = "",
) -> Path:
    """Bring the file to `target` from the first source that has it.

    A source is an http(s) or file:// address, a plain path, or `gdrive:ID`. `kind` is one of `sniff.KINDS`.
    """
    known, patience = known or Digests(), patience or Patience()
    make_folder(target.parent)
    with locked(target, progress) as waited:
        if waited and known.checksum and target.is_file() and mismatch(target, known, progress) is None:
            return target  # the process we waited for brought it
        return _from_any(sources, target, kind, known, progress, patience, cure)


def _from_any(
    sources: Sequence[str],
    target: Path,
    kind: str | None,
    known: Digests,
    progress: Progress,
    patience: Patience,
    cure: str,
) -> Path:
    """Try one source after the other; only one process does this for a target at a time."""
    part = target.with_name(target.name + ".part")
    failures = []
    for source in sources:
        try:
            _persist(source, part, kind, known, progress, patience)
        except SourceError as error:
            failures.append(f"\n  {source}: {error}.")
            continue
        try:
            os.replace(part, target)
        except OSError as error:
            raise DataError(
                f"Could not rename {part} to {target.name}: {error.strerror}. {cure}".rstrip()
            ) from error
        return target
    if not known.checksum:
        part.unlink(missing_ok=True)  # it could not be resumed safely
    where = "its source" if len(sources) == 1 else f"any of its {len(sources)} sources"
    raise DataError(f"Could not get {target.name} from {where}:{''.join(failures)}\n{cure}".rstrip())


def _persist(
    source: str, part: Path, kind: str | None, known: Digests, progress: Progress, patience: Patience
) -> None:
    """Fill the part file from one source and verify it, trying again while that may help."""
    wait = patience.wait
    for attempt in range(patience.attempts):
        resumed = part.exists()
        try:
            try:
                _fill(source, part, kind, known, progress, patience)
            except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: no address at all
                raise _disk_or_network(error, part) from error
            _check(part, kind, known, progress)
        except SourceError as error:
            # Damage may come from the part an earlier run or another source left: then start afresh at once.
            damaged = not part.exists()
            if attempt + 1 == patience.attempts or not (error.again or (resumed and damaged)):
                raise
            if not damaged or not resumed:
                patience.sleep(wait)
                wait *= 2
        else:
            return


def _disk_or_network(error: Exception, part: Path) -> SourceError | DataError:
    """Tell a disk that refuses, which ends everything, from a network that may recover."""
    if isinstance(error, OSError) and error.errno in DISK:
        return DataError(
            f"Could not write {part}: {error.strerror}. What was downloaded so far is kept; make room or choose "
            "another data folder with --cache or CTTA_DATA, then run the same command."
        )
    reason = getattr(error, "reason", None) or error
    if isinstance(reason, TimeoutError):
        return SourceError("the server fell silent", again=True)
    # no network or no such host: waiting a few seconds will not bring it
    absent = isinstance(reason, (socket.gaierror, ConnectionRefusedError))
    return SourceError(f"no connection ({reason})", again=not absent)


def _check(part: Path, kind: str | None, known: Digests, progress: Progress) -> None:
    """Refuse a finished part that is not the file; what is wrong is removed, so that it is never resumed."""
    head = sniff.head_of(part)
    problem = None
    if not sniff.fits(head, kind):
        problem = f"expected {sniff.KINDS[kind or ''][0]}, got {sniff.spoken(head)}"
    problem = problem or mismatch(part, known, progress)
    if problem:
        part.unlink()
        raise SourceError(problem)


def _fill(
    source: str, part: Path, kind: str | None, known: Digests, progress: Progress, patience: Patience
) -> None:
    """Copy or download one source into the part file."""
    if source.startswith("gdrive:"):
        _download(drive.address(source), part, kind, known, progress, patience, confirm=True)
    elif source.startswith(("http://", "https://")):
        _download(source, part, kind, known, progress, patience)
    else:
        _copy(local_path(source), part, progress)


def local_path(source: str) -> Path:
    """Return the path of a file:// address or a plain path."""
    if source.startswith("file://"):
        return Path(unquote(urlsplit(source).path))
    return Path(source).expanduser()


def _copy(path: Path, part: Path, progress: Progress) -> None:
    if not path.is_file():
        raise SourceError("there is no such file")
    total, done = path.stat().st_size, 0
    try:
        file = path.open("rb")
    except OSError as error:
        raise SourceError(f"it cannot be read ({error.strerror})") from error
    with file, part.open("wb") as copy:
        while block := file.read(BLOCK):
            copy.write(block)
            done += len(block)
            progress(f"copying {path.name}", done, total)


def _download(
    address: str,
    part: Path,
    kind: str | None,
    known: Digests,
    progress: Progress,
    patience: Patience,
    *,
    confirm: bool = False,
    resume: bool = True,
) -> None:
    """Download into the part file, from where it ends if it may be resumed."""
    start = part.stat().st_size if resume and part.exists() and known.checksum else 0
    if known.size is not None and start >= known.size:
        return  # complete already: only the check is left
    request = urllib.request.Request(address, headers={"User-Agent": AGENT, "Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response = _open(request, patience.timeout)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            error.close()
            return  # nothing beyond what we have: the check tells whether that is all
        again = error.code in (408, 425, 429) or error.code >= 500
        error.close()
        raise SourceError(f"the server answered {error.code} {error.reason}", again=again) from error
    with response:
        if start and not _continues(response, start, known):
            start = 0
            if response.status == http.HTTPStatus.PARTIAL_CONTENT:  # a piece from another place: ask for the whole
                response.close()
                _download(address, part, kind, known, progress, patience, confirm=confirm, resume=False)
                return
        blocks = _blocks(response, patience)
        first = b""
        while len(first) < sniff.HEAD and (block := next(blocks, b"")):
            first += block
        if sniff.sniff(first[: sniff.HEAD]) == "html" and start == 0:
            page = _page(first, blocks)
            _follow_page(page, address, part, kind, known, progress, patience, confirm=confirm)
            return
        total = _total(response, start, known)
        if start == 0 and first and not sniff.fits(first[: sniff.HEAD], kind):
            raise SourceError(f"expected {sniff.KINDS[kind or ''][0]}, got {sniff.spoken(first[: sniff.HEAD])}")
        _receive(itertools.chain([first], blocks), part, start, total, progress)


class _WebOnly(urllib.request.HTTPRedirectHandler):
    """Follow redirects to web addresses only: urllib would follow one to ftp as well."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.startswith(("http://", "https://")):
            fp.close()
            raise SourceError(f"the server leads to {newurl}, which is no web address")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(request: urllib.request.Request, timeout: float) -> Any:
    """Send the request and return the answer, its body still to be read."""
    return urllib.request.build_opener(_WebOnly).open(request, timeout=timeout)


def _blocks(response: Any, patience: Patience) -> Iterator[bytes]:
    """Yield the body as it comes, and give up a server that only keeps the connection alive."""
    begun, came = time.monotonic(), 0
    while block := response.read1(BLOCK):
        yield block
        came += len(block)
        if time.monotonic() - begun > patience.timeout:
            if came < patience.slowest * patience.timeout:
                raise SourceError(f"only {came:,} bytes came in {patience.timeout:.0f} s", again=True)
            begun, came = time.monotonic(), 0


def _page(first: bytes, blocks: Iterator[bytes]) -> str:
    """Read a web page, at most a block of it."""
    page = first
    while len(page) < BLOCK and (block := next(blocks, b"")):
        page += block
    return page.decode("utf-8", "replace")


def _follow_page(
    page: str,
    address: str,
    part: Path,
    kind: str | None,
    known: Digests,
    progress: Progress,
    patience: Patience,
    *,
    confirm: bool,
) -> None:
    """Pass Google Drive's question about large files; any other page is a failure of the source."""
    if confirm and (answer := drive.confirmed(page, address)):
        _download(answer, part, kind, known, progress, patience)
        return
    expected = sniff.KINDS[kind][0] if kind else "a file"
    hint = drive.explain(page) if confirm else ""
    raise SourceError(f"expected {expected}, got a web page{hint}")


def _continues(response: Any, start: int, known: Digests) -> bool:
    """Say whether the server goes on where we stopped, and to the end; a plain 200 starts from the beginning."""
    sent = str(response.headers.get("Content-Range", ""))
    length = str(response.headers.get("Content-Length", ""))
    fits = known.size is None or not length.isdigit() or start + int(length) == known.size
    return response.status == http.HTTPStatus.PARTIAL_CONTENT and sent.startswith(f"bytes {start}-") and fits


def _total(response: Any, start: int, known: Digests) -> int | None:
    """Return the size of the whole file, refusing a wrong one before anything is downloaded."""
    length = response.headers.get("Content-Length")
    total = start + int(length) if length and length.isdigit() else None
    if total is not None and known.size is not None and total != known.size:
        raise SourceError(f"expected {known.size:,} bytes, the server offers {total:,}")
    return total if total is not None else known.size


def _receive(blocks: Iterable[bytes], part: Path, start: int, total: int | None, progress: Progress) -> None:
    """Write what the server sends behind the first `start` bytes."""
    name = part.name.removesuffix(".part")
    done = start
    with part.open("ab" if start else "wb") as file:
        try:
            for block in blocks:
                file.write(block)
                done += len(block)
                progress(f"downloading {name}", done, total)
                if total is not None and done > total:
                    break  # no length was announced, and it may never end
        except (http.client.HTTPException, ConnectionError) as error:
            raise SourceError(f"the connection broke after {done:,} bytes ({error})", again=True) from error
    if total is not None and done > total:
        part.unlink()
        raise SourceError(f"expected {total:,} bytes, the server sends more")
    if total is not None and done < total:
        raise SourceError(f"the connection closed after {done:,} of {total:,} bytes", again=True)


def free_space(folder: Path) -> int:
    """Return the free bytes of the disk that holds a folder, or its nearest parent that exists."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
