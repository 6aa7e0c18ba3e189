"""Downloads that fail in every way the network knows, and damaged files in place of every kind of data file."""

import functools
import hashlib
import http.server
import io
import itertools
import pickle
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ctta.data import (
    Plan,
    cache,
    check,
    cifar,
    cifar10,
    cifar10_c,
    drive,
    embedded_sample,
    get,
    make,
    npm,
    read_ids,
    sample,
)
from ctta.data.cache import Digests
from ctta.data.catalogue import Archive, Entry
from ctta.data.fetch import Patience, fetch
from ctta.data.pixels import read_image
from ctta.errors import DataError

PAGE = b"<!DOCTYPE html><html><title>Sign in</title><body>Please sign in to continue</body></html>"
QUICK = Patience(attempts=3, timeout=10.0, wait=0.0, sleep=lambda seconds: None)


class Site(http.server.ThreadingHTTPServer):
    """A server on the loopback whose paths misbehave as told; `asked` records path and Range of every request."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages, self.asked = {}, []

    def address(self, path):
        return f"http://127.0.0.1:{self.server_port}{path}"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        span = self.headers.get("Range")
        self.server.asked.append((self.path, span))
        answer = self.server.pages.get(self.path.partition("?")[0])
        if answer is None:
            self.send_error(404)
            return
        answer(self, int(re.match(r"bytes=(\d+)-", span)[1]) if span else None)


def whole(data, kind="application/octet-stream"):
    """Serve bytes properly, ranges included."""

    def answer(handler, start):
        if start is not None and start >= len(data):
            handler.send_error(416)
            return
        part = data[start or 0 :]
        handler.send_response(206 if start is not None else 200)
        if start is not None:
            handler.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(part)))
        handler.end_headers()
        handler.wfile.write(part)

    return answer


def cut(data, after, times=1):
    """Close the connection after some bytes, the first `times` times; then serve properly."""
    left = [times]

    def answer(handler, start):
        if left[0] == 0:
            whole(data)(handler, start)
            return
        left[0] -= 1
        part = data[start or 0 :]
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        handler.send_header("Content-Length", str(len(part)))
        handler.end_headers()
        handler.wfile.write(part[:after])
        handler.wfile.flush()
        handler.connection.close()

    return answer


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Site()
    thread = threading.Thread(target=functools.partial(server.serve_forever, poll_interval=0.01))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def tar_of(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


DATA = tar_of({"folder/one.bin": np.random.default_rng(0).bytes(400_000)})


def known(data):
    return Digests(len(data), hashlib.md5(data).hexdigest(), hashlib.sha256(data).hexdigest())


def bring(tmp_path, *sources, facts=None, kind="tar", patience=QUICK, **options):
    return fetch(
        sources, tmp_path / "file.tar", kind=kind, known=facts or known(DATA), patience=patience, **options
    )


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_download_is_verified_renamed_and_reports_its_progress(site, tmp_path):
    site.pages["/a"] = whole(DATA)
    seen = []
    path = bring(tmp_path, site.address("/a"), progress=lambda *row: seen.append(row))
    assert path.read_bytes() == DATA
    assert names(tmp_path) == ["file.tar"]
    assert ("downloading file.tar", len(DATA), len(DATA)) in seen


def test_a_cut_connection_is_resumed_where_it_broke(site, tmp_path):
    site.pages["/a"] = cut(DATA, 150_000, times=2)
    assert bring(tmp_path, site.address("/a")).read_bytes() == DATA
    assert site.asked == [("/a", None), ("/a", "bytes=150000-"), ("/a", "bytes=300000-")]


def test_an_interrupted_download_leaves_only_the_part_and_the_next_run_goes_on(site, tmp_path):
    site.pages["/a"] = whole(DATA)

    def interrupt(what, done, total):
        if done > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bring(tmp_path, site.address("/a"), progress=interrupt)
    assert names(tmp_path) == ["file.tar.part"]
    kept = (tmp_path / "file.tar.part").stat().st_size
    assert 100_000 < kept < len(DATA)
    assert bring(tmp_path, site.address("/a")).read_bytes() == DATA
    assert site.asked[-1] == ("/a", f"bytes={kept}-")
    assert names(tmp_path) == ["file.tar"]


def test_a_server_that_ignores_ranges_is_read_from_the_start(site, tmp_path):
    (tmp_path / "file.tar.part").write_bytes(DATA[:1000])
    site.pages["/a"] = lambda handler, start: whole(DATA)(handler, None)
    assert bring(tmp_path, site.address("/a")).read_bytes() == DATA


def test_a_part_of_another_file_is_thrown_away_and_the_download_starts_afresh(site, tmp_path):
    (tmp_path / "file.tar.part").write_bytes(b"x" * 1000)
    site.pages["/a"] = whole(DATA)
    assert bring(tmp_path, site.address("/a")).read_bytes() == DATA
    assert [span for _, span in site.asked] == ["bytes=1000-", None]


def test_a_part_longer_than_the_file_is_thrown_away(site, tmp_path):
    (tmp_path / "file.tar.part").write_bytes(DATA + b"x")
    site.pages["/a"] = whole(DATA)
    facts = Digests(md5=known(DATA).md5)  # size unknown: the server says 416
    assert bring(tmp_path, site.address("/a"), facts=facts).read_bytes() == DATA


def test_without_a_checksum_nothing_is_resumed_and_nothing_left(site, tmp_path):
    (tmp_path / "file.tar.part").write_bytes(DATA[:1000])
    site.pages["/a"] = cut(DATA, 5000, times=9)
    with pytest.raises(DataError, match="connection closed after 5,000 of"):
        bring(tmp_path, site.address("/a"), facts=Digests())
    assert {span for _, span in site.asked} == {None}
    assert names(tmp_path) == []


def test_a_web_page_in_place_of_the_file(site, tmp_path):
    site.pages["/a"] = whole(PAGE, "text/html")
    with pytest.raises(DataError, match=r"/a: expected a tar file, got a web page") as caught:
        bring(tmp_path, site.address("/a"))
    assert "file.tar" in str(caught.value)
    assert names(tmp_path) == []
    assert len(site.asked) == 1  # asking again would not help


def test_a_web_page_does_not_destroy_what_was_downloaded_before(site, tmp_path):
    (tmp_path / "file.tar.part").write_bytes(DATA[:1000])
    site.pages["/a"] = lambda handler, start: whole(PAGE)(handler, None)
    with pytest.raises(DataError, match="got a web page"):
        bring(tmp_path, site.address("/a"))
    assert (tmp_path / "file.tar.part").read_bytes() == DATA[:1000]


def test_wrong_size_is_refused_before_the_download(site, tmp_path):
    site.pages["/a"] = whole(DATA[:-512])
    with pytest.raises(DataError, match=rf"expected {len(DATA):,} bytes, the server offers {len(DATA) - 512:,}"):
        bring(tmp_path, site.address("/a"))
    assert names(tmp_path) == []


def test_wrong_checksum_is_refused_and_nothing_kept(site, tmp_path):
    flipped = bytearray(DATA)
    flipped[200_000] ^= 1
    site.pages["/a"] = whole(bytes(flipped))
    with pytest.raises(
        DataError, match=f"expected SHA256 {known(DATA).sha256}, got {hashlib.sha256(flipped).hexdigest()}"
    ):
        bring(tmp_path, site.address("/a"))
    assert names(tmp_path) == []


def test_the_second_source_serves_when_the_first_fails(site, tmp_path):
    site.pages["/b"] = whole(DATA)
    assert bring(tmp_path, site.address("/gone"), site.address("/b")).read_bytes() == DATA
    assert [path for path, _ in site.asked] == ["/gone", "/b"]


def test_when_all_sources_fail_each_is_named_with_its_reason(site, tmp_path):
    site.pages["/page"] = whole(PAGE)
    with pytest.raises(DataError) as caught:
        bring(tmp_path, site.address("/gone"), site.address("/page"), str(tmp_path / "none.tar"))
    text = str(caught.value)
    assert "any of its 3 sources" in text
    assert "/gone: the server answered 404" in text
    assert "/page: expected a tar file, got a web page" in text
    assert "none.tar: there is no such file" in text


def test_a_busy_server_is_asked_again(site, tmp_path):
    answers = [lambda handler, start: handler.send_error(503), whole(DATA)]
    waits = []
    site.pages["/a"] = lambda *request: answers.pop(0)(*request)  # noqa: PLW0108 - another one each time
    patience = Patience(attempts=3, timeout=1, wait=0.5, sleep=waits.append)
    assert bring(tmp_path, site.address("/a"), patience=patience).read_bytes() == DATA
    assert waits == [0.5]


def test_a_silent_server_is_given_up_after_the_timeout(site, tmp_path):
    ended = threading.Event()

    def silent(handler, start):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(DATA)))
        handler.end_headers()
        handler.wfile.write(DATA[:1000])
        handler.wfile.flush()
        ended.wait(60)

    site.pages["/a"] = silent
    begun = time.monotonic()
    with pytest.raises(DataError, match="the server fell silent"):
        bring(tmp_path, site.address("/a"), patience=Patience(2, 0.5, 0, lambda seconds: None))
    ended.set()
    assert time.monotonic() - begun < 30
    assert names(tmp_path) == ["file.tar.part"]


def test_a_slow_server_is_borne_with(site, tmp_path):
    def slow(handler, start):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(DATA)))
        handler.end_headers()
        part = len(DATA) // 50
        for place in range(0, len(DATA), part):
            handler.wfile.write(DATA[place : place + part])
            handler.wfile.flush()
            time.sleep(0.025)

    site.pages["/a"] = slow
    begun, timeout = time.monotonic(), 1.0
    patience = Patience(1, timeout, 0, lambda seconds: None)
    assert bring(tmp_path, site.address("/a"), patience=patience).read_bytes() == DATA
    assert time.monotonic() - begun > timeout, "the timeout is for silence, not for the whole"
    assert len(site.asked) == 1


def piece(start, data, *, length=True):
    """Answer with status 206 as if from `start`, whatever was asked for."""

    def answer(handler, asked):
        if asked is None:
            whole(DATA)(handler, None)
            return
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {start}-{len(DATA) - 1}/{len(DATA)}")
        if length:
            handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        piece(1000, DATA),
        piece(1000, DATA, length=False),
        piece(0, DATA),
        piece(500, DATA[500:]),
        piece(500, DATA[1000:]),
    ],
    ids=["whole", "whole without length", "from 0", "from before", "a wrong range"],
)
def test_a_server_that_resumes_wrongly_is_asked_for_the_whole_file(site, tmp_path, answer):
    (tmp_path / "file.tar.part").write_bytes(DATA[:1000])
    site.pages["/a"] = answer
    assert bring(tmp_path, site.address("/a")).read_bytes() == DATA
    assert [span for _, span in site.asked] == ["bytes=1000-", None]


def endless(handler, start):
    """Send chunks until nobody listens, at most 60 MB; `site.pages["sent"]` counts them."""
    handler.protocol_version = "HTTP/1.1"
    handler.close_connection = True
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    try:
        for block in [DATA, *[bytes(100_000)] * 600]:
            handler.wfile.write(b"%x\r\n%b\r\n" % (len(block), block))
        handler.server.ended = True
    except OSError:
        pass


def test_a_chunked_answer_is_cut_off_once_past_the_known_size(site, tmp_path):
    site.pages["/a"], site.ended = endless, False
    seen = []
    with pytest.raises(DataError, match=f"expected {len(DATA):,} bytes, the server sends more"):
        bring(tmp_path, site.address("/a"), progress=lambda what, done, total: seen.append(done))
    assert max(seen) < len(DATA) + 2 * cache.BLOCK
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "begin", [b"", DATA[:1000], PAGE], ids=["from the first byte", "in the file", "in a page"]
)
def test_one_byte_now_and_then_does_not_keep_a_download_alive(site, tmp_path, begin):
    ended = threading.Event()

    def drip(handler, start):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(DATA)))
        handler.end_headers()
        handler.wfile.write(begin)
        while not ended.wait(0.02):
            handler.wfile.write(b" ")
            handler.wfile.flush()

    site.pages["/a"] = drip
    begun = time.monotonic()
    with pytest.raises(DataError, match="bytes came in|fell silent"):  # silent: a machine too busy to drip
        bring(tmp_path, site.address("/a"), patience=Patience(1, 0.2, 0, slowest=10_000))
    ended.set()
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize("place", ["ftp://127.0.0.1:9/file.tar", "file:///etc/hostname"])
def test_a_redirect_leads_to_web_addresses_only(site, tmp_path, place):
    def moved(handler, start):
        handler.send_response(302)
        handler.send_header("Location", place)
        handler.end_headers()

    site.pages["/a"] = moved
    with pytest.raises(DataError, match=r"leads to (ftp|file).*no web address|302 .*not allowed"):
        bring(tmp_path, site.address("/a"))
    site.pages["/b"], site.pages["/a"] = whole(DATA), moved
    place = site.address("/b")
    assert bring(tmp_path, site.address("/a")).read_bytes() == DATA


FETCH = """
import sys
from pathlib import Path
from ctta.data.cache import Digests
from ctta.data.fetch import fetch
for line in sys.stdin:
    address, target, size, md5 = line.split()
    fetch([address], Path(target), kind="tar", known=Digests(int(size) or None, md5 if int(size) else None))
    print("done", flush=True)
