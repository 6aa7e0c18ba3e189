"""compile=True: the same predictions, and a model that cannot be compiled still adapts.

Most tests trace with torch.compile and run the traced graphs without generating code, which takes long; the last
one generates code, where CTTA_TEST_COMPILE=1 asks for it.
"""

import copy
import os

import pytest
import torch
from tests.conftest import fixed_augment, golden_net, golden_stream
from torch import nn

import ctta
from ctta._cost.compiling import is_compiled

F64 = torch.float64
TORCH_COMPILE = nn.Module.compile


def palm(**settings):
    return ctta.adapt(golden_net(F64), "palm", augment=fixed_augment, eta=0.05, **settings)


def use_backend(monkeypatch, backend):
    monkeypatch.setattr(nn.Module, "compile", lambda self: TORCH_COMPILE(self, backend=backend))


@pytest.fixture(autouse=True)
def forget_compiled():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture(scope="module")
def batches():
    return [x[:8] for x in golden_stream(F64)[:5]]


@pytest.mark.parametrize("settings", [{}, {"variant": "paper"}, {"speed": "fast", "memory": "low"}], ids=str)
def test_a_compiled_model_predicts_and_selects_the_same(monkeypatch, batches, settings):
    use_backend(monkeypatch, "aot_eager")
    plain, compiled = palm(**settings), palm(compile=True, **settings)
    for x in batches:
        assert (plain(x) - compiled(x)).abs().max() < 1e-9
        assert plain.last.selected == compiled.last.selected
    assert is_compiled(compiled.model)
    assert not is_compiled(plain.model)


def test_the_report_of_the_first_batch_says_how_long_compiling_took(monkeypatch, batches):
    use_backend(monkeypatch, "aot_eager")
    adapter = palm(compile=True)
    notes = [(adapter(x), adapter.last.notes)[1] for x in batches[:2]]
    assert any(note.startswith("compiling took ") for note in notes[0])
    assert not any("compiling" in note for note in notes[1])


def test_a_changing_selection_is_not_compiled_anew(monkeypatch, batches):
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    use_backend(monkeypatch, backend)
    adapter = palm(compile=True, unselected_lr="zero")
    selections = {(adapter(x), adapter.last.selected)[1] for x in batches}
    assert len(selections) > 1
    assert len(graphs) == 1


def test_a_model_that_cannot_be_compiled_runs_as_it_is_after_one_warning(monkeypatch, batches):
    def backend(_graph, _inputs):
        raise RuntimeError("no compiler here")

    use_backend(monkeypatch, backend)
    plain, adapter = palm(), palm(compile=True)
    with pytest.warns(UserWarning, match="cannot compile .*no compiler here"):
        logits = adapter(batches[0])
    assert torch.equal(logits, plain(batches[0]))
    assert torch.equal(adapter(batches[1]), plain(batches[1]))  # a second warning would be an error


def test_a_bad_batch_is_no_reason_to_give_up_compiling(monkeypatch, batches):
    use_backend(monkeypatch, "aot_eager")
    adapter = palm(compile=True)
    with pytest.raises(ctta.errors.CttaError):
        adapter(torch.rand(4, 5, 8, 8, dtype=F64))
    adapter(batches[0])
    assert any(note.startswith("compiling took ") for note in adapter.last.notes)


def test_copies_and_saved_states_go_on_compiled(monkeypatch, batches, tmp_path):
    use_backend(monkeypatch, "aot_eager")
    adapter = palm(compile=True)
    adapter(batches[0])
    adapter.save(tmp_path / "a.safetensors")
    twin = copy.deepcopy(adapter)
    loaded = ctta.load(tmp_path / "a.safetensors", golden_net(F64), augment=fixed_augment)
    expected = adapter(batches[1])
    for other in (twin, loaded):
        assert torch.equal(other(batches[1]), expected)
        assert is_compiled(other.model)
    assert not is_compiled(adapter.freeze())


def test_compiling_and_running_blocks_again_exclude_each_other():
    with pytest.raises(ctta.SettingError, match='memory="lowest"'):
        palm(compile=True, memory="lowest")


@pytest.mark.skipif(not os.environ.get("CTTA_TEST_COMPILE"), reason="generating code takes a minute")
def test_generated_code_predicts_the_same(batches):
    plain, compiled = palm(), palm(compile=True)
    for x in batches:
        assert (plain(x) - compiled(x)).abs().max() < 1e-9
