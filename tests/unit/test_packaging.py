"""What is installed, what an import costs, and that the papers of the house are in order."""

import importlib
import importlib.metadata
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ctta

ROOT = Path(__file__).parents[2]


def test_the_core_needs_only_the_core_list():
    required = importlib.metadata.requires("ctta")
    core = {re.split(r"[^\w-]", line)[0] for line in required if "extra ==" not in line}
    assert core == {"torch", "numpy", "pillow", "safetensors", "pyyaml", "rich", "click"}


def test_import_ctta_brings_nothing_heavy_beside_torch():
    code = "import sys, ctta; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    for heavy in ("rich", "click", "yaml", "torchvision", "timm", "matplotlib", "ray", "jinja2", "PIL"):
        assert heavy not in modules or heavy in _modules_of_torch(), heavy


def _modules_of_torch():
    code = "import sys, torch; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_import_ctta_costs_at_most_15_percent_more_than_import_torch():
    code = (
        "import time; a = time.perf_counter(); import torch; b = time.perf_counter(); import ctta; "
        "c = time.perf_counter(); print((c - b) / (b - a))"
    )
    shares = []
    for _ in range(3):  # within one process, so that a busy machine slows both alike
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        shares.append(float(done.stdout))
        if shares[-1] <= 0.15:
            return
    raise AssertionError(f"import ctta costs {min(shares):.0%} more than import torch")


def test_the_changelog_knows_this_version():
    assert f"## {ctta.__version__}" in (ROOT / "CHANGELOG.md").read_text()


# what users may import; a name that goes or comes is a decision, and is made here too
EXPORTED = {
    "ctta": [
        "Adapter",
        "AugmentError",
        "ConformanceError",
        "CttaError",
        "DataError",
        "InputError",
        "MethodEntry",
        "ModelError",
        "RangeWarning",
        "Report",
        "SettingError",
        "StateError",
        "StoreError",
        "UnsupportedModelError",
        "__version__",
        "adapt",
        "corrupt",
        "evaluate",
        "keep_freed_memory",
        "list_methods",
        "load",
    ],
    "ctta.methods": [
        "Kept",
        "Method",
        "MethodEntry",
        "State",
        "buffer",
        "find",
        "generator",
        "list_methods",
        "network",
        "per_tensor",
        "register",
        "scalar",
        "setting",
    ],
    "ctta.functional": [
        "FilteredEntropy",
        "complementary_classes",
        "consistency",
        "deviation",
        "diversity",
        "filtered_entropy",
        "fisher_weights",
        "gradient_score",
        "importance",
        "info_nce",
        "moving_average",
        "negative_learning",
        "neighbour_vote",
        "pseudo_label_loss",
        "sensitivity",
        "soft_cross_entropy",
        "softmax_entropy",
        "symmetric_cross_entropy",
        "uniform_kl",
    ],
    "ctta.optim": [
        "Adafactor",
        "AdamState",
        "Lars",
        "OptimizerState",
        "Outcome",
        "Prodigy",
        "adam",
        "depth_factors",
        "find_optimizer",
        "optimizer_options",
        "require_takes",
        "sgd",
        "sign_step",
        "torch_step",
    ],
    "ctta.augment": [
        "Augmentation",
        "CUSTOM",
        "Cotta",
        "NAMED",
        "StrongView",
        "choose",
    ],
    "ctta.streams": [
        "Batch",
        "CLEAN",
        "Corrupted",
        "Domain",
        "Order",
        "SCENARIOS",
        "Source",
        "Stream",
        "arrange",
        "continual",
        "correlated",
        "embedded",
        "gradual",
        "make",
        "mixed",
        "recurring",
        "reset_each_shift",
        "single_sample",
    ],
    "ctta.models": [
        "CifarResNet",
        "Normalise",
        "Normalised",
        "ResNeXt29",
        "ResNet",
        "Stages",
        "WideResNet",
        "build",
        "find_stages",
        "load",
        "read_weights",
        "weight_hash",
    ],
    "ctta.data": [
        "Arrays",
        "Check",
        "CifarC",
        "Dataset",
        "Domains",
        "ENTRIES",
        "Entry",
        "ImageFolder",
        "MadeFile",
        "MissingError",
        "Plan",
        "Watcher",
        "cache_folder",
        "check",
        "cifar10",
        "cifar100",
        "cifar100_c",
        "cifar10_c",
        "domains",
        "embedded_dataset",
        "embedded_sample",
        "find",
        "get",
        "image_folder",
        "imagenet_c",
        "make",
        "read_ids",
        "read_sample",
        "tiny_imagenet_c",
        "to_batch",
    ],
    "ctta.corruptions": [
        "CORRUPTIONS",
        "DETERMINISTIC",
        "EXTRA",
        "GROUPS",
        "PROFILES",
        "corrupt",
    ],
    "ctta.checks": [
        "CHECKS",
        "Case",
        "MODEL_NEEDS",
        "NETWORKS",
        "Network",
        "check_method",
        "run_check",
    ],
    "ctta.report": [
        "Report",
    ],
}


@pytest.mark.parametrize("package", EXPORTED)
def test_the_exported_names_are_those_that_were_agreed_exist_and_are_documented(package):
    found = importlib.import_module(package)
    assert sorted(found.__all__) == EXPORTED[package]
    for name in found.__all__:
        value = getattr(found, name)
        assert value.__doc__ or not (inspect.isclass(value) or inspect.isfunction(value)), name


def test_parts_are_imported_when_they_are_used():
    code = (
        "import sys, ctta; assert 'ctta.corruptions' not in sys.modules; ctta.corrupt; ctta.models.load; "
        "ctta.data.get; ctta.streams.continual; ctta.checks.check_method; import ctta.report.page; "
        "assert 'ctta.corruptions' in sys.modules; assert not {'matplotlib', 'jinja2'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ctta.nothing


def test_every_error_derives_from_one():
    from ctta import errors

    found = [value for value in vars(errors).values() if isinstance(value, type)]
    assert len(found) == 11
    assert all(issubclass(value, ctta.CttaError) for value in found)
    for value in found:
        assert value.__name__ in errors.__doc__
