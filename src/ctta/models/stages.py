"""The parts of a residual network by name: its stem, its stages in order, the residual blocks in each.

Stages are found by exact names within one parent module, never by a piece of a name: `block1`, `block2`, ...
with blocks `layer.0`, `layer.1`, ... (wide ResNets), `stage_1`, ... (ResNeXt-29) or `layer1`, ... (ResNets of
torchvision and timm, and those for CIFAR) with blocks `0`, `1`, .... The parent may be the model or lie anywhere
inside it. Stages of other networks are named by the user.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
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


def find_stages(model: nn.Module, names: str | Sequence[str] = "") -> Stages:
    """Return the stages of a model: those of `names` (a list, or a string with commas) or those it is known by."""
    wanted = names.split(",") if isinstance(names, str) else names
    chosen = [name.strip() for name in wanted if name.strip()]
    stages = _named(model, chosen) if chosen else _known(model)
    return Stages(tuple(_before(model, stages[0].name)), tuple(stages))


def _known(model: nn.Module) -> list[Stage]:
    """Stages under one of the known names; those inside other stages do not count."""
    found: list[list[Stage]] = []
    for prefix, parent in model.named_modules():
        if not any(_within(prefix, stage.name) for stages in found for stage in stages):
            rows = [_row(parent, prefix, word, holder) for word, holder in FAMILIES.items()]
            found += [stages for stages in rows if len(stages) >= 2]
    if len(found) == 1:
        return found[0]
    what = (
        "has no stages under a known name (block1, ... with blocks block1.layer.0, ...; stage_1, ... or "
        "layer1, ... with blocks layer1.0, ...)"
    )
    if found:
        several = " and ".join(f"{stages[0].name} to {stages[-1].name}" for stages in found)
        what = f"has more than one row of stages ({several})"
    raise UnsupportedModelError(
        f'{type(model).__name__} {what}. Name its stages in order, as in `stages="encoder.0,encoder.1"` (any '
        f"names of `model.named_modules()`). Its top-level modules are: {_listed(model)}."
    )


def _row(parent: nn.Module, prefix: str, word: str, holder: str) -> list[Stage]:
    """Stages word1, word2, ... of a parent, as long as each is there and holds blocks."""
    children = dict(parent.named_children())

    def blocks(leaf: str) -> tuple[str, ...]:
        held = getattr(children.get(leaf), holder, None) if holder else children.get(leaf)
        return _blocks(held, _join(_join(prefix, leaf), holder)) if isinstance(held, nn.Module) else ()

    stages = (Stage(_join(prefix, leaf), blocks(leaf)) for leaf in (f"{word}{n}" for n in itertools.count(1)))
    return list(itertools.takewhile(lambda stage: stage.blocks, stages))


def _named(model: nn.Module, names: list[str]) -> list[Stage]:
    """Stages that the user names; one that holds no numbered blocks is one block itself."""
    modules = dict(model.named_modules())
    stages: list[Stage] = []
    for name in names:
        if name not in modules:
            raise SettingError(
                f"{type(model).__name__} has no module `{name}` to be a stage.{suggestion(name, modules)} "
                f"Its top-level modules are: {_listed(model)}."
            )
        for other in stages:
            if _within(name, other.name) or _within(other.name, name):
                raise SettingError(f"Expected stages beside each other, but `{name}` overlaps `{other.name}`.")
        paths = [name, *(path for child in HOLDERS if (path := f"{name}.{child}") in modules)]
        blocks = next((found for path in paths if (found := _blocks(modules[path], path))), (name,))
        stages.append(Stage(name, blocks))
    return stages


def _blocks(holder: nn.Module, prefix: str) -> tuple[str, ...]:
    """Names of the residual blocks in a module: children 0, 1, ... that are made of layers; else none."""
    children = dict(holder.named_children())
    numbered = list(children) == [str(index) for index in range(len(children))]
    layered = all(any(child.children()) for child in children.values())
    return tuple(_join(prefix, leaf) for leaf in children) if numbered and layered else ()


def _before(model: nn.Module, stage: str) -> Iterator[str]:
    """Modules with weights of their own that are registered before a stage; linear layers are no stem."""
    for name, module in model.named_modules():
        if name == stage:
            return
        if not isinstance(module, nn.Linear) and next(module.parameters(recurse=False), None) is not None:
            yield name


def _listed(model: nn.Module, most: int = 12) -> str:
    """The children of the first module, wrappers aside, of which more than one child has parameters."""
    prefix, module = "", model
    while True:
        holding = [(n, c) for n, c in module.named_children() if next(c.parameters(), None) is not None]
        if len(holding) != 1 or not any(holding[0][1].children()):
            break
        prefix, module = _join(prefix, holding[0][0]), holding[0][1]
    names = [f"{_join(prefix, name)} ({type(child).__name__})" for name, child in module.named_children()]
    return ", ".join([*names[:most], *(["..."] if len(names) > most else [])]) or "none"


def _within(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def _join(prefix: str, name: str) -> str:
    return ".".join(part for part in (prefix, name) if part)


def mean_by_block(model: nn.Module, values: Mapping[str, float]) -> dict[str, float]:
    """Mean of the tensors' values in every block, in the order of the network.

    The block is the residual block where stages are known, else the top of a parameter's path.
    """
    names = [name for name, _ in model.named_parameters() if name in values]
    try:
        stages = find_stages(model) if names else None
    except UnsupportedModelError:
        stages = None
    groups: dict[str, list[float]] = {}
    for name in names:
        block = stages.block_of(name).block if stages else name.partition(".")[0]
        groups.setdefault(block, []).append(values[name])
    return {block: sum(found) / len(found) for block, found in groups.items()}