"""


@pytest.fixture(scope="module")
def other_process():
    """A process that fetches what it is told, line by line."""
    code = [sys.executable, "-c", FETCH]
    with subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("checked", [True, False], ids=["with a checksum", "without a checksum"])
def test_two_processes_that_fetch_one_file_both_get_it_whole(site, tmp_path, other_process, checked):
    """Without a checksum each gets another file: a mixture of both would show."""
    other = tar_of({"folder/one.bin": np.random.default_rng(9).bytes(400_000)})
    turns = itertools.cycle([DATA] if checked else [DATA, other])
    site.pages["/a"] = lambda *request: whole(next(turns))(*request)  # noqa: PLW0108 - another each time
    facts = f"{len(DATA)} {known(DATA).md5}" if checked else "0 -"
    for turn in range(12):  # the first waits for the other process to start: in the others both begin at once
        target = tmp_path / str(turn) / "file.tar"
        print(site.address("/a"), target, facts, file=other_process.stdin, flush=True)
        fetch([site.address("/a")], target, kind="tar", known=known(DATA) if checked else None)
        assert other_process.stdout.readline() == "done\n"
        assert target.read_bytes() in (DATA, other)
        assert names(target.parent) == ["file.tar"]


def test_a_process_that_dies_holds_nobody_up_and_its_part_is_resumed(site, tmp_path):
    """The lock goes with its owner, and only with it."""
    site.pages["/a"] = whole(DATA)
    target = tmp_path / "file.tar"
    target.with_name("file.tar.part").write_bytes(DATA[:1000])
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print('held', flush=True); input()"
    owner = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / ".file.tar.lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdout.readline() == b"held\n"
    seen = []

    def end_it(what, done, total):
        seen.append(what)
        owner.kill()

    assert bring(tmp_path, site.address("/a"), progress=end_it).read_bytes() == DATA
    owner.communicate()
    assert seen[0] == "waiting for another process that brings file.tar"
    assert [span for _, span in site.asked] == ["bytes=1000-"]
    assert names(tmp_path) == ["file.tar"]


def test_no_server_at_all(tmp_path):
    with pytest.raises(DataError, match="no connection"):
        bring(tmp_path, "http://127.0.0.1:9/file.tar")


def test_own_files_and_file_addresses_are_sources(tmp_path):
    mine = tmp_path / "my copy.tar"
    mine.write_bytes(DATA)
    for source in (str(mine), mine.as_uri()):
        target = tmp_path / "cache"
        assert fetch([source], target / "file.tar", known=known(DATA), kind="tar").read_bytes() == DATA
    mine.write_bytes(PAGE)
    with pytest.raises(DataError, match="expected a tar file, got a web page"):
        fetch([str(mine)], tmp_path / "cache" / "other.tar", known=known(DATA), kind="tar")


def test_a_disk_that_refuses_ends_the_download_with_a_cure(site, tmp_path, monkeypatch):
    site.pages["/a"] = whole(DATA)
    real = Path.open

    def full(self, mode="r", *rest, **options):
        if "w" in mode or "a" in mode:
            raise OSError(28, "No space left on device")
        return real(self, mode, *rest, **options)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(DataError, match=r"No space left on device.*make room"):
        bring(tmp_path, site.address("/a"))


CONFIRM = """<html><head><title>Google Drive - Virus scan warning</title></head><body>
<form id="download-form" action="/download" method="get">
<input type="hidden" name="id" value="ABC"><input type="hidden" name="export" value="download">
<input type="hidden" name="confirm" value="t"><input type="hidden" name="uuid" value="1-2">
<input type="submit" value="Download anyway"></form></body></html>"""


def test_drives_question_about_large_files_is_answered(site, tmp_path, monkeypatch):
    checkpoint = b"PK\x03\x04" + DATA

    def answer(handler, start):
        page = whole(CONFIRM.encode(), "text/html")
        (whole(checkpoint) if "uuid=1-2" in handler.path else page)(handler, start)

    site.pages["/uc"] = site.pages["/download"] = answer
    monkeypatch.setattr(drive, "ADDRESS", site.address("/uc?export=download&id={id}"))
    path = bring(tmp_path, "gdrive:ABC", facts=known(checkpoint), kind="checkpoint")
    assert path.read_bytes() == checkpoint
    assert [asked for asked, _ in site.asked] == [
        "/uc?export=download&id=ABC",
        "/download?id=ABC&export=download&confirm=t&uuid=1-2",
    ]


def test_drives_used_up_quota_is_told(site, tmp_path, monkeypatch):
    site.pages["/uc"] = whole(b"<html><title>Google Drive - Quota exceeded</title></html>", "text/html")
    monkeypatch.setattr(drive, "ADDRESS", site.address("/uc?id={id}"))
    with pytest.raises(
        DataError, match=r"expected a PyTorch checkpoint, got a web page \(the file's download quota"
    ):
        bring(tmp_path, "gdrive:ABC", kind="checkpoint")


def test_a_confirm_page_cannot_lead_to_another_site():
    page = CONFIRM.replace('action="/download"', 'action="https://evil.example.com/download"')
    assert drive.confirmed(page, "https://drive.google.com/uc?id=ABC") is None
    good = CONFIRM.replace('action="/download"', 'action="https://drive.usercontent.google.com/download"')
    assert drive.confirmed(good, "https://drive.google.com/uc?id=ABC").startswith(
        "https://drive.usercontent.google"
    )
    link = '<a href="/uc?export=download&amp;confirm=AbC1&amp;id=XYZ">Download anyway</a>'
    assert drive.confirmed(link, "https://drive.google.com/uc?id=XYZ").endswith("confirm=AbC1&id=XYZ")
    assert drive.confirmed(PAGE.decode(), "https://drive.google.com/uc?id=XYZ") is None


# --- get: download and unpack -----------------------------------------------------------------------------------


ONE = np.random.default_rng(1).bytes(5000)


def entry_of(data, *sources, member=ONE):
    facts = Digests(len(member), hashlib.md5(member).hexdigest())
    archive = Archive("set.tar", sources, "Set", known(data), members={"one.bin": facts})
    return Entry("set", "a set", "5 kB", ((archive,),), "none", "nobody")


def test_get_unpacks_once_and_removes_the_archive(site, tmp_path):
    data = tar_of({"Top/one.bin": ONE, "Top/readme.txt": b"hello", "../evil": b"x"})
    site.pages["/set.tar"] = whole(data)
    entry = entry_of(data, site.address("/set.tar"))
    for _ in range(2):
        assert get(entry, cache=tmp_path) == [tmp_path / "Set"]
    assert len(site.asked) == 1
    assert (tmp_path / "Set" / "one.bin").read_bytes() == ONE
    assert names(tmp_path) == ["Set", "downloads"]
    assert names(tmp_path / "Set") == ["one.bin"]
    assert names(tmp_path / "downloads") == []
    assert [item.state for item in check(entry, tmp_path)] == ["ok"]


def tar_with(*members):
    """A tar of (name, type, link) members, each with the content that is wanted where it is a file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.devmajor, info.devminor = kind, link, 1, 5
            info.size = len(ONE) if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(ONE) if info.size else None)
    return buffer.getvalue()


