"""The base of every method: the model it adapts, the state it declares, and what follows from that.

A method is written by subclassing `Method`, stating what it adapts and what it keeps, and writing `step`.
It gets reset, save, load, copy, device moves, undo and the checks on finite values from here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from ctta._core import state
from ctta._core.kept import Kept, generator
from ctta._core.layers import (
    Group,
    all_finite,
    at_rest,
    collect,
    finite,
    floating,
    use_batch_statistics,
    without_gradients,
)
from ctta._core.precision import wide, without_autocast
from ctta._core.rng import Rng
from ctta._core.state import State
from ctta._cost.checkpointing import plain_blocks
from ctta.augment import Augmentation
from ctta.errors import AugmentError, ModelError, NonFiniteError, StateError, UnsupportedModelError

S = TypeVar("S")

Augment = Augmentation | Callable[[Tensor], Tensor]


class Method(Generic[S]):
    """One adaptation method around one model.

    Subclasses set `adapts` (which parameters may move), `statistics` (how BatchNorm normalises) and
    `default_augment` (a name in `ctta.augment.NAMED`), declare state with the functions of
    `ctta._core.kept`, and write `step`. Attributes that were not declared
    cannot be assigned once the method is built: a tensor nobody declared would survive a reset.
    """

    adapts: ClassVar[Group] = "none"
    statistics: ClassVar[Literal["batch", "source"]] = "batch"
    default_augment: ClassVar[str] = "cotta"

    rng: Rng = generator(lambda m: Rng(m.seed), "Drives augmentations and every other random choice.")

    def __init__(self, model: nn.Module, settings: S, *, augment: Augment, seed: int = 0) -> None:
        self.model = model
        self.settings = settings
        self.augment = augment
        self.seed = seed
        self.notes: dict[str, Any] = {}
        self.conditions: list[tuple[str, Tensor]] = []
        self.expected: list[tuple[str, list[str], Tensor]] = []
        self.clipped_view = False  # whether this step used an augmentation of ours, which clips to [0, 1]
        self._prepare()
        self.adapted: dict[str, nn.Parameter] = self._collect()
        self.source = {name: value.detach().clone() for name, value in self.adapted.items()}
        self.source_buffers = {name: value.clone() for name, value in model.named_buffers()}
        self._start()
        self.beginning = state.beginning(self)
        self.never_finite = state.not_finite(self)
        self._sealed = True

    # ---------------------------------------------------------------- what a method writes

    def step(self, x: Tensor) -> Tensor:
        """Adapt to the batch and return its logits, N x classes."""
        raise NotImplementedError

    def predict(self, x: Tensor) -> Tensor:
        """Return the logits `step` would return if it did not adapt; changes nothing."""
        return self.forward(x)

    def answering(self) -> nn.Module:
        """Return the network whose weights answer, named as the source model; override where it is another one."""
        return self.model

    def frozen(self) -> nn.Module:
        """Return the module that answers as `predict` does; override where that takes more than one network."""
        return self.answering()

    def adaptable(self) -> Group:
        """Which parameters this method moves; override where a setting decides."""
        return self.adapts

    def bn_mode(self) -> Literal["batch", "source"]:
        """How BatchNorm layers normalise; override where a setting decides."""
        return self.statistics

    @classmethod
    def files(cls, settings: S) -> tuple[Path, ...]:
        """Files a method with these settings begins from: other contents make another run."""
        return ()

    @classmethod
    def without_files(cls, settings: S) -> S:
        """Settings that open no file; a loaded adapter begins with them, and from what `brought` saved."""
        return settings

    def brought(self) -> dict[str, Tensor]:
        """What of the source came from `files`, not with the caller's model, by name of parameter or buffer."""
        return {}

    def begin_from(self, settings: S, brought: Mapping[str, Tensor]) -> None:
        """Become what a method with these settings is that brought these tensors from its files."""
        if brought:
            raise StateError(f"A state of {type(self).__name__} brings no source of its own, but this one does.")
        self.settings = settings

    # ---------------------------------------------------------------- what a method uses

    def forward(self, x: Tensor, model: nn.Module | None = None) -> Tensor:
        """Logits of the model (or of another network) for the batch, in float32 or wider."""
        try:
            logits = (model or self.model)(x.clone())  # some models normalise their input in place
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            hint = _hint_at_statistics(error, model or self.model)
            raise ModelError(
                f"The model raised {type(error).__name__} on a batch of shape {tuple(x.shape)}, {x.dtype}: "
                f"{error}{hint}"
            ) from error
        _require_logits(logits, len(x))
        return wide(logits.clone())  # some models answer with one and the same buffer every time

    def view(self, x: Tensor) -> Tensor:
        """Return an augmented copy of the batch, a constant for autograd."""
        self.clipped_view |= isinstance(self.augment, Augmentation)
        return make_view(self.augment, x, self.rng.generator)

    def gradients(
        self,
        output: Tensor,
        names: Iterable[str] | None = None,
        *,
        along: Tensor | None = None,
        retain_graph: bool = False,
        checked: bool = True,
    ) -> dict[str, Tensor]:
        """Gradients of a loss by name, for all adapted tensors or some; those it does not use are left out.

        `output` is the loss itself, or logits `along` which the gradient of a loss is given. In float32 or
        wider. A gradient that is not finite has the whole step undone, unless the caller looks at them himself
        (not `checked`).
        """
        wanted = list(self.adapted if names is None else names)
        if not wanted:
            return {}
        found: Sequence[Tensor | None] = []
        if output.requires_grad:
            found = self._backward(output, [self.adapted[name] for name in wanted], along, retain_graph)
        gradients = {name: wide(g) for name, g in zip(wanted, found, strict=False) if g is not None}
        if not output.requires_grad or (names is None and not gradients):
            raise ModelError(
                f"The logits of {type(self.model).__name__} depend on none of the {len(wanted)} adapted "
                "tensors: its forward must neither detach, nor run under no_grad, nor use reentrant "
                "checkpointing, nor end in layers without a backward pass (quantised ones)."
            )
        if checked:
            self.require_finite("gradient", gradients)
        return gradients

    def _backward(
        self, output: Tensor, inputs: Sequence[Tensor], along: Tensor | None, retain_graph: bool
    ) -> Sequence[Tensor | None]:
        """Gradients of an output, None for each input that it does not use; refused with a sentence."""
        try:
            return torch.autograd.grad(output, inputs, along, retain_graph=retain_graph, allow_unused=True)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise ModelError(
                f"Expected {type(self.model).__name__} to have a backward pass, but it raised "
                f"{type(error).__name__}: {error} Its forward must not change in place what the backward pass "
                'needs; methods without a backward pass ("bn1", "source") take the model as it is.'
            ) from error

    def graph_to(self, names: Iterable[str]) -> AbstractContextManager[None]:
        """Have forward passes meanwhile record the graph to these adapted tensors only."""
        wanted = set(names)
        return without_gradients([value for name, value in self.adapted.items() if name not in wanted])

    def value(self, name: str) -> Tensor:
        """Return an adapted tensor as it is now, without graph, in float32 or wider."""
        return wide(self.adapted[name].detach())

    def move(self, values: Mapping[str, Tensor]) -> None:
        """Give adapted tensors new values."""
        with torch.no_grad():
            for name, value in values.items():
                self.adapted[name].copy_(value)
        torch.clear_autocast_cache()  # what was cast of the old values, under the caller's autocast, is stale

    def note(self, **values: Any) -> None:
        """Add to the report of this step; names are the fields of `ctta.Report`.

        Values, and those inside of dicts, may be tensors of one number that are still on the device: all are
        fetched at once, at the end of the step.
        """
        for name, value in values.items():
            if isinstance(value, Mapping):
                self.notes[name] = {key: _constant(item) for key, item in value.items()}
            else:
                self.notes[name] = _constant(value)

    def note_in_words(self, words: str) -> None:
        """Add a sentence to the report."""
        self.notes["notes"] = (*self.notes.get("notes", ()), words)

    def note_if(self, condition: Tensor, words: str) -> None:
        """Add a sentence to the report if a condition, which may still be on the device, turns out true."""
        self.conditions.append((words, condition))

    def note_losses(self, losses: Mapping[str, Tensor], kept: Tensor | None = None, margin: float = 0.0) -> None:
        """Add the terms of the loss to the report, and how many samples (N booleans) an entropy margin kept."""
        self.note(losses=losses)
        if kept is not None:
            self.note(kept=kept.sum())
            self.note_if(~kept.any(), f"no sample below the entropy margin {margin:.4g}")

    def require_finite(self, what: str, tensors: Mapping[str, Tensor]) -> None:
        """Have the whole step undone unless every value is finite."""
        if not all_finite(list(tensors.values())):
            bad = next(name for name, value in tensors.items() if not all_finite([value]))
            raise NonFiniteError(f"{what} is not finite: {bad}")

    def expect_finite(self, what: str, tensors: Mapping[str, Tensor]) -> None:
        """As `require_finite`, but at the end of the step, without waiting for the device now."""
        flags = finite(list(tensors.values()))
        if flags is not None:
            self.expected.append((what, [name for name, value in tensors.items() if floating([value])], flags))

    def settle(self) -> None:
        """Bring all that this step asked of the device at once; whatever is not finite has the step undone."""
        expected, conditions, notes = self.expected, self.conditions, self.notes
        tables = [notes, *(value for value in notes.values() if isinstance(value, dict))]
        noted = [(table, key, v) for table in tables for key, v in table.items() if isinstance(v, Tensor)]
        self.expected, self.conditions = [], []
        answers = iter(
            to_host([flags for *_, flags in expected] + [c for _, c in conditions] + [v for *_, v in noted])
        )
        for what, names, _ in expected:
            bad = [name for name in names if not next(answers)]
            if bad:
                raise NonFiniteError(f"{what} is not finite: {bad[0]}")
        for words, _ in conditions:
            if next(answers):
                self.note_in_words(words)
        for table, key, value in noted:
            number = next(answers)
            table[key] = number if value.is_floating_point() else int(number)

    @functools.cached_property
    def size(self) -> int:
        """Number of adaptable parameters, the denominator of every share."""
        return sum(value.numel() for value in self.adapted.values())

    def share(self, names: Iterable[str]) -> float:
        """Share of the adaptable parameters that these tensors hold, 0 to 1."""
        return sum(self.adapted[name].numel() for name in names) / max(self.size, 1)

    # ---------------------------------------------------------------- what follows from the declarations

    @classmethod
    def kept(cls) -> dict[str, Kept]:
        """Everything the method declares that it keeps, by name."""
        return {
            name: value
            for base in reversed(cls.__mro__)
            for name, value in vars(base).items()
            if isinstance(value, Kept)
        }

    def reset(self) -> None:
        """Return to exactly what the method was when it was built: values come back, nothing is built again."""
        state.restore(self, state.first(self))

    def moved_from_source(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Tensors of a state, with 0 where the source is NaN or infinite and nothing has changed since.

        A mask of -inf, or weights that were never used, are the model's own affair: only what changed must be
        finite. A device is not waited for.
        """
        if not self.never_finite:
            return tensors
        return {**tensors, **state.without(tensors, self.never_finite)}

    def state(self) -> State:
        """All that is kept, by reference: clone what must outlive the next step."""
        return state.read(self)

    def load(self, saved: State) -> None:
        """Continue from a saved state; one that does not fit is refused before anything changes."""
        state.check(self, saved)
        state.restore(self, saved)
        state.check_loaded(self)

    def undo(self, before: State) -> None:
        """Return to a state this method was in."""
        state.restore(self, before)

    def rest(self, first_hook: int) -> None:
        """Take back what a step that was cut short left switched on: train mode, hooks from a number on."""
        self.forget_notes()
        for network in state.networks_of(self):
            at_rest(network, first_hook)
            plain_blocks(network)

    def to(self, convert: Callable[[Tensor], Tensor]) -> None:
        """Apply a conversion of tensors (another device, another dtype) to everything that is held."""
        self.model._apply(convert)  # type: ignore[no-untyped-call]
        named = dict(self.model.named_parameters())
        self.adapted = {name: named[name] for name in self.adapted}
        self.source = {name: convert(value) for name, value in self.source.items()}
        self.source_buffers = {name: convert(value) for name, value in self.source_buffers.items()}
        begun = {name: convert(value) for name, value in self.beginning.tensors.items()}
        self.beginning = State(begun, self.beginning.scalars)
        state.convert(self, convert)
        self.never_finite = state.not_finite(self)

    # ---------------------------------------------------------------- inner workings

    def begin(self) -> None:
        """Make ready for a step: an empty report, and gradients on even if the caller switched them off."""
        self.forget_notes()
        self.clipped_view = False
        for parameter in self.adapted.values():
            parameter.requires_grad_(True)

    def forget_notes(self) -> None:
        """Begin an empty report."""
        self.notes, self.conditions, self.expected = {}, [], []

    def _prepare(self) -> None:
        """Put the model into the state every method starts from: eval mode, nothing trainable."""
        if isinstance(self.model, torch.jit.ScriptModule):
            raise UnsupportedModelError(
                "A scripted model hides its layers, so nothing can be adapted: pass the module it was made from."
            )
        self.model.eval()
        self.model.requires_grad_(False)
        if self.bn_mode() == "batch":
            use_batch_statistics(self.model)

    def _collect(self) -> dict[str, nn.Parameter]:
        group = self.adaptable()
        adapted = collect(self.model, group)
        if not adapted and group != "none":
            layers = {
                "norm": "normalisation",
                "conv": "convolution",
                "conv-norm": "convolution or normalisation",
            }
            raise UnsupportedModelError(
                f"{type(self).__name__} adapts the parameters of {layers.get(group, 'all')} layers, and "
                f"{type(self.model).__name__} has none. Choose another method (see `ctta methods`)."
            )
        return adapted

    def _start(self) -> None:
        for name, item in self.kept().items():
            setattr(self, name, item.init(self))

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get("_sealed") and name not in self.__dict__:
            raise StateError(
                f"{type(self).__name__} keeps `{name}` without declaring it: add it to the class body with "
                "per_tensor(), scalar(), buffer(), network() or generator() of ctta.methods."
            )
        super().__setattr__(name, value)


def make_view(augment: Augment, x: Tensor, generator: torch.Generator) -> Tensor:
    """Augment a batch; only augmentations of ours draw from the generator."""
    with torch.no_grad(), without_autocast(x.device.type):
        view = augment(x, generator) if isinstance(augment, Augmentation) else augment(x.clone())
    if not isinstance(view, Tensor) or view.shape[:1] != x.shape[:1] or view.dtype != x.dtype:
        raise AugmentError(
            f"Expected `augment` to return a batch of {len(x)} images in {x.dtype}, "
            f"but got {describe_value(view)}."
        )
    return view.clone() if view.is_inference() else view.detach()


def to_host(values: Sequence[Tensor]) -> list[float]:
    """Bring numbers or truth values, one or many a tensor, from their device, one after the other, all at once."""
    found = [value.detach().reshape(-1) for value in values]
    if not found:
        return []
    dtype = functools.reduce(torch.promote_types, {value.dtype for value in found}, torch.float32)
    numbers: list[float] = torch.cat([value.to(found[0].device, dtype) for value in found]).tolist()
    return numbers


def _constant(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def describe_value(value: Any) -> str:
    """Describe a value for an error message: a tensor by shape, dtype and device, the rest by type."""
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {tuple(value.shape)} on {value.device}"
    return f"a {type(value).__module__}.{type(value).__qualname__}"


def _hint_at_statistics(error: Exception, model: nn.Module) -> str:
    """What to do about a model that reads statistics of its own which a method took away; empty for others."""
    reads = "running_" in str(error) or "NoneType" in str(error)
    if not reads or not any("source_mean" in module._buffers for module in model.modules()):
        return ""
    return (
        ". This method normalises with the statistics of the batch and took `running_mean` and `running_var` of "
        "the BatchNorm layers away, but the model seems to read them itself: use the layers as torch has them, or "
        'pass bn_mode="source" (where the method has it), or choose the method "source".'
    )


def _require_logits(logits: Any, samples: int) -> None:
    if isinstance(logits, Tensor) and logits.is_floating_point() and logits.dim() == 2:
        rows, classes = logits.shape
        if rows == samples and classes >= 2:
            return
    raise ModelError(
        f"Expected the model to return logits, a floating tensor of shape ({samples}, classes) with at least "
        f"2 classes, but got {describe_value(logits)}. Wrap the model so that it returns its logits only."
    )
