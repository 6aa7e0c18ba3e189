"""Making corrupted benchmarks in the official layout, with a stand-in for the corruptions."""

import hashlib
import sys

import numpy as np
import pytest
from PIL import Image

from ctta.corruptions import CORRUPTIONS, DETERMINISTIC, EXTRA, corrupt
from ctta.data import Arrays, Plan, cifar10, cifar10_c, make
from ctta.data.catalogue import published_md5s
from ctta.data.check import check_made
from ctta.data.make import ALL, REPRODUCIBLE, make_arrays
from ctta.data.manifest import Manifest
from ctta.errors import DataError

RNG = np.random.default_rng(0)


class Counting:
    """Pixels depend on (seed, name, severity, image number) alone; counts the images it made."""

    def __init__(self):
        self.count = 0

    def __call__(self, images, name, severity=5, *, profile="cifar", seed=0, indices=None, overlays=None):
        self.count += len(images)
        change = np.array([hash_of(seed, name, severity, int(i)) for i in indices], np.uint8)
        return images + change[:, None, None, None]


def hash_of(*values):
    return hashlib.md5(repr(values).encode()).digest()[0]


@pytest.fixture
def clean(tmp_path):
    rows = np.concatenate([RNG.integers(0, 10, (30, 1)), RNG.integers(0, 256, (30, 3072))], axis=1)
    (tmp_path / "test_batch.bin").write_bytes(rows.astype(np.uint8).tobytes())
    return tmp_path


def test_what_was_made_is_found_again_and_only_the_rest_is_made(clean):
    fake, out = Counting(), clean / "out"
    first = make("cifar10-c", Plan(("fog",)), clean=clean, out=out, corrupt=fake)
    assert fake.count == 150
    assert [(r.path.name, r.there) for r in first] == [("labels.npy", False), ("fog.npy", False)]
    second = make("cifar10-c", Plan(("fog", "snow")), clean=clean, out=out, corrupt=fake)
    assert fake.count == 300
    assert [r.there for r in second] == [True, True, False]
    (out / "fog.npy").write_bytes((out / "fog.npy").read_bytes()[:-1])  # damaged: made again
    make("cifar10-c", Plan(("fog", "snow")), clean=clean, out=out, corrupt=fake)
    assert fake.count == 450


def test_a_subset_has_the_same_pixels_as_the_whole(clean):
    whole, part = clean / "whole", clean / "part"
    make("cifar10-c", Plan(("fog",)), clean=clean, out=whole, corrupt=Counting())
    make("cifar10-c", Plan(("fog",), (4,), images=7), clean=clean, out=part, corrupt=Counting())
    few, all_of_them = cifar10_c("fog", 4, part), cifar10_c("fog", 4, whole)
    assert len(few) == 7
    np.testing.assert_array_equal(few.images(range(7)), all_of_them.images(range(7)))


def test_another_plan_in_the_same_folder_is_refused(clean):
    out = clean / "out"
    make("cifar10-c", Plan(("fog",)), clean=clean, out=out, corrupt=Counting())
    for other in (Plan(("fog",), seed=1), Plan(("fog",), (5,)), Plan(("fog",), images=3)):
        with pytest.raises(DataError, match=r"made with another plan .*--out"):
            make("cifar10-c", other, clean=clean, out=out, corrupt=Counting())


def test_official_files_are_never_overwritten(clean):
    (clean / "out").mkdir()
    (clean / "out" / "fog.npy").write_bytes(b"official")
    with pytest.raises(DataError, match=r"did not make.*--out"):
        make("cifar10-c", Plan(("fog",)), clean=clean, out=clean / "out", corrupt=Counting())
    assert (clean / "out" / "fog.npy").read_bytes() == b"official"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"corruptions": ("fogg",)}, "Did you mean `fog`"),
        ({"severities": (0,)}, "Severities are 1 to 5"),
        ({"severities": ()}, "Severities are 1 to 5"),
        ({"severities": (5, 1)}, "rising order"),
        ({"images": 0}, "at least one image"),
    ],
)
def test_an_impossible_plan_is_refused(values, words):
    with pytest.raises(DataError, match=words):
        Plan(**values)


def test_an_unknown_benchmark_is_refused():
    with pytest.raises(DataError, match="Did you mean `cifar10-c`"):
        make("cifar10", corrupt=Counting())
    with pytest.raises(DataError, match="--clean FOLDER"):
        make("imagenet-c", corrupt=Counting())


def test_each_file_says_whether_it_is_the_official_one(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["ctta.data.make"], "FULL", 30)  # a benchmark of 30 images
    clean = Arrays(RNG.integers(0, 256, (30, 32, 32, 3)).astype(np.uint8), np.arange(30) % 10)
    plan = Plan(("brightness", "contrast", "fog"))
    results = make_arrays("cifar10-c", clean, tmp_path / "a", plan, {}, Counting())
    assert {r.path.stem: r.state for r in results} == {
        "labels": "differs",
        "brightness": "differs",
        "contrast": "differs",
        "fog": "fresh draw",
    }
    md5 = Manifest.of(tmp_path / "a").files["contrast.npy"].md5
    assert hashlib.md5((tmp_path / "a" / "contrast.npy").read_bytes()).hexdigest() == md5
    published = {"contrast": md5}
    results = make_arrays("cifar10-c", clean, tmp_path / "b", Plan(("contrast",)), published, Counting())
    assert results[1].state == "official"
    few = Plan(("contrast",), images=5)
    results = make_arrays("cifar10-c", clean, tmp_path / "c", few, published, Counting())
    assert results[1].state == "partial"


