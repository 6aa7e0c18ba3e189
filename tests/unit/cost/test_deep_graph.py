"""Graphs of which only the deep part is kept."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import ctta
from ctta._cost.deep_graph import DeepGraph
from ctta.models import build


class Shrinking(nn.Module):
    """Three stages whose maps halve, as in a residual network."""

    def __init__(self, moody=False):
        super().__init__()
        torch.manual_seed(0)
        self.stages = nn.ModuleList()
        width = 3
        for stage, after in enumerate((8, 16, 32)):
            for block in range(3):
                stride = 2 if stage and not block else 1
                layers = nn.Conv2d(width, after, 3, stride, 1), nn.BatchNorm2d(after), nn.ReLU()
                self.stages.append(nn.Sequential(*layers))
                width = after
        self.head = nn.Linear(width, 4)
        self.moody, self.seen, self.reached = moody, [], []

    def forward(self, x):
        known = self.moody and any(torch.equal(x, before) for before in self.seen)
        self.seen.append(x)
        for place, stage in enumerate(self.stages):
            self.reached.append(place)
            x = stage(x)
            if known:  # another way for images it has seen
                return self.head(x.mean((2, 3)).repeat(1, 4))
        return self.head(x.mean((2, 3)))


@pytest.fixture
def x():
    return torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def gradients_of(output, model):
    return torch.autograd.grad(output.square().sum(), list(model.parameters()))


def test_the_gradient_is_that_of_the_whole_graph(x):
    model = Shrinking()
    expected = gradients_of(model(x), model)
    graph = DeepGraph(model, lambda: model(x))
    assert graph.complete()
    for found, value in zip(gradients_of(graph.output, model), expected, strict=True):
        assert torch.equal(found, value)


def test_the_shallow_part_is_let_go_and_the_deep_part_is_kept_and_not_run_again(x):
    model = Shrinking()
    graph = DeepGraph(model, lambda: model(x))
    kept = [saved.tensor is not None for saved in graph.saved]
    assert 0 < graph.dropped < len(kept)
    assert kept == [False] * graph.dropped + [True] * (len(kept) - graph.dropped)
    model.reached.clear()
    assert graph.complete()
    assert model.reached[-1] < len(model.stages) - 1
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_graph_that_is_not_complete_refuses_to_go_backward(x):
    model = Shrinking()
    with pytest.raises(RuntimeError, match="call `complete`"):
        gradients_of(DeepGraph(model, lambda: model(x)).output, model)


def test_a_pass_that_does_something_else_the_second_time_is_noticed(x):
    model = Shrinking(moody=True)
    assert not DeepGraph(model, lambda: model(x)).complete()


def test_a_layer_with_one_value_per_channel_keeps_to_the_batch_afterwards():
    # BatchNorm is lent its source statistics for one image on a 1 x 1 map, and must give them back
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 2), nn.BatchNorm2d(4), nn.Flatten())
    low, normal = (ctta.adapt(model.eval(), "palm", memory=memory, eta=1e9) for memory in ("low", "normal"))
    for size in (1, 8, 1, 8):
        x = torch.rand(size, 3, 4, 4, generator=torch.Generator().manual_seed(size))
        assert torch.equal(low(x), normal(x))


def test_nothing_outlives_the_backward_pass(x):
    model = Shrinking()
    gc.disable()
    try:
        graph = DeepGraph(model, lambda: model(x))
        graph_before = list(graph.saved)
        graph.complete()
        maps = [weakref.ref(saved.tensor) for saved in graph_before]
        gradients_of(graph.output, model)
        del graph, graph_before
        assert not any(ref() is not None for ref in maps)
    finally:
        gc.enable()


def test_low_memory_runs_the_whole_view_again_where_its_parts_do_not_fit(x):
    adapter = ctta.adapt(Shrinking(moody=True), "palm", memory="low", eta=1e9)
    adapter(x)
    assert not adapter.last.skipped
    assert adapter.last.shares["moved"] > 0


def test_low_memory_costs_less_than_a_forward_pass_more():
    model = build("wrn-16-1", 10).eval()
    x = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    flops = {}
    for memory in ("normal", "low"):
        adapter = ctta.adapt(model, "palm", memory=memory, eta=1e9)
        adapter(x)
        with FlopCounterMode(display=False) as counter:
            adapter(x)
        flops[memory] = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    assert flops["normal"] < flops["low"] < flops["normal"] + 0.8 * counter.get_total_flops()
