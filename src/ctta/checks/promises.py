"""The promises themselves: one function each, failing with the reason."""

from __future__ import annotations

import copy
import functools
import gc
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import ctta
from ctta._core.state import network_tensors
from ctta.adapter import Adapter
from ctta.checks.cases import Case, run, same_logits, same_tensors, snapshot
from ctta.checks.networks import CLASSES
from ctta.errors import CttaError, UnsupportedModelError


def must_refuse(call: Callable[[], object], kind: type[CttaError], what: str) -> None:
    """Fail unless a call raises a typed error, with a sentence."""
    try:
        call()
    except kind as error:
        assert len(str(error).split()) > 5, f"{what}: the refusal should say what was expected and why"
    else:
        raise AssertionError(f"accepted {what}")


def check_refusal(case: Case) -> None:
    """A network without what the method needs is refused at once, with a sentence."""
    must_refuse(case.adapter, UnsupportedModelError, f"a network without {sorted(case.entry.needs)}")


def check_logits(case: Case) -> None:
    """Logits have one row a sample, the model's dtype, no graph; float64 works like float32."""
    doubled = case.stream(dtype=torch.float64)[:2]
    runs = {torch.float32: case.plain, torch.float64: run(case.adapter(dtype=torch.float64), doubled)}
    for dtype, answers in runs.items():
        for x, logits in zip(case.stream(), answers, strict=False):
            assert logits.shape == (len(x), CLASSES), f"shape {tuple(logits.shape)}"
            assert logits.dtype == dtype, f"dtype {logits.dtype}"
            assert not logits.requires_grad, "logits carry a graph"
            assert logits.isfinite().all(), "logits are not finite"


def check_reset(case: Case) -> None:
    """After `reset` an adapter is a new one, bit for bit."""
    adapter = copy.deepcopy(case.trial.adapter)
    adapter.reset()
    assert adapter.last is None, "a reset adapter still has a last report"
    same_tensors(snapshot(adapter), case.trial.new, "state after reset")
    same_logits(run(adapter, case.stream()), case.plain, "stream after reset")


def check_save_and_load(case: Case) -> None:
    """An adapter saved in the middle of a stream and loaded continues as if never interrupted."""
    adapter, rest = case.begun(), case.stream()[2:]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "adapter.safetensors")
        adapter.save(path)
        twin = ctta.load(path, case.network.make())
    same_tensors(snapshot(twin), snapshot(adapter), "state after load")
    # sums over tensors that come in another order, or lie in memory in another way, would round otherwise
    laid = [[(key, value.stride()) for key, value in snapshot(one).items()] for one in (twin, adapter)]
    assert laid[0] == laid[1], "state after load: tensors in another order or memory layout"
    same_logits(run(twin, rest), case.plain[2:], "stream after load")
    same_logits(run(adapter, rest), case.plain[2:], "stream after save")
    assert twin.last == adapter.last, "reports after load differ"


def check_state_dict(case: Case) -> None:
    """`state_dict` moves a run into another adapter, and does not change with the one it came from."""
    twin = case.adapter(seed=99)
    twin.load_state_dict(case.trial.state)
    same_logits(run(twin, case.stream()[2:]), case.plain[2:], "stream after load_state_dict")


def check_callers_model(case: Case) -> None:
    """The model the caller gave is never touched; with `inplace=True` it is the one that adapts."""
    model = case.trial.model
    same_tensors(network_tensors(model), case.trial.held, "caller's model")
    assert all(module.training for module in model.modules()), "caller's model left train mode"
    assert all(p.requires_grad and p.grad is None for p in model.parameters()), "caller's gradients changed"
    model = case.network.make()
    assert case.adapter(model, inplace=True).model is model, "inplace did not adapt the model itself"


def check_only_declared_moves(case: Case) -> None:
    """Parameters the method does not declare as adapted stay bit for bit."""
    adapter = case.trial.adapter
    for name, value in adapter.model.named_parameters():
        still = name in adapter.method.adapted or torch.equal(value, case.trial.new[f"whole/{name}"])
        assert still, f"{name} moved but is not adapted"


def check_same_seed(case: Case) -> None:
    """The same seed gives the same run, and no global random state is read or touched."""
    assert not case.trial.touched, f"{case.trial.touched[0]}'s global random state was touched"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(12345)
        second = run(case.adapter(), case.stream()[:3])
    same_logits(second, case.plain[:3], "same seed")


