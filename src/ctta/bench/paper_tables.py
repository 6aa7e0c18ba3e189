"""The tables of `ctta reproduce`, made of results.

Numbers are ours, mean over the seeds; where the paper has a number it stands beside ours with the difference.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ctta.bench.experiments import Experiment
from ctta.bench.metrics import corruption_of, grouped
from ctta.bench.results import SHARES, Result, cells_at_once
from ctta.bench.table import Difference, Table, Value
from ctta.corruptions import CORRUPTIONS

Results = Sequence[Result]
Notes = Sequence[str]
NOT_RUN = "not run"


def tables_of(
    about: Experiment, title: str, results: Results, notes: Notes = (), chosen: Sequence[str] | None = None
) -> tuple[Table, ...]:
    """All tables of an experiment; `chosen`: some of the corruptions."""
    name = about.name
    match about.view:
        case "corruptions":
            return (
                beside(BESIDE["means"], name, title, results, notes),
                corruptions(f"{name}-corruptions", f"{title}, per corruption", results, chosen or CORRUPTIONS),
                calibration(f"{name}-calibration", f"{title}, calibration", results),
            )
        case "importance":
            places = [(f"{name}-{one.dataset}", f"{title}, {one.dataset}", one) for one in results]
            return tuple(importance(*place, about.domains, notes) for place in places)
        case "cost":
            return (cost(name, title, results, about.reference, notes),)
        case "differences":
            return (differences(name, title, results, about.reference, notes),)
        case "sweep" if about.nondecreasing:
            notes = [*notes, nondecreasing_note(results)]
    kind = BESIDE[about.scenario if about.view == "means" and about.scenario in BESIDE else about.view]
    return (beside(kind, name, title, results, notes),)


# ---------------------------------------------------------------- one number beside the paper's


@dataclass(frozen=True)
class Beside:
    """A number of results, the column of the paper it is compared with, and further numbers by their heads."""

    number: str = "mean"
    column: str = "mean"
    more: Mapping[str, str] = field(default_factory=dict)
    digits: int = 1
    worst: Callable[[Sequence[float]], float] = max
    each: tuple[str, str] | None = None  # one more column for every entry of this number: its head, the number


BESIDE = {
    "means": Beside(),
    "gradual": Beside(more={"equal severities": "mean_levels"}, each=("severity", "levels")),
    "recurring": Beside(each=("pass", "in_pass")),
    "sweep": Beside(more={"selected": "selected"}, digits=2),
    "shares": Beside(
        "selected", "selected", {name: SHARES[name] for name in ("moved", "ever selected")}, digits=2
    ),
    "forgetting": Beside(
        number="clean_accuracy/batch_mean",
        column="clean_accuracy",
        more={
            "after the last task": "clean_accuracy/batch_last",
            "source statistics": "clean_accuracy/source_mean",
            "source statistics, last": "clean_accuracy/source_last",
        },
        digits=2,
        worst=min,
    ),
}
"""Tables that compare one number with the paper's, by the view of an experiment or the kind of its stream."""


def beside(kind: Beside, name: str, title: str, results: Results, notes: Notes = ()) -> Table:
    """One number of every result: ours, its spread over seeds, the paper's, the difference, and further numbers.

    The paper's columns are there if it has any number to put in.
    """
    more = dict(kind.more)
    if kind.each:
        head, number = kind.each
        found = {key for one in results for run in one.runs for key in getattr(run, number)}
        shown = sorted(found, key=lambda key: (len(key), key)) if len(found) > 1 else []
        more |= {f"{head} {key}": f"{number}/{key}" for key in shown}
    ours = [one.spread(kind.number, kind.worst) for one in results]
    means = [one.mean if one else None for one in ours]
    paper = [one.published.get(kind.column) for one in results]
    filled: dict[str, Sequence[Value]] = {
        "dataset": [one.dataset for one in results],
        "method": [one.label for one in results],
        "ours": [*map(_shown, means)],
    }
    if any(len(one.runs) > 1 for one in results):
        filled |= {head: [getattr(one, head, None) for one in ours] for head in ("std", "worst")}
    if any(value is not None for value in paper):
        filled |= {"paper": paper, "difference": [*map(_difference, means, paper)]}
    filled |= {head: [one.over(number) for one in results] for head, number in more.items()}
    return Table(name, title, tuple(filled), list(zip(*filled.values(), strict=True)), notes, kind.digits)


def nondecreasing_note(results: Results) -> str:
    """Say whether the selected share never falls from row to row, in every dataset."""
    shares = [(one.dataset, (one.label, share)) for one in results if (share := one.over("selected")) is not None]
    falls = [
        f"{dataset}: from {before} ({low:.2f} %) to {after} ({high:.2f} %)"
        for dataset, found in grouped(shares).items()
        for (before, low), (after, high) in itertools.pairwise(found)
        if high < low - 1e-9
    ]
    if any(run.record.manifest["settings"].get("eta") == "auto" for one in results for run in one.runs):
        return "Selected share: eta is found anew for every T, so that it need not grow with T."
    if max(map(len, grouped(shares).values()), default=0) < 2:
        return "Selected share: too few runs to say whether it grows with T."
    if falls:
        return f"Selected share falls where it should not: {'; '.join(falls)}."
    return "Selected share never falls as T grows, as it should."


