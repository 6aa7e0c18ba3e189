"""Finding the stages of a network: by exact names per family, or as the user names them."""

import pytest
import torch
from tests.conftest import Block, golden_net
from torch import nn

import ctta
from ctta.models import build, find_stages


class Net(nn.Module):
    """Holds whatever it is given, under the names it is given."""

    def __init__(self, **children):
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)


def stage(blocks=2):
    return nn.Sequential(*(Block(4, 4, 1) for _ in range(blocks)))


def wide_stage():
    return Net(layer=stage())


@pytest.mark.parametrize(
    ("name", "stem", "stages", "last"),
    [
        ("wrn-16-2", ("conv1",), {"block1": 2, "block2": 2, "block3": 2}, "block3.layer.1"),
        ("resnext-29", ("conv_1_3x3", "bn_1"), {"stage_1": 3, "stage_2": 3, "stage_3": 3}, "stage_3.2"),
        ("resnet-20", ("conv1", "bn1"), {"layer1": 3, "layer2": 3, "layer3": 3}, "layer3.2"),
        (
            "resnet-50",
            ("model.conv1", "model.bn1"),
            {"model.layer1": 3, "model.layer2": 4, "model.layer3": 6, "model.layer4": 3},
            "model.layer4.2",
        ),
    ],
)
def test_our_architectures_are_known(name, stem, stages, last):
    with torch.device("meta"):
        found = find_stages(build(name))
    assert found.stem == stem
    assert {stage.name: len(stage.blocks) for stage in found.stages} == stages
    assert found.blocks[-1] == last


@pytest.mark.parametrize(
    ("wrap", "prefix"),
    [
        (lambda net: nn.Sequential(nn.Identity(), net), "1."),
        (lambda net: Net(module=Net(model=net)), "module.model."),
        (nn.DataParallel, "module."),
    ],
    ids=["sequential", "nested", "data parallel"],
)
def test_wrappers_only_lengthen_the_names(wrap, prefix):
    found = find_stages(wrap(golden_net()))
    assert found.stem == (f"{prefix}conv1", f"{prefix}bn1")
    assert [stage.name for stage in found.stages] == [f"{prefix}layer{n}" for n in (1, 2, 3)]
    assert found.stages[1].blocks == (f"{prefix}layer2.0",)


@pytest.mark.parametrize(
    "net",
    [
        Net(sub_block1=wide_stage(), sub_block2=wide_stage()),
        Net(denseblock1=stage(), denseblock2=stage()),
        Net(layer10=stage(), layer11=stage()),
        Net(layer1=nn.Conv2d(3, 4, 1), layer2=stage(), layer3=stage()),
        Net(layer1=nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()), layer2=nn.Sequential(nn.Conv2d(4, 4, 1))),
        Net(block1=stage(), block2=stage()),  # a wide ResNet keeps its blocks in `layer`
        Net(layer1=stage(), fc=nn.Linear(4, 2)),  # one stage is no row of stages
        nn.Linear(3, 2),
    ],
    ids=["sub_block", "denseblock", "layer10", "layer1 a conv", "plain", "no layer", "one", "linear"],
)
def test_names_that_only_resemble_a_stage_are_not_taken_for_one(net):
    with pytest.raises(ctta.UnsupportedModelError, match="no stages under a known name") as caught:
        find_stages(net)
    assert "stages=" in str(caught.value)
    for name, child in net.named_children():
        assert f"{name} ({type(child).__name__})" in str(caught.value)


def test_look_alikes_beside_real_stages_do_not_disturb_them():
    net = Net(
        conv1=nn.Conv2d(3, 4, 1),
        fc=nn.Linear(4, 2),
        block1=wide_stage(),
        sub_block1=wide_stage(),
        block2=wide_stage(),
        block10=wide_stage(),
    )
    found = find_stages(net)
    assert [s.name for s in found.stages] == ["block1", "block2"]
    assert found.stem == ("conv1",)  # the classifier is none, wherever it is registered
    assert found.block_of("sub_block1.layer.0.conv1.weight").stage == "head"
    assert found.block_of("block10.layer.0.conv1.weight").stage == "head"


def test_stages_inside_stages_do_not_count_and_two_rows_are_ambiguous():
    inner = Net(layer1=stage(), layer2=stage())
    outer = Net(layer1=nn.Sequential(inner), layer2=stage())
    assert [s.name for s in find_stages(outer).stages] == ["layer1", "layer2"]
    two = Net(left=Net(layer1=stage(), layer2=stage()), right=Net(layer1=stage(), layer2=stage()))
    with pytest.raises(ctta.UnsupportedModelError, match=r"left\.layer1 to left\.layer2 and right\.layer1"):
        find_stages(two)
    assert find_stages(two, "right.layer1,right.layer2").stages[0].blocks == ("right.layer1.0", "right.layer1.1")


@pytest.mark.parametrize("names", ["features.a, features.b", ["features.a", "features.b"]])
def test_the_user_can_name_the_stages(names):
    plain = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU())
    net = Net(stem=nn.Conv2d(3, 4, 1), features=Net(a=plain, b=Net(blocks=stage(3))), fc=nn.Linear(4, 2))
    found = find_stages(net, names)
    assert found.stem == ("stem",)
    assert found.stages[0].blocks == ("features.a",)  # single layers are no blocks: the stage is one
    assert found.stages[1].blocks == tuple(f"features.b.blocks.{i}" for i in range(3))


def test_stages_named_wrongly_are_refused():
    net = golden_net()
    with pytest.raises(ctta.SettingError, match="no module `layer9` to be a stage") as caught:
        find_stages(net, "layer9")
    assert "layer1 (Sequential)" in str(caught.value)
    with pytest.raises(ctta.SettingError, match="overlaps `layer1`"):
        find_stages(net, "layer1,layer1.0")
    with pytest.raises(ctta.SettingError, match="overlaps `layer1`"):
        find_stages(net, "layer1,layer1")


def test_every_parameter_has_a_place():
    net = golden_net()
    stages = find_stages(net)
    places = {name: stages.block_of(name) for name, _ in net.named_parameters()}
    assert places.keys() == {name for name, _ in net.named_parameters()}
    assert places["conv1.weight"] == ("stem", "conv1")
    assert places["layer2.0.down.1.bias"] == ("layer2", "layer2.0")
    assert places["fc.bias"] == ("head", "fc")
    shares = {"stem": 0, "layer1": 0, "layer2": 0, "layer3": 0, "head": 0}
    for name, parameter in net.named_parameters():
        shares[places[name].stage] += parameter.numel()
    assert sum(shares.values()) == 19_954
    assert min(shares.values()) > 0


def test_what_a_stage_holds_beside_its_blocks_belongs_to_the_stage():
    net = Net(block1=Net(layer=stage(), norm=nn.BatchNorm2d(4)), block2=wide_stage())
    assert find_stages(net).block_of("block1.norm.weight") == ("block1", "block1")
