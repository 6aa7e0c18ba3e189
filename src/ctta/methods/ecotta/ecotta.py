"""EcoTTA: memory-efficient CTTA via self-distilled regularisation (Song et al., CVPR 2023).

The source network is frozen and split into K parts. Beside each stands a small meta network (meta_networks.py),
and only these move: down the entropy of the sure samples, and down the distance R_k of each part's new output to
what the frozen part gives. Before deployment they are warmed up on labelled source data (warmup.py).

Confidence: medium. The authors released no code. `variant="community"` follows the re-implementation that others
have run (two steps a batch, first on R_k part by part, then on entropy), `variant="paper"` the single objective of
the paper; its lambda and the ImageNet learning rate are unverified. Without a warm-up every meta network begins as
the identity on the first batch. That is our own safe beginning, not the published method: every report says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ctta._core.layers import all_finite, use_batch_statistics
from ctta._core.learnt import EMBEDDED, Learnt
from ctta._core.moments import SgdMemory
from ctta._core.registry import register
from ctta.errors import ModelError, StateError
from ctta.functional import filtered_entropy
from ctta.methods.ecotta.meta_networks import NAME, MetaNetwork, Watch, attach, meta_networks, watching
from ctta.models.stages import find_stages
from ctta.settings import setting

WARM_UP = Learnt("warmup", "ecotta warm-up", "embedded-ecotta.safetensors")
NOT_WARM = "no warm-up was given: the meta networks began as the identity on the first batch"


@dataclass(frozen=True)
class EcottaSettings:
    """Settings of EcoTTA; the defaults are those of the community code for CIFAR."""

    variant: Literal["community", "paper"] = setting(
        "community", "The code others have run, or the single objective of the paper."
    )
    warmup: str = setting(
        "",
        "File of warmed-up meta networks, made by `ctta warmup ecotta`, or `embedded:` for those of the embedded "
        "model (no other takes them); without them they begin as the identity.",
    )
    lr: float = setting(5e-3, "Step size.", low=0.0, aka=("learning_rate",))
    momentum: float = setting(0.9, "Momentum of sgd.", low=0.0, below=1.0)
    lambda_r: float = setting(
        0.25, "Weight of the distance R_k to the frozen parts; 0 leaves it out.", low=0.0, aka=("lam", "lambda")
    )
    entropy_margin: float = setting(
        0.4, "Entropy below which a sample counts, as a fraction of log(classes).", low=0.0, aka=("margin",)
    )
    two_step: bool = setting(True, "A step on R_k and then one on entropy, or one step on their sum.")
    detach_parts: bool = setting(
        True, "Whether R_k trains its own meta network alone, or those of earlier parts too."
    )
    parts: int | str = setting(
        5,
        "Number of parts the residual blocks are split into, or the blocks of each part.",
        low=1,
        many=True,
        aka=("K",),
    )
    stages: str = setting(
        "", "Names of the stages in order, where the model is of no known family.", many=True, aka=("stage",)
    )
    bn_mode: Literal["batch", "source"] = setting(
        "batch", "Statistics of the frozen network's BatchNorm (meta networks: always the batch).", aka=("bn",)
    )


@register(
    "ecotta",
    paper="EcoTTA: Memory-Efficient Continual Test-Time Adaptation via Self-Distilled Regularization",
    year=2023,
    needs={"named stages", "source data, once, for its warm-up"},
    cost=3.5,
    confidence="medium",
    presets={
        "cifar10-c": {"lr": 5e-3},
        "cifar100-c": {"lr": 5e-3},
        "imagenet-c": {"lr": 2.5e-4},
        "embedded": {"lr": 0.1, "warmup": EMBEDDED},
        "embedded-long": {"lr": 0.05, "warmup": EMBEDDED},
    },
    variants={"community": {}, "paper": {"two_step": False, "detach_parts": False, "lambda_r": 0.5}},
)
class Ecotta(SgdMemory[EcottaSettings]):
    """Move small meta networks beside a frozen network, held near what its parts give."""

    learns = WARM_UP

    def step(self, x: Tensor) -> Tensor:
        """Adapt to one batch; return the logits from before the step on entropy (and after one on R_k alone)."""
        s, began_now = self.settings, not bool(self.networks[0].ready)
        if not self.warm:
            self.note_in_words(NOT_WARM)
        if began_now and not self.begin(x):
            self.note_in_words("not adapted: the first batch must have more than one value per channel")
            return self.forward(x)
        # on the batch they began with R_k is zero, and its gradient nothing but the sign of rounding errors
        regularised = s.lambda_r > 0 and not began_now
        losses: dict[str, Tensor] = {}
        if regularised and s.two_step:
            _, losses["drift"] = self.watched(x, "cut" if s.detach_parts else "through")
            self.descend(s.lambda_r * losses["drift"])
        if regularised and not s.two_step:
            logits, drift = self.watched(x, "beside" if s.detach_parts else "through")
        else:
            logits, drift = self.forward(x), None
        margin = s.entropy_margin * math.log(logits.shape[1])
        entropy, kept = filtered_entropy(logits, margin)
        losses |= {"entropy": entropy, "total": entropy}
        if drift is not None:
            losses |= {"total": entropy + s.lambda_r * drift, "drift": drift}
        self.descend(losses["total"])
        self.note_losses(losses, kept, margin)
        return logits

    def begin(self, x: Tensor) -> bool:
        """Have meta networks that are not warmed up begin as the identity on this batch, if it has a variance."""
        networks = self.networks
        with torch.no_grad(), watching(networks, "measure"):
            self.forward(x)
        if any(len(network.measured) != 2 for network in networks):
            raise _part_left_out(self.model)
        enough = all(found.values > 1 for network in networks for found in network.measured)
        for network in networks:
            if enough:
                network.become_identity()
            network.rest()
        return enough

    def watched(self, x: Tensor, watch: Watch) -> tuple[Tensor, Tensor]:
        """Logits, and the sum of R_k over the parts as the meta networks saw it meanwhile."""
        networks = self.networks
        with watching(networks, watch):
            logits = self.forward(x)
        drifts = [network.drift for network in networks if network.drift is not None]
        for network in networks:
            network.rest()
        if not drifts:
            raise _part_left_out(self.model)
        return logits, torch.stack(drifts).sum()

    def descend(self, loss: Tensor) -> None:
        """Move the meta networks one step of sgd down a loss."""
        moved = self.sgd(self.gradients(loss), self.settings.lr, momentum=self.settings.momentum)
        self.move(moved)
        self.note_moved(moved, self.settings.lr)

    def rest(self, first_hook: int) -> None:
        """The meta networks watch no longer."""
        super().rest(first_hook)
        for network in self.networks:
            network.rest()

    @property
    def networks(self) -> list[MetaNetwork]:
        """The meta networks, in the order of their parts."""
        return meta_networks(self.model)

    def _prepare(self) -> None:
        stages = find_stages(self.model, self.settings.stages)  # refuse before anything is changed
        super()._prepare()
        networks = attach(self.model, stages, self.settings.parts, self.seed)
        self.warm = bool(self.learnt)
        if self.warm:
            fill(networks, self.learnt)
        elif self.settings.warmup not in ("", EMBEDDED):
            raise StateError(
                f"An older ctta saved this adapter and left its warm-up in {self.settings.warmup}: adapt the "
                "source model anew with that file."
            )
        use_batch_statistics(networks)

    def _collect(self) -> dict[str, nn.Parameter]:
        return {name: value for name, value in self.model.named_parameters() if NAME in name.split(".")}


def _part_left_out(model: nn.Module) -> ModelError:
    return ModelError(
        f"Expected {type(model).__name__} to run every part that has a meta network, but its forward pass left "
        "out some on this batch: name stages that always run with `stages=`, or choose another method."
    )


def fill(networks: nn.ModuleList, warm: dict[str, Tensor]) -> None:
    """Give meta networks the values of warmed-up ones; those of other parts are refused.

    ctta 0.1 saved them under their names in the whole model, with the statistics that BatchNorm uses then.
    """
    given = {k.rpartition(f"{NAME}.")[2].replace(".source_", ".running_"): value for k, value in warm.items()}
    own = networks.state_dict()
    for key in sorted(own.keys() | given.keys()):
        want, found = (tuple(state[key].shape) if key in state else None for state in (own, given))
        floats = {state[key].is_floating_point() for state in (own, given) if key in state}
        if not key.endswith("num_batches_tracked") and (want != found or len(floats) > 1):
            raise StateError(
                f"The warmed-up meta networks do not fit this model and its `parts`: expected {key} of shape "
                f"{want}, but they have {found}."
            )
    if not all_finite(given.values()):
        raise StateError("The warmed-up meta networks hold NaN or infinity: use another copy of their file.")
    networks.load_state_dict(given, strict=False)
