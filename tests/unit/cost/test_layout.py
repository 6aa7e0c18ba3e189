"""Networks of some size are computed in the faster memory layout; nobody notices but the clock."""

import copy

import pytest
import torch
from torch import nn

import ctta
from ctta.models import build


class Flattening(nn.Module):
    """A network that flattens with `view`, which the fast layout does not allow."""

    def __init__(self, width=128):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.second, self.head = nn.Conv2d(width, width, 3, stride=2, padding=1), nn.Linear(width * 16, 5)

    def forward(self, x):
        x = self.second(self.norm(self.first(x)).relu())
        return self.head(x.view(len(x), -1))


def in_fast_layout(model):
    convs = [
        layer.weight for layer in model.modules() if isinstance(layer, nn.Conv2d) and layer.kernel_size != (1, 1)
    ]
    return all(weight.is_contiguous(memory_format=torch.channels_last) for weight in convs)


@pytest.fixture(scope="module")
def images():
    return torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def flattening():
    torch.manual_seed(0)
    return Flattening().eval()


def test_a_network_of_some_size_is_copied_into_the_fast_layout_and_the_original_is_not():
    model = build("wrn-16-2", 10).eval()
    plain = copy.deepcopy(model).to(memory_format=torch.contiguous_format)
    adapter = ctta.adapt(plain, "palm")
    assert in_fast_layout(adapter.model)
    assert not in_fast_layout(plain)
    x = torch.rand(4, 3, 32, 32)
    fast, slow = adapter(x), ctta.adapt(plain, "palm", inplace=True)(x)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", ["bn1", "palm", "cotta", "adacontrast"])
def test_a_model_that_flattens_with_view_works_as_before(method, flattening, images):
    quick = {"views": 2} if method == "cotta" else {}
    adapter = ctta.adapt(flattening, method, **quick)
    same = ctta.adapt(copy.deepcopy(flattening), method, inplace=True, **quick)
    first = adapter(images)
    assert torch.equal(first, same(images))
    adapter.reset()
    assert torch.equal(adapter(images), first)


def test_a_bad_first_batch_does_not_decide_the_layout(images):
    adapter = ctta.adapt(build("wrn-16-2", 10).eval(), "palm")
    with pytest.raises(ctta.CttaError):
        adapter(torch.rand(4, 1, 8, 8))
    assert in_fast_layout(adapter.model)
    assert adapter(torch.rand(4, 3, 32, 32)).shape == (4, 10)


def test_source_answers_bit_for_bit_as_the_model():
    model = build("wrn-16-2", 10).eval()
    x = torch.rand(3, 3, 32, 32)
    with torch.no_grad():
        expected = model(x)
    assert torch.equal(ctta.adapt(model, "source")(x), expected)


def test_saved_in_the_fast_layout_and_loaded_the_stream_goes_on_the_same(tmp_path):
    torch.manual_seed(0)
    model, x = build("wrn-16-2", 10).eval(), torch.rand(4, 3, 32, 32)
    adapter = ctta.adapt(model, "palm")
    adapter(x)
    adapter.save(tmp_path / "a.ctta")
    assert torch.equal(ctta.load(tmp_path / "a.ctta", model)(x), adapter(x))
