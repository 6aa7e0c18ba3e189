"""The views of AdaContrast against a literal version that takes one image at a time, and their promises."""

import math

import pytest
import torch
from torch.nn import functional as F

import ctta
from ctta.augment import CUSTOM, StrongView, choose
from ctta.augment import adacontrast as views
from ctta.augment import cotta as pipeline

F64 = torch.float64
OFF = {"jitter_chance": 0.0, "grey_chance": 0.0, "blur_chance": 0.0, "flip_chance": 0.0}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def images(*shape, seed=9, dtype=F64):
    return torch.rand(shape, dtype=dtype, generator=generator(seed))


def literal_blur(x, sigma):
    """Gaussian of 17 x 17 taps on the image continued by its edge, C x H x W."""
    taps = torch.tensor([math.exp(-0.5 * (k / sigma) ** 2) for k in range(-8, 9)], dtype=x.dtype)
    kernel = torch.outer(taps / taps.sum(), taps / taps.sum()).expand(len(x), 1, 17, 17)
    return F.conv2d(F.pad(x[None], (8, 8, 8, 8), mode="replicate"), kernel, groups=len(x))[0]


def literal_view(x, draws):
    """One image after the other, one operation after the other, with plain numbers."""
    jitters = [pipeline.brightness, pipeline.contrast, pipeline.saturation, pipeline.hue]
    out = []
    for i in range(len(x)):
        image = x[i]
        if draws.jittered[i]:
            for index in draws.order[i].tolist():
                image = jitters[index](image[None], draws.factors[i, index].item())[0]
        if draws.grey[i] and len(image) == 3:
            image = (0.2989 * image[0] + 0.587 * image[1] + 0.114 * image[2]).expand(3, -1, -1)
        if draws.blurred[i]:
            image = literal_blur(image, draws.radius[i].item())
        if draws.flipped[i]:
            image = image.flip(-1)
        out.append(image)
    return torch.stack(out)


@pytest.mark.parametrize("shape", [(24, 3, 16, 16), (6, 3, 9, 21), (5, 1, 12, 12), (5, 4, 7, 7)])
def test_the_batched_view_equals_one_image_at_a_time(shape):
    x = images(*shape)
    for seed in range(4):
        draws = StrongView().draw(len(x), generator(seed))
        expected = literal_view(x, draws)
        assert (StrongView()(x, generator(seed)) - expected).abs().max() < 1e-12


def test_each_image_has_draws_of_its_own():
    x = images(1, 3, 16, 16).expand(16, -1, -1, -1)
    out = StrongView(jitter_chance=1.0)(x, generator(1))
    assert all(not torch.equal(out[i], out[j]) for i in range(16) for j in range(i))


def test_draws_have_the_published_chances_ranges_and_every_order():
    draws = StrongView().draw(8_000, generator(2))
    for chosen, chance in ((draws.jittered, 0.8), (draws.grey, 0.2), (draws.blurred, 0.5), (draws.flipped, 0.5)):
        assert chosen.double().mean().item() == pytest.approx(chance, abs=0.015)
    low, high = draws.factors.aminmax(dim=0)
    torch.testing.assert_close(low, torch.tensor([0.6, 0.6, 0.6, -0.1], dtype=F64), atol=1e-3, rtol=0)
    torch.testing.assert_close(high, torch.tensor([1.4, 1.4, 1.4, 0.1], dtype=F64), atol=1e-3, rtol=0)
    assert draws.radius.min().item() == pytest.approx(0.1, abs=1e-3)
    assert draws.radius.max().item() == pytest.approx(2.0, abs=1e-3)
    orders, counts = (draws.order * torch.tensor([64, 16, 4, 1])).sum(1).unique(return_counts=True)
    assert len(orders) == 24
    assert counts.min() > 0.8 * 8_000 / 24