# ---------------------------------------------------------------- tables of their own kind


def corruptions(name: str, title: str, results: Results, names: Sequence[str]) -> Table:
    """Error per corruption and mean: three lines a method, ours, the paper's and the difference."""
    rows: list[tuple[Value, ...]] = []
    for one in results:
        ours = [*(one.over(f"corruptions/{name}") for name in names), one.over("mean")]
        paper = [one.published.get(name) for name in (*names, "mean")]
        rows.append((one.label, "ours", *map(_shown, ours)))
        if one.published:
            rows.append((one.label, "paper", *paper))
            rows.append((one.label, "difference", *map(_difference, ours, paper)))
    heads = [name.partition("_")[0] for name in names]
    return Table(name, title, ("method", "", *heads, "mean"), rows)


def calibration(name: str, title: str, results: Results) -> Table:
    """How far confidences can be trusted: expected calibration error in %, likelihood in nats, Brier score."""
    rows = [(one.dataset, one.label, *map(one.over, ("ece", "nll", "brier"))) for one in results]
    return Table(name, title, ("dataset", "method", "ECE (%)", "NLL", "Brier"), rows, digits=3)


def cost(name: str, title: str, results: Results, reference: str = "", notes: Notes = ()) -> Table:
    """Time per batch in seconds and forward passes, memory, and time relative to that of one method."""
    rows: list[tuple[Value, ...]] = []
    for one in results:
        unit = _reference(results, one, reference)
        seconds, *others = map(one.over, ("seconds/median", "seconds/p95", "seconds/p99", "passes", "memory"))
        paper = one.published.get("seconds")
        relative = _ratio(seconds, unit.over("seconds/median") if unit else None)
        published = _ratio(paper, unit.published.get("seconds") if unit else None)
        measured = (_shown(seconds), *others, paper, relative, published, _difference(relative, published))
        rows.append((one.dataset, one.label, *measured))
    to = f"time / {reference}'s" if reference else "relative time"
    measures = ("s (median)", "p95", "p99", "forward passes", "memory (MB)", "paper (s)")
    heads = ("dataset", "method", *measures, to, f"paper {to}", "difference")
    most = cells_at_once(run for one in results for run in one.runs)
    shared = (
        f"Timed while up to {most} cells ran at once, which share memory and caches; the cleanest times come from "
        "--processes 1 and a new --store (finished cells are not run again)."
    )
    return Table(name, title, heads, rows, [shared, *notes] if most > 1 else notes, 2)


def differences(name: str, title: str, results: Results, reference: str, notes: Notes = ()) -> Table:
    """Mean error of every result and how far it is from that of one; shares selected and moved, cost."""
    rows: list[tuple[Value, ...]] = []
    for one in results:
        base, ours = _reference(results, one, reference), one.over("mean")
        apart = _difference(ours, base.over("mean")) if base and base is not one else None
        rows.append((one.dataset, one.label, _shown(ours), apart, *map(one.over, (*SHARES.values(), "passes"))))
    heads = ("dataset", "method", "error", f"from {reference}", *SHARES, "forward passes")
    return Table(name, title, heads, rows, notes, 2)


def importance(name: str, title: str, result: Result, domains: Sequence[str] = (), notes: Notes = ()) -> Table:
    """Importance of every block in chosen corruptions (all, if none of them was met)."""
    found = grouped(
        ((domain, block), value)
        for run in result.runs
        for domain, blocks in run.importance.items()
        for block, value in blocks.items()
    )
    met = list(dict.fromkeys(domain for domain, _ in found))
    wanted = [domain for domain in met if corruption_of(domain) in domains] or met
    rows = [
        (block, *(statistics.fmean(found[d, block]) if (d, block) in found else None for d in wanted))
        for block in dict.fromkeys(block for domain, block in found if domain in wanted)
    ]
    return Table(name, title, ("block", *wanted), rows, notes, 4)


def _reference(results: Results, one: Result, label: str) -> Result | None:
    """The row of the same dataset that others are compared with."""
    return next((other for other in results if (other.dataset, other.label) == (one.dataset, label)), None)


def _shown(value: float | None) -> Value:
    return NOT_RUN if value is None else value


def _ratio(value: float | None, unit: float | None) -> float | None:
    return None if value is None or not unit else value / unit


def _difference(ours: float | None, paper: float | None) -> Difference | None:
    return None if ours is None or paper is None else Difference(ours - paper)