def check_predict(case: Case) -> None:
    """`predict` changes nothing, and a frozen copy predicts the same."""
    adapter, (x, *rest) = case.begun(), case.stream()[2:]
    before, last = snapshot(adapter), adapter.last
    logits = adapter.predict(x)
    plain = adapter.freeze()
    same_tensors(snapshot(adapter), before, "predict or freeze")
    assert adapter.last is last, "predict changed the report"
    with torch.no_grad():
        again, ready = copy.deepcopy(plain), copy.deepcopy(plain).eval()
        assert torch.equal(plain(x.clone()), logits), "freeze() predicts something else"
        run(adapter, [x, *rest])
        assert torch.equal(again(x.clone()), logits), "freeze() follows the adapter"
        assert torch.equal(ready(x.clone()), logits), "freeze().eval() predicts something else"


def check_grad_modes(case: Case) -> None:
    """Runs under no_grad and inference_mode equal a plain run, as do models and batches made there."""
    for mode in (torch.no_grad, torch.inference_mode):
        adapter, stream = case.begun(), case.stream()
        with mode():
            same_logits(run(adapter, stream[2:3]), case.plain[2:3], f"stream under {mode.__name__}")
            made_here, batches = case.adapter(case.network.make()), [x.clone() for x in stream[:2]]
            why = f"adapter and batches made under {mode.__name__}"
            same_logits(run(made_here, batches), case.plain[:2], why)


def check_copies(case: Case) -> None:
    """A deep copy continues alike and leaves the original alone."""
    adapter, stream = case.begun(), case.stream()
    before, twin = snapshot(adapter), copy.deepcopy(adapter)
    same_logits(run(twin, stream[2:]), case.plain[2:], "copy")
    same_tensors(snapshot(adapter), before, "original after its copy ran")
    same_logits(run(adapter, stream[2:3]), case.plain[2:3], "original after its copy ran")


def check_autocast(case: Case) -> None:
    """Under bf16 autocast the run is finite, weights keep their dtype, and no stale cast is used."""
    adapter, twin, apart, together = case.adapter(), case.adapter(), [], []
    for x in case.stream()[:2]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            apart.append(adapter(x))
    assert all(logits.isfinite().all() for logits in apart), "logits are not finite"
    assert all(p.dtype == torch.float32 for p in adapter.model.parameters()), "weights changed dtype"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for x in case.stream()[:2]:
            twin.predict(x)
            together.append(twin(x))
    same_logits(together, apart, "one autocast context for all batches")


def check_input_guard(case: Case) -> None:
    """Bad batches raise a typed error and leave no trace: the good ones are answered as if they never came."""
    new, begun, stream = case.adapter(), case.begun(), case.stream()
    for adapter, index in ((new, 0), (begun, 2)):
        before, last = snapshot(adapter), adapter.last
        for name, bad in bad_batches(stream[index]).items():
            for call in (adapter, adapter.predict):
                must_refuse(functools.partial(call, bad), CttaError, f"a batch with {name}")
            same_tensors(snapshot(adapter), before, f"state after a batch with {name}")
            assert adapter.last is last, f"the report changed after a batch with {name}"
        same_logits([adapter(stream[index])], [case.plain[index]], "a good batch after bad ones")


def bad_batches(x: Tensor) -> dict[str, Tensor]:
    """Batches that must be refused by any model, made from a good one."""
    nan, infinite = x.clone(), x.clone()
    nan.view(len(x), -1)[0, 0] = float("nan")
    infinite.view(len(x), -1)[-1, -1] = float("-inf")
    return {
        "NaN": nan,
        "infinity": infinite,
        "a vector": x.flatten(),
        "no batch dimension": x[0],
        "channels missing": x[:, :1],
        "channels too many": torch.cat([x, x], 1),
        "uint8": (x * 255).to(torch.uint8),
        "another dtype": x.double(),
        "no images": x[:0],
        "another device": x.to("meta"),
    }


def check_batch_sizes(case: Case) -> None:
    """Batches of one and ragged batches work."""
    adapter = case.adapter()
    for x in case.stream((1, 7, 1)):
        logits = adapter(x)
        assert logits.shape == (len(x), CLASSES), f"batch of {len(x)}"
        assert logits.isfinite().all(), f"batch of {len(x)}: logits are not finite"


def check_undo(case: Case) -> None:
    """A step with a gradient that is not finite is undone to the bit, counted, reported; logits still come."""
    undone(case, case.adapter(), case.adapter(), 0)  # on the first batch much of the state begins
    undone(case, case.begun(), case.begun(), 2)


