"""The base of every method: the model it adapts, the state it declares, and what follows from that."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from ctta._core import layers, refusals, state
from ctta._core.copies import copy_network
from ctta._core.kept import Kept, generator
from ctta._core.layers import Group, all_finite, finite, to_host, wide
from ctta._core.learnt import Learnt
from ctta._core.precision import without_autocast
from ctta._core.rng import Rng
from ctta._core.state import State
from ctta._cost.checkpointing import plain_blocks
from ctta.augment import Augmentation
from ctta.errors import AugmentError, NonFiniteError, StateError

S = TypeVar("S")

Augment = Augmentation | Callable[[Tensor], Tensor]


class Method(Generic[S]):
    """One adaptation method around one model.

    Subclasses set `adapts` (which parameters may move), `statistics` (how BatchNorm normalises) and
    `default_augment` (a name in `ctta.augment.NAMED`), declare state with the functions of `ctta._core.kept`, and
    write `step`. They get reset, save, load, copy, device moves, undo and the checks on finite values. Other
    attributes cannot be assigned later: a tensor nobody declared would survive a reset.
    """

    adapts: ClassVar[Group] = "none"
    statistics: ClassVar[Literal["batch", "source"]] = "batch"
    default_augment: ClassVar[str] = "cotta"
    learns: ClassVar[Learnt | None] = None
    """What it takes of the source beside the model, if it takes any."""

    rng: Rng = generator(lambda m: Rng(m.seed), "Drives augmentations and every other random choice.")

    def __init__(
        self,
        model: nn.Module,
        settings: S,
        *,
        augment: Augment,
        seed: int = 0,
        learnt: Mapping[str, Tensor] | None = None,
    ) -> None:
        if learnt and not self.learns:
            raise StateError(f"{type(self).__name__} takes nothing of the source, but got {list(learnt)[:3]}.")
        self.model, self.settings, self.augment, self.seed = model, settings, augment, seed
        self.learnt = dict(learnt or {})
        self.notes: dict[str, Any] = {}
        self.conditions: list[tuple[str, Tensor]] = []
        self.expected: list[tuple[str, list[str], Tensor]] = []
        self._prepare()
        self.adapted: dict[str, nn.Parameter] = self._collect()
        self.source = {name: value.detach().clone() for name, value in self.adapted.items()}
        self.source_buffers = {name: value.clone() for name, value in model.named_buffers()}
        for name, item in self.kept().items():
            setattr(self, name, item.init(self))
        self.view = Views(augment, self.rng)
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
        """How BatchNorm layers normalise: as a setting `bn_mode` says, if there is one."""
        return "batch" if getattr(self.settings, "bn_mode", self.statistics) == "batch" else "source"

    @classmethod
    def files(cls, settings: S) -> tuple[Path, ...]:
        """Files a method with these settings begins from: other contents make another run."""
        file = cls.learns.file(settings) if cls.learns else None
        return (file,) if file else ()

    # ---------------------------------------------------------------- what a method uses

    def forward(self, x: Tensor, model: nn.Module | None = None) -> Tensor:
        """Logits of the model (or of another network) for the batch, in float32 or wider."""
        network = self.model if model is None else model
        try:
            logits = network(x.clone())  # some models normalise their input in place
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise refusals.failed_forward(network, x, error) from error
        usable = isinstance(logits, Tensor) and logits.is_floating_point() and logits.dim() == 2
        if not usable or len(logits) != len(x) or logits.shape[1] < 2:
            raise refusals.no_logits(logits, len(x))
        return wide(logits.clone())  # some models answer with one and the same buffer every time

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

        `output` is the loss itself, or logits `along` which the gradient of a loss is given. In float32 or wider.
        A gradient that is not finite has the step undone, unless the caller looks at them himself (not `checked`).
        """
        wanted = list(self.adapted if names is None else names)
        if not wanted:
            return {}
        found: Sequence[Tensor | None] = ()
        if output.requires_grad:
            inputs = [self.adapted[name] for name in wanted]
            try:
                found = torch.autograd.grad(output, inputs, along, retain_graph=retain_graph, allow_unused=True)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                raise refusals.failed_backward(self.model, error) from error
        gradients = {name: wide(g) for name, g in zip(wanted, found, strict=False) if g is not None}
        if not output.requires_grad or (names is None and not gradients):
            raise refusals.no_gradient(self.model, len(wanted))
        if checked:
            self.require_finite("gradient", gradients)
        return gradients

    @contextmanager
    def graph_to(self, names: Iterable[str]) -> Iterator[None]:
        """Have forward passes meanwhile record the graph to these adapted tensors only."""
        wanted = set(names)
        constants = [value for name, value in self.adapted.items() if name not in wanted]
        for parameter in constants:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in constants:
                parameter.requires_grad_(True)

    def value(self, name: str) -> Tensor:
        """Return an adapted tensor as it is now, without graph, in float32 or wider."""
        return wide(self.adapted[name].detach())

    def move(self, values: Mapping[str, Tensor]) -> None:
        """Give adapted tensors new values."""
        with torch.no_grad():
            for name, value in values.items():
                self.adapted[name].copy_(value)
        torch.clear_autocast_cache()  # what was cast of the old values, under the caller's autocast, is stale

    @functools.cached_property
    def size(self) -> int:
        """Number of adaptable parameters, the denominator of every share."""
        return sum(value.numel() for value in self.adapted.values())

    def share(self, names: Iterable[str]) -> float:
        """Share of the adaptable parameters that these tensors hold, 0 to 1."""
        return sum(self.adapted[name].numel() for name in names) / max(self.size, 1)

    # ---------------------------------------------------------------- what a method says

    def note(self, **values: Any) -> None:
        """Add to the report of this step; names are the fields of `ctta.Report`.

        Values, and those inside of dicts, may be tensors of one number that are still on the device: all are
        fetched at once, at the end of the step.
        """
        for name, value in values.items():
            self.notes[name] = value.detach() if isinstance(value, Tensor) else value
            if isinstance(value, Mapping):
                self.notes[name] = {k: v.detach() if isinstance(v, Tensor) else v for k, v in value.items()}

    def note_in_words(self, words: str) -> None:
        """Add a sentence to the report."""
        self.notes["notes"] = (*self.notes.get("notes", ()), words)

    def note_if(self, condition: Tensor, words: str) -> None:
        """Add a sentence to the report if a condition, which may still be on the device, turns out true."""
        self.conditions.append((words, condition))

    def note_losses(self, losses: Mapping[str, Tensor], kept: Tensor | None = None, margin: float = 0.0) -> None:
        """Add the terms of the loss to the report, and how many samples (N booleans) an entropy margin kept."""
        self.notes["losses"] = {name: loss.detach() for name, loss in losses.items()}
        if kept is not None:
            self.notes["kept"] = kept.sum()
            self.conditions.append((f"no sample below the entropy margin {margin:.4g}", ~kept.any()))

    def note_moved(self, moved: Mapping[str, Tensor], lr: float) -> None:
        """Add to the report that these tensors, and no others, moved at one learning rate."""
        rates = {name: lr if name in moved else 0.0 for name in self.adapted}
        self.note(learning_rates=rates, shares={"moved": self.share(moved)})

    def require_finite(self, what: str, tensors: Mapping[str, Tensor]) -> None:
        """Have the whole step undone unless every value is finite."""
        if not all_finite(list(tensors.values())):
            bad = next(name for name, value in tensors.items() if not all_finite([value]))
            raise NonFiniteError(f"{what} is not finite: {bad}")

    def expect_finite(self, what: str, tensors: Mapping[str, Tensor]) -> None:
        """As `require_finite`, but at the end of the step, without waiting for the device now."""
        names, flags = finite(tensors)
        if flags is not None:
            self.expected.append((what, names, flags))

    def settle(self) -> dict[str, Any]:
        """Bring what this step asked of the device, all at once; return the report if everything is finite."""
        expected, conditions, notes = self.expected, self.conditions, self.notes
        tables = [notes, *(value for value in notes.values() if isinstance(value, dict))]
        noted = [(table, key, v) for table in tables for key, v in table.items() if isinstance(v, Tensor)]
        questions = [flags for *_, flags in expected] + [flag for _, flag in conditions]
        answers = iter(to_host(questions + [value for *_, value in noted]))
        for what, names, _ in expected:
            bad = [name for name in names if not next(answers)]
            if bad:
                raise NonFiniteError(f"{what} is not finite: {bad[0]}")
        for words, _ in conditions:
            if next(answers):
                notes["notes"] = (*notes.get("notes", ()), words)
        for table, key, value in noted:
            number = next(answers)
            table[key] = number if value.is_floating_point() else int(number)
        return notes

    # ---------------------------------------------------------------- what follows from the declarations

    @classmethod
    @functools.cache
    def kept(cls) -> dict[str, Kept]:
        """Everything the method declares that it keeps, by name."""
        inherited = [vars(base).items() for base in reversed(cls.__mro__)]
        return {name: value for items in inherited for name, value in items if isinstance(value, Kept)}

    def state(self) -> State:
        """All that is kept, by reference: clone what must outlive the next step."""
        tensors = {f"model/{name}": value.detach() for name, value in self.adapted.items()}
        tensors.update({f"buffers/{name}": value for name, value in self.model.named_buffers()})
        scalars: dict[str, Any] = {}
        for name, item in self.kept().items():
            value = getattr(self, name)
            match item.kind:
                case "per tensor":
                    tensors.update({f"{name}/{key}": tensor for key, tensor in value.items()})
                case "network":
                    found = (*value.named_parameters(), *value.named_buffers())
                    tensors.update({f"{name}/{key}": tensor.detach() for key, tensor in found})
                case "generator":
                    tensors[name] = value.generator.get_state()
                case "buffer" if value is not None:
                    tensors[name] = value
                case "scalar":
                    scalars[name] = value
        return State(tensors, scalars)

    def rest(self, first_hook: int) -> None:
        """Take back what a step that was cut short left switched on: train mode, hooks from a number on."""
        for network in state.networks_of(self):
            layers.at_rest(network, first_hook)
            plain_blocks(network)

    # ---------------------------------------------------------------- inner workings

    def _prepare(self) -> None:
        """Put the model into the state every method starts from: eval mode, nothing trainable."""
        self.model.eval().requires_grad_(False)
        if self.bn_mode() == "batch":
            layers.use_batch_statistics(self.model)

    def _collect(self) -> dict[str, nn.Parameter]:
        adapted = layers.collect(self.model, self.adaptable())
        if not adapted and self.adaptable() != "none":
            raise refusals.no_layers(type(self).__name__, self.model, self.adaptable())
        if getattr(self.settings, "parameters", "all") == "weight-bias":
            adapted = layers.weight_and_bias(adapted, self.model)
        for parameter in adapted.values():
            parameter.requires_grad_(True)
        return adapted

    def copy_of_source(self) -> nn.Module:
        """Copy the model as it is when the method is built, without gradients."""
        return copy_network(self.model, f"{type(self).__name__} needs copies of the model").requires_grad_(False)

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get("_sealed") and name not in self.__dict__:
            raise StateError(
                f"{type(self).__name__} keeps `{name}` without declaring it: add it to the class body with "
                "per_tensor(), scalar(), buffer(), network() or generator() of ctta.methods."
            )
        super().__setattr__(name, value)


class Views:
    """Augmented copies of batches, constants for autograd."""

    def __init__(self, augment: Augment, rng: Rng) -> None:
        self.augment, self.rng = augment, rng
        self.clipped = False

    def __call__(self, x: Tensor) -> Tensor:
        """Augment a batch."""
        rounded = torch.is_autocast_enabled(x.device.type)
        with torch.no_grad(), without_autocast(x.device.type) if rounded else nullcontext():
            if isinstance(self.augment, Augmentation):  # of ours: draws from the generator, clips to [0, 1]
                self.clipped = True
                view = self.augment(x, self.rng.generator)
            else:
                view = self.augment(x.clone())
        if not isinstance(view, Tensor) or view.shape[:1] != x.shape[:1] or view.dtype != x.dtype:
            raise AugmentError(
                f"Expected `augment` to return a batch of {len(x)} images in {x.dtype}, "
                f"but got {refusals.describe_value(view)}."
            )
        return view.clone() if view.is_inference() else view.detach()
