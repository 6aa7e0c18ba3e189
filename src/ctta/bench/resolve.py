"""From the words of a command line to models, data and settings."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import re
import sys
import traceback
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from ctta import models, streams
from ctta.data import Dataset, cifar10, cifar100, domains, image_folder
from ctta.errors import CttaError, DataError, ModelError, SettingError
from ctta.settings import suggestion

BENCHMARKS = ("cifar10-c", "cifar100-c", "imagenet-c", "tiny-imagenet-c")
CLEAN_SETS = {"cifar10": cifar10, "cifar100": cifar100}


def model_from(spec: str, weights: Path | None) -> nn.Module:
    """Return a model: what `ctta.models.load` takes, or FILE.py:FUNCTION, a function that returns one."""
    file, colon, function = spec.rpartition(":")
    if not (colon and file.endswith(".py")):
        return models.load(spec, weights)
    made = names_in(Path(file)).get(function)
    if not callable(made):
        raise ModelError(f"{file} defines no function `{function}` that returns a model.")
    model = made()
    if not isinstance(model, nn.Module):
        raise ModelError(f"Expected {spec} to return a torch.nn.Module, but got a {type(model).__qualname__}.")
    return model


def names_in(file: Path) -> dict[str, Any]:
    """Import a Python file of the user's and return what it defines (a method in it registers itself).

    Its module has a name of its own (under its bare name, a `random.py` would replace Python's), the same in every
    process of a run, so that what is pickled in one is found in another.
    """
    digest = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]
    name = f"ctta_file_{re.sub(r'[^A-Za-z0-9]', '_', file.stem)}_{digest}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise DataError(f"There is no Python file {file}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # annotations of its settings are looked up there, and classes by pickle
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if isinstance(error, CttaError):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        place = "".join(f" (line {frame.lineno})" for frame in frames if frame.filename == str(file))
        raise SettingError(
            f"{file} cannot be imported: {type(error).__name__}: {error}{place}. Mend it, or pass another file."
        ) from error
    return vars(module)


def source_from(data: str, profile: str | None, seed: int, clean: bool = False) -> streams.Source:
    """Return images in domains: `embedded`, a benchmark, or clean ones (cifar10, cifar100, folder) to corrupt.

    `clean`: a benchmark must come with its clean test images too.
    """
    if data == "embedded":
        return streams.embedded(seed)
    if data in BENCHMARKS:
        return domains(data, clean=clean_images(data) if clean else None)
    if data in CLEAN_SETS:
        return streams.Corrupted(CLEAN_SETS[data](), profile="cifar", seed=seed)
    if Path(data).is_dir():
        folder = image_folder(data)
        profile = profile or fitting_profile(folder.images([0]).shape[1])
        return streams.Corrupted(folder, profile=profile, seed=seed)
    known = ("embedded", *CLEAN_SETS, *BENCHMARKS)
    raise DataError(
        f"There is no folder and no dataset `{data}`.{suggestion(data, known)} Expected a folder of images by "
        f"class, or one of {', '.join(known)}."
    )


def clean_images(benchmark: str) -> Dataset:
    """Return the clean test images a benchmark was made from, in its order."""
    made_from = CLEAN_SETS.get(benchmark.removesuffix("-c"))
    if made_from is None:
        raise DataError(f"The clean images of {benchmark} are not in the data folder, and ctta cannot fetch them.")
    return made_from()


def fitting_profile(size: int) -> str:
    """Return the constants made for images of about this height.

    >>> fitting_profile(32), fitting_profile(64), fitting_profile(224)
    ('cifar', 'tiny-imagenet', 'imagenet')
    """
    return "cifar" if size <= 48 else "tiny-imagenet" if size <= 112 else "imagenet"


def read_value(text: Any) -> Any:
    """Read a number, a truth value, null, or a word; YAML itself takes 1e-3 for a word. What is no text stays.

    >>> [read_value(t) for t in ("1e-3", "5", "true", "auto", "null", "embedded:")]
    [0.001, 5, True, 'auto', None, 'embedded:']
    """
    if not isinstance(text, str):
        return text
    if "e" in text.lower():
        with contextlib.suppress(ValueError):
            return float(text)
    value = yaml.safe_load(text)
    return text if isinstance(value, dict) else value  # a word that ends in a colon
