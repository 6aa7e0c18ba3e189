"""The tables of `ctta reproduce`, made of summaries.

Numbers are ours, mean over the seeds; where the paper has a number it stands beside ours with the difference.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ctta.bench.seeds import Spread, spread_of
from ctta.bench.summary import Summary, cells_at_once, corruption_of
from ctta.bench.table import Difference, Table, Value, columns


@dataclass(frozen=True)
class Entry:
    """One line of a table: its finished runs, one a seed, and what the paper says (by column)."""

    dataset: str
    label: str
    runs: tuple[Summary, ...] = ()
    published: Mapping[str, float] = field(default_factory=dict)


Number = Callable[[Summary], float]
SHARES: dict[str, Number] = {
    "selected": lambda run: run.selected,
    "moved": lambda run: run.moved,
    "ever selected": lambda run: run.ever_selected,
}
"""Shares of the adaptable parameters that a summary has."""


def mean_error(run: Summary) -> float:
    """Mean error over the stays of a stream, in %: the mean of the paper's tables."""
    return run.mean


def error_of(corruption: str) -> Number:
    """Error on one corruption in %, mean over its severities."""

    def error(run: Summary) -> float:
        found = [e for domain, e in run.error.items() if corruption_of(domain) == corruption]
        if not found:
            raise ValueError(f"Expected a corruption of the stream, but got {corruption}.")
        return statistics.fmean(found)

    return error


def error_at(severity: str) -> Number:
    """Mean error over the stays at one severity in %; not a number where the stream has none."""
    return lambda run: run.levels.get(severity, math.nan)


def means(name: str, title: str, entries: Sequence[Entry], notes: Sequence[str] = ()) -> Table:
    """Mean error of every method beside the paper's."""
    return _beside(name, title, entries, notes, mean_error, "mean")


def gradual(name: str, title: str, entries: Sequence[Entry], notes: Sequence[str] = ()) -> Table:
    """Mean error of a gradual stream beside the paper's; with equal weight to every severity, and at each."""
    levels = sorted({level for entry in entries for run in entry.runs for level in run.levels})
    more: dict[str, Number] = {"equal severities": lambda run: run.mean_levels}
    more |= {f"severity {level}": error_at(level) for level in levels}
    return _beside(name, title, entries, notes, mean_error, "mean", more)


def recurring(name: str, title: str, entries: Sequence[Entry], notes: Sequence[str] = ()) -> Table:
    """Mean error of a stream that comes back to its domains: over all of it, and in every pass."""
    passes = max((passes_of(run) for entry in entries for run in entry.runs), default=1)
    more = {f"pass {k + 1}": error_in_pass(k) for k in range(passes if passes > 1 else 0)}
    return _beside(name, title, entries, notes, mean_error, "mean", more)


def passes_of(run: Summary) -> int:
    """How many times a stream goes through its domains."""
    return len(run.visits) // max(len(run.error), 1)


def error_in_pass(k: int) -> Number:
    """Mean error in one pass of a stream through its domains in %, the first being 0; nan after the last."""

    def error(run: Summary) -> float:
        stays = run.visits[k * len(run.error) : (k + 1) * len(run.error)]
        return statistics.fmean(visit.error for visit in stays) if stays else math.nan

    return error


def shares(name: str, title: str, entries: Sequence[Entry], notes: Sequence[str] = ()) -> Table:
    """Share of the adaptable parameters selected beside the paper's; moved, and ever selected by the end."""
    more = {share: number for share, number in SHARES.items() if share != "selected"}
    return _beside(name, title, entries, notes, SHARES["selected"], "selected", more, digits=2)


def sweep(
    name: str, title: str, entries: Sequence[Entry], notes: Sequence[str] = (), nondecreasing: str = ""
) -> Table:
    """Mean error over the values of one setting, with the share of parameters selected."""
    checks = [nondecreasing_note(entries)] if nondecreasing == "selected" else []
    more = {"selected": SHARES["selected"]}
    return _beside(name, title, entries, [*notes, *checks], mean_error, "mean", more, digits=2)


