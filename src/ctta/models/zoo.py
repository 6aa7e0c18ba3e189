"""Models by name, weights by explicit source. Nothing is ever guessed: a source that is not there is an error."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ctta._core.files import parsing
from ctta.errors import DataError, SettingError
from ctta.models import networks
from ctta.models.networks import Normalise, Normalised
from ctta.models.weights import NORMALISERS, load_strictly, read_weights
from ctta.settings import suggestion

IMAGENET_COUNTS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
CIFAR_DEPTHS = (20, 32, 44, 56, 110)
EMBEDDED_WEIGHTS = Path(__file__).with_name("embedded.safetensors")
EMBEDDED_ARCH = "wrn-16-2"
HEAD = re.compile(r"(fc|classifier|classifier\.\d+|head|head\.fc|heads\.head)\.bias")
"""Names under which networks keep the bias of their last layer."""
OLD_GOOGLE = {"aux_logits": True, "transform_input": True, "init_weights": False}
"""How torchvision builds googlenet and inception_v3 for its own weights, but not without them."""


def build(name: str, classes: int | None = None) -> nn.Module:
    """Return an untrained model by name: wrn-28-10, resnext-29, resnet-50 (ImageNet), resnet-20 (CIFAR), ...

    All take images in [0, 1]; normalisation, where the published weights want it, is inside.

    >>> sum(p.numel() for p in build("wrn-16-2").parameters())
    691674
    """
    if match := re.fullmatch(r"wrn-(\d+)-(\d+)", name):
        depth, width = int(match[1]), int(match[2])
        if depth >= 10 and (depth - 4) % 6 == 0 and width >= 1:
            return networks.WideResNet(depth, width, classes or 10)
    if name == "resnext-29":
        return networks.ResNeXt29(classes or 100)
    if match := re.fullmatch(r"resnet-(\d+)", name):
        depth = int(match[1])
        if depth in CIFAR_DEPTHS:
            return networks.CifarResNet(depth, classes or 10)
        if depth in IMAGENET_COUNTS:
            block = networks.BasicBlock if depth < 50 else networks.Bottleneck
            return Normalised(networks.ResNet(block, IMAGENET_COUNTS[depth], classes or 1000))
    raise SettingError(
        f"There is no model `{name}`. Known: wrn-DEPTH-WIDTH (depth 10, 16, 22, 28, 34, 40), resnext-29, "
        f"resnet-{'/'.join(map(str, IMAGENET_COUNTS))} (ImageNet), "
        f"resnet-{'/'.join(map(str, CIFAR_DEPTHS))} (CIFAR)."
    )


def load(
    name: str, weights: str | Path | None = None, *, classes: int | None = None, weights_by_position: bool = False
) -> nn.Module:
    """Return a trained model in eval mode; it takes images in [0, 1].

    `name` is an architecture with `weights` a file, or a source and what to take from it: `embedded:`,
    `file:PATH` (with the architecture in the file's manifest), `robustbench:DATASET/NAME`, `torchvision:NAME`,
    `timm:NAME`. The last two take the package's pretrained weights, or build the package's architecture without
    a download and load it from `weights`. There is no fallback: what cannot be had is an error that says how to
    get it.

    Files are loaded by name, strictly. `weights_by_position` is for a file of the same network under other
    names: its tensors are taken in the order they are in, and must agree in number, shape and kind.
    """
    source, colon, rest = name.partition(":")
    if colon and source not in SOURCES:
        raise SettingError(f"There is no source `{source}:`. Known: {', '.join(f'{s}:' for s in SOURCES)}.")
    if weights is not None:
        if colon and source not in PACKAGES:
            raise SettingError(f"`{name}` already says where its weights come from: leave out `weights`.")
        return _from_file(name, Path(str(weights).removeprefix("file:")), classes, weights_by_position)
    if not colon:
        raise DataError(
            f"`{name}` is an architecture: say where its weights are, load({name!r}, weights=PATH), or use "
            f"build({name!r}) for an untrained one."
        )
    if weights_by_position:
        raise SettingError("`weights_by_position` says how to read a file: pass one, load(NAME, weights=PATH).")
    if classes is not None and source != "file":
        raise SettingError(f"The weights of `{name}` have their own number of classes: leave out `classes`.")
    return SOURCES[source](rest, classes).eval()


def _from_file(arch: str, path: Path, classes: int | None = None, by_position: bool = False) -> nn.Module:
    """Build an architecture, ours or a package's, and load it from a file. Global random state is left alone."""
    state = read_weights(path)
    if not classes and (heads := sorted(key for key in state if HEAD.fullmatch(key))):
        classes = len(state[heads[-1]])
    source, _, rest = arch.partition(":")
    with torch.random.fork_rng(devices=[]):
        ours = source not in PACKAGES
        model = build(arch, classes) if ours else PACKAGES[source](rest, classes, pretrained=False)
    inner = model.model if isinstance(model, Normalised) else model
    load_strictly(inner, _rename_by_position(inner, state, path) if by_position else state, str(path))
    return model.eval()


def _rename_by_position(model: nn.Module, state: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Give the tensors of a file the names of the model's, in order; refuse any pair that differs in kind."""
    if path.suffix == ".safetensors":
        raise DataError(f"{path}: safetensors files do not keep the order of their tensors; load it by name.")
    state = {key: value for key, value in state.items() if key not in NORMALISERS}
    own = model.state_dict()
    if not any(key.endswith("num_batches_tracked") for key in state):
        own = {key: value for key, value in own.items() if not key.endswith("num_batches_tracked")}
    if len(state) != len(own):
        raise DataError(f"{path} holds {len(state)} tensors, {type(model).__name__} has {len(own)}.")
    for number, ((theirs, value), (ours, wanted)) in enumerate(zip(state.items(), own.items(), strict=True)):
        if value.shape != wanted.shape or theirs.rpartition(".")[2] != ours.rpartition(".")[2]:
            raise DataError(
                f"{path} is not {type(model).__name__} under other names: tensor {number} is {theirs} "
                f"{tuple(value.shape)}, expected {ours} {tuple(wanted.shape)}."
            )
    return dict(zip(own, state.values(), strict=True))


def _from_manifest(rest: str, classes: int | None) -> nn.Module:
    path = Path(rest)
    manifest = path.with_suffix(".json")
    cure = "load(ARCH, weights=PATH)."
    if not manifest.is_file():
        raise DataError(f"{manifest} is not there, so the architecture of {path} is unknown: {cure}")
    with parsing(f"{manifest} does not say the architecture (`arch`)", f"Load it by name: {cure}"):
        arch = str(json.loads(manifest.read_text())["arch"])
    return _from_file(arch, path, classes)


def _embedded(rest: str, _: int | None) -> nn.Module:
    if rest not in ("", EMBEDDED_ARCH):
        raise SettingError(f"There is one embedded model, `embedded:{EMBEDDED_ARCH}`, not `embedded:{rest}`.")
    model = _from_file(EMBEDDED_ARCH, EMBEDDED_WEIGHTS)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]  # a third faster on CPUs


def _need(package: str, module: str = "") -> Any:
    if importlib.util.find_spec(package) is None:
        raise DataError(f"`{package}:` models need the package {package}: pip install {package}")
    try:
        return importlib.import_module(module or package)
    except Exception as error:
        raise DataError(
            f"The package {package} is here but cannot be imported beside torch {torch.__version__} ({error}). "
            f"It wants the torch it was built for: pip install --upgrade torch {package}"
        ) from error


def _make(
    name: str, create: Callable[..., nn.Module], *args: Any, pretrained: bool = True, **options: Any
) -> nn.Module:
    """Let a package make its model; whatever goes wrong there, a download above all, is a `DataError`."""
    try:
        return create(*args, **options)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        if not pretrained:
            raise DataError(f"`{name}` could not be built ({why}).") from error
        cure = "" if name.startswith("robustbench:") else f" or pass a file you have: load({name!r}, weights=PATH)"
        raise DataError(
            f"The pretrained weights of `{name}` could not be fetched ({why}). Try again with a network{cure}."
        ) from error


def _torchvision(name: str, classes: int | None, *, pretrained: bool = True) -> nn.Module:
    """Make one of torchvision's classifiers, behind the normalisation its weights were trained with."""
    models = _need("torchvision").models
    known = models.list_models(module=models)
    if name not in known:
        raise SettingError(f"torchvision has no classifier `{name}`.{suggestion(name, known)}")
    weights = models.get_model_weights(name).DEFAULT
    options: dict[str, Any] = {"weights": weights if pretrained else None}
    if not pretrained and name in ("googlenet", "inception_v3"):
        options |= OLD_GOOGLE
    if classes is not None:
        options["num_classes"] = classes
    model = _make(f"torchvision:{name}", models.get_model, name, pretrained=pretrained, **options)
    data = weights.transforms()
    return Normalised(model, Normalise(tuple(data.mean), tuple(data.std)))


def _timm(name: str, classes: int | None, *, pretrained: bool = True) -> nn.Module:
    """Make one of timm's classifiers, behind the normalisation of its data config."""
    timm = _need("timm")
    arch = name.partition(".")[0]
    if ":" not in name and not timm.is_model(arch):  # hf-hub:NAME and local-dir:PATH are timm's to find
        raise SettingError(f"timm has no model `{arch}`.{suggestion(arch, timm.list_models())}")
    create = functools.partial(timm.create_model, pretrained=pretrained)
    model = _make(f"timm:{name}", create, name, pretrained=pretrained, num_classes=classes)
    if model.num_classes == 0:
        raise SettingError(f"`timm:{name}` gives features, it has no classifier.")
    data = timm.data.resolve_model_data_config(model)
    return Normalised(model, Normalise(tuple(data["mean"]), tuple(data["std"])))


def _robustbench(name: str, _: int | None) -> nn.Module:
    utils = _need("robustbench", "robustbench.utils")
    dataset, model = name.partition("/")[::2]
    if not model:
        raise SettingError(
            f"Expected `robustbench:DATASET/NAME` (as in robustbench:cifar10/Standard), but got `{name}`."
        )
    return _make(f"robustbench:{name}", utils.load_model, model, dataset=dataset, threat_model="corruptions")


PACKAGES: dict[str, Callable[..., nn.Module]] = {"torchvision": _torchvision, "timm": _timm}
"""Sources whose architectures also take their weights from a file."""
SOURCES: dict[str, Callable[..., nn.Module]] = {
    "file": _from_manifest,
    "embedded": _embedded,
    "robustbench": _robustbench,
    **PACKAGES,
}
