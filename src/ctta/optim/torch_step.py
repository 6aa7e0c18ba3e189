"""One step of any optimiser of torch.optim, as a function: state goes in, new state comes out."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ctta._core.precision import without_autocast
from ctta.errors import SettingError
from ctta.optim.adafactor import Adafactor
from ctta.optim.base import Rule
from ctta.optim.lars import Lars
from ctta.optim.prodigy import Prodigy
from ctta.settings import suggestion

TORCH = "torch:"
OURS: dict[str, type[Optimizer]] = {"lars": Lars, "prodigy": Prodigy, "adafactor": Adafactor}
REFUSED = {
    "LBFGS": "evaluates the loss several times a step, which needs a closure",
    "SparseAdam": "takes sparse gradients only",
}
OF_ALL = ""
"""The key under which numbers stand that belong to no tensor alone."""


class OptimizerState(NamedTuple):
    """What an optimiser keeps, by parameter and then by its own name for it: tensors, and plain numbers."""

    tensors: dict[str, dict[str, Tensor]]
    numbers: dict[str, dict[str, float]]


class Outcome(NamedTuple):
    """New values, the learning rate each tensor had, and what the optimiser keeps."""

    values: dict[str, Tensor]
    rates: dict[str, Tensor | float]
    state: OptimizerState


def find_optimizer(name: str, *, beside: Sequence[str] = ()) -> type[Optimizer]:
    """Return the class of an optimiser of ours, or with "torch:" before its name one of torch.optim.

    `beside` are other names that would have been accepted.

    >>> find_optimizer("torch:RMSprop")
    <class 'torch.optim.rmsprop.RMSprop'>
    """
    if not name.startswith(TORCH) and name not in OURS:
        known = [*beside, *OURS]
        raise SettingError(
            f"There is no `lr_scheme` {name!r}.{suggestion(name, known)} "
            f'Known: {", ".join(known)}, and "torch:NAME" for a class of torch.optim.'
        )
    if name in OURS:
        return OURS[name]
    name = name.removeprefix(TORCH)
    kinds = {key: kind for key, kind in vars(torch.optim).items() if isinstance(kind, type) and key not in REFUSED}
    known = [key for key, kind in kinds.items() if issubclass(kind, Optimizer) and kind is not Optimizer]
    if name in REFUSED:
        raise SettingError(f"torch.optim.{name} {REFUSED[name]}: choose another one of {', '.join(known)}.")
    if name not in known:
        hint = suggestion(name, known)
        raise SettingError(f"torch.optim has no optimiser `{name}`.{hint} Known: {', '.join(known)}.")
    return kinds[name]


def optimizer_options(kind: type[Optimizer], lr: float | None, weight_decay: float) -> dict[str, float]:
    """Arguments for an optimiser: `lr` None is its own default, `weight_decay` is passed where it takes one."""
    options = {} if lr is None else {"lr": lr}
    if issubclass(kind, Rule) or "weight_decay" in inspect.signature(kind).parameters:
        options["weight_decay"] = weight_decay
    elif weight_decay:
        raise SettingError(f"{kind.__name__} has no weight decay: leave `weight_decay` at 0.")
    return options


def require_takes(kind: type[Optimizer], options: Mapping[str, Any], shapes: Mapping[str, torch.Size]) -> None:
    """Refuse an optimiser that does not take these options or tensors of these shapes (Muon: matrices only)."""
    for name, shape in shapes.items():
        try:
            build: Any = kind
            build([nn.Parameter(torch.empty(shape, device="meta"))], **options)
        except ValueError as error:
            raise SettingError(
                f"{kind.__name__} refuses {name} of shape {tuple(shape)} with {dict(options)}: {error}"
            ) from error


def torch_step(
    kind: type[Optimizer],
    values: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    options: Mapping[str, Any],
    state: OptimizerState,
) -> Outcome:
    """Return the new values of all tensors with a gradient, and the new state; the arguments stay as they are.

    >>> theta, empty = {"w": torch.ones(1)}, OptimizerState({}, {})
    >>> torch_step(torch.optim.SGD, theta, {"w": torch.ones(1)}, {"lr": 0.25}, empty).values
    {'w': tensor([0.7500])}
    """
    parameters = {name: nn.Parameter(values[name].clone()) for name in gradients}
    if not parameters:
        return Outcome({}, {}, state)
    build: Any = kind
    optimizer: Optimizer = build(list(parameters.values()), **options)
    group = optimizer.param_groups[0]
    shared = optimizer.shared if isinstance(optimizer, Rule) else ()
    group.update({key: x for key, x in state.numbers.get(OF_ALL, {}).items() if key in shared})
    # numbers as optimisers hold them: in their scalar dtype, the step count on the CPU
    scalar = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
    for name, parameter in parameters.items():
        parameter.grad = gradients[name].clone()
        before = {key: tensor.clone() for key, tensor in state.tensors.get(name, {}).items()}
        for key, x in state.numbers.get(name, {}).items():
            before[key] = torch.tensor(x, dtype=scalar, device="cpu" if key == "step" else parameter.device)
        if before:
            optimizer.state[parameter] = before
    with without_autocast(next(iter(parameters.values())).device.type):  # Adafactor multiplies matrices
        optimizer.step()
    rates = optimizer.rates if isinstance(optimizer, Rule) else [group["lr"]] * len(parameters)
    after = {name: p.detach() for name, p in parameters.items()}
    return Outcome(after, dict(zip(parameters, rates, strict=True)), _kept(optimizer, parameters, state))


def _kept(optimizer: Optimizer, parameters: Mapping[str, Tensor], before: OptimizerState) -> OptimizerState:
    """What an optimiser keeps after a step, with what was known of tensors that took no part in it."""
    tensors, numbers = dict(before.tensors), dict(before.numbers)
    for name, p in parameters.items():
        kept = {key: value for key, value in optimizer.state[p].items() if value is not None}
        # what belongs to the elements of a parameter is shaped like it; a step count and other numbers are not
        shaped = {
            k: v for k, v in kept.items() if isinstance(v, Tensor) and (v.dtype, v.dim()) == (p.dtype, p.dim())
        }
        tensors[name] = {key: value for key, value in shaped.items() if key != "step"}
        numbers[name] = {key: float(value) for key, value in kept.items() if key not in tensors[name]}
    if isinstance(optimizer, Rule) and optimizer.shared:
        numbers[OF_ALL] = {key: float(optimizer.param_groups[0][key]) for key in optimizer.shared}
    return OptimizerState(tensors, numbers)
