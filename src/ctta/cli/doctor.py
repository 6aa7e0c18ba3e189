"""`ctta doctor`: what this machine offers and what is missing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
from typing import Any

import click

from ctta._version import __version__

EXTRAS = {
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
    click.echo(json.dumps(facts, indent=2) if as_json else in_words(facts))
    if facts["problems"]:
        raise SystemExit(1)


def examine() -> dict[str, Any]:
    """Collect the facts."""
    import torch

    required = importlib.metadata.requires("ctta") or []
    core = {
        p: version_of(p) for p in (re.split(r"[^\w.-]", line)[0] for line in required if "extra ==" not in line)
    }
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices += [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append("mps")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "ctta": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "core": core,
        "devices": devices,
        "threads": {"torch": torch.get_num_threads(), "cores": cores},
        "extras": {name: version_of(name) for name in EXTRAS},
        "problems": [f"{name} is not installed: pip install {name}" for name, found in core.items() if not found],
    }


def version_of(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def in_words(facts: dict[str, Any]) -> str:
    """Say the facts to a person."""
    extras = {
        name: found or f"not installed (for {EXTRAS[name]}: pip install {name})"
        for name, found in facts["extras"].items()
    }
    return "\n".join(
        [
            f"ctta {facts['ctta']} on Python {facts['python']}, {facts['platform']}",
            "core     " + ", ".join(f"{name} {found or 'MISSING'}" for name, found in facts["core"].items()),
            "devices  " + ", ".join(facts["devices"]),
            f"threads  torch uses {facts['threads']['torch']} of {facts['threads']['cores']} cores",
            *(f"extra    {name}: {state}" for name, state in extras.items()),
            *(f"problem  {problem}" for problem in facts["problems"]),
            "Mend the problems above." if facts["problems"] else "All core parts are there.",
        ]
    )
