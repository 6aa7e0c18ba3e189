"""Which parameters belong to which group, and BatchNorm on batch statistics."""

import copy

import pytest
import torch
from torch import nn

import ctta
from ctta._core.layers import all_finite, collect, use_batch_statistics
from ctta.checks.networks import NETWORKS


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("none", []),
        ("norm", ["1.weight", "1.bias"]),
        ("conv", ["0.weight", "0.bias"]),
        ("conv-norm", ["0.weight", "0.bias", "1.weight", "1.bias"]),
        ("all", ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]),
    ],
)
def test_groups_hold_the_parameters_of_their_layers_in_model_order(group, expected):
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    assert list(collect(model, group)) == expected


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(4),
        nn.BatchNorm2d(4),
        nn.BatchNorm3d(4),
        nn.SyncBatchNorm(4),
        nn.GroupNorm(2, 4),
        nn.LayerNorm(4),
        nn.RMSNorm(4),
        nn.InstanceNorm2d(4, affine=True),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_every_kind_of_norm_layer_is_a_norm_layer(layer):
    assert "weight" in collect(layer, "norm")


@pytest.mark.parametrize("layer", [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d])
def test_every_kind_of_convolution_is_a_convolution(layer):
    assert list(collect(layer(2, 2, 1), "conv")) == ["weight", "bias"]


def test_parameters_of_containers_belong_to_no_group_but_all():
    model = NETWORKS["vit"].make()
    assert not any("token" in n or "position" in n or "attention" in n for n in collect(model, "conv-norm"))
    assert "token" in collect(model, "all")


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.BatchNorm1d, (6, 4)), (nn.BatchNorm2d, (6, 4, 3, 3)), (nn.BatchNorm3d, (6, 4, 2, 3, 3))],
)
def test_batch_statistics_equal_train_mode_and_store_nothing(layer, shape):
    reference = layer(4).train()
    reference(torch.randn(8, *shape[1:]))
    model = copy.deepcopy(reference).eval()
    use_batch_statistics(model)
    x = torch.randn(shape)
    held = model.source_mean.clone()
    assert torch.equal(model(x), reference(x))
    assert torch.equal(model.train()(x), reference(x))
    assert torch.equal(model.source_mean, held)
    assert "running_mean" not in model.state_dict()


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.BatchNorm1d, (1, 4)), (nn.BatchNorm2d, (1, 4, 1, 1)), (nn.BatchNorm3d, (1, 4, 1, 1, 1))],
)
def test_one_value_a_channel_falls_back_on_the_source_statistics(layer, shape):
    source = layer(4).train()
    source(torch.randn(8, *shape[1:]) * 2 + 1)
    source.eval()
    model = copy.deepcopy(source)
    use_batch_statistics(model)
    x = torch.randn(shape)
    assert torch.equal(model(x), source(x))
    assert model.running_mean is None


def test_an_input_passed_by_name_is_seen():
    model = nn.BatchNorm1d(4).eval()
    use_batch_statistics(model)
    assert model(input=torch.randn(1, 4)).shape == (1, 4)


def test_a_failing_forward_does_not_leave_the_source_statistics_lent():
    model = nn.BatchNorm1d(4).eval()
    use_batch_statistics(model)
    with pytest.raises(RuntimeError):
        model(torch.randn(1, 4, dtype=torch.complex64))
    assert model.running_mean is None


def test_a_batchnorm_without_running_statistics_is_left_as_it_is():
    layer = nn.BatchNorm2d(4, track_running_stats=False)
    use_batch_statistics(layer)
    assert not layer._forward_pre_hooks


def test_layers_that_share_a_module_are_changed_once():
    model = NETWORKS["tied"].make()
    use_batch_statistics(model)
    assert len(model.norm._forward_pre_hooks) == 1


def test_finite_check_sees_one_bad_element_in_many_tensors_and_ignores_integers():
    good = [torch.rand(3), torch.rand(2, 2, dtype=torch.float64), torch.tensor([1, 2]), torch.empty(0)]
    assert all_finite(good)
    assert all_finite([])
    for bad in (float("nan"), float("inf"), float("-inf")):
        assert not all_finite([*good, torch.tensor([0.0, bad])])


def test_lazy_layers_are_refused_until_they_have_seen_a_batch():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.LazyLinear(2))
    with pytest.raises(ctta.ModelError, match="lazy layers"):
        ctta.adapt(model, "palm")