def nondecreasing_note(entries: Sequence[Entry]) -> str:
    """Say whether the selected share never falls from row to row, in every dataset."""
    falls, rows = [], 0
    for dataset in dict.fromkeys(entry.dataset for entry in entries):
        found = [(e.label, _of(e, lambda run: run.selected)) for e in entries if e.dataset == dataset]
        known = [(label, spread.mean) for label, spread in found if spread]
        rows = max(rows, len(known))
        for (before, low), (after, high) in itertools.pairwise(known):
            if high < low - 1e-9:
                falls.append(f"{dataset}: from {before} ({low:.2f} %) to {after} ({high:.2f} %)")
    if any(run.record.manifest["settings"].get("eta") == "auto" for entry in entries for run in entry.runs):
        return "Selected share: eta is found anew for every T, so that it need not grow with T."
    if rows < 2:
        return "Selected share: too few runs to say whether it grows with T."
    if falls:
        return f"Selected share falls where it should not: {'; '.join(falls)}."
    return "Selected share never falls as T grows, as it should."


def forgetting(name: str, title: str, entries: Sequence[Entry], notes: Sequence[str] = ()) -> Table:
    """Accuracy on clean images: mean over tasks and after the last, with batch and with source statistics."""
    more = {
        "after the last task": clean_accuracy("batch_last"),
        "source statistics": clean_accuracy("source_mean"),
        "source statistics, last": clean_accuracy("source_last"),
    }
    return _beside(
        name, title, entries, notes, clean_accuracy("batch_mean"), "clean_accuracy", more, digits=2, worst=min
    )


def clean_accuracy(which: str) -> Number:
    """Accuracy on clean images in %, by a key of `Summary.clean_error`."""
    return lambda run: 100 - run.clean_error[which]


def _beside(
    name: str,
    title: str,
    entries: Sequence[Entry],
    notes: Sequence[str],
    number: Number,
    column: str,
    more: Mapping[str, Number] | None = None,
    digits: int = 1,
    worst: Callable[[Sequence[float]], float] = max,
) -> Table:
    """One number of every entry: ours, its spread over seeds, the paper's, the difference, and further numbers.

    The paper's columns are there if it has any number to put in.
    """
    several = any(len(entry.runs) > 1 for entry in entries)
    published = any(column in entry.published for entry in entries)
    spread = ("std", "worst") if several else ()
    rows = []
    for entry in entries:
        ours, paper = _of(entry, number, worst), entry.published.get(column)
        row: list[Value] = [entry.dataset, entry.label, ours.mean if ours else "not run"]
        if several:
            row += [ours.std, ours.worst] if ours else [None, None]
        row += [paper, _difference(ours, paper)] if published else []
        for other in (more or {}).values():
            found = _of(entry, other)
            row.append(found.mean if found else None)
        rows.append(tuple(row))
    beside = ("paper", "difference") if published else ()
    heads = ("dataset", "method", "ours", *spread, *beside, *(more or {}))
    return Table(name, title, columns(heads, digits), tuple(rows), tuple(notes))


def corruptions(
    name: str, title: str, entries: Sequence[Entry], names: Sequence[str], notes: Sequence[str] = ()
) -> Table:
    """Error per corruption and mean: three lines a method, ours, the paper's and the difference."""
    rows: list[tuple[Value, ...]] = []
    for entry in entries:
        ours = [_of(entry, error_of(name)) for name in names] + [_of(entry, mean_error)]
        paper = [entry.published.get(name) for name in (*names, "mean")]
        rows.append((entry.label, "ours", *(spread.mean if spread else "not run" for spread in ours)))
        if entry.published:
            rows.append((entry.label, "paper", *paper))
            rows.append((entry.label, "difference", *map(_difference, ours, paper)))
    heads = [name.partition("_")[0] for name in names]
    return Table(name, title, columns(("method", "", *heads, "mean")), tuple(rows), tuple(notes))


def calibration(name: str, title: str, entries: Sequence[Entry], notes: Sequence[str] = ()) -> Table:
    """How far confidences can be trusted: expected calibration error in %, likelihood in nats, Brier score."""
    numbers: dict[str, Number] = {
        "ECE (%)": lambda run: run.ece,
        "NLL": lambda run: run.nll,
        "Brier": lambda run: run.brier,
    }
    return _listing(name, title, entries, notes, numbers, digits=3)


