"""The guard at the door: what is refused, with which words, and what is not."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import ctta
from ctta.checks.networks import NETWORKS


def small_net(channels=3, classes=4):
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, classes),
    )


X = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def spoiled(value):
    x = X.clone()
    x[1, 2, 3, 4] = value
    return x


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (spoiled(float("nan")), "1 of 4 images hold NaN or infinity"),
        (spoiled(float("inf")), "Expected finite pixels"),
        (X[0], "Expected a batch of rank 4"),
        (X[None], "Expected a batch of rank 4"),
        (X.flatten(1), "Expected a batch of rank 4"),
        (X.flatten(), "add the batch dimension"),
        (X[:, :1], r"with 3 channels, but got shape \(4, 1, 8, 8\)"),
        (torch.cat([X, X], 1), "with 3 channels"),
        ((X * 255).to(torch.uint8), r"convert with images.float\(\) / 255"),
        (
            X.double(),
            r"Expected torch.float32 images, but got torch.float64: convert with images.to\(torch.float32\)",
        ),
        (X.half(), "but got torch.float16"),
        (X.bool(), "but got torch.bool"),
        (X.to(torch.complex64), "but got torch.complex64"),
        (X[:0], "an empty batch"),
        (X[:, :, :0], "an empty batch"),
        (X.to("meta"), 'on cpu, where the model is, but got meta: images.to\\("cpu"\\)'),
        (X.to_sparse(), "Expected a dense tensor"),
        (torch.nested.nested_tensor([X[0], X[1]], layout=torch.jagged), "Expected a dense tensor"),
        (X.numpy(), "but got a numpy.ndarray"),
        (None, "but got a builtins.NoneType"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
@pytest.mark.parametrize("seen", [0, 2], ids=["first batch", "later batch"])
@pytest.mark.parametrize("method", ["source", "palm"])
def test_a_bad_batch_is_refused_with_words_that_help_and_leaves_no_trace(bad, words, seen, method):
    adapter, twin = (ctta.adapt(small_net_with_fixed_weights(), method) for _ in range(2))
    for _ in range(seen):
        assert torch.equal(adapter(X), twin(X))
    state = adapter.state_dict()
    for call in (adapter, adapter.predict):
        with pytest.raises(ctta.InputError, match=words):
            call(bad)
    assert all(torch.equal(value, state[key]) for key, value in adapter.state_dict().items())
    assert torch.equal(adapter(X), twin(X))


def small_net_with_fixed_weights():
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return small_net()


def test_a_network_that_would_broadcast_one_channel_refuses_it_from_the_first_batch_on():
    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.full((1, 3, 1, 1), 0.5))
            self.net = small_net()

        def forward(self, x):
            return self.net(x - self.mean)

    adapter = ctta.adapt(Normalised(), "palm")
    with pytest.raises(ctta.InputError, match="with 3 channels"):
        adapter(X[:, :1])
    assert adapter(X).shape == (4, 4)


def test_a_network_that_reshapes_before_its_first_convolution_is_served():
    class SpaceToDepth(nn.Module):
        def __init__(self):
            super().__init__()
            self.unshuffle = nn.PixelUnshuffle(2)
            self.net = small_net(channels=12)

        def forward(self, x):
            return self.net(self.unshuffle(x))

    class Rows(nn.Module):
        """Takes images flattened to rows."""

        def __init__(self):
            super().__init__()
            self.net = small_net()

        def forward(self, x):
            return self.net(x.view(-1, 3, 8, 8))

    class Frames(nn.Module):
        """Takes N x T x C x H x W and averages over T."""

        def __init__(self):
            super().__init__()
            self.net = small_net()

        def forward(self, x):
            return self.net(x.flatten(0, 1)).view(x.shape[0], x.shape[1], -1).mean(1)

    assert ctta.adapt(SpaceToDepth(), "palm")(X).shape == (4, 4)
    assert ctta.adapt(Rows(), "tent")(X.flatten(1)).shape == (4, 4)
    clip = torch.rand(2, 5, 3, 8, 8)
    assert ctta.adapt(Frames(), "palm", lam=0)(clip).shape == (2, 4)


def test_vectors_are_fine_for_a_model_that_takes_vectors():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.rand(5, 6)
    assert ctta.adapt(model, "tent")(x).shape == (5, 3)
    adapter = ctta.adapt(model, "palm")
    with pytest.raises(ctta.AugmentError, match="Pass `augment=`"):
        adapter(x)
    assert ctta.adapt(model, "palm", augment=lambda v: v * 1.01)(x).shape == (5, 3)
    assert ctta.adapt(model, "palm", lam=0)(x).shape == (5, 3)


def test_a_batch_the_model_itself_fails_on_is_a_model_error_and_leaves_no_trace():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    adapter = ctta.adapt(model, "source")
    with pytest.raises(ctta.ModelError, match=r"raised RuntimeError on a batch of shape \(4, 3, 9, 9\)"):
        adapter(torch.rand(4, 3, 9, 9))
    assert adapter(X).shape == (4, 4)


class Returns(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.make = make

    def forward(self, x):
        return self.make(self.conv(x).mean((2, 3)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda l: (l, l), "but got a builtins.tuple"),
        (lambda l: {"logits": l}, "but got a builtins.dict"),
        (lambda l: l[:, :1], r"shape \(4, 1\)"),
        (lambda l: l[:2], r"shape \(2, 4\)"),
        (lambda l: l.argmax(1), "int64"),
        (lambda l: l[..., None], r"shape \(4, 4, 1\)"),
    ],
)
def test_a_model_that_does_not_return_logits_is_told_so(make, words):
    with pytest.raises(ctta.ModelError, match=words):
        ctta.adapt(Returns(make), "palm")(X)


def test_a_model_that_cuts_its_graph_is_told_so():
    with pytest.raises(ctta.ModelError, match="must neither detach, nor run under no_grad"):
        ctta.adapt(Returns(lambda l: l.detach()), "palm")(X)


def test_what_is_not_a_module_is_refused():
    with pytest.raises(ctta.ModelError, match="Expected a torch.nn.Module, but got a function"):
        ctta.adapt(lambda x: x, "source")


def test_images_outside_zero_to_one_warn_once_where_the_default_augmentation_would_clip_them():
    normalised = (X - 0.5) / 0.25
    adapter = ctta.adapt(small_net(), "palm")
    with pytest.warns(ctta.RangeWarning, match=r"lie in \[-2, 2\]") as caught:
        adapter(normalised)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapter(normalised)
        ctta.adapt(small_net(), "palm", augment=lambda x: x)(normalised)
        ctta.adapt(small_net(), "palm", lam=0)(normalised)
        ctta.adapt(small_net(), "bn1")(normalised)
        ctta.adapt(small_net(), "tent")(normalised)
        ctta.adapt(small_net(), "palm")(X)


def test_half_precision_batches_are_accepted_under_autocast_only():
    adapter = ctta.adapt(small_net(), "palm")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert adapter(X.bfloat16()).isfinite().all()
    with pytest.raises(ctta.InputError):
        adapter(X.bfloat16())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_adapt_with_arithmetic_in_float32(dtype):
    adapter = ctta.adapt(small_net().to(dtype), "palm", lr=1e-2)
    before = [p.clone() for p in adapter.model.parameters()]
    for _ in range(3):
        logits = adapter(X.to(dtype))
    assert logits.isfinite().all()
    assert not adapter.last.skipped, adapter.last.reason
    assert any(not torch.equal(a, b) for a, b in zip(before, adapter.model.parameters(), strict=True))


def test_the_number_of_classes_is_read_from_the_logits():
    for classes in (2, 7, 100):
        assert ctta.adapt(small_net(classes=classes), "palm")(X).shape == (4, classes)


def test_numpy_scalars_and_views_make_no_difference():
    whole = torch.from_numpy(np.random.default_rng(0).random((4, 8, 8, 3), dtype=np.float32))
    channels_last = whole.permute(0, 3, 1, 2)
    one, two = (ctta.adapt(small_net_with_fixed_weights(), "palm") for _ in range(2))
    torch.testing.assert_close(one(channels_last), two(channels_last.contiguous()))


def test_conv3d_networks_expect_clips():
    adapter = ctta.adapt(NETWORKS["bn3d"].make(), "palm")
    with pytest.raises(ctta.InputError, match="rank 5"):
        adapter(X)
