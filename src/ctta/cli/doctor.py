"""`ctta doctor`: what this machine offers and what is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
from typing import Any

import click

from ctta._version import __version__

EXTRAS = {
    "pillow": "reading image folders and making ImageNet-C",
    "torchvision": "its models and weights",
    "timm": "its models and weights",
    "robustbench": "the benchmark's source models",
    "matplotlib": "figures and the page of reports",
    "jinja2": "the page of reports",
    "ray": "running on a cluster",
    "tensorboard": "the TensorBoard writer",
    "pyarrow": "export to Parquet",
}


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read.")
def command(as_json: bool) -> None:
    """Show versions, device, threads, extras, and what is missing. Exits with 1 if a core part is missing.

    Example: ctta doctor
    """
    facts = examine()
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        show(facts)
    if facts["problems"]:
        raise SystemExit(1)


def examine() -> dict[str, Any]:
    """Collect the facts."""
    import torch

    core = {name: version_of(name) for name in core_packages()}
    problems = [f"{name} is not installed: pip install {name}" for name, found in core.items() if found is None]
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices += [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append("mps")
    return {
        "ctta": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "core": core,
        "devices": devices,
        "threads": {"torch": torch.get_num_threads(), "cores": len(os.sched_getaffinity(0))}
        if hasattr(os, "sched_getaffinity")
        else {"torch": torch.get_num_threads(), "cores": os.cpu_count()},
        "extras": {name: version_of(name) for name in EXTRAS},
        "problems": problems,
    }


def core_packages() -> list[str]:
    """Names of the packages ctta requires, from its own metadata."""
    required = importlib.metadata.requires("ctta") or []
    return [re.split(r"[^\w.-]", line)[0] for line in required if "extra ==" not in line]


def version_of(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def show(facts: dict[str, Any]) -> None:
    """Print the facts for a person."""
    click.echo(f"ctta {facts['ctta']} on Python {facts['python']}, {facts['platform']}")
    click.echo("core     " + ", ".join(f"{name} {found or 'MISSING'}" for name, found in facts["core"].items()))
    click.echo("devices  " + ", ".join(facts["devices"]))
    click.echo(f"threads  torch uses {facts['threads']['torch']} of {facts['threads']['cores']} cores")
    for name, found in facts["extras"].items():
        state = found or f"not installed (for {EXTRAS[name]}: pip install {name})"
        click.echo(f"extra    {name}: {state}")
    for problem in facts["problems"]:
        click.echo(f"problem  {problem}")
    click.echo("All core parts are there." if not facts["problems"] else "Mend the problems above.")
