"""The parts of a residual network by name: its stem, its stages in order, the residual blocks in each.

Stages are found by exact names within one parent module, never by a piece of a name: `block1`, `block2`, ...
with blocks `layer.0`, `layer.1`, ... (wide ResNets), `stage_1`, ... (ResNeXt-29) or `layer1`, ... (ResNets of
torchvision and timm, and those for CIFAR) with blocks `0`, `1`, .... The parent may be the model or lie anywhere
inside it. Stages of other networks are named by the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from ctta.errors import SettingError, UnsupportedModelError
from ctta.settings import suggestion

FAMILIES = {"block": "layer", "stage_": "", "layer": ""}
"""What the name of a stage begins with (a number from 1 follows), and the child that holds its blocks."""
HOLDERS = ("layer", "blocks")
"""Children in which a stage that the user names may hold its blocks, where it does not hold them itself."""

STEM, HEAD = "stem", "head"


class Place(NamedTuple):
    """Where a parameter belongs: a stage (or "stem" or "head") and a block, both names of modules."""

    stage: str
    block: str


@dataclass(frozen=True)
class Stage:
    """One stage: the name of its module and the names of its residual blocks, in order."""

    name: str
    blocks: tuple[str, ...]


@dataclass(frozen=True)
class Stages:
    """The stem (modules with weights before the first stage) and the stages of a network, all as module names."""

    stem: tuple[str, ...]
    stages: tuple[Stage, ...]

    @property
    def blocks(self) -> tuple[str, ...]:
        """All residual blocks, in order."""
        return tuple(block for stage in self.stages for block in stage.blocks)

    def block_of(self, parameter: str) -> Place:
        """Return stage and block of a parameter; what lies in no stage is in the "stem" or the "head".

        Outside the stages, and for what a stage holds beside its blocks, the block is the module that holds it.

        >>> found = Stages(("conv1",), (Stage("layer1", ("layer1.0", "layer1.1")),))
        >>> found.block_of("layer1.1.bn1.weight")
        Place(stage='layer1', block='layer1.1')
        >>> found.block_of("conv1.weight").stage, found.block_of("layer10.0.weight").stage
        ('stem', 'head')
        """
        owner = parameter.rpartition(".")[0]
        for stage in self.stages:
            if _within(parameter, stage.name):
                return Place(stage.name, next((b for b in stage.blocks if _within(parameter, b)), stage.name))
        return Place(STEM if owner in self.stem else HEAD, owner)

    def places(self, model: nn.Module) -> dict[str, Place]:
        """Stage and block of every parameter of the model."""
        return {name: self.block_of(name) for name, _ in model.named_parameters()}


def find_stages(model: nn.Module, names: str | Sequence[str] = "") -> Stages:
    """Return the stages of a model: those of `names` (a list, or a string with commas) or those it is known by."""
    wanted = names.split(",") if isinstance(names, str) else names
    chosen = [name.strip() for name in wanted if name.strip()]
    stages = _named(model, chosen) if chosen else _known(model)
    return Stages(tuple(_before(model, stages[0].name)), tuple(stages))


def _known(model: nn.Module) -> list[Stage]:
    """Stages under one of the known names; those inside other stages do not count."""
    found: dict[str, list[Stage]] = {}
    for prefix, parent in model.named_modules():
        if any(_within(prefix, stage.name) for stages in found.values() for stage in stages):
            continue
        for word, holder in FAMILIES.items():
            stages = list(_chain(parent, prefix, word, holder))
            if len(stages) >= 2:
                found[_join(prefix, word)] = stages
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        several = " and ".join(f"{stages[0].name} to {stages[-1].name}" for stages in found.values())
        what = f"has more than one row of stages ({several})"
    else:
        what = (
            "has no stages under a known name (block1, ... with blocks block1.layer.0, ...; stage_1, ... or "
            "layer1, ... with blocks layer1.0, ...)"
        )
    raise UnsupportedModelError(
        f'{type(model).__name__} {what}. Name its stages in order, as in `stages="encoder.0,encoder.1"` (any '
        f"names of `model.named_modules()`). Its top-level modules are: {_listed(model)}."
    )


def _chain(parent: nn.Module, prefix: str, word: str, holder: str) -> Iterator[Stage]:
    """Stages word1, word2, ... of a parent, as long as each is there and holds blocks."""
    children = dict(parent.named_children())
    number = 1
    while (leaf := f"{word}{number}") in children:
        inside = dict(children[leaf].named_modules())
        blocks = _blocks(inside[holder], _join(_join(prefix, leaf), holder)) if holder in inside else ()
        if not blocks:
            return
        yield Stage(_join(prefix, leaf), blocks)
        number += 1


def _named(model: nn.Module, names: list[str]) -> list[Stage]:
    """Stages that the user names; one that holds no numbered blocks is one block itself."""
    modules = dict(model.named_modules())
    stages = []
    for index, name in enumerate(names):
        if not name or name not in modules:
            raise SettingError(
                f"{type(model).__name__} has no module `{name}` to be a stage.{suggestion(name, modules)} "
                f"Its top-level modules are: {_listed(model)}."
            )
        overlapping = [other for other in names[:index] if _within(name, other) or _within(other, name)]
        if overlapping:
            raise SettingError(f"Expected stages beside each other, but `{name}` overlaps `{overlapping[0]}`.")
        places = ["", *(child for child, _ in modules[name].named_children() if child in HOLDERS)]
        paths = (_join(name, place) for place in places)
        blocks = next((found for path in paths if (found := _blocks(modules[path], path))), (name,))
        stages.append(Stage(name, blocks))
    return stages


def _blocks(holder: nn.Module, prefix: str) -> tuple[str, ...]:
    """Names of the residual blocks in a module: children 0, 1, ... that are made of layers; else none."""
    children = dict(holder.named_children())
    numbered = list(children) == [str(index) for index in range(len(children))]
    made_of_layers = all(any(True for _ in child.children()) for child in children.values())
    return tuple(_join(prefix, leaf) for leaf in children) if children and numbered and made_of_layers else ()


def _before(model: nn.Module, stage: str) -> Iterator[str]:
    """Modules with weights of their own that are registered before a stage; linear layers are no stem."""
    for name, module in model.named_modules():
        if name == stage:
            return
        if not isinstance(module, nn.Linear) and any(True for _ in module.parameters(recurse=False)):
            yield name


def _top(model: nn.Module) -> tuple[str, nn.Module]:
    """Look through wrappers: the first module of which more than one child has parameters, and its name."""
    prefix, module = "", model
    while True:
        holding = [(n, c) for n, c in module.named_children() if any(True for _ in c.parameters())]
        if len(holding) != 1 or not any(True for _ in holding[0][1].children()):
            return prefix, module
        prefix, module = _join(prefix, holding[0][0]), holding[0][1]


def _listed(model: nn.Module, most: int = 12) -> str:
    prefix, module = _top(model)
    names = [f"{_join(prefix, name)} ({type(child).__name__})" for name, child in module.named_children()]
    return ", ".join([*names[:most], *(["..."] if len(names) > most else [])]) or "none"


def _within(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def _join(prefix: str, name: str) -> str:
    return ".".join(part for part in (prefix, name) if part)
