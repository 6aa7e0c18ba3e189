"""The CoTTA augmentation against a literal step-by-step version, and its promises."""

import colorsys
import math

import pytest
import torch
from torch.nn import functional as F

import ctta
from ctta.augment import Cotta, choose
from ctta.augment import cotta as pipeline

F64 = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def drawn_geometry(shape, gen, ranges):
    """Angle, shifts, scale, sigma and flip in the order of the pipeline."""
    height, width = shape[2:]
    return {
        "angle": pipeline.uniform(ranges.angle, gen),
        "shift_x": pipeline.uniform((-2 * width / 16, 2 * width / 16), gen),
        "shift_y": pipeline.uniform((-2 * height / 16, 2 * height / 16), gen),
        "scale": pipeline.uniform(ranges.scale, gen),
        "sigma": pipeline.uniform(ranges.sigma, gen),
        "flip": pipeline.uniform((0.0, 1.0), gen) < 0.5,
    }


def literal_geometry(x, angle, shift_x, shift_y, scale, sigma, flip):
    """Pad, affine map, blur, centre crop, flip, one after the other on the whole padded image."""
    height, width = x.shape[2:]
    angle, shift_x, shift_y = math.radians(angle), round(shift_x), round(shift_y)
    padded = F.pad(x, (width // 2, width // 2, height // 2, height // 2), mode="replicate")
    rows, columns = padded.shape[2:]
    # output pixel -> input pixel of a map that scales, turns clockwise, then shifts, about the centre
    turn = scale * torch.tensor(
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=F64
    )
    inverse = torch.linalg.inv(turn)
    offset = -inverse @ torch.tensor([shift_x, shift_y], dtype=F64)
    size = torch.tensor([columns, rows], dtype=F64)
    theta = torch.cat([inverse * size / size[:, None], (2 * offset / size)[:, None]], 1)
    grid = F.affine_grid(theta[None].expand(len(x), -1, -1), list(padded.shape), align_corners=False).to(x)
    warped = F.grid_sample(padded, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    taps = torch.tensor([math.exp(-0.5 * (k / sigma) ** 2) for k in range(-2, 3)], dtype=x.dtype)
    kernel = torch.outer(taps / taps.sum(), taps / taps.sum()).expand(x.shape[1], 1, 5, 5)
    blurred = F.conv2d(F.pad(warped, (2, 2, 2, 2), mode="reflect"), kernel, groups=x.shape[1])
    top, left = (rows - height) // 2, (columns - width) // 2
    crop = blurred[:, :, top : top + height, left : left + width]
    return crop.flip(-1) if flip else crop


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 32, 32), (1, 3, 64, 64), (2, 1, 33, 21), (1, 3, 12, 96), (1, 3, 96, 12)])
def test_one_resampling_equals_padding_mapping_blurring_cropping_and_flipping(shape, soft):
    augment = Cotta(soft=soft)
    x = torch.rand(shape, dtype=F64, generator=generator(9))
    for seed in range(4):
        expected = literal_geometry(x, **drawn_geometry(shape, generator(seed), augment.ranges))
        assert (augment.geometry(x, generator(seed)) - expected).abs().max() < 1e-9


def test_spec_14_all_images_of_a_batch_share_every_draw_but_the_noise():
    x = torch.rand(1, 3, 32, 32, generator=generator(3)).mul(0.3).add(0.35).expand(64, -1, -1, -1)
    out = Cotta()(x, generator(1))
    inner = (out > 0.02) & (out < 0.98)
    assert inner.float().mean() > 0.9
    spread = (out - out.mean(0, keepdim=True))[inner].std()
    assert spread == pytest.approx(0.005, rel=0.05)


def test_the_same_generator_state_gives_the_same_images_and_another_seed_others():
    x = torch.rand(4, 3, 32, 32)
    augment = Cotta()
    gen = generator(5)
    first, second = augment(x, gen), augment(x, gen)
    assert not torch.equal(first, second)
    assert torch.equal(augment(x, generator(5)), first)
    assert not torch.equal(augment(x, generator(6)), first)


def test_the_global_generator_is_neither_read_nor_advanced():
    before = torch.get_rng_state()
    x = torch.rand(2, 3, 16, 16, generator=generator(1))
    first = Cotta()(x, generator(2))
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.manual_seed(77)
        assert torch.equal(Cotta()(x, generator(2)), first)


def test_the_input_is_left_alone_and_the_output_lies_in_range():
    x = torch.rand(3, 3, 24, 24) * 3 - 1
    held = x.clone()
    for seed in range(10):
        out = Cotta()(x, generator(seed))
        assert out.min() >= 0
        assert out.max() <= 1
    assert torch.equal(x, held)


@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.bfloat16, torch.float16])
def test_the_dtype_is_kept(dtype):
    out = Cotta()(torch.rand(2, 3, 16, 16).to(dtype), generator())
    assert out.dtype == dtype
    assert out.isfinite().all()


def test_clips_get_one_draw_for_all_their_frames():
    frames = torch.rand(2, 3, 1, 16, 16, generator=generator(4)).expand(-1, -1, 5, -1, -1)
    out = Cotta()(frames, generator(1))
    assert out.shape == (2, 3, 5, 16, 16)
    assert (out - out.mean(2, keepdim=True)).abs().max() < 0.06  # only noise differs


def test_other_ranks_are_refused_with_a_cure():
    with pytest.raises(ctta.AugmentError, match="Pass `augment=`"):
        Cotta()(torch.rand(4, 7), generator())


