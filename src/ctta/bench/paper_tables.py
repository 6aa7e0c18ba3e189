"""The tables of `ctta reproduce`, made of results.

Numbers are ours, mean over the seeds; where the paper has a number it stands beside ours with the difference.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from ctta.bench.metrics import corruption_of
from ctta.bench.published import Experiment
from ctta.bench.results import (
    SHARES,
    Number,
    Result,
    cells_at_once,
    clean_accuracy,
    error_at,
    error_in_pass,
    error_of,
    mean_error,
)
from ctta.bench.table import Difference, Table, Value, columns
from ctta.corruptions import CORRUPTIONS

Results: TypeAlias = Sequence[Result]
Notes: TypeAlias = Sequence[str]


def tables_of(
    about: Experiment, title: str, results: Results, notes: Notes, chosen: Sequence[str] | None
) -> tuple[Table, ...]:
    """All tables of an experiment; `chosen`: some of the corruptions."""
    name, view = about.name, about.view
    if view == "corruptions":
        wanted = chosen or CORRUPTIONS
        return (
            means(name, title, results, notes),
            corruptions(f"{name}-corruptions", f"{title}, per corruption", results, wanted),
            calibration(f"{name}-calibration", f"{title}, calibration", results),
        )
    if view == "importance":
        return tuple(
            importance(f"{name}-{one.dataset}", f"{title}, {one.dataset}", one, about.domains, notes)
            for one in results
        )
    if view == "sweep":
        return (sweep(name, title, results, notes, about.nondecreasing),)
    if view == "cost":
        return (cost(name, title, results, about.reference, notes),)
    if view == "differences":
        return (differences(name, title, results, about.reference, notes),)
    by_stream = {"gradual": gradual, "recurring": recurring}.get(about.scenario, means)
    make = {"shares": shares, "forgetting": forgetting}.get(view, by_stream)
    return (make(name, title, results, notes),)


def means(name: str, title: str, results: Results, notes: Notes = ()) -> Table:
    """Mean error of every method beside the paper's."""
    return _beside(name, title, results, notes, mean_error, "mean")


def gradual(name: str, title: str, results: Results, notes: Notes = ()) -> Table:
    """Mean error of a gradual stream beside the paper's; with equal weight to every severity, and at each."""
    levels = sorted({level for one in results for run in one.runs for level in run.levels})
    more: dict[str, Number] = {"equal severities": lambda run: run.mean_levels}
    more |= {f"severity {level}": error_at(level) for level in levels}
    return _beside(name, title, results, notes, mean_error, "mean", more)


