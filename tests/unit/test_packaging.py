"""What is installed, what an import costs, and that the papers of the house are in order."""

import importlib.metadata
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


def test_public_names_exist_and_are_documented():
    for name in ctta.__all__:
        value = getattr(ctta, name)
        assert name == "__version__" or value.__doc__, name


def test_parts_are_imported_when_they_are_used():
    code = (
        "import sys, ctta; assert 'ctta.corruptions' not in sys.modules; ctta.corrupt; ctta.models.load; "
        "ctta.data.get; ctta.streams.continual; ctta.checks.check_method; import ctta.report.write; "
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