def test_labels_have_the_official_form(tmp_path):
    clean = Arrays(np.zeros((10_000, 32, 32, 3), np.uint8), np.zeros(10_000, int))
    make_arrays("cifar10-c", clean, tmp_path, Plan(()), {}, Counting())
    data = (tmp_path / "labels.npy").read_bytes()
    assert len(data) == 50_128
    assert np.load(tmp_path / "labels.npy").shape == (50_000,)
    assert data[:10] == b"\x93NUMPY\x01\x00\x76\x00"


def test_what_was_made_can_be_verified(clean):
    out = clean / "out"
    make("cifar10-c", Plan(("fog",)), clean=clean, out=out, corrupt=Counting())
    assert {item.state for item in check_made(out)} == {"ok"}
    data = bytearray((out / "fog.npy").read_bytes())
    data[5000] ^= 1
    (out / "fog.npy").write_bytes(data)
    assert [item.state for item in check_made(out)] == ["damaged", "ok"]
    assert check_made(clean) == []


def test_progress_counts_images(clean):
    seen = []
    make(
        "cifar10-c",
        Plan(("fog",), (1, 2)),
        clean=clean,
        out=clean / "out",
        corrupt=Counting(),
        progress=lambda *row: seen.append(row),
    )
    assert seen == [("making fog", 30, 60), ("making fog", 60, 60)]


def test_the_published_md5s_are_40_different_ones():
    values = [md5 for name in ("cifar10-c", "cifar100-c") for md5 in published_md5s(name).values()]
    assert len(set(values)) == len(values) == 40
    assert all(len(md5) == 32 and int(md5, 16) for md5 in values)


def test_imagenet_c_from_a_folder_of_clean_images(tmp_path):
    for name in ("n01/a.JPEG", "n01/b.JPEG", "n02/c.png"):
        path = tmp_path / "clean" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(RNG.integers(0, 256, (300, 280, 3)).astype(np.uint8)).save(path)
    fake, out = Counting(), tmp_path / "out"
    plan = Plan(("fog", "contrast"), (2, 5))
    results = make("imagenet-c", plan, clean=tmp_path / "clean", out=out, corrupt=fake)
    assert fake.count == 12
    assert {r.path.relative_to(out).as_posix(): r.state for r in results} == {
        "fog/2": "fresh draw",
        "fog/5": "fresh draw",
        "contrast/2": "same procedure",
        "contrast/5": "same procedure",
    }
    with Image.open(out / "fog" / "5" / "n02" / "c.JPEG") as made:
        assert made.size == (224, 224)
        assert made.format == "JPEG"
        assert made.layer[0][1:3] == (2, 2)  # 4:2:0
    before = (out / "fog" / "5" / "n01" / "b.JPEG").read_bytes()
    (out / "fog" / "5" / "n01" / "b.JPEG").unlink()
    again = make("imagenet-c", plan, clean=tmp_path / "clean", out=out, corrupt=fake)
    assert fake.count == 13
    assert (out / "fog" / "5" / "n01" / "b.JPEG").read_bytes() == before
    assert [r.there for r in again] == [True, False, True, True]
    assert {item.state for item in check_made(out)} == {"unchecked"}
    ids = tmp_path / "ids.txt"
    ids.write_text("n02/c.JPEG\n")
    make("imagenet-c", plan, clean=tmp_path / "clean", out=tmp_path / "few", ids=ids, corrupt=fake)
    name = "fog/2/n02/c.JPEG"
    assert (tmp_path / "few" / name).read_bytes() == (out / name).read_bytes()


def test_tiny_imagenet_c_is_64_pixels(tmp_path):
    (tmp_path / "clean" / "n01").mkdir(parents=True)
    Image.fromarray(RNG.integers(0, 256, (64, 64, 3)).astype(np.uint8)).save(tmp_path / "clean" / "n01" / "a.png")
    make(
        "tiny-imagenet-c", Plan(("fog",), (1,)), clean=tmp_path / "clean", out=tmp_path / "out", corrupt=Counting()
    )
    with Image.open(tmp_path / "out" / "fog" / "1" / "n01" / "a.JPEG") as made:
        assert made.size == (64, 64)


def test_a_corruption_that_changes_the_shape_is_caught(clean):
    with pytest.raises(DataError, match="The corruption fog returned"):
        make("cifar10-c", Plan(("fog",)), clean=clean, out=clean / "out", corrupt=lambda x, *a, **k: x[:, :16])


def test_the_catalogue_and_the_corruptions_agree():
    assert (*CORRUPTIONS, *EXTRA) == ALL
    assert set(REPRODUCIBLE) == {*DETERMINISTIC, "labels"}
    assert set(ALL) | {"labels"} == set(published_md5s("cifar100-c"))


def test_the_real_corruptions_are_used_by_default(clean):
    plan = Plan(("contrast", "gaussian_noise"), (5,), images=4)
    make("cifar10-c", plan, clean=clean, out=clean / "a")
    make("cifar10-c", Plan(("gaussian_noise",), (4, 5)), clean=clean, out=clean / "b")
    pixels = cifar10_c("gaussian_noise", 5, clean / "a").images(range(4))
    np.testing.assert_array_equal(pixels, cifar10_c("gaussian_noise", 5, clean / "b").images(range(4)))
    images = cifar10(clean).images(range(4))
    np.testing.assert_array_equal(
        cifar10_c("contrast", 5, clean / "a").images(range(4)), corrupt(images, "contrast", 5)
    )
