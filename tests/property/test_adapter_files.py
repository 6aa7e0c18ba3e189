"""Adapter files that no adapter wrote: whatever is in them, loading answers with an error of ours or works."""

import copy
import json
import random

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save
from tests.conftest import golden_net

import ctta
from ctta._core import checkpoint

CURIOUS = [None, True, -5, 10**400, 1.5, float("nan"), "x", [], ["x"], [[]], {}, {"x": {}}]
METHODS = {
    "palm": {"eta": 1e9},
    "adacontrast": {"queue_size": 10, "bank_size": 9, "neighbours": 3, "refine_after": 6},
    "dss": {"views": 1},
}


@pytest.fixture(scope="module", params=METHODS)
def whole(request, tmp_path_factory):
    """Tensors and header of a good file, its path, and images to go on with."""
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    adapter = ctta.adapt(golden_net(), request.param, augment="cotta", **METHODS[request.param])
    adapter(x)
    path = tmp_path_factory.mktemp("files") / "whole"
    adapter.save(path)
    with safe_open(path, "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, json.loads(file.metadata()["ctta"]), path, x  # noqa: SIM118


def forge(path, tensors, text):
    """Write a file with a right checksum, whatever it says."""
    path.write_bytes(save(tensors, {"ctta": text, "sha256": checkpoint.digest(tensors, text)}))


def try_it(path, x):
    """Load and step; only errors of ours may come."""
    try:
        ctta.load(path, golden_net())(x)
    except ctta.CttaError:
        return False
    return True


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*path, key))


def changed(value, path, new):
    """A copy with another value at a place; `...` leaves it out."""
    if not path:
        return new
    out = copy.copy(value)
    if new is ... and len(path) == 1:
        del out[path[0]]
    else:
        out[path[0]] = changed(value[path[0]], path[1:], None if new is ... else new)
    return out


def test_headers_with_a_right_checksum_and_a_wrong_content_end_in_errors_of_ours(whole, tmp_path):
    tensors, header, _, x = whole
    draw, found = random.Random(0), list(places(header))
    for _ in range(8):
        forge(
            tmp_path / "f", tensors, json.dumps(changed(header, draw.choice(found), draw.choice([*CURIOUS, ...])))
        )
        try_it(tmp_path / "f", x)
    for text in (
        "",
        "[]",
        "{",
        "[" * 100_000,
        '"x"',
        '{"format": 1}',
        json.dumps({**header, "memory": [["a", 1]]}),
    ):
        forge(tmp_path / "f", tensors, text)
        assert not try_it(tmp_path / "f", x)


def test_scalars_and_counters_of_a_wrong_type_or_range_end_in_errors_of_ours(whole, tmp_path):
    tensors, header, _, x = whole
    meta = json.loads(bytes(tensors["adapter"].tolist()))
    draw, found = random.Random(0), list(places(meta))
    for _ in range(8):
        bad = json.dumps(changed(meta, draw.choice(found), draw.choice([*CURIOUS, ...])))
        forged = {**tensors, "adapter": torch.frombuffer(bytearray(bad.encode()), dtype=torch.uint8)}
        forge(tmp_path / "f", forged, json.dumps({**header, "memory": [[key, None] for key in forged]}))
        try_it(tmp_path / "f", x)


def test_tensors_that_are_missing_or_of_another_kind_end_in_errors_of_ours(whole, tmp_path):
    tensors, header, _, x = whole
    draw = random.Random(0)
    others = [
        torch.zeros(0),
        torch.zeros(3, 2),
        torch.zeros((), dtype=torch.int64),
        torch.full((2,), float("nan")),
    ]
    for _ in range(8):
        forged, key = dict(tensors), draw.choice(sorted(tensors))
        other = draw.choice([*others, ...])
        if other is ...:
            del forged[key]
        else:
            forged[key] = other
        forge(tmp_path / "f", forged, json.dumps({**header, "memory": [[key, None] for key in forged]}))
        try_it(tmp_path / "f", x)


def test_bytes_changed_at_random_end_in_errors_of_ours(whole, tmp_path):
    *_, path, x = whole
    data, draw = path.read_bytes(), random.Random(0)
    for _ in range(8):
        spoiled = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            spoiled[int(len(data) * draw.random() ** 3)] = draw.randrange(256)
        (tmp_path / "f").write_bytes(spoiled)
        assert spoiled == data or not try_it(tmp_path / "f", x)


@pytest.mark.parametrize(
    ("name", "value"), [("threshold", "x"), ("batches", -1), ("batches", "x"), ("selected", ["no"])]
)
def test_a_scalar_no_run_can_have_is_refused_before_anything_changes(name, value):
    adapter = ctta.adapt(golden_net(), "palm")
    state = adapter.state_dict()
    meta = json.loads(bytes(state["adapter"].tolist()))
    meta["scalars"][name] = value
    forged = {**state, "adapter": torch.frombuffer(bytearray(json.dumps(meta).encode()), dtype=torch.uint8)}
    with pytest.raises(ctta.StateError, match=name):
        adapter.load_state_dict(forged)
    assert all(torch.equal(value, state[key]) for key, value in adapter.state_dict().items())


def test_a_state_of_other_settings_is_refused_and_one_that_does_not_know_them_is_not():
    adapter = ctta.adapt(golden_net(), "palm", lr=1e-3)
    state = adapter.state_dict()
    with pytest.raises(ctta.StateError, match="lr differ"):
        ctta.adapt(golden_net(), "palm", lr=1e-4).load_state_dict(state)
    meta = json.loads(bytes(state["adapter"].tolist()))
    del meta["settings"]
    old = {**state, "adapter": torch.frombuffer(bytearray(json.dumps(meta).encode()), dtype=torch.uint8)}
    adapter.load_state_dict(old)