@pytest.mark.parametrize(
    ("only", "name"),
    [
        ("jitter_chance", "jittered"),
        ("grey_chance", "grey"),
        ("blur_chance", "blurred"),
        ("flip_chance", "flipped"),
    ],
)
def test_a_chance_decides_which_images_change(only, name):
    x = images(40, 3, 10, 10)
    view = StrongView(**{**OFF, only: 0.5, "radius": (0.5, 2.0)})  # a radius of 0.1 changes nothing
    changed = (view(x, generator(3)) != x).flatten(1).any(1)
    assert torch.equal(changed, getattr(view.draw(40, generator(3)), name))
    assert 5 < changed.sum() < 35


def test_the_blur_keeps_the_mean_of_a_constant_and_widens_with_the_radius():
    flat = torch.full((2, 3, 12, 12), 0.3, dtype=F64)
    torch.testing.assert_close(views.blur(flat, torch.tensor([0.1, 2.0], dtype=F64), 8), flat)
    dot = torch.zeros(2, 1, 41, 41, dtype=F64)
    dot[:, :, 20, 20] = 1.0
    out = views.blur(dot, torch.tensor([0.1, 2.0], dtype=F64), 8)
    assert out[0, 0, 20, 20] == pytest.approx(1.0)
    variance = (out[1, 0].sum(0) * (torch.arange(41) - 20.0) ** 2).sum().item()
    assert math.sqrt(variance) == pytest.approx(2.0, rel=5e-3)  # radius is the standard deviation


def test_images_smaller_than_the_blur_are_taken():
    out = StrongView(**{**OFF, "blur_chance": 1.0})(images(3, 3, 2, 1), generator())
    assert out.shape == (3, 3, 2, 1)
    assert out.isfinite().all()


def test_grey_images_are_grey_and_keep_their_luminance():
    x = images(4, 3, 6, 6)
    out = StrongView(**{**OFF, "grey_chance": 1.0})(x, generator())
    torch.testing.assert_close(out, pipeline.gray(x).expand_as(x))


def test_the_same_generator_state_gives_the_same_images_and_no_other_is_touched():
    x, gen, before = images(4, 3, 16, 16), generator(5), torch.get_rng_state()
    first, second = StrongView()(x, gen), StrongView()(x, gen)
    assert not torch.equal(first, second)
    assert torch.equal(StrongView()(x, generator(5)), first)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_input_is_left_alone_and_the_output_lies_in_range():
    x = images(30, 3, 8, 8) * 3 - 1
    held = x.clone()
    out = StrongView()(x, generator(1))
    assert out.min() >= 0
    assert out.max() <= 1
    assert torch.equal(x, held)


@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.bfloat16, torch.float16])
def test_the_dtype_is_kept(dtype):
    out = StrongView()(images(6, 3, 8, 8).to(dtype), generator())
    assert out.dtype == dtype
    assert out.isfinite().all()


def test_clips_get_one_draw_for_all_their_frames():
    still = images(6, 3, 1, 8, 8)
    out = StrongView()(still.expand(-1, -1, 5, -1, -1), generator(1))
    assert out.shape == (6, 3, 5, 8, 8)
    torch.testing.assert_close(out, StrongView()(still[:, :, 0], generator(1))[:, :, None].expand_as(out))


def test_other_ranks_are_refused_with_a_cure():
    with pytest.raises(ctta.AugmentError, match="Pass `augment=`"):
        StrongView()(torch.rand(4, 7), generator())


def test_it_is_found_by_name_unless_its_numbers_are_changed():
    assert choose("adacontrast") == StrongView()
    assert choose(None, "adacontrast").name == "adacontrast"
    assert StrongView(blur_chance=0.1).name == CUSTOM


def test_flip_turns_the_chosen_images_only():
    x = images(3, 2, 4, 5)
    out = views.flip(x, torch.tensor([True, False, True]))
    assert torch.equal(out[0], x[0].flip(-1))
    assert torch.equal(out[1], x[1])
    assert torch.equal(out[2], x[2].flip(-1))
