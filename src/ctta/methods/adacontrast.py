"""AdaContrast: contrastive test-time adaptation (Chen et al., CVPR 2022), in its online form.

Each batch is seen in four views: as it is, weak (flipped), and two strong ones, query and key. The weak view gives
pseudo-labels, after the first images by vote of its nearest neighbours in a bank of features. One step follows on
three terms: cross-entropy of the query with the pseudo-labels, contrast of the query with the key and a queue of
past keys, and diversity of the predictions. A momentum network makes the keys and fills the bank. The prediction
comes last, from the updated weights and BatchNorm's running statistics, which followed the weak and query views.
Those lag where a domain lasts a few batches only; `bn_mode="batch"` predicts with the statistics of the batch.

The bank is a ring of fixed size; the code this follows lets it grow past its size by less than one batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ctta._core.features import classifier_input, require_linear, watch_linear
from ctta._core.kept import buffer, network, scalar
from ctta._core.layers import training, wide
from ctta._core.moments import SgdMemory
from ctta._core.precision import without_autocast
from ctta._core.registry import register
from ctta.augment.adacontrast import flip
from ctta.errors import ModelError
from ctta.functional import diversity, info_nce, neighbour_vote
from ctta.settings import setting


@dataclass(frozen=True)
class AdaContrastSettings:
    """Settings of AdaContrast; the defaults are those of all published online runs."""

    lr: float = setting(2e-4, "Step size.", low=0.0, aka=("learning_rate",))
    momentum: float = setting(0.9, "Momentum of sgd.", low=0.0, below=1.0)
    nesterov: bool = setting(True, "Whether sgd looks ahead (Nesterov).")
    weight_decay: float = setting(1e-4, "Weight decay added to the gradient.", low=0.0, aka=("wd",))
    ema: float = setting(
        0.999, "How much of itself the momentum network keeps in a batch.", low=0.0, high=1.0, aka=("m", "mt")
    )
    temperature: float = setting(0.07, "Temperature of the contrast.", above=0.0, aka=("tau", "T", "T_moco"))
    queue_size: int = setting(16384, "Past keys to contrast with.", low=1, aka=("K", "Q"))
    bank_size: int = setting(16384, "Past features that vote on pseudo-labels.", low=1)
    neighbours: int = setting(10, "How many of them vote.", low=1, aka=("num_neighbors", "neighbors"))
    refine_after: int = setting(1024, "Images before the neighbours vote.", low=0)
    classification_weight: float = setting(1.0, "Weight of the cross-entropy with the pseudo-labels.", low=0.0)
    contrast_weight: float = setting(1.0, "Weight of the contrast.", low=0.0)
    diversity_weight: float = setting(1.0, "Weight of the diversity of predictions.", low=0.0)
    class_aware: bool = setting(
        True, "Whether past keys with the pseudo-label of an image are no negatives to it."
    )
    queue_labels: Literal["new", "old"] = setting(
        "new", "Labels that decide this: those after this batch entered the queue (published code), or before."
    )
    parameters: Literal["weight-bias", "all"] = setting(
        "weight-bias", "Adapt parameters named weight or bias, or all (tokens, packed attention weights too)."
    )
    weak_view: Literal["flip", "none"] = setting("flip", "How the view for pseudo-labels differs from the batch.")
    bn_mode: Literal["running", "batch"] = setting(
        "running", "Statistics of the prediction: those that ran along with the views, or the batch's own."
    )
    train_mode: Literal["batchnorm", "all"] = setting(
        "batchnorm", "Layers in train mode while adapting; all includes dropout, as in the published code."
    )


def fits(m: AdaContrast) -> bool:
    """Tell whether queue and bank fit the settings, the model and each other."""
    s, memories = m.settings, (m.queue, m.queue_label, m.bank, m.bank_vote)
    counters = (m.queue_next, m.bank_next, m.bank_filled, m.seen)
    if any(memory is None for memory in memories) or min(counters) < 0:
        return False
    if not any(len(memory) for memory in memories):
        return not any(counters)
    found = [(tuple(memory.shape), memory.dtype) for memory in memories]
    wanted = []
    for f in (layer for layer in m.model.modules() if isinstance(layer, nn.Linear)):
        dtype, width, classes = wide(f.weight).dtype, f.in_features, f.out_features
        queue = [((s.queue_size, width), dtype), ((s.queue_size,), torch.int64)]
        wanted.append([*queue, ((s.bank_size, width), dtype), ((s.bank_size, classes), dtype)])
    rows = m.queue_next < s.queue_size and m.bank_next < s.bank_size and m.bank_filled <= s.bank_size
    return rows and found in wanted


@register(
    "adacontrast",
    paper="Contrastive Test-Time Adaptation",
    year=2022,
    needs={"linear classifier"},
    cost=7.0,
    confidence="high",
    presets={
        "cifar10-c": {},
        "cifar100-c": {},
        "imagenet-c": {},
        "embedded": {"lr": 5e-3, "bn_mode": "batch"},
        "embedded-long": {"lr": 2.5e-3, "bn_mode": "batch"},
    },
)
class AdaContrast(SgdMemory[AdaContrastSettings]):
    """Learn from pseudo-labels voted by neighbours and from contrast between views; predict after the update."""

    adapts = "all"
    statistics = "source"
    default_augment = "adacontrast"

    momentum_model: nn.Module = network(lambda m: m.copy_of_source(), "The momentum network.")
    queue: Tensor = buffer(
        lambda _: torch.empty(0), "Past keys, queue_size x D, random before there were any.", check=fits
    )
    queue_label: Tensor = buffer(lambda _: torch.empty(0), "Their pseudo-labels, queue_size.")
    queue_next: int = scalar(0, "Row of the queue that is written next.")
    bank: Tensor = buffer(lambda _: torch.empty(0), "Past features of the momentum network, bank_size x D.")
    bank_vote: Tensor = buffer(
        lambda _: torch.empty(0), "Its predicted probabilities for them, bank_size x classes."
    )
    bank_next: int = scalar(0, "Row of the bank that is written next.")
    bank_filled: int = scalar(0, "Rows of the bank that hold features.")
    seen: int = scalar(0, "Images seen before the neighbours began to vote.")

    def _prepare(self) -> None:
        require_linear(self.model)
        super()._prepare()

    def step(self, x: Tensor) -> Tensor:
        """Adapt to the batch, then predict it in eval mode."""
        s = self.settings
        weak, query, key = self.weak(x), self.view(x), self.view(x)
        with self.train_mode(x.device):
            labels = self.pseudo_labels(weak)
            torch.clear_autocast_cache()  # weights cast without a graph
            features, logits = self.encode(query, self.model)
            self.follow()
            with torch.no_grad():
                keys, _ = self.encode(key, self.momentum_model)
            gradients = self.gradients(self.objective(features, logits, keys, labels))
            options = {"momentum": s.momentum, "weight_decay": s.weight_decay}
            self.move(moved := self.sgd(gradients, s.lr, nesterov=s.nesterov, **options))
            self.note_moved(moved, s.lr)
            with torch.no_grad():
                self.remember(keys, labels, *self.encode(weak, self.momentum_model))
        with torch.no_grad():
            return self.forward(x)

    def weak(self, x: Tensor) -> Tensor:
        """Return the weak view: each image or clip flipped or not; other data as they are."""
        if self.settings.weak_view == "none" or x.dim() not in (4, 5):
            return x
        return flip(x, torch.rand(len(x), generator=self.rng.generator, device="cpu") < 0.5)

    @contextmanager
    def train_mode(self, device: torch.device) -> Iterator[None]:
        """Train mode for both networks; what it makes random is seeded from the adapter's generator."""
        whole = self.settings.train_mode == "all"
        lent = self.rng.lend(device) if whole else nullcontext()
        with lent, training(self.model, self.momentum_model, whole=whole):
            yield

    def encode(self, x: Tensor, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Features of unit length, N x D, and logits of a view."""
        with watch_linear(model) as last:
            logits = self.forward(x, model)
        features = classifier_input(last, logits)
        if len(self.queue) and features.shape[1] != self.queue.shape[1]:
            raise ModelError(
                f"Expected features of width {self.queue.shape[1]}, as from earlier batches, in front of the "
                f"linear classifier, but {type(model).__name__} gave {features.shape[1]}: they are compared."
            )
        return F.normalize(features, dim=1), logits

    def follow(self) -> None:
        """Move the momentum network a little towards the model; BatchNorm statistics stay its own."""
        parameters = dict(self.momentum_model.named_parameters())
        behind = [parameters[name].detach() for name in self.adapted]
        ahead = [value.detach() for value in self.adapted.values()]
        with torch.no_grad():
            torch._foreach_mul_(behind, self.settings.ema)
            torch._foreach_add_(behind, ahead, alpha=1.0 - self.settings.ema)

    @torch.no_grad()
    def pseudo_labels(self, weak: Tensor) -> Tensor:
        """Classes of the weak view, N: its own prediction at first, then the vote of its neighbours."""
        s = self.settings
        features, logits = self.encode(weak, self.model)
        if not len(self.queue):
            self._start_memories(features, logits.shape[1])
        if self.seen < s.refine_after or not self.bank_filled:
            self.seen += len(weak)
            return logits.argmax(1)
        bank, votes = wide(self.bank[: self.bank_filled]), wide(self.bank_vote[: self.bank_filled])
        self.note(notes=(f"pseudo-labels by vote of {min(s.neighbours, len(bank))} in {len(bank)} features",))
        with without_autocast(weak.device.type):
            return neighbour_vote(features, bank, votes, count=s.neighbours).argmax(1)

    def _start_memories(self, features: Tensor, classes: int) -> None:
        """Make queue and bank, whose width the first batch tells."""
        s, generator, width = self.settings, self.rng.generator, features.shape[1]
        queue = torch.randn(s.queue_size, width, generator=generator, dtype=features.dtype, device="cpu")
        labels = torch.randint(classes, (s.queue_size,), generator=generator, device="cpu")
        self.queue = F.normalize(queue, dim=1).to(features.device)
        self.queue_label = labels.to(features.device)
        self.bank = features.new_zeros(s.bank_size, width)
        self.bank_vote = features.new_zeros(s.bank_size, classes)

    def objective(self, features: Tensor, logits: Tensor, keys: Tensor, labels: Tensor) -> Tensor:
        """Classification, contrast and diversity of the query, weighted."""
        s = self.settings
        with without_autocast(labels.device.type):
            masked = self.same_class(labels) if s.class_aware else None
            contrast = info_nce(features, keys, wide(self.queue), temperature=s.temperature, masked=masked)
            losses = {
                "classification": F.cross_entropy(logits, labels),
                "contrast": contrast.mean(),
                "diversity": diversity(logits),
            }
            terms = torch.stack([*losses.values()])
            total = terms @ terms.new_tensor([s.classification_weight, s.contrast_weight, s.diversity_weight])
        self.note_losses(losses | {"total": total})
        return total

    def same_class(self, labels: Tensor) -> Tensor:
        """Which rows of the queue bear the label of an image, N x queue_size booleans."""
        theirs = self.queue_label
        if self.settings.queue_labels == "new":
            theirs = theirs.clone()
            write_ring(theirs, labels, self.queue_next)
        return labels[:, None] == theirs

    def remember(self, keys: Tensor, labels: Tensor, features: Tensor, logits: Tensor) -> None:
        """Put keys and pseudo-labels, features and probabilities in the place of the oldest."""
        write_ring(self.queue, keys, self.queue_next)
        self.queue_next = write_ring(self.queue_label, labels, self.queue_next)
        write_ring(self.bank, features, self.bank_next)
        self.bank_next = write_ring(self.bank_vote, logits.softmax(1), self.bank_next)
        self.bank_filled = min(self.bank_filled + len(features), len(self.bank))


def write_ring(ring: Tensor, rows: Tensor, start: int) -> int:
    """Write rows into a ring in place, from `start` on and round; return where the next ones go.

    >>> ring = torch.zeros(4)
    >>> write_ring(ring, torch.tensor([1.0, 2.0, 3.0]), 2), ring
    (1, tensor([3., 0., 1., 2.]))
    """
    size, end = len(ring), start + len(rows)
    places = torch.arange(start, end, device=ring.device)[-size:] % size
    ring[places] = rows[-size:]  # of more rows than the ring holds, the last ones stay
    return end % size