def undone(case: Case, adapter: Adapter, twin: Adapter, index: int) -> None:
    """Poison the gradients of one batch of the stream; the next must be answered as if it had not come."""
    x, following = case.stream()[index : index + 2]
    before, expected = snapshot(adapter), adapter.predict(x)

    def poison(_module: object, _inputs: object, logits: Tensor) -> None:
        if logits.requires_grad:
            logits.register_hook(lambda gradient: gradient * float("nan"))  # type: ignore[no-untyped-call]

    hook = adapter.model.register_forward_hook(poison)
    logits = adapter(x)
    hook.remove()
    assert logits.isfinite().all(), "no prediction from a step that was undone"
    assert adapter.last is not None
    if adapter.method.adapted:
        assert adapter.last.skipped, "a poisoned step was not reported as skipped"
        assert adapter.last.reason, "no reason given"
        assert adapter.skipped_steps == 1, "a poisoned step was not counted"
        assert torch.equal(logits, expected), "the prediction of an undone step differs from predict()"
        after = {**snapshot(adapter), "adapter": before["adapter"]}  # which counts steps
        same_tensors(after, before, "state after an undone step")
    wanted = [twin(following)] if adapter.skipped_steps else case.plain[index + 1 : index + 2]
    same_logits([adapter(following)], wanted, "the batch after an undone step")


def check_interruption(case: Case) -> None:
    """An exception in the middle of a step (here: Ctrl-C) leaves no trace."""

    def interrupt(_module: object, _inputs: object, _logits: object) -> None:
        raise KeyboardInterrupt

    for adapter, x in ((case.adapter(), case.stream()[0]), (case.begun(), case.stream()[2])):
        before = snapshot(adapter)
        hook = adapter.model.register_forward_hook(interrupt)
        try:
            adapter(x)
            raise AssertionError("the step went on through an interruption")
        except KeyboardInterrupt:
            hook.remove()
        same_tensors(snapshot(adapter), before, "state after an interruption")


def check_memory(case: Case) -> None:
    """What is kept does not grow with the stream; state per tensor is bounded by the tensors there are."""
    adapter = case.adapter()
    method, stream = adapter.method, case.stream((4,) * 4)
    per_tensor = {name for name, item in method.kept().items() if item.kind == "per tensor"}
    parameters = {name: value.numel() for name, value in adapter.model.named_parameters()}

    def held() -> tuple[int, int, int]:
        """Entries per tensor, bytes of everything else, tensors alive that are younger than this check."""
        state = method.state().tensors
        bounded = {key for key in state if key.split("/")[0] in per_tensor}
        for key in bounded:
            size = parameters.get(key.partition("/")[2])
            assert size is not None, f"{key} is kept per tensor, but the model has no such parameter"
            assert state[key].numel() <= size, f"{key} is larger than its parameter"
        adapter._snapshot.clear()  # copies for undoing lag a batch behind what they copy
        gc.collect()
        alive = sum(issubclass(type(item), Tensor) for item in gc.get_objects())
        return len(bounded), sum(state[key].nbytes for key in state.keys() - bounded), alive

    gc.freeze()  # looking through all that was there before would take longer than the steps
    try:
        run(adapter, stream[:3])
        entries, size, alive = held()
        run(adapter, stream)
        more_entries, more_size, more_alive = held()
    finally:
        gc.unfreeze()
    assert more_size <= size, f"state grew from {size} to {more_size} bytes"
    allowed = alive + (more_entries - entries) + 2
    assert more_alive <= allowed, f"live tensors grew from {alive} to {more_alive}"


def check_moves(case: Case) -> None:
    """`.to()` moves everything: a run converted to float64 and back goes on."""
    adapter, stream = case.begun(), case.stream()
    adapter.double()
    assert adapter(stream[2].double()).dtype == torch.float64, "not in float64 after .double()"
    state = adapter.method.state().tensors
    assert all(t.dtype == torch.float64 for t in state.values() if t.is_floating_point()), "state stayed behind"
    adapter.float()
    assert adapter(stream[3]).dtype == torch.float32, "not in float32 after .float()"
    adapter.reset()
    same_logits(run(adapter, stream[:2]), case.plain[:2], "stream after moves and reset")


CHECKS: dict[str, Callable[[Case], None]] = {
    "logits": check_logits, "reset": check_reset, "save and load": check_save_and_load,
    "state dict": check_state_dict, "caller's model": check_callers_model,
    "only declared moves": check_only_declared_moves, "same seed": check_same_seed, "predict": check_predict,
    "grad modes": check_grad_modes, "copies": check_copies, "autocast": check_autocast,
    "input guard": check_input_guard, "batch sizes": check_batch_sizes, "undo": check_undo,
    "interruption": check_interruption, "memory": check_memory, "moves": check_moves,
}  # fmt: skip
