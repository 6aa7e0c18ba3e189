"""Files: complete or not there, verified to the byte, refused with a reason."""

import json

import pytest
import torch
from safetensors.torch import save_file
from tests.conftest import fixed_augment, golden_net

import ctta
from ctta import checkpoint


@pytest.fixture
def saved(net, stream, tmp_path):
    adapter = ctta.adapt(net, "palm", preset="cifar100-c", variant="paper", seed=7, augment="cotta-soft", eta=0.05)
    for x in stream[:2]:
        adapter(x)
    path = tmp_path / "adapter.safetensors"
    adapter.save(path)
    return adapter, path


def test_a_loaded_adapter_has_the_settings_seed_augmentation_and_counters_of_the_saved_one(saved, stream):
    adapter, path = saved
    twin = ctta.load(path, golden_net())
    assert twin.settings == adapter.settings
    assert twin.method.seed == 7
    assert twin.method.augment.name == "cotta-soft"
    assert twin.batches == 2
    for x in stream[2:5]:
        assert torch.equal(twin(x), adapter(x))
    adapter.reset(), twin.reset()
    assert torch.equal(twin(stream[0]), adapter(stream[0]))


def test_a_file_is_safetensors_with_a_json_header(saved):
    from safetensors import safe_open

    with safe_open(saved[1], framework="pt") as file:
        header = json.loads(file.metadata()["ctta"])
        assert "model/conv1.weight" in file.keys()  # noqa: SIM118
    assert header["method"] == "palm"
    assert header["settings"]["alpha"] == 0.9
    assert header["version"] == ctta.__version__


def test_an_augmentation_of_the_callers_must_be_passed_again(net, stream, tmp_path):
    adapter = ctta.adapt(net, "palm", augment=fixed_augment)
    adapter(stream[0])
    adapter.save(tmp_path / "a")
    with pytest.raises(ctta.AugmentError, match="pass it again"):
        ctta.load(tmp_path / "a", golden_net())
    twin = ctta.load(tmp_path / "a", golden_net(), augment=fixed_augment)
    assert torch.equal(twin(stream[1]), adapter(stream[1]))


def test_an_augmentation_with_ranges_of_its_own_must_be_passed_again(net, stream, tmp_path):
    from ctta.augment import Cotta
    from ctta.augment.cotta import Ranges

    own = Cotta(ranges=Ranges(angle=(0.0, 0.0)))
    adapter = ctta.adapt(net, "palm", augment=own)
    adapter(stream[0])
    adapter.save(tmp_path / "a")
    with pytest.raises(ctta.AugmentError, match="pass it again"):
        ctta.load(tmp_path / "a", golden_net())
    assert torch.equal(ctta.load(tmp_path / "a", golden_net(), augment=own)(stream[1]), adapter(stream[1]))


def test_a_saved_file_is_readable_as_other_files_are(saved, tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    assert saved[1].stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_another_model_is_refused(saved):
    other = golden_net()
    other.fc.bias.data[0] += 1e-6
    with pytest.raises(ctta.StateError, match="belongs to another model"):
        ctta.load(saved[1], other)
    other = golden_net()
    other.bn1.running_mean[0] += 1
    with pytest.raises(ctta.StateError, match="belongs to another model"):
        ctta.load(saved[1], other)


def test_the_fingerprint_is_that_of_the_source_whatever_moved(saved, net):
    adapter, path = saved
    assert adapter.fingerprint == ctta.adapt(golden_net(), "palm").fingerprint
    fresh = ctta.load(path, golden_net())
    fresh._fingerprint = None
    assert fresh.fingerprint == adapter.fingerprint


def test_loading_leaves_the_callers_model_alone_unless_told_otherwise(saved):
    model = golden_net()
    before = model.conv1.weight.detach().clone()
    ctta.load(saved[1], model)
    assert torch.equal(model.conv1.weight, before)
    assert ctta.load(saved[1], model, inplace=True).model is model


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ctta.StateError, match="There is no file .*nothing"):
        ctta.load(tmp_path / "nothing", golden_net())


def test_a_file_of_something_else_is_refused(tmp_path):
    save_file({"a": torch.zeros(2)}, tmp_path / "other")
    with pytest.raises(ctta.StateError, match="not one written by Adapter.save"):
        ctta.load(tmp_path / "other", golden_net())
    (tmp_path / "page").write_text("<!doctype html><html>not found</html>")
    with pytest.raises(ctta.StateError, match="not a complete adapter file"):
        ctta.load(tmp_path / "page", golden_net())
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ctta.StateError, match="not a complete adapter file"):
        ctta.load(tmp_path / "empty", golden_net())


def test_a_newer_format_is_refused_with_the_cure(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 99)
    ctta.adapt(golden_net(), "bn1").save(tmp_path / "a")
    monkeypatch.undo()
    with pytest.raises(ctta.StateError, match="format 99, this version reads up to 1: install a newer ctta"):
        ctta.load(tmp_path / "a", golden_net())


def test_a_method_that_is_not_registered_here_is_named(saved, tmp_path):
    tensors, header = checkpoint.read(saved[1])
    checkpoint.write(tmp_path / "b", tensors, {**header, "method": "unheard-of"})
    with pytest.raises(ctta.SettingError, match="There is no method `unheard-of`"):
        ctta.load(tmp_path / "b", golden_net())


def test_saving_to_a_folder_that_is_not_there_says_so(net, tmp_path):
    with pytest.raises(ctta.StateError, match="Could not write .*No such file or directory"):
        ctta.adapt(net, "bn1").save(tmp_path / "no" / "where")


def test_saving_leaves_nothing_but_the_file(saved):
    assert [p.name for p in saved[1].parent.iterdir()] == ["adapter.safetensors"]
