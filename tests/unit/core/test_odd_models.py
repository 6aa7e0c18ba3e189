"""Models that a method cannot adapt: every one is told why, in a sentence and a CttaError."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ctta
from ctta.checks.networks import NETWORKS

METHODS = [entry.name for entry in ctta.list_methods()]
WITH_GRADIENTS = [name for name in METHODS if name not in ("source", "bn1")]
FEWER_VIEWS = {"cotta": {"views": 1}, "dss": {"views": 1}}
RESNET = NETWORKS["resnet"]
X = RESNET.stream((4,))[0]


def run(model, name, **options):
    adapter = ctta.adapt(model, name, **FEWER_VIEWS.get(name, {}), **options)
    return adapter(X), adapter


class InPlace(nn.Module):
    """Changes what the backward pass needs, which matters to nobody at inference."""

    def __init__(self):
        super().__init__()
        self.net = RESNET.make()

    def forward(self, x):
        self.net.layer1.register_forward_hook(self.change) if not self.net.layer1._forward_hooks else None
        return self.net(x)

    @staticmethod
    def change(_module, _inputs, output):
        root = output.exp()
        root.mul_(0.5)
        return root


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_a_backward_pass_that_torch_refuses_is_told_so_and_nothing_moves(name):
    adapter = ctta.adapt(InPlace(), name, **FEWER_VIEWS.get(name, {}))
    before = adapter.method.state().tensors["model/" + next(iter(adapter.method.adapted))].clone()
    with pytest.raises(ctta.ModelError, match=r"to have a backward pass.* change in place"):
        adapter(X)
    assert torch.equal(adapter.method.state().tensors["model/" + next(iter(adapter.method.adapted))], before)
    assert adapter.batches == 0


class Routed(nn.Module):
    """Bright batches go one way, dark ones the other."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(4)
        self.layer1 = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU())
        self.layer2 = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU())
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        y = self.bn1(self.conv1(x))
        return self.fc((self.layer1(y) if x.mean() > 0.3 else self.layer2(y)).mean((2, 3)))


@pytest.mark.parametrize("darker", [1.0, 0.1])
@pytest.mark.parametrize("name", METHODS)
def test_layers_that_only_the_view_or_only_the_batch_reaches_raise_nothing_raw(name, darker):
    for x in (X * 0.1 + 0.6, X * 0.1):
        try:
            adapter = ctta.adapt(
                Routed().eval(), name, augment=lambda x: (x * darker).clamp(0, 1), **FEWER_VIEWS.get(name, {})
            )
            adapter(x)
        except ctta.CttaError:
            continue
        assert adapter(x).isfinite().all()


def test_in_law_a_tensor_that_only_the_view_reaches_has_no_weight():
    _, adapter = run(Routed().eval(), "law", augment=lambda x: x * 0.1, lam=1.0)
    rates = adapter.last.learning_rates
    assert rates["layer2.0.weight"] == 0 < rates["layer1.0.weight"]


class Branches(nn.Module):
    """A part that some batches skip."""

    def __init__(self):
        super().__init__()
        self.net = RESNET.make()
        self.conv1, self.bn1, self.layer1, self.layer2 = (
            getattr(self.net, name) for name in ("conv1", "bn1", "layer1", "layer2")
        )
        del self.net
        self.fc = nn.Linear(6, 5)
        self.skip = False

    def forward(self, x):
        y = self.layer1(self.bn1(self.conv1(x)).relu())
        y = torch.cat([y, y[:, :2]], 1) if self.skip else self.layer2(y)
        return self.fc(y.mean((2, 3)))


def test_ecotta_says_so_when_a_batch_skips_a_part():
    adapter = ctta.adapt(Branches().eval(), "ecotta", stages="layer1,layer2")
    adapter.model.skip = True
    with pytest.raises(ctta.ModelError, match="left out some"):
        adapter(X)


class Widths(nn.Module):
    """Features of another width for dark batches."""

    def __init__(self):
        super().__init__()
        self.conv, self.wide, self.bright, self.dark = (
            nn.Conv2d(3, 4, 1),
            nn.Linear(4, 8),
            nn.Linear(4, 5),
            nn.Linear(8, 5),
        )

    def forward(self, x):
        y = self.conv(x).mean((2, 3))
        return self.bright(y) if x.mean() > 0.3 else self.dark(self.wide(y))


def test_adacontrast_says_so_when_features_change_their_width():
    with pytest.raises(ctta.ModelError, match="features of width 4"):
        run(Widths(), "adacontrast", augment=lambda x: x * 0.1)


@pytest.mark.filterwarnings("ignore")  # torch says much about quantised layers
@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_a_quantised_model_that_lets_no_gradient_through_is_refused(name):
    model = torch.ao.quantization.quantize_dynamic(RESNET.make(), {nn.Linear})
    with pytest.raises(ctta.ModelError, match=r"depend on none of the|has no nn.Linear"):
        run(model, name)


@pytest.mark.parametrize("name", METHODS)
def test_sparse_buffers_and_lazy_layers_are_refused_with_the_cure(name):
    model = RESNET.make()
    model.register_buffer("graph", torch.eye(3).to_sparse())
    with pytest.raises(ctta.ModelError, match=r"graph has layout .*to_dense"):
        run(model, name)
    with pytest.raises(ctta.ModelError, match="run it once before"):
        run(nn.Sequential(nn.Conv2d(3, 4, 1), nn.LazyBatchNorm2d(affine=False)), name)


class OwnForward(nn.BatchNorm2d):
    def forward(self, x):
        return (x - self.running_mean[:, None, None]) / (self.running_var[:, None, None] + self.eps).sqrt()


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 5, 1)

    def forward(self, x):
        return self.conv(F.batch_norm(x, self.bn.running_mean, self.bn.running_var)).mean((2, 3))


@pytest.mark.parametrize(
    "make",
    [
        Functional,
        lambda: nn.Sequential(OwnForward(3), nn.Conv2d(3, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    ],
)
def test_models_that_read_running_statistics_themselves_are_told_what_helps(make):
    with pytest.raises(ctta.ModelError, match=r"took `running_mean`.*bn_mode=\"source\""):
        run(make(), "palm")
    assert run(make(), "palm", bn_mode="source")[0].isfinite().all()


def test_other_failures_of_a_model_say_nothing_of_statistics():
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = RESNET.make()

        def forward(self, x):
            raise ValueError("no such thing")

    with pytest.raises(ctta.ModelError, match="no such thing") as caught:
        run(Failing(), "palm")
    assert "running_mean" not in str(caught.value)
