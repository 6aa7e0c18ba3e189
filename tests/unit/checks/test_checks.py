"""The conformance suite has teeth: methods that break a promise are caught by the check named for it."""

import copy
from dataclasses import dataclass

import pytest
import torch

import ctta
from ctta.checks import CHECKS, NETWORKS, Case, check_method, run_check
from ctta.checks.cases import same_tensors, snapshot
from ctta.checks.networks import Network
from ctta.errors import ConformanceError, StateError
from ctta.functional import softmax_entropy
from ctta.methods import Method, buffer, find, network, per_tensor, register, scalar, setting

pytestmark = pytest.mark.usefixtures("registry_as_it_was")


@dataclass(frozen=True)
class BrokenSettings:
    lr: float = setting(1e-2, "Step size.", low=0.0)


class Step(Method[BrokenSettings]):
    """A correct method to break."""

    adapts = "norm"

    def step(self, x):
        logits = self.forward(x)
        self.descend(logits)
        return logits

    def descend(self, logits):
        gradients = self.gradients(softmax_entropy(logits).mean())
        self.move({name: self.value(name) - self.settings.lr * g for name, g in gradients.items()})


def enter(method, needs=("norm layers",)):
    return register("broken", paper="none", year=2000, needs=set(needs))(method)


def broken_checks(method, net="bn2d", **settings):
    enter(method)
    case = Case(find("broken"), NETWORKS[net], settings)
    found = set()
    for name in CHECKS:
        try:
            run_check(name, case)
        except (AssertionError, ctta.CttaError, RuntimeError):
            found.add(name)
    return found


def test_a_correct_method_passes():
    class Correct(Step):
        __orig_bases__ = (Method[BrokenSettings],)

    assert broken_checks(Correct) == set()


def test_the_checks_leave_the_run_they_share_as_it_was():
    case = Case(find("cotta"), NETWORKS["bn2d"], {"views": 2, "confidence": 1.0})
    shared = (case.trial.adapter, case.trial.begun)
    before = [snapshot(adapter) for adapter in shared]
    for name in CHECKS:
        run_check(name, case)
    for adapter, held in zip(shared, before, strict=True):
        same_tensors(snapshot(adapter), held, "shared adapter")


class HiddenMemory(Step):
    """Keeps what it did not declare, in a container made before it was sealed."""

    __orig_bases__ = (Method[BrokenSettings],)

    def _prepare(self):
        super()._prepare()
        self.hidden = []

    def step(self, x):
        self.hidden.append(x.mean())
        return super().step(x) + 0.1 * len(self.hidden)


class GlobalNoise(Step):
    """Draws from the global generator."""

    __orig_bases__ = (Method[BrokenSettings],)

    def step(self, x):
        return super().step(x) + torch.randn(()).item()


class MovesTheHead(Step):
    """Moves a parameter it does not adapt."""

    __orig_bases__ = (Method[BrokenSettings],)

    def step(self, x):
        with torch.no_grad():
            list(self.model.parameters())[-1].add_(0.01)
        return super().step(x)


class PredictAdapts(Step):
    """Adapts in predict."""

    __orig_bases__ = (Method[BrokenSettings],)

    def predict(self, x):
        with torch.enable_grad():
            return super().step(x)


class SwallowsInterrupts(Step):
    """Catches what it should let through."""

    __orig_bases__ = (Method[BrokenSettings],)

    def step(self, x):
        try:
            return super().step(x)
        except KeyboardInterrupt:
            return torch.zeros(len(x), 5)


class KeepsTheGraph(Step):
    """Keeps one tensor more for every batch, declared but unbounded."""

    __orig_bases__ = (Method[BrokenSettings],)
    seen: dict[str, torch.Tensor] = per_tensor("Everything it has seen.")

    def step(self, x):
        self.seen[f"batch{len(self.seen)}"] = x.mean()
        return super().step(x)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (HiddenMemory, {"reset", "save and load", "state dict", "memory"}),
        (GlobalNoise, {"reset", "same seed"}),
        (MovesTheHead, {"only declared moves", "reset", "undo"}),
        (PredictAdapts, {"predict"}),
        (SwallowsInterrupts, {"interruption"}),
        (KeepsTheGraph, {"memory"}),
    ],
)
def test_a_broken_method_is_caught_by_the_right_checks(method, expected):
    assert expected <= broken_checks(method)


def test_check_method_names_every_broken_promise():
    enter(GlobalNoise)
    with pytest.raises(ConformanceError, match=r"broken breaks \d+ of 17 promises") as caught:
        check_method("broken", networks=["bn2d"])
    assert "same seed on bn2d" in str(caught.value)


def test_check_method_takes_a_class_and_counts_what_it_ran():
    @register("mine", paper="none", year=2000, needs={"norm layers"})
    class Mine(Step):
        __orig_bases__ = (Method[BrokenSettings],)

    assert check_method(Mine, networks=["bn2d", "mlp"], lr=0.02) == len(CHECKS) + 1


def test_a_method_that_accepts_a_network_it_cannot_use_is_caught():
    @register("greedy", paper="none", year=2000, needs={"norm layers"})
    class Greedy(Method[BrokenSettings]):
        """Says it needs norm layers, and takes anything."""

        def step(self, x):
            return self.forward(x)

    with pytest.raises(ConformanceError, match="accepted a network without"):
        check_method("greedy", networks=["mlp"])


def test_check_method_runs_on_a_network_of_the_callers():
    own = Network("own", lambda: copy.deepcopy(NETWORKS["residual"].make()))
    assert check_method("tent", networks=[own]) == len(CHECKS)


def test_a_method_cannot_keep_what_it_did_not_declare():
    @register("careless", paper="none", year=2000)
    class Careless(Method[BrokenSettings]):
        """Assigns an attribute nobody declared."""

        def step(self, x):
            self.count = 1
            return self.forward(x)

    adapter = ctta.adapt(NETWORKS["bn2d"].make(), Careless)
    with pytest.raises(StateError, match="keeps `count` without declaring it"):
        adapter(torch.rand(2, 3, 12, 12))


def test_every_kind_of_declared_state_is_reset_saved_loaded_copied_and_moved():
    """A teacher, a memory, a counter and a second generator: all from their declarations."""

    @register("everything", paper="none", year=2000, needs={"norm layers"})
    class Everything(Step):
        """Uses every kind of state there is."""

        __orig_bases__ = (Method[BrokenSettings],)
        teacher: torch.nn.Module = network(lambda m: copy.deepcopy(m.model).requires_grad_(False), "Average.")
        memory: torch.Tensor | None = buffer(lambda _: None, "Mean logits so far.")
        fixed: torch.Tensor = buffer(lambda m: torch.ones(5, dtype=m.source["1.weight"].dtype), "Scale.")
        count: int = scalar(0, "Batches seen.")

        def step(self, x):
            logits = super().step(x)
            self.count += 1
            noise = torch.rand((), generator=self.rng.generator).item()
            with torch.no_grad():
                average = dict(self.teacher.named_parameters())
                for name, value in self.adapted.items():
                    average[name].lerp_(value, 0.1)
            taught = self.forward(x, self.teacher).detach()
            mean = taught.mean(0)
            self.memory = mean if self.memory is None else self.memory.lerp(mean, 0.5)
            return (logits + taught) * self.fixed + self.memory + noise + self.count

        def predict(self, x):
            return self.forward(x)

    case = Case(find("everything"), NETWORKS["bn2d"], {})
    for name in set(CHECKS) - {"predict", "undo"}:  # what it returns is not what its model predicts
        run_check(name, case)
