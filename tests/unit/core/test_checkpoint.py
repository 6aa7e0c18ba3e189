"""Files: complete or not there, verified to the byte, refused with a reason."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from tests.conftest import fixed_augment, golden_net

import ctta
from ctta._core import checkpoint


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


def test_a_loaded_state_lies_in_memory_in_the_order_and_layout_of_the_saved_one(tmp_path):
    tensors = {
        "b": torch.rand(4, 3, 2, 2).to(memory_format=torch.channels_last),
        "a": torch.rand(3, 4).t(),
        "one": torch.rand(4, 3, 1, 1).to(memory_format=torch.channels_last),
        "gaps": torch.rand(4, 4)[:, ::2],
    }
    checkpoint.write(tmp_path / "a", tensors, {})
    found, _ = checkpoint.read(tmp_path / "a")
    assert list(found) == list(tensors)
    assert all(torch.equal(value, found[key]) for key, value in tensors.items())
    assert all(value.stride() == found[key].stride() for key, value in tensors.items() if key != "gaps")


class Masked(torch.nn.Module):
    """A mask of -inf that is used, and a weight of NaN that is not."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.fc = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 5)
        self.unused = torch.nn.Parameter(torch.full((3,), float("nan")))
        self.register_buffer("mask", torch.tensor([0.0, float("-inf")]).repeat(4))

    def forward(self, x):
        x = self.norm(self.conv(x)).relu().mean((2, 3))
        return self.fc(x * (x + self.mask).exp().clamp(max=2))


@pytest.mark.parametrize("method", ["tent", "palm", "law", "cotta", "adacontrast"])
def test_what_was_never_finite_in_the_source_hinders_neither_a_step_nor_a_save(method, tmp_path):
    quick = {"views": 1, "parameters": "all"} if method == "cotta" else {}
    adapter, x = ctta.adapt(Masked().eval(), method, **quick), torch.rand(4, 3, 8, 8)
    adapter(x)
    assert adapter.last.reason is None
    adapter.save(tmp_path / "a")
    assert torch.equal(ctta.load(tmp_path / "a", Masked().eval())(x), adapter(x))


def test_what_was_finite_in_the_source_must_stay_so_beside_what_was_not():
    adapter = ctta.adapt(Masked().eval(), "tent")
    adapter.model.mask[0] = float("-inf")
    adapter(torch.rand(4, 3, 8, 8))
    assert "buffers/mask" in adapter.last.reason


def test_a_file_that_is_replaced_keeps_its_mode_and_a_link_stays(net, tmp_path):
    adapter = ctta.adapt(net, "bn1")
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "real")
    adapter.save(tmp_path / "link")
    (tmp_path / "there" / "real").chmod(0o600)
    adapter.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "real").stat().st_mode & 0o777 == 0o600
    ctta.load(tmp_path / "link", golden_net())


def test_what_is_no_file_is_not_replaced(net, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for target in (tmp_path / "pipe", tmp_path, "/dev/null"):
        with pytest.raises(ctta.StateError, match="not an ordinary file"):
            ctta.adapt(net, "bn1").save(target)


def test_saving_removes_what_a_killed_save_left_and_nothing_of_a_living_one(net, tmp_path):
    code = "import os, sys, pathlib; from ctta._core import files\n"
    code += "with files.atomic(pathlib.Path(sys.argv[1])): os._exit(9)"
    subprocess.run([sys.executable, "-c", code, tmp_path / "a"], check=False)
    (left,) = tmp_path.iterdir()
    living = tmp_path / left.name.replace("-", "-1-", 1).replace(
        f"-1-{left.name.split('-')[1]}-", f"-{os.getpid()}-"
    )
    living.touch()
    ctta.adapt(net, "bn1").save(tmp_path / "a")
    assert {path.name for path in tmp_path.iterdir()} == {"a", living.name}