HOSTILE = {
    "above": ("../one.bin", tarfile.REGTYPE, ""),
    "above in the middle": ("Top/../../one.bin", tarfile.REGTYPE, ""),
    "absolute": ("/one.bin", tarfile.REGTYPE, ""),
    "backslashes": ("..\\one.bin", tarfile.REGTYPE, ""),
    "a link": ("Top/one.bin", tarfile.SYMTYPE, "OUTSIDE"),
    "a hard link": ("Top/one.bin", tarfile.LNKTYPE, "OUTSIDE"),
    "a device": ("Top/one.bin", tarfile.CHRTYPE, ""),
    "a pipe": ("Top/one.bin", tarfile.FIFOTYPE, ""),
    "a folder": ("Top/one.bin", tarfile.DIRTYPE, ""),
}


@pytest.mark.parametrize("member", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("kind", ["members", "folders"])
def test_a_member_of_an_archive_that_leads_elsewhere_is_let_alone(tmp_path, member, kind):
    """Even when its name ends as a wanted one does."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"secret")
    name, form, link = member
    tail = "one.bin" if kind == "members" else "fog/1/n01/one.bin"
    data = tar_with((name.replace("one.bin", tail), form, link.replace("OUTSIDE", str(outside))))
    (tmp_path / "set.tar").write_bytes(data)
    entry = entry_of(data)
    if kind == "folders":
        archive = Archive("set.tar", (), "Set", known(data), corruptions=("fog",))
        entry = Entry("set", "a set", "5 kB", ((archive,),), "none", "nobody")
    with pytest.raises(DataError, match="found none of that"):
        get(entry, cache=tmp_path / "cache", source=str(tmp_path / "set.tar"))
    assert [path for path in tmp_path.rglob("*.bin") if not path.is_dir()] == []
    assert outside.read_bytes() == b"secret"


def test_folders_of_an_archive_cannot_climb_out_of_theirs(tmp_path):
    """The last four names are kept: one of them may be `..`."""
    data = tar_with(
        *(
            (name, tarfile.REGTYPE, "")
            for name in ("fog/1/../x.JPEG", "fog/1/n01/..", "fog/../1/x.JPEG", "fog/1/n01/x\\..\\..\\y.JPEG")
        )
    )
    (tmp_path / "set.tar").write_bytes(data)
    archive = Archive("set.tar", (), "Set", known(data), corruptions=("fog",))
    entry = Entry("set", "a set", "5 kB", ((archive,),), "none", "nobody")
    with pytest.raises(DataError, match="found none of that"):
        get(entry, cache=tmp_path / "cache", source=str(tmp_path / "set.tar"))


def test_a_zip_is_no_archive_of_ours(tmp_path):
    """So that none of its members' names can matter."""
    with zipfile.ZipFile(tmp_path / "set.tar", "w") as archive:
        archive.writestr("../one.bin", ONE)
    data = (tmp_path / "set.tar").read_bytes()
    with pytest.raises(DataError, match="expected a tar file, got a zip file"):
        get(entry_of(data), cache=tmp_path / "cache", source=str(tmp_path / "set.tar"))
    assert not list(tmp_path.rglob("one.bin"))


@pytest.mark.parametrize("name", ["../test_batch.png", "/test_batch.png"])
def test_members_of_an_npm_package_are_written_nowhere_else(tmp_path, monkeypatch, name):
    """They go by their last name into a folder of their own, which vanishes."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "package.tgz").write_bytes(
        tar_with((name, tarfile.REGTYPE, ""), ("a/train_lables.json", b"2", "/etc/passwd"))
    )
    with pytest.raises(DataError):
        list(npm.repack(tmp_path / "package.tgz"))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["package.tgz", "temporary"]


def test_a_flipped_bit_inside_a_good_archive_is_never_unpacked(tmp_path):
    data = tar_of({"one.bin": ONE[:-1] + bytes([ONE[-1] ^ 1])})
    (tmp_path / "set.tar").write_bytes(data)
    with pytest.raises(DataError, match=r"one\.bin in the archive: expected MD5 "):
        get(entry_of(data), cache=tmp_path / "cache", source=str(tmp_path / "set.tar"))
    assert not list((tmp_path / "cache" / "Set").glob("*"))


@pytest.mark.parametrize("data", [tar_of({"other.bin": b"x"}), tar_of({"one.bin": ONE})[:3000]])
def test_another_or_a_truncated_archive_is_refused_with_a_cure(tmp_path, data):
    (tmp_path / "set.tar").write_bytes(data)
    with pytest.raises(
        DataError, match=r"set\.tar.*(expected one\.bin inside|breaks off)[\s\S]*ctta data get set"
    ):
        get(entry_of(data), cache=tmp_path / "cache", source=str(tmp_path / "set.tar"))
    assert not list((tmp_path / "cache").rglob("one.bin"))


def test_verify_finds_missing_short_and_flipped_files(tmp_path):
    entry = entry_of(b"")
    assert [item.state for item in check(entry, tmp_path)] == ["missing"]
    (tmp_path / "Set").mkdir()
    for damaged in (ONE[:-1], ONE[:-1] + bytes([ONE[-1] ^ 1]), PAGE):
        (tmp_path / "Set" / "one.bin").write_bytes(damaged)
        (found,) = check(entry, tmp_path)
        assert found.state == "damaged"
        assert "expected" in found.detail


# --- damaged data files -----------------------------------------------------------------------------------------


def png_of(rows):
    def part(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width, _ = rows.shape
    raw = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", zlib.compress(raw)) + part(b"IEND", b"")


def flip(data, place):
    damaged = bytearray(data)
    damaged[place] ^= 0x40
    return bytes(damaged)


@pytest.fixture
def folder(tmp_path):
    """A CIFAR-10-C folder of 20 images made by ctta, so that files are small."""
    rng = np.random.default_rng(2)
    rows = np.concatenate([rng.integers(0, 10, (20, 1)), rng.integers(0, 256, (20, 3072))], axis=1).astype(
        np.uint8
    )
    (tmp_path / "test_batch.bin").write_bytes(rows.tobytes())
    make(
        "cifar10-c",
        Plan(("fog",), (3, 5)),
        clean=tmp_path,
        out=tmp_path / "CIFAR-10-C",
        corrupt=lambda images, *rest, **options: images,
    )
    return tmp_path / "CIFAR-10-C"


@pytest.mark.parametrize("name", ["fog.npy", "labels.npy"])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-7], "cut short"),
        (lambda data: data + b"x", "too long"),
        (lambda data: data[:60], "header .* damaged"),
        (lambda data: flip(data, 20), "damaged|expected"),
        (lambda data: PAGE, "expected a .npy array, got a web page"),
        (lambda data: b"", "expected a .npy array, got an empty file"),
        (lambda data: bytes(len(data)), "expected a .npy array, got nothing but zero bytes"),
    ],
)
def test_a_damaged_npy_file_is_named_with_its_cure(folder, name, damage, words):
    path = folder / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=words) as caught:
        cifar10_c("fog", 5, folder)
    assert str(path) in str(caught.value)
    assert "ctta data get cifar10-c" in str(caught.value)


def test_an_npy_file_of_another_shape_or_type_is_refused(folder):
    for wrong in (np.zeros((40, 3, 32, 32), np.uint8), np.zeros((40, 32, 32, 3), np.float32)):
        np.save(folder / "fog.npy", wrong)
        with pytest.raises(DataError, match=r"fog\.npy: expected uint8 of shape \(40, 32, 32, 3\), got"):
            cifar10_c("fog", 5, folder)


def test_an_npy_file_that_shrinks_while_in_use_is_an_error_not_a_crash(folder):
    fog = cifar10_c("fog", 5, folder)
    path = folder / "fog.npy"
    path.write_bytes(path.read_bytes()[:-3072])
    with pytest.raises(DataError, match="cut short"):
        fog.images([19])


def test_a_damaged_manifest_is_named(folder):
    (folder / "ctta-made.json").write_bytes(PAGE)
    with pytest.raises(DataError, match=r"ctta-made\.json is not a manifest"):
        cifar10_c("fog", 5, folder)


def batch_of(count=4):
    rng = np.random.default_rng(3)
    return {
        "data": rng.integers(0, 256, (count, 3072)).astype(np.uint8),
        "labels": [1] * count,
        "filenames": ["a"],
    }


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-50], "cannot be read"),
        (lambda data: b"", "got an empty file"),
        (lambda data: PAGE, "expected a Python pickle, got a web page"),
        (lambda data: pickle.dumps(["no dict"], 2), "got something else"),
        (lambda data: pickle.dumps({**batch_of(), "labels": [1]}, 2), r"expected uint8 of shape \(1, 3072\)"),
        (lambda data: pickle.dumps({**batch_of(), "labels": [77] * 4}, 2), "expected classes 0 to 9, got 77"),
    ],
)
def test_a_damaged_pickle_is_named_with_its_cure(tmp_path, damage, words):
    path = tmp_path / "test_batch"
    path.write_bytes(damage(pickle.dumps(batch_of(), 2)))
    with pytest.raises(DataError, match=words) as caught:
        _ = cifar10(tmp_path).labels
    assert str(tmp_path) in str(caught.value)
    assert "ctta data get cifar10" in str(caught.value)


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit('the pickle ran code')",))


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_pickle_never_runs_code(tmp_path, protocol):
    path = tmp_path / "test_batch"
    path.write_bytes(pickle.dumps({"data": Evil(), "labels": []}, protocol))
    with pytest.raises(DataError, match=r"asks for .*exec"):
        cifar.read_pickle(path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (bytes(3073 * 2 - 1), r"expected records of 3,073 bytes, got 6,145"),
        (PAGE, "a web page"),
        (b"", "an empty file"),
        (b"\xff" + bytes(3072), "expected classes 0 to 9, got 255"),
    ],
)
def test_a_damaged_binary_file_is_named_with_its_cure(tmp_path, data, words):
    (tmp_path / "test_batch.bin").write_bytes(data)
    with pytest.raises(DataError, match=words) as caught:
        _ = cifar10(tmp_path).labels
    assert str(tmp_path) in str(caught.value)
    assert "ctta data get cifar10" in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-30], "a damaged or unknown image file"),
        (lambda data: flip(data, 60), r"damaged .* image file \(.*(checksum|CRC)"),
        (lambda data: PAGE, "expected a PNG image, got a web page"),
        (lambda data: png_of(np.zeros((2, 7, 3), np.uint8)), "expected rows of 1024 pixels"),
    ],
)
def test_a_damaged_npm_package_is_named_with_its_cure(tmp_path, damage, words):
    data = png_of(np.random.default_rng(4).integers(0, 256, (2, 1024, 3)).astype(np.uint8))
    (tmp_path / "test_batch.png").write_bytes(damage(data))
    (tmp_path / "test_lables.json").write_text("[1, 2]")
    with pytest.raises(DataError, match=words) as caught:
        _ = cifar10(tmp_path).labels
    assert "test_batch.png" in str(caught.value)
    assert "ctta data get cifar10" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"), [("[1", "cannot be read"), ("[1]", "do not reach"), ('{"a": 1}', "list of integer labels")]
)
def test_damaged_labels_of_the_npm_package_are_named(tmp_path, text, words):
    (tmp_path / "test_batch.png").write_bytes(png_of(np.zeros((2, 1024, 3), np.uint8)))
    (tmp_path / "test_lables.json").write_text(text)
    with pytest.raises(DataError, match=words):
        _ = cifar10(tmp_path).labels


def test_an_image_file_that_is_none_is_named(tmp_path):
    for data, words in [(PAGE, "expected an image, got a web page"), (b"", "got an empty file")]:
        (tmp_path / "a.JPEG").write_bytes(data)
        with pytest.raises(DataError, match=words):
            read_image(tmp_path / "a.JPEG")
    good = png_of(np.zeros((2, 2, 3), np.uint8))
    for data in (good[:-20], flip(good, 45)):
        (tmp_path / "a.png").write_bytes(data)
        with pytest.raises(DataError, match=r"a\.png: a damaged or unknown image"):
            read_image(tmp_path / "a.png")


@pytest.mark.parametrize("sides", [(60_000, 60_000), (9_500, 9_500), (1, 2**31 - 1)])
def test_a_picture_too_large_for_any_dataset_is_refused_before_memory_is_taken(tmp_path, sides):
    data = bytearray(png_of(np.zeros((2, 2, 3), np.uint8)))
    data[16:24] = struct.pack(">II", *sides)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    (tmp_path / "a.png").write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns as well
        with pytest.raises(DataError, match=r"a\.png: a damaged or unknown image file"):
            read_image(tmp_path / "a.png")


def test_no_reader_of_pillow_runs_that_could_start_a_program(tmp_path):
    """A PostScript file is handed to Ghostscript whatever its name."""
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4)).save(buffer, "EPS")
    for number, data in enumerate((buffer.getvalue(), b"\xc5\xd0\xd3\xc6" + bytes(28) + buffer.getvalue())):
        (tmp_path / f"{number}.png").write_bytes(data)
        with pytest.raises(DataError, match="expected an image, got a text file|unknown image file"):
            read_image(tmp_path / f"{number}.png")


def test_a_damaged_jpeg_file_is_named(tmp_path):
    noise = np.random.default_rng(5).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.JPEG", quality=85)
    data = (tmp_path / "a.JPEG").read_bytes()
    (tmp_path / "a.JPEG").write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"a\.JPEG: a damaged or unknown image"):
        read_image(tmp_path / "a.JPEG")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (PAGE, "expected one `CLASS/NAME.JPEG` a line"),
        (b"", "got nothing"),
        (b"n01440764/ILSVRC2012_val_00000293.JPEG\n", "expected the official list"),
        (b"\x93NUMPY\xff", "expected a list of image names"),
    ],
)
def test_a_damaged_image_list_is_named(tmp_path, data, words):
    path = tmp_path / "imagenet_test_image_ids.txt"
    path.write_bytes(data)
    with pytest.raises(DataError, match=words):
        read_ids(path)


def test_a_damaged_embedded_sample_is_named(monkeypatch):
    sample.read_sample.cache_clear()
    monkeypatch.setattr(sample, "FILE", "SAMPLE.md")
    with pytest.raises(DataError, match=r"embedded sample .* damaged"):
        embedded_sample()
    sample.read_sample.cache_clear()


def test_an_interrupted_atomic_write_leaves_the_old_file(tmp_path):
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), cache.atomic(target) as file:
        file.write(b"new" * (1 // 0))
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_making_that_fails_leaves_no_partial_file(tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(bytes(3073 * 4))

    def breaks(images, name, severity, **options):
        if severity == 2:
            raise RuntimeError("out of memory")
        return images

    with pytest.raises(RuntimeError):
        make("cifar10-c", Plan(("fog",), (1, 2)), clean=tmp_path, out=tmp_path / "out", corrupt=breaks)
    assert names(tmp_path / "out") == ["ctta-made.json", "labels.npy"]
