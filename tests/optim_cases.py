"""Runs of LARS, Prodigy and Adafactor with our functions and with the package pytorch-optimizer.

Where that package is installed, `python -m tests.optim_cases` writes tests/golden/optim.npz from its runs. The
gradients pull noisily towards a target, so that they depend on where a run is and a wrong step does not heal.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ctta.optim import Adafactor, Lars, Prodigy

PATH = Path(__file__).parent / "golden" / "optim.npz"
F64 = torch.float64
SHAPES = {"scalar": (), "vector": (5,), "matrix": (4, 3), "kernel": (3, 2, 3, 2)}
STEPS, SHOWN = 100, (1, 2, 10, 100)

CASES = {
    "lars": ("lars", {"lr": 1.0}),
    "lars-large": ("lars", {"lr": 30.0}),
    "lars-decay": ("lars", {"lr": 10.0, "weight_decay": 0.05}),
    "lars-skip": ("lars", {"lr": 0.01, "skip_1d": True}),
    "lars-skip-decay": (
        "lars",
        {"lr": 0.1, "weight_decay": 0.05, "skip_1d": True, "trust": 0.02, "momentum": 0.5},
    ),
    "prodigy": ("prodigy", {"lr": 1.0}),
    "prodigy-half": ("prodigy", {"lr": 0.5, "beta1": 0.8, "beta2": 0.99}),
    "prodigy-options": ("prodigy", {"lr": 1.0, "beta3": 0.9, "d0": 1e-4, "d_coef": 2.0, "growth_rate": 1.1}),
    "prodigy-corrected": ("prodigy", {"lr": 1.0, "bias_correction": True}),
    "prodigy-decay": ("prodigy", {"lr": 1.0, "weight_decay": 0.1}),
    "prodigy-coupled": ("prodigy", {"lr": 1.0, "weight_decay": 0.1, "decoupled": False}),
    "adafactor": ("adafactor", {}),
    "adafactor-warmup": ("adafactor", {"warmup_init": True}),
    "adafactor-lr": ("adafactor", {"lr": 3e-3}),
    "adafactor-plain": ("adafactor", {"lr": 3e-3, "scale_parameter": False, "clip": 0.5, "decay": -0.5}),
    "adafactor-decay": ("adafactor", {"weight_decay": 0.1, "eps": (1e-20, 0.5)}),
}


def start() -> dict[str, Tensor]:
    rng = np.random.default_rng(11)
    return {name: torch.as_tensor(rng.normal(size=shape), dtype=F64) for name, shape in SHAPES.items()}


def pull(name: str, theta: Tensor, step: int) -> Tensor:
    """The gradient of a step: towards a target far away, with noise."""
    rng = np.random.default_rng([step, len(name)])
    return (theta - 3.0) + torch.as_tensor(rng.normal(size=SHAPES[name]), dtype=F64)


OURS = {"lars": Lars, "prodigy": Prodigy, "adafactor": Adafactor}


def ours(case: str) -> dict[str, Tensor]:
    """Values after the shown steps, each step x flattened shape, with the optimisers of ctta.optim."""
    method, options = CASES[case]
    parameters = {name: nn.Parameter(value.clone()) for name, value in start().items()}
    optimizer = OURS[method](list(parameters.values()), **options)
    return run(optimizer, parameters)


def run(optimizer, parameters, coupled: float = 0.0) -> dict[str, Tensor]:
    """Values after the shown steps of an optimiser."""
    shown: dict[str, list[Tensor]] = {name: [] for name in parameters}
    for step in range(1, STEPS + 1):
        for name, parameter in parameters.items():
            theta = parameter.detach().reshape(SHAPES[name])
            parameter.grad = (pull(name, theta, step) + coupled * theta).reshape(parameter.shape)
        optimizer.step()
        for name, parameter in parameters.items():
            if step in SHOWN:
                shown[name].append(parameter.detach().flatten().clone())
    return {name: torch.stack(values) for name, values in shown.items()}


def theirs(case: str) -> dict[str, Tensor]:
    """The same with pytorch-optimizer."""
    held = torch.get_default_dtype()
    torch.set_default_dtype(F64)  # its Prodigy sums in the default dtype
    try:
        return _theirs(case)
    finally:
        torch.set_default_dtype(held)


def _theirs(case: str) -> dict[str, Tensor]:
    import pytorch_optimizer

    method, given = CASES[case]
    options = dict(given)
    coupled = 0.0
    # it leaves tensors of one dimension out of LARS' scaling: as matrices of one column they take part
    as_matrix = method == "lars" and not options.pop("skip_1d", False)
    if method == "lars":
        options["trust_coefficient"] = options.pop("trust", 1e-3)
        kind = pytorch_optimizer.LARS
    elif method == "prodigy":
        options["betas"] = (options.pop("beta1", 0.9), options.pop("beta2", 0.999))
        if not options.pop("decoupled", True):  # its coupled decay comes after the moments and does nothing
            coupled = options.pop("weight_decay")
        kind = pytorch_optimizer.Prodigy
    else:
        options = {"relative_step": "lr" not in options, "betas": (None, 1 - 1e-9), **options}
        options["clip_threshold"], options["decay_rate"] = options.pop("clip", 1.0), options.pop("decay", -0.8)
        options["eps1"], options["eps2"] = options.pop("eps", (1e-30, 1e-3))
        kind = pytorch_optimizer.AdaFactor
    parameters = {
        name: nn.Parameter(value.reshape(-1, 1) if as_matrix and value.dim() < 2 else value.clone())
        for name, value in start().items()
    }
    return run(kind(list(parameters.values()), **options), parameters, coupled)


def golden(case: str) -> dict[str, Tensor]:
    """The same as it was written down."""
    with np.load(PATH) as arrays:
        return {name: torch.from_numpy(arrays[f"{case}/{name}"]) for name in SHAPES}


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Largest difference of any value."""
    return max((one[name] - other[name]).abs().max().item() for name in SHAPES)


def travelled(values: dict[str, Tensor]) -> float:
    """Mean distance from the start, so that a comparison of runs that stand still does not count."""
    first = torch.cat([value.flatten() for value in start().values()])
    last = torch.cat([value[-1] for value in values.values()])
    return (last - first).abs().mean().item()


if __name__ == "__main__":
    runs = {case: theirs(case) for case in CASES}
    np.savez_compressed(
        PATH, **{f"{case}/{name}": v.numpy() for case, values in runs.items() for name, v in values.items()}
    )
    for case, values in runs.items():
        mine, gone = distance(ours(case), values), travelled(values)
        print(f"{case:20} off by {mine:.1e}, travelled {gone:.3g}")  # noqa: T201
        assert math.isfinite(gone)
