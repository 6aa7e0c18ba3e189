"""`adapt` puts a method around a model; `Adapter` lets nothing through that could hurt it."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _IncompatibleKeys

from ctta._core import checkpoint, state
from ctta._core.copies import copy_network, deep_copy
from ctta._core.files import parsing
from ctta._core.inputs import InputGuard
from ctta._core.layers import AsItWas
from ctta._core.method import Augment, Method
from ctta._core.refusals import require_usable
from ctta._core.registry import MethodEntry, find
from ctta._core.report import Report
from ctta._core.step import Done, Stepping, turn
from ctta._cost.layout import use_fast_layout
from ctta._version import __version__
from ctta.augment import CUSTOM, NAMED, Augmentation, choose
from ctta.errors import AugmentError, ModelError, SettingError, StateError

META = "adapter"
SOURCE = "source/"
COUNTERS = {"batches": int, "skipped_steps": int}
READ = "Files are read with ctta.load."
PASSING = ("_lock", "_under_way", "_before")
HEADER = {"method": str, "settings": dict, "seed": int, "augment": str, "fingerprint": str}


def adapt(
    model: nn.Module,
    method: str | type[Method[Any]],
    *,
    preset: str | None = None,
    augment: Augment | str | None = None,
    seed: int = 0,
    inplace: bool = False,
    **settings: Any,
) -> Adapter:
    """Wrap a classifier so that it adapts to the unlabelled batches it is given.

    `model` is any module that maps a batch to logits; unless `inplace` it is copied and never touched.
    `method` is a registry name (see `ctta.list_methods()`) or a registered class. `preset` gives the published
    settings of a benchmark, `settings` override them. `augment` maps a batch to a batch (default: what the
    method was published with, for most the CoTTA pipeline); `seed` fixes every random choice.

    With `inplace` the model itself is put in eval mode and stays changed: its BatchNorm layers use batch
    statistics from then on (where the method does), and `reset` restores its weights, not its layers.
    """
    entry = find(method)
    view = choose(augment, entry.method.default_augment)
    return Adapter(model, entry, entry.resolve(preset, settings), augment=view, seed=seed, inplace=inplace)


def load(
    path: str | os.PathLike[str], model: nn.Module, *, augment: Augment | str | None = None, inplace: bool = False
) -> Adapter:
    """Return the adapter that was saved to `path`; its stream goes on as if it had never stopped.

    `model` is the source model the adapter was built with. An adapter that was built with an augmentation of
    your own needs it again. A model with other parameters or buffers is refused; one with the same tensors and
    another `forward` cannot be told apart.
    """
    tensors, header = checkpoint.read(path)
    checkpoint.require(header, HEADER, path)
    entry = find(header["method"])
    if augment is None and header["augment"] not in NAMED:
        raise AugmentError(
            f"{path} was saved with an augmentation of your own, which a file cannot hold: pass it again, "
            "ctta.load(path, model, augment=...)."
        )
    view = choose(header["augment"] if augment is None else augment)
    settings, seed = entry.resolve(None, header["settings"]), header["seed"]
    learnt = {key.removeprefix(SOURCE): tensors.pop(key) for key in list(tensors) if key.startswith(SOURCE)}
    as_it_was = AsItWas(model) if inplace and isinstance(model, nn.Module) else None
    adapter = None
    try:
        adapter = Adapter(model, entry, settings, augment=view, seed=seed, inplace=inplace, learnt=learnt)
        if adapter.fingerprint != header["fingerprint"]:
            raise StateError(
                f"{path} belongs to another model: the parameters or buffers it was adapted from are not those of "
                "the model given. Pass the source model the saved adapter was built with."
            )
        adapter.load_state_dict(tensors)
    except BaseException:
        if as_it_was is not None:
            if adapter is not None:
                adapter.reset()
            as_it_was.put_back()
        raise
    if adapter._layout == "on trial" and header.get("layout") in ("fast", "plain"):
        adapter._layout = "fast"
        if header["layout"] == "plain":
            adapter._use_plain_layout()
    return adapter


class Adapter(Stepping):
    """A model that adapts. Call it as you would call the model; made by `ctta.adapt` or `ctta.load`.

    It is an nn.Module so that it fits where the model was (`.to(device)`, `next(m.parameters())`), but
    `train()` and `eval()` change nothing: the method decides how each layer behaves.

    Threads may share an adapter. They take turns: every step, prediction, reset, save, load, copy and move is
    whole. An adapter for each thread works too. Where steps draw from torch's global generator (dropout), adapters
    of one process wait for each other; other code that draws from it in another thread changes the run.

    An exception at any line, Ctrl-C included, leaves the adapter as it was before the call or as it is after it.
    """

    _fingerprint: str | None

    def __init__(
        self,
        model: nn.Module,
        entry: MethodEntry,
        settings: Any,
        *,
        augment: Augment,
        seed: int,
        inplace: bool,
        learnt: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        seed = _check_seed(seed)
        require_usable(model, inplace)
        if any(isinstance(module, Adapter) for module in model.modules()):
            raise ModelError("The model is or holds an adapter already: adapt the plain model instead.")
        self.training = False
        self.entry = entry
        with torch.inference_mode(False):
            if learnt is None and entry.method.learns:
                learnt = entry.method.learns.read(settings, model)
            own = model if inplace else copy_network(model, "Pass `inplace=True` to adapt the model itself")
            changes_nothing = (entry.method.adapts, entry.method.statistics) == ("none", "source")
            keep = inplace or changes_nothing  # not ours to rearrange, or to answer bit for bit as the model
            self._layout = "given" if keep or not use_fast_layout(own) else "on trial"
            as_it_was = AsItWas(own)
            try:
                self.method = entry.method(own, settings, augment=augment, seed=seed, learnt=learnt)
            except BaseException:
                as_it_was.put_back()
                raise
        self._snapshot = {}
        self._fingerprint = None
        self._start()

    def _start(self) -> None:
        self._done = Done()
        self._guard = InputGuard()

    @property
    def batches(self) -> int:
        """Batches adapted to since the last reset."""
        return self._counted.batches

    @property
    def skipped_steps(self) -> int:
        """How many steps were undone since the last reset."""
        return self._counted.skipped_steps

    @property
    def last(self) -> Report | None:
        """What the last call did; None before the first and after a reset."""
        return self._counted.last

    @property
    def settings(self) -> Any:
        """The settings in force, a frozen dataclass."""
        return self.method.settings

    @property
    def model(self) -> nn.Module:
        """The adapting model itself (of a teacher and a student: the student); `freeze()` gives what answers."""
        return self.method.model

    # ---------------------------------------------------------------- state

    @turn
    def reset(self) -> None:
        """Become exactly a new adapter, bit for bit."""
        with torch.inference_mode(False):
            self._open()
            state.restore(self.method, self.method.beginning)
            self._start()

    @turn
    def freeze(self) -> nn.Module:
        """Return a copy of what answers now, as an ordinary module that predicts as `predict` does."""
        with torch.inference_mode(False):
            advice = "Its adapted weights are in `adapter.model`"
            return copy_network(self.method.frozen(), advice).requires_grad_(False)

    @turn
    def state_dict(  # type: ignore[override]
        self, *, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Everything the adapter keeps, as tensors: what moved of the model, declared state, counters."""
        now, made = self.method.state(), {"method": self.entry.name, "settings": dataclasses.asdict(self.settings)}
        counters = {"batches": self.batches, "skipped_steps": self.skipped_steps}
        text = json.dumps({**made, "scalars": now.scalars, **counters})  # in their order
        meta = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        out = {} if destination is None else destination
        out.update({f"{prefix}{key}": t if keep_vars else t.clone() for key, t in now.tensors.items()})
        out[f"{prefix}{META}"] = meta
        return out

    @turn
    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> _IncompatibleKeys:
        """Continue from a `state_dict`; one that does not fit is refused before anything changes.

        `strict` and `assign` are there for compatibility: a state is always whole and always copied.
        """
        tensors = dict(state_dict)
        with parsing("Expected a state made by Adapter.state_dict(), but got another", READ, StateError):
            meta = json.loads(bytes(tensors.pop(META).tolist()).decode())
            checkpoint.require(meta, {"method": str, "scalars": dict, **COUNTERS}, "This state")
        counters = [meta[name] for name in COUNTERS]
        strangers = [key for key, value in tensors.items() if not isinstance(value, Tensor)]
        if strangers or not 0 <= counters[1] <= counters[0]:
            raise StateError(f"Expected tensors and counters from 0 on, but got {strangers[:3]}, {counters}.")
        self._require_made_alike(meta)
        with torch.inference_mode(False):
            self._open()
            state.load(self.method, state.State(tensors, meta["scalars"]))
            self._start()
        self._done = Done(counters[0], counters[1])
        return _IncompatibleKeys([], [])

    def _require_made_alike(self, meta: Mapping[str, Any]) -> None:
        """Refuse a state of another method or of other settings (one of ctta 0.1 does not know its settings)."""
        if meta["method"] != self.entry.name:
            raise StateError(f"Expected a state of method `{self.entry.name}`, but got one of `{meta['method']}`.")
        mine = json.loads(json.dumps(dataclasses.asdict(self.settings)))
        theirs = meta.get("settings", mine)
        if theirs != mine:
            given = theirs if isinstance(theirs, dict) else {}
            other = ", ".join([name for name in {**mine, **given} if mine.get(name) != given.get(name)][:5])
            raise StateError(
                f"Expected a state made with the same settings, but {other} differ: make the adapter with the "
                "settings of the state, or read a whole file with ctta.load."
            )

    @turn
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole adapting state to one safetensors file, atomically; `ctta.load` reads it."""
        augment = self.method.augment
        header = {
            "version": __version__,
            "method": self.entry.name,
            "settings": dataclasses.asdict(self.settings),
            "seed": self.method.seed,
            "augment": augment.name if isinstance(augment, Augmentation) else CUSTOM,
            "fingerprint": self.fingerprint,
            "layout": self._layout,
        }
        learnt = {f"{SOURCE}{name}": value for name, value in self.method.learnt.items()}
        checkpoint.write(path, {**self.state_dict(), **learnt}, header)

    @property
    @turn
    def fingerprint(self) -> str:
        """SHA-256 of the source model's parameters and buffers, whatever has moved since."""
        if self._fingerprint is None:
            source = {**self.method.source, **self.method.source_buffers}
            self._fingerprint = checkpoint.digest({**dict(self.model.named_parameters()), **source})
        return self._fingerprint

    # ---------------------------------------------------------------- fitting in where the model was

    def train(self, mode: bool = True) -> Adapter:
        """Do nothing: the method decides which layers are in which mode."""
        return self

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of the adapting model."""
        return self.model.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        """Buffers of the adapting model."""
        return self.model.named_buffers(*args, **kwargs)

    def extra_repr(self) -> str:
        """Show the method and what it wraps."""
        return f"{self.entry.name}, {type(self.model).__name__}, batches={self.batches}"

    @turn
    def __deepcopy__(self, memo: dict[int, Any]) -> Adapter:
        twin = Adapter.__new__(Adapter)
        memo[id(self)] = twin
        own = {key: value for key, value in vars(self).items() if key not in PASSING}
        try:
            with torch.inference_mode(False):
                twin.__setstate__(deep_copy(own, memo))
        except Exception as error:
            name = type(self.model).__name__
            raise ModelError(f"{name} cannot be copied ({error}), nor can an adapter that holds it.") from error
        return twin

    def __getstate__(self) -> dict[str, Any]:
        twin = copy.deepcopy(self)  # pickle reads the tensors later, when other threads may have moved on
        return {key: value for key, value in vars(twin).items() if key not in PASSING}

    @turn
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Adapter:
        with torch.inference_mode(False):
            self._remember(state.held(self.method))
            state.convert(self.method, fn)
        self._snapshot = {}
        self._fingerprint = None
        return self

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *_: Any) -> None:
        mine = {key[len(prefix) :]: value for key, value in state_dict.items() if key.startswith(prefix)}
        self.load_state_dict(mine)  # as part of another module


def _check_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= int(seed) < 2**63:
        raise SettingError(f"Expected `seed` to be a whole number from 0 to 2**63 - 1, but got {seed!r}.")
    return int(seed)
