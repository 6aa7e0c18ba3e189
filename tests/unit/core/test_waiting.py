"""How often a step waits for the device: counted on the CPU by the operations that would."""

import collections

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import ctta

WAITING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal")


class Waits(TorchDispatchMode):
    """Counts operations whose result the host must have before it can go on."""

    def __init__(self):
        super().__init__()
        self.found = collections.Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation.name().startswith(WAITING):
            self.found[operation.name()] += 1
        return operation(*args, **(kwargs or {}))


@pytest.fixture
def waits(monkeypatch):
    counted = Waits()
    read = torch.Tensor.tolist

    def tolist(tensor):
        counted.found["tolist"] += 1
        return read(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", tolist)
    monkeypatch.setattr("ctta._core.step.COMPARED", ())  # asked on CPUs only
    return counted


@pytest.mark.parametrize(
    "settings",
    [{}, {"variant": "paper"}, {"memory": "low"}, {"memory": "lowest"}, {"refresh": 2}],
    ids=str,
)
def test_a_step_of_palm_waits_at_the_door_for_the_selection_and_at_its_end(waits, settings):
    adapter = ctta.adapt(wrn(10), "palm", augment=lambda x: x.flip(-1), eta=1e9, **settings)
    x = images(64)
    adapter(x)
    waits.found.clear()
    with waits:
        adapter(x)
    selection = "refresh" not in settings
    assert waits.found == {"tolist": 2 + selection}
    assert adapter.last.shares["moved"] > 0


@pytest.mark.parametrize("method", ["tent", "law", "sft", "palm"])
def test_how_often_a_step_waits_does_not_grow_with_the_model(waits, method):
    found = []
    for depth in (10, 16):
        adapter = ctta.adapt(wrn(depth), method, augment=lambda x: x.flip(-1))
        adapter(images(8))
        waits.found.clear()
        with waits:
            adapter(images(8))
        found.append(dict(waits.found))
    assert found[0] == found[1]


def wrn(depth):
    torch.manual_seed(0)
    return ctta.models.build(f"wrn-{depth}-1", 4).eval()


def images(count):
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(0))