def cost(name: str, title: str, entries: Sequence[Entry], reference: str = "", notes: Sequence[str] = ()) -> Table:
    """Time per batch in seconds and forward passes, memory, and time relative to that of one method."""
    rows = []
    for entry in entries:
        unit = next((e for e in entries if (e.dataset, e.label) == (entry.dataset, reference)), None)
        ours, paper = _of(entry, _seconds("median")), entry.published.get("seconds")
        base, paper_base = (_of(unit, _seconds("median")), unit.published.get("seconds")) if unit else (None, None)
        relative = Spread(ours.mean / base.mean, None, ours.worst) if ours and base else None
        published = paper / paper_base if paper is not None and paper_base else None
        rows.append(
            (
                entry.dataset,
                entry.label,
                ours.mean if ours else "not run",
                *(_plain(entry, _seconds(which)) for which in ("p95", "p99")),
                _known([run.passes for run in entry.runs]),
                _known([run.memory for run in entry.runs]),
                paper,
                relative.mean if relative else None,
                published,
                _difference(relative, published),
            )
        )
    to = f"time / {reference}'s" if reference else "relative time"
    heads = ("dataset", "method", "s (median)", "p95", "p99", "forward passes", "memory (MB)", "paper (s)")
    made = columns((*heads, to, f"paper {to}", "difference"), digits=2)
    return Table(name, title, made, tuple(rows), (*shared_cores_note(entries), *notes))


def shared_cores_note(entries: Sequence[Entry]) -> list[str]:
    """Say so where times were taken while other cells ran on the same machine."""
    most = cells_at_once(run for entry in entries for run in entry.runs)
    if most == 1:
        return []
    return [
        f"Timed while up to {most} cells ran at once, which share memory and caches; the cleanest times come from "
        "--processes 1 and a new --store (finished cells are not run again)."
    ]


def differences(
    name: str, title: str, entries: Sequence[Entry], reference: str, notes: Sequence[str] = ()
) -> Table:
    """Mean error of every entry and how far it is from that of one; shares selected and moved, cost."""
    rows = []
    for entry in entries:
        base = next((e for e in entries if (e.dataset, e.label) == (entry.dataset, reference)), None)
        ours, theirs = _of(entry, mean_error), _of(base, mean_error) if base else None
        rows.append(
            (
                entry.dataset,
                entry.label,
                ours.mean if ours else "not run",
                Difference(ours.mean - theirs.mean) if ours and theirs and entry is not base else None,
                *(_plain(entry, number) for number in SHARES.values()),
                _known([run.passes for run in entry.runs]),
            )
        )
    heads = ("dataset", "method", "error", f"from {reference}", *SHARES)
    return Table(name, title, columns((*heads, "forward passes"), 2), tuple(rows), tuple(notes))


def importance(
    name: str, title: str, entry: Entry, domains: Sequence[str] = (), notes: Sequence[str] = ()
) -> Table:
    """Importance of every block in chosen corruptions (all, if none of them was met)."""
    found: dict[str, dict[str, list[float]]] = {}
    met = [d for run in entry.runs for d in run.importance]
    wanted = [d for d in dict.fromkeys(met) if corruption_of(d) in domains] or list(dict.fromkeys(met))
    for run in entry.runs:
        for domain in wanted:
            for block, value in run.importance.get(domain, {}).items():
                found.setdefault(block, {}).setdefault(domain, []).append(value)
    rows = tuple(
        (block, *(statistics.fmean(values[d]) if d in values else None for d in wanted))
        for block, values in found.items()
    )
    return Table(name, title, columns(("block", *wanted), digits=4), rows, tuple(notes))


def _listing(
    name: str,
    title: str,
    entries: Sequence[Entry],
    notes: Sequence[str],
    numbers: Mapping[str, Number],
    digits: int,
) -> Table:
    rows = tuple(
        (entry.dataset, entry.label, *(_plain(entry, number) for number in numbers.values())) for entry in entries
    )
    return Table(name, title, columns(("dataset", "method", *numbers), digits), rows, tuple(notes))


def _of(entry: Entry, number: Number, worst: Callable[[Sequence[float]], float] = max) -> Spread | None:
    return spread_of([number(run) for run in entry.runs], worst) if entry.runs else None


def _plain(entry: Entry, number: Number) -> float | None:
    spread = _of(entry, number)
    return spread.mean if spread else None


def _known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _seconds(which: str) -> Number:
    return lambda run: run.seconds[which]


def _difference(ours: Spread | None, paper: float | None) -> Difference | None:
    return None if ours is None or paper is None else Difference(ours.mean - paper)
