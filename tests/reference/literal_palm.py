"""PALM written out as plainly as its description, with torch.optim: the oracle for the real one.

Slow on purpose: every tensor gets every gradient, the optimiser is a real one, nothing is grouped or skipped.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


def prepare(model: nn.Module) -> tuple[nn.Module, dict[str, nn.Parameter]]:
    """Batch statistics in every BatchNorm, gradients only in conv and norm layers."""
    model = copy.deepcopy(model).eval().requires_grad_(False)
    names: dict[str, nn.Parameter] = {}
    for prefix, module in model.named_modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            module.track_running_stats = False
            module.running_mean = module.running_var = None
        if isinstance(
            module,
            nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.GroupNorm | nn.LayerNorm | nn.Conv2d | nn.Conv3d,
        ):
            for name, parameter in module.named_parameters(recurse=False):
                parameter.requires_grad_(True)
                names[f"{prefix}.{name}"] = parameter
    ordered = {name: names[name] for name, _ in model.named_parameters() if name in names}
    return model, ordered


class OfficialPalm:
    """The published code's behaviour, one tensor at a time."""

    def __init__(
        self,
        model: nn.Module,
        augment: Callable[[Tensor], Tensor],
        *,
        lr: float = 5e-4,
        alpha: float = 0.5,
        temperature: float = 50.0,
        eta: float = 1.0,
        lam: float = 0.01,
        weight_decay: float = 0.0,
        entropy_margin: float = 0.4,
    ) -> None:
        self.model, self.named = prepare(model)
        self.augment = augment
        self.lr, self.alpha, self.temperature, self.eta = lr, alpha, temperature, eta
        self.lam, self.weight_decay, self.margin = lam, weight_decay, entropy_margin
        self.shat: dict[str, Tensor] = {}
        self.deviation: dict[str, Tensor] = {}
        self.rates: dict[str, float] = {}
        self.selected: list[str] = []

    def __call__(self, x: Tensor) -> Tensor:
        """One step: adapt to the batch and return its logits before the update."""
        logits = self.model(x)
        view = self.model(self.augment(x))
        classes = logits.shape[1]
        parameters = list(self.named.values())
        uniform = -(logits / self.temperature).log_softmax(1).sum(1).mean()
        gradients = dict(
            zip(
                self.named,
                torch.autograd.grad(uniform, parameters, retain_graph=True, allow_unused=True),
                strict=True,
            )
        )
        self.selected = []
        for name, parameter in self.named.items():
            gradient = gradients[name]
            if gradient is not None and gradient.abs().sum() <= self.eta:
                self.selected.append(name)
                s = (parameter.detach() * gradient).abs()
                old = self.shat.get(name, torch.zeros_like(s))
                self.shat[name] = (1 - self.alpha) * old + self.alpha * s
                self.deviation[name] = (s - self.shat[name]).abs()
        groups = []
        for name, parameter in self.named.items():
            i = 0.0
            if name in self.shat:
                i = float(((self.deviation[name] + 1e-8) / (self.shat[name] + 1e-8)).mean())
            self.rates[name] = self.lr * i
            groups.append({"params": [parameter], "lr": self.rates[name]})
        optimizer = torch.optim.Adam(groups, lr=self.lr, weight_decay=self.weight_decay)
        p, log_p = logits.softmax(1), logits.log_softmax(1)
        entropy = -(p * log_p).sum(1)
        kept = entropy[entropy < self.margin]
        loss = -self.lam * classes * (p * view.log_softmax(1)).sum(1).mean()
        if len(kept):
            loss = loss + kept.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        answer: Tensor = logits.detach()
        return answer


class PaperPalm:
    """The equations read literally: 1/C target, one rate per element, frozen means frozen, one lasting Adam."""

    def __init__(
        self,
        model: nn.Module,
        augment: Callable[[Tensor], Tensor],
        *,
        lr: float = 5e-4,
        alpha: float = 0.5,
        temperature: float = 50.0,
        eta: float = 1.0,
        lam: float = 0.01,
    ) -> None:
        self.model, self.named = prepare(model)
        self.augment = augment
        self.lr, self.alpha, self.temperature, self.eta, self.lam = lr, alpha, temperature, eta, lam
        self.shat: dict[str, Tensor] = {}
        self.selected: list[str] = []
        # lr 1 makes Adam's own step its direction; it is scaled by hand below
        self.adam = torch.optim.Adam(self.named.values(), lr=1.0)

    def __call__(self, x: Tensor) -> Tensor:
        """One step: adapt to the batch and return its logits before the update."""
        logits = self.model(x)
        view = self.model(self.augment(x))
        classes = logits.shape[1]
        uniform = -(logits / self.temperature).log_softmax(1).mean(1).mean()
        gradients = torch.autograd.grad(uniform, list(self.named.values()), retain_graph=True)
        self.selected, rates = [], {}
        for (name, parameter), gradient in zip(self.named.items(), gradients, strict=True):
            if gradient.abs().sum() > self.eta:
                continue
            self.selected.append(name)
            s = (parameter.detach() * gradient).abs()
            self.shat[name] = self.alpha * s + (1 - self.alpha) * self.shat.get(name, torch.zeros_like(s))
            rates[name] = self.lr * ((s - self.shat[name]).abs() + 1e-8) / (self.shat[name] + 1e-8)
        p, log_p = logits.softmax(1), logits.log_softmax(1)
        entropy = -(p * log_p).sum(1)
        loss = (entropy * (entropy <= 0.4 * math.log(classes))).mean()
        loss = loss - self.lam * (p * view.log_softmax(1)).sum(1).mean()
        before = {name: parameter.detach().clone() for name, parameter in self.named.items()}
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        with torch.no_grad():
            for name, parameter in self.named.items():
                direction = before[name] - parameter
                parameter.copy_(before[name] - rates[name] * direction if name in rates else before[name])
        answer: Tensor = logits.detach()
        return answer