def recurring(name: str, title: str, results: Results, notes: Notes = ()) -> Table:
    """Mean error of a stream that comes back to its domains: over all of it, and in every pass."""
    passes = max((len(run.visits) // max(len(run.error), 1) for one in results for run in one.runs), default=1)
    more = {f"pass {k + 1}": error_in_pass(k) for k in range(passes if passes > 1 else 0)}
    return _beside(name, title, results, notes, mean_error, "mean", more)


def shares(name: str, title: str, results: Results, notes: Notes = ()) -> Table:
    """Share of the adaptable parameters selected beside the paper's; moved, and ever selected by the end."""
    more = {share: number for share, number in SHARES.items() if share != "selected"}
    return _beside(name, title, results, notes, SHARES["selected"], "selected", more, digits=2)


def sweep(name: str, title: str, results: Results, notes: Notes = (), nondecreasing: str = "") -> Table:
    """Mean error over the values of one setting, with the share of parameters selected."""
    checks = [nondecreasing_note(results)] if nondecreasing == "selected" else []
    more = {"selected": SHARES["selected"]}
    return _beside(name, title, results, [*notes, *checks], mean_error, "mean", more, digits=2)


def nondecreasing_note(results: Results) -> str:
    """Say whether the selected share never falls from row to row, in every dataset."""
    falls, rows = [], 0
    for dataset in dict.fromkeys(one.dataset for one in results):
        found = [(one.label, one.over(SHARES["selected"])) for one in results if one.dataset == dataset]
        known = [(label, share) for label, share in found if share is not None]
        rows = max(rows, len(known))
        for (before, low), (after, high) in itertools.pairwise(known):
            if high < low - 1e-9:
                falls.append(f"{dataset}: from {before} ({low:.2f} %) to {after} ({high:.2f} %)")
    if any(run.record.manifest["settings"].get("eta") == "auto" for one in results for run in one.runs):
        return "Selected share: eta is found anew for every T, so that it need not grow with T."
    if rows < 2:
        return "Selected share: too few runs to say whether it grows with T."
    if falls:
        return f"Selected share falls where it should not: {'; '.join(falls)}."
    return "Selected share never falls as T grows, as it should."


def forgetting(name: str, title: str, results: Results, notes: Notes = ()) -> Table:
    """Accuracy on clean images: mean over tasks and after the last, with batch and with source statistics."""
    more = {
        "after the last task": clean_accuracy("batch_last"),
        "source statistics": clean_accuracy("source_mean"),
        "source statistics, last": clean_accuracy("source_last"),
    }
    number = clean_accuracy("batch_mean")
    return _beside(name, title, results, notes, number, "clean_accuracy", more, digits=2, worst=min)


def _beside(
    name: str,
    title: str,
    results: Results,
    notes: Notes,
    number: Number,
    column: str,
    more: Mapping[str, Number] | None = None,
    digits: int = 1,
    worst: Callable[[Sequence[float]], float] = max,
) -> Table:
    """One number of every result: ours, its spread over seeds, the paper's, the difference, and further numbers.

    The paper's columns are there if it has any number to put in.
    """
    several = any(len(one.runs) > 1 for one in results)
    published = any(column in one.published for one in results)
    rows = []
    for one in results:
        ours, paper = one.spread(number, worst), one.published.get(column)
        row: list[Value] = [one.dataset, one.label, ours.mean if ours else NOT_RUN]
        if several:
            row += [ours.std, ours.worst] if ours else [None, None]
        row += [paper, _difference(ours.mean if ours else None, paper)] if published else []
        rows.append((*row, *map(one.over, (more or {}).values())))
    spread = ("std", "worst") if several else ()
    beside = ("paper", "difference") if published else ()
    heads = ("dataset", "method", "ours", *spread, *beside, *(more or {}))
    return Table(name, title, columns(heads, digits), tuple(rows), tuple(notes))


def corruptions(name: str, title: str, results: Results, names: Sequence[str], notes: Notes = ()) -> Table:
    """Error per corruption and mean: three lines a method, ours, the paper's and the difference."""
    rows: list[tuple[Value, ...]] = []
    for one in results:
        ours = [one.over(number) for number in (*map(error_of, names), mean_error)]
        paper = [one.published.get(name) for name in (*names, "mean")]
        rows.append((one.label, "ours", *(NOT_RUN if value is None else value for value in ours)))
        if one.published:
            rows.append((one.label, "paper", *paper))
            rows.append((one.label, "difference", *map(_difference, ours, paper)))
    heads = [name.partition("_")[0] for name in names]
    return Table(name, title, columns(("method", "", *heads, "mean")), tuple(rows), tuple(notes))


def calibration(name: str, title: str, results: Results, notes: Notes = ()) -> Table:
    """How far confidences can be trusted: expected calibration error in %, likelihood in nats, Brier score."""
    numbers = {"ECE (%)": "ece", "NLL": "nll", "Brier": "brier"}
    rows = tuple((one.dataset, one.label, *map(one.over_seeds, numbers.values())) for one in results)
    return Table(name, title, columns(("dataset", "method", *numbers), 3), rows, tuple(notes))


def cost(name: str, title: str, results: Results, reference: str = "", notes: Notes = ()) -> Table:
    """Time per batch in seconds and forward passes, memory, and time relative to that of one method."""
    rows: list[tuple[Value, ...]] = []
    for one in results:
        unit = _reference(results, one, reference)
        seconds = [one.over(_seconds(which)) for which in ("median", "p95", "p99")]
        paper = one.published.get("seconds")
        relative = _ratio(seconds[0], unit.over(_seconds("median")) if unit else None)
        published = _ratio(paper, unit.published.get("seconds") if unit else None)
        ours = NOT_RUN if seconds[0] is None else seconds[0]
        measured = (ours, *seconds[1:], one.over_seeds("passes"), one.over_seeds("memory"))
        difference = _difference(relative, published)
        rows.append((one.dataset, one.label, *measured, paper, relative, published, difference))
    to = f"time / {reference}'s" if reference else "relative time"
    heads = ("dataset", "method", "s (median)", "p95", "p99", "forward passes", "memory (MB)", "paper (s)")
    made = columns((*heads, to, f"paper {to}", "difference"), digits=2)
    return Table(name, title, made, tuple(rows), (*shared_cores_note(results), *notes))


def shared_cores_note(results: Results) -> list[str]:
    """Say so where times were taken while other cells ran on the same machine."""
    most = cells_at_once(run for one in results for run in one.runs)
    if most == 1:
        return []
    return [
        f"Timed while up to {most} cells ran at once, which share memory and caches; the cleanest times come from "
        "--processes 1 and a new --store (finished cells are not run again)."
    ]


def differences(name: str, title: str, results: Results, reference: str, notes: Notes = ()) -> Table:
    """Mean error of every result and how far it is from that of one; shares selected and moved, cost."""
    rows: list[tuple[Value, ...]] = []
    for one in results:
        base = _reference(results, one, reference)
        ours, theirs = one.over(mean_error), base.over(mean_error) if base and base is not one else None
        numbers = (*map(one.over, SHARES.values()), one.over_seeds("passes"))
        shown = NOT_RUN if ours is None else ours
        rows.append((one.dataset, one.label, shown, _difference(ours, theirs), *numbers))
    heads = ("dataset", "method", "error", f"from {reference}", *SHARES, "forward passes")
    return Table(name, title, columns(heads, 2), tuple(rows), tuple(notes))


def importance(name: str, title: str, result: Result, domains: Sequence[str] = (), notes: Notes = ()) -> Table:
    """Importance of every block in chosen corruptions (all, if none of them was met)."""
    met = list(dict.fromkeys(domain for run in result.runs for domain in run.importance))
    wanted = [domain for domain in met if corruption_of(domain) in domains] or met
    found: dict[str, dict[str, list[float]]] = {}
    for run in result.runs:
        for domain in wanted:
            for block, value in run.importance.get(domain, {}).items():
                found.setdefault(block, {}).setdefault(domain, []).append(value)
    rows = tuple(
        (block, *(statistics.fmean(values[d]) if d in values else None for d in wanted))
        for block, values in found.items()
    )
    return Table(name, title, columns(("block", *wanted), digits=4), rows, tuple(notes))


NOT_RUN = "not run"


def _reference(results: Results, one: Result, label: str) -> Result | None:
    """The row of the same dataset that others are compared with."""
    return next((other for other in results if (other.dataset, other.label) == (one.dataset, label)), None)


def _seconds(which: str) -> Number:
    return lambda run: run.seconds[which]


def _ratio(value: float | None, unit: float | None) -> float | None:
    return None if value is None or not unit else value / unit


def _difference(ours: float | None, paper: float | None) -> Difference | None:
    return None if ours is None or paper is None else Difference(ours - paper)