def test_soft_ranges_lie_within_the_normal_ones():
    for name, (low, high) in vars(Cotta(soft=True).ranges).items():
        wide_low, wide_high = getattr(Cotta().ranges, name)
        assert wide_low <= low < high < wide_high


# the published ranges: factors of the five colour operations, then degrees, padded images, factors, pixels
PUBLISHED = {
    False: {"brightness": (0.6, 1.4), "contrast": (0.7, 1.3), "saturation": (0.5, 1.5), "hue": (-0.06, 0.06)}
    | {"gamma": (0.7, 1.3), "angle": (-15, 15), "shift": (-1 / 16, 1 / 16), "scale": (0.9, 1.1)}
    | {"sigma": (0.001, 0.5)},
    True: {"brightness": (0.8, 1.2), "contrast": (0.85, 1.15), "saturation": (0.75, 1.25), "hue": (-0.03, 0.03)}
    | {"gamma": (0.85, 1.15), "angle": (-8, 8), "shift": (-1 / 16, 1 / 16), "scale": (0.95, 1.05)}
    | {"sigma": (0.001, 0.25)},
}
COLOURS = ("brightness", "contrast", "saturation", "hue", "gamma")


@pytest.mark.parametrize("draw", [0.0, 0.499, 0.501, 1.0])
@pytest.mark.parametrize("side", [32, 72])
@pytest.mark.parametrize("soft", [False, True])
def test_the_ends_of_every_range_are_the_published_ones(soft, side, draw, monkeypatch):
    """Every uniform draw of torch is `draw`, every normal one 1; the order of the colours is torch's."""
    x = torch.rand(1, 3, side, side, dtype=F64, generator=generator(9)) * 0.5 + 0.2
    values = {name: low + draw * (high - low) for name, (low, high) in PUBLISHED[soft].items()}
    monkeypatch.setattr(torch, "rand", lambda *_, **kind: torch.tensor(draw, dtype=kind["dtype"]))
    monkeypatch.setattr(torch, "randn", lambda shape, **kind: torch.ones(shape, dtype=kind["dtype"]))
    order = [0, 1, 2, 3, 4] if draw < 0.5 else [4, 3, 2, 1, 0]
    monkeypatch.setattr(torch, "randperm", lambda count, **_: torch.tensor(order[:count]))
    expected = x
    for index in order:
        expected = getattr(pipeline, COLOURS[index])(expected, values[COLOURS[index]])
    shift = values["shift"] * 2 * side
    angle, scale, sigma = values["angle"], values["scale"], values["sigma"]
    expected = literal_geometry(expected, angle, shift, shift, scale, sigma, flip=draw < 0.5)
    assert (Cotta(soft=soft)(x, generator()) - (expected + 0.005).clamp(0, 1)).abs().max() < 1e-9


def test_draws_cover_their_ranges():
    gen = generator(0)
    draws = [pipeline.uniform((-15.0, 15.0), gen) for _ in range(2000)]
    assert min(draws) < -14.5
    assert max(draws) > 14.5
    assert abs(sum(draws) / len(draws)) < 1


def test_hue_matches_the_colour_circle_of_the_standard_library():
    x = torch.rand(1, 3, 6, 6, dtype=F64, generator=generator(2))
    x[0, :, 0, 0] = 0.4  # grey has no hue
    x[0, :, 0, 1] = torch.tensor([1.0, 0.0, 0.0])
    for turn in (-0.06, 0.0, 0.04, 0.5):
        out = pipeline.hue(x, turn)
        for row in range(6):
            for column in range(6):
                h, s, v = colorsys.rgb_to_hsv(*x[0, :, row, column].tolist())
                expected = colorsys.hsv_to_rgb((h + turn) % 1.0, s, v)
                assert out[0, :, row, column].tolist() == pytest.approx(expected, abs=1e-9)


def test_colour_operations_follow_their_formulas():
    x = torch.rand(2, 3, 5, 5, dtype=F64, generator=generator(8))
    luma = 0.2989 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2]
    torch.testing.assert_close(pipeline.brightness(x, 1.3), (1.3 * x).clamp(0, 1))
    mean = luma.mean((1, 2))[:, None, None, None]
    torch.testing.assert_close(pipeline.contrast(x, 0.7), (0.7 * x + 0.3 * mean).clamp(0, 1))
    torch.testing.assert_close(pipeline.saturation(x, 1.5), (1.5 * x - 0.5 * luma[:, None]).clamp(0, 1))
    torch.testing.assert_close(pipeline.gamma(x, 0.7), x**0.7)
    assert pipeline.gamma(torch.zeros(1, 1, 2, 2), 0.7).isfinite().all()


def test_grey_images_keep_saturation_and_hue():
    x = torch.rand(2, 1, 5, 5)
    assert pipeline.saturation(x, 1.5) is x
    assert pipeline.hue(x, 0.05) is x
    assert Cotta()(x, generator()).shape == x.shape


def test_augment_argument_takes_names_callables_and_nothing_else():
    def own(x):
        return x

    assert choose(own) is own
    assert choose("cotta").ranges == choose(None).ranges
    assert choose("cotta-soft").name == "cotta-soft"
    with pytest.raises(ctta.AugmentError, match='one of "cotta", "cotta-soft", "adacontrast", but got \'cota\''):
        choose("cota")
    with pytest.raises(ctta.AugmentError, match="but got 3"):
        choose(3)
