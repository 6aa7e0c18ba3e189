"""Source models: published sizes and keys, strict loading from files in the published formats."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import ctta
from ctta import models
from ctta.models.weights import load_strictly, read_weights, strip_prefixes


def meta(name):
    with torch.device("meta"):
        return models.build(name)


@pytest.mark.parametrize(
    ("name", "parameters", "tensors", "entries", "norm"),
    [
        ("wrn-28-10", 36_479_194, 80, 155, 17_952),
        ("resnext-29", 6_900_132, 95, 188, 25_216),
        ("resnet-50", 25_557_032, 161, 320, 53_120),
        ("resnet-18", 11_689_512, 62, 122, 9_600),
    ],
)
def test_networks_have_the_published_sizes(name, parameters, tensors, entries, norm):
    model = meta(name)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert len(list(model.parameters())) == tensors
    assert len(model.state_dict()) == entries
    layers = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert sum(p.numel() for m in layers for p in m.parameters()) == norm


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("wrn-16-1", (2, 3, 32, 32), 10),
        ("resnet-20", (2, 3, 32, 32), 10),
        ("resnext-29", (1, 3, 32, 32), 100),
        ("resnet-18", (1, 3, 64, 64), 1000),
    ],
)
def test_networks_map_images_to_logits(name, shape, classes):
    with torch.no_grad():
        assert models.build(name).eval()(torch.rand(shape)).shape == (shape[0], classes)


def test_keys_are_those_of_the_published_checkpoints():
    wrn = meta("wrn-28-10").state_dict()
    assert {
        "conv1.weight",
        "block1.layer.0.convShortcut.weight",
        "block3.layer.3.bn2.running_var",
        "fc.bias",
    } <= set(wrn)
    assert "block1.layer.1.convShortcut.weight" not in wrn
    resnext = meta("resnext-29").state_dict()
    assert {"conv_1_3x3.weight", "stage_1.0.downsample.1.bias", "stage_3.2.conv_expand.weight"} <= set(resnext)
    resnet = meta("resnet-50").state_dict()
    assert {"model.layer4.2.conv3.weight", "model.layer1.0.downsample.0.weight", "model.fc.weight"} <= set(resnet)


@pytest.mark.parametrize("name", ["wrn-28", "wrn-27-10", "resnet-19", "vgg", "wrn-4-2"])
def test_unknown_models_are_refused_with_what_is_known(name):
    with pytest.raises(ctta.SettingError, match="Known: wrn-DEPTH-WIDTH"):
        models.build(name)


def published(model, wrap):
    """A state dict in one of the published forms."""
    inner = model.model if isinstance(model, models.Normalised) else model
    return wrap({key: value.clone() for key, value in inner.state_dict().items()})


FORMS = {
    "bare": lambda s: s,
    "state_dict": lambda s: {"state_dict": s, "epoch": 3},
    "module": lambda s: {f"module.{k}": v for k, v in s.items()},
    "model": lambda s: {f"model.{k}": v for k, v in s.items()},
    "module.model": lambda s: {"state_dict": {f"module.model.{k}": v for k, v in s.items()}},
    "with mu and sigma": lambda s: {
        **{f"module.{k}": v for k, v in s.items()},
        "mu": torch.zeros(3),
        "sigma": torch.ones(3),
    },
    "with normalize": lambda s: {**{f"model.{k}": v for k, v in s.items()}, "normalize.mean": torch.zeros(3)},
    "without counters": lambda s: {k: v for k, v in s.items() if "num_batches" not in k},
}


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *(("wrn-10-1", form) for form in FORMS),
        *(("resnext-29", form) for form in ("module", "without counters")),
        *(("resnet-18", form) for form in ("module.model", "with normalize")),  # behind its normalisation
    ],
)
def test_files_in_every_published_form_load_strictly(name, form, tmp_path):
    torch.manual_seed(3)
    model = models.build(name, 7 if name != "resnext-29" else None).eval()
    path = tmp_path / "weights.pt"
    torch.save(published(model, FORMS[form]), path)
    loaded = models.load(name, weights=path)
    x = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))
    assert not loaded.training


@pytest.mark.parametrize("name", ["wrn-28-10", "resnext-29", "resnet-50"])
def test_the_papers_networks_load_from_files_of_their_true_size(name, tmp_path):
    """Zero-filled, in the published form: every key and shape is checked, nothing is left over."""
    prefix = {"wrn-28-10": "", "resnext-29": "module.", "resnet-50": ""}[name]
    shapes = meta(name).state_dict()
    state = {
        prefix + key.removeprefix("model."): torch.zeros(value.shape, dtype=value.dtype)
        for key, value in shapes.items()
    }
    path = tmp_path / "weights.pt"
    torch.save({"state_dict": state} if name == "wrn-28-10" else state, path)
    model = models.load(name, weights=f"file:{path}")
    assert sum(p.abs().sum() for p in model.parameters()) == 0


def test_a_model_from_a_manifest_knows_its_architecture(tmp_path):
    model = models.build("wrn-10-1", 4)
    save_file(model.state_dict(), tmp_path / "mine.safetensors")
    with pytest.raises(ctta.DataError, match="architecture of .* is unknown"):
        models.load(f"file:{tmp_path / 'mine.safetensors'}")
    (tmp_path / "mine.json").write_text(json.dumps({"arch": "wrn-10-1"}))
    loaded = models.load(f"file:{tmp_path / 'mine.safetensors'}")
    assert loaded.fc.out_features == 4
    assert models.weight_hash(loaded) == models.weight_hash(model)
    loaded.fc.bias.data[0] += 1
    assert models.weight_hash(loaded) != models.weight_hash(model)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: {k: v for k, v in s.items() if k != "fc.weight"}, r"missing \['fc.weight'\]"),
        (lambda s: {**s, "extra.weight": torch.zeros(1)}, r"unknown \['extra.weight'\]"),
        (lambda s: {**s, "conv1.weight": torch.zeros(2, 3, 3, 3)}, r"conv1.weight has shape \(2, 3, 3, 3\)"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_name(change, words):
    model = models.build("wrn-10-1")
    with pytest.raises(ctta.DataError, match=words):
        load_strictly(model, change(model.state_dict()), "here")


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_broken_files_are_named_with_the_cure(suffix, tmp_path):
    model = models.build("wrn-10-1")
    path = tmp_path / f"weights{suffix}"
    with pytest.raises(ctta.DataError, match="There is no weight file"):
        read_weights(path)
    if suffix == ".pt":
        torch.save(model.state_dict(), path)
    else:
        save_file(model.state_dict(), path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ctta.DataError, match="not a complete"):
        read_weights(path)
    path.write_text("<html>quota exceeded</html>")
    with pytest.raises(ctta.DataError, match="expected a checkpoint, got a web page"):
        read_weights(path)
    path.write_bytes(b"")
    with pytest.raises(ctta.DataError):
        read_weights(path)


def test_files_that_hold_more_than_tensors_are_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return print, ("run",)

    torch.save({"state_dict": {}, "hook": Trap()}, tmp_path / "a.pt")
    with pytest.raises(ctta.DataError, match="is not safe"):
        read_weights(tmp_path / "a.pt")
    torch.save([1, 2], tmp_path / "b.pt")
    with pytest.raises(ctta.DataError, match="expected a state dict"):
        read_weights(tmp_path / "b.pt")


def test_sources_are_explicit_and_never_guessed(tmp_path):
    with pytest.raises(ctta.DataError, match="say where its weights are"):
        models.load("wrn-28-10")
    with pytest.raises(ctta.SettingError, match="no source `hub:`"):
        models.load("hub:resnet")
    with pytest.raises(ctta.SettingError, match="leave out `weights`"):
        models.load("embedded:", weights=tmp_path)
    with pytest.raises(ctta.SettingError, match="one embedded model"):
        models.load("embedded:vgg")


@pytest.mark.parametrize("package", ["timm", "torchvision", "robustbench"])
def test_a_missing_package_is_named_with_its_install_line(package, monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ctta.DataError, match=f"pip install {package}"):
        models.load(f"{package}:anything")


def test_prefixes_are_stripped_only_where_all_keys_carry_them():
    one = torch.zeros(1)
    assert list(strip_prefixes({"module.a": one, "b": one})) == ["module.a", "b"]
    assert list(strip_prefixes({"model.a": one, "normalize.mean": one})) == ["a", "normalize.mean"]


def test_every_network_adapts_with_palm():
    for name in ("wrn-10-1", "resnet-20"):
        adapter = ctta.adapt(models.build(name), "palm", adapt_share=0.1)
        assert adapter(torch.rand(4, 3, 32, 32)).isfinite().all()
        assert not adapter.last.skipped
