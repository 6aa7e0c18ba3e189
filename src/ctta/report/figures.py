"""The figures of a board. A figure whose data is not there is left out."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ctta.bench.metrics import corruption_of
from ctta.bench.results import Result as Entry
from ctta.bench.results import cells_at_once
from ctta.report.axes import Axis, log_axis, nice_axis, value_axis
from ctta.report.chart import Series, Style, bar_chart, dot_rows, line_chart, panels, scatter
from ctta.report.collect import MOST, Board, Sweep
from ctta.report.marks import Figure

COLOURS = ("c0", "c1", "c2", "c3", "c4", "c5")
SHOWN_DOMAINS = ("glass_blur", "snow")
"""Domains of the paper's figure of learning-rate importance."""
SIGNS = {"alpha": "α", "lam": "λ", "temperature": "T", "lr": "κ", "eta": "η"}  # noqa: RUF001
"""How the paper writes its settings."""

Styles = Mapping[str, Style]


def styles_of(boards: Sequence[Board]) -> dict[str, Style]:
    """Give every label its look, the same on all boards: six colours, then the same ones dashed; source grey.

    PALM is always the first colour.
    """
    entries = [entry for board in boards for entry in board.headline if entry.method != "source"]
    labels = dict.fromkeys(e.label for e in sorted(entries, key=lambda e: e.method != "palm"))
    found = {label: Style(COLOURS[k % 6], dashed=k // 6 % 2 == 1) for k, label in enumerate(labels)}
    for board in boards:
        found |= {entry.label: Style("c6", dashed=True) for entry in board.entries if entry.method == "source"}
    return found


def figures_of(board: Board, styles: Styles, domains: Sequence[str] = SHOWN_DOMAINS) -> list[Figure]:
    """All figures the board has data for, in the order of the page."""
    shown = sorted(board.headline, key=lambda entry: entry.mean)[:MOST]
    entries = [entry for entry in board.headline if entry in shown]
    left_out = len(board.headline) - len(entries)
    note = f" The {MOST} best of {len(board.headline)} entries." if left_out else ""
    found = [
        _by_corruption(board, entries, styles, note),
        _over_stream(board, entries, styles, note),
        _selected(board, entries, styles, note),
        _cost(board, entries, styles, note),
        *(_sweep(board, group, styles) for group in _sweeps_by_setting(board)),
        *_importance(board, entries, styles, domains),
        _calibration(board, entries, styles, note),
        *_forgetting(board, entries, styles, note),
    ]
    return [figure for figure in found if figure is not None]


def corruption_errors(entry: Entry) -> dict[str, float]:
    """Error of every corruption: mean over its severities and visits, then over seeds."""
    found: dict[str, list[float]] = {}
    for run in entry.runs:
        here: dict[str, list[float]] = {}
        for visit in run.visits:
            here.setdefault(corruption_of(visit.domain), []).append(visit.error)
        for name, errors in here.items():
            found.setdefault(name, []).append(statistics.fmean(errors))
    return {name: statistics.fmean(errors) for name, errors in found.items()}


def _by_corruption(board: Board, entries: Sequence[Entry], styles: Styles, note: str) -> Figure | None:
    entries, above = _without_far(entries)
    errors = {entry.label: corruption_errors(entry) for entry in entries}
    names = list(dict.fromkeys(name for found in errors.values() for name in found))
    series = [
        _series(
            entry, styles, [(errors[entry.label][n], k) for k, n in enumerate(names) if n in errors[entry.label]]
        )
        for entry in _best_last(entries)
    ]
    x = nice_axis((value for found in errors.values() for value in found.values()), "error (%)")
    if len(names) < 2 or not series:
        return None
    return Figure(
        "error-per-corruption",
        "Error per corruption",
        f"A dot is the error of one method on one corruption, mean over severities, visits and "
        f"seeds.{above} {board.origin(entries)}{note}",
        lambda width: dot_rows(series, [_words(name) for name in names], width, x=x),
        full=True,
    )


def _over_stream(board: Board, entries: Sequence[Entry], styles: Styles, note: str) -> Figure:
    entries, above = _without_far(entries)
    series = [_series(entry, styles, _curve(entry, "running")) for entry in _best_last(entries)]
    # the first few batches jump about: the axis need not hold them
    settled = [value for s in series for batch, value in s.points if batch >= s.points[-1][0] * 0.04]
    y = nice_axis(settled, "running error (%)")
    series = [_clipped(s, y) for s in series]
    return Figure(
        "error-over-stream",
        "Error over the stream",
        f"Share of wrong predictions among all images up to a batch, mean over seeds.{above} "
        f"{board.origin(entries)}{note}",
        lambda width: line_chart(series, width, y=y, height=340, **_time(entries)),
        full=True,
    )


def _curve(entry: Entry, name: str) -> list[tuple[float, float]]:
    """Points of a curve over the stream, each in the middle of its batch and so inside its domain."""
    return [(batch - 0.5, value) for batch, value in zip(entry.runs[0].batches, entry.curve(name), strict=True)]


def _without_far(entries: Sequence[Entry]) -> tuple[list[Entry], str]:
    """Set apart entries so far above all others that those would shrink to one; the rest, and a sentence."""
    ranked = sorted(entries, key=lambda entry: entry.mean)
    means = [entry.mean for entry in ranked]
    for k in range(2, len(ranked)):
        if means[k] - means[k - 1] > 1.5 * (means[k - 1] - means[0]) and means[k] > 1.3 * means[k - 1]:
            words = "".join(f" {e.label} lies above the figure, at {e.mean:.1f} %." for e in ranked[k:])
            return [entry for entry in entries if entry in ranked[:k]], words
    return list(entries), ""


def _selected(board: Board, entries: Sequence[Entry], styles: Styles, note: str) -> Figure | None:
    choosing = [entry for entry in entries if entry.curve("selecting")]
    if not choosing:
        return None
    series = [_series(entry, styles, _curve(entry, "selecting")) for entry in _best_last(choosing)]
    y = nice_axis((value for s in series for _, value in s.points), "parameters selected (%)", zero=True)
    return Figure(
        "selected-share",
        "Parameters selected, batch by batch",
        f"Share of the adaptable parameters that a method selected in a batch, mean over seeds; methods that do "
        f"not select are left out. {board.origin(choosing)}{note}",
        lambda width: line_chart(series, width, y=y, height=300, **_time(choosing)),
        full=True,
    )


def _cost(board: Board, entries: Sequence[Entry], styles: Styles, note: str) -> Figure | None:
    points = {entry.label: entry.over_seeds("passes") for entry in entries}
    series = [
        _series(entry, styles, [(passes, entry.mean)])
        for entry in _best_last(entries)
        if (passes := points[entry.label]) is not None
    ]
    if len(series) < 2:
        return None
    x = log_axis([s.points[0][0] for s in series], "time per batch (forward passes of the source model)")
    y = nice_axis((s.points[0][1] for s in series), "mean error (%)")
    return Figure(
        "cost",
        "Cost against error",
        f"Median time of a batch divided by that of a bare forward pass, and mean error over domains; less is "
        f"better in both.{_side_by_side(entries)} {board.origin(entries)}{note}",
        lambda width: scatter(series, width, x=x, y=y),
    )


def _side_by_side(entries: Sequence[Entry]) -> str:
    """Say so where cells were timed while others ran on the same machine."""
    most = cells_at_once(run for entry in entries for run in entry.runs)
    return f" Timed while up to {most} cells ran at once." if most > 1 else ""


def _sweeps_by_setting(board: Board) -> list[list[Sweep]]:
    groups: dict[tuple[str, str], list[Sweep]] = {}
    for sweep in board.sweeps:
        groups.setdefault((sweep.method, sweep.setting), []).append(sweep)
    return [group[:6] for group in groups.values()]


def _sweep(board: Board, group: Sequence[Sweep], styles: Styles) -> Figure:
    method, setting = group[0].method, group[0].setting
    sign = SIGNS.get(setting, setting)
    series = []
    for k, sweep in enumerate(group):
        style = Style(styles.get(_hub(board, sweep), Style(COLOURS[0])).colour if len(group) == 1 else COLOURS[k])
        series.append(
            Series(
                method if len(group) == 1 else _others(sweep, group),
                style,
                tuple((value, entry.mean) for value, entry in sweep.points),
                tuple(entry.std or 0.0 for _, entry in sweep.points),
                strong=len(group) == 1,
            )
        )
    x = value_axis(
        (value for s in series for value, _ in s.points), sign if sign == setting else f"{sign} ({setting})"
    )
    ends = [y + d for s in series for (_, y), sd in zip(s.points, s.spread, strict=True) for d in (-sd, sd)]
    y = nice_axis(ends, "mean error (%)")
    return Figure(
        f"{method}-{setting}",
        f"{method}: mean error by {setting}",  # labels of entries name points: "T = 50"
        f"Runs of {method} that differ in {setting} alone; bars are one standard deviation over seeds. "
        f"{board.origin([entry for sweep in group for _, entry in sweep.points])}",
        lambda width: line_chart(series, width, x=x, y=y, dots=True),
    )


def _hub(board: Board, sweep: Sweep) -> str:
    shown = {entry.label for entry in board.headline}
    return next((entry.label for _, entry in sweep.points if entry.label in shown), "")


def _others(sweep: Sweep, group: Sequence[Sweep]) -> str:
    """What tells one line of a grid of settings from the others."""
    mine = sweep.points[0][1].settings
    theirs = [other.points[0][1].settings for other in group]
    names = [n for n in mine if n != sweep.setting and len({repr(s.get(n)) for s in theirs}) > 1]
    return ", ".join(f"{SIGNS.get(name, name)} {mine[name]}" for name in names)


def _importance(board: Board, entries: Sequence[Entry], styles: Styles, wanted: Sequence[str]) -> list[Figure]:
    """The paper's figure: importance of the learning rates by block, for chosen domains."""
    having = [e for e in entries if any(any(blocks.values()) for blocks in e.first.importance.values())][:4]
    there = list(dict.fromkeys(domain for entry in having for domain in entry.first.importance))
    chosen = [domain for domain in there if corruption_of(domain) in wanted or domain in wanted]
    if len({corruption_of(domain) for domain in chosen}) < len(chosen):  # a gradual stream: the hardest of each
        chosen = [d for d in chosen if d == max(e for e in chosen if corruption_of(e) == corruption_of(d))]
    found = []
    for domain in chosen or there[:2]:
        blocks = list(dict.fromkeys(b for e in having for b in e.first.importance.get(domain, {})))
        series = [
            _series(entry, styles, [(k, _mean_importance(entry, domain, block)) for k, block in enumerate(blocks)])
            for entry in having
        ]
        found.append(_importance_figure(board, domain, blocks, series, board.origin(having)))
    return found


def _mean_importance(entry: Entry, domain: str, block: str) -> float:
    return statistics.fmean(run.importance.get(domain, {}).get(block, 0.0) for run in entry.runs)


def _importance_figure(
    board: Board, domain: str, blocks: Sequence[str], series: Sequence[Series], origin: str
) -> Figure:
    y = nice_axis((value for s in series for _, value in s.points), "importance", zero=True)
    who = series[0].label if len(series) == 1 else "methods with learning rates by importance"
    return Figure(
        f"importance-{board.short(domain)}",
        f"Learning-rate importance by block: {_words(board.short(domain))}",
        f"Importance i of the paper for {who}, mean over the batches of the domain, the tensors of a block and "
        f"seeds; tensors that were not selected count as 0. {origin}",
        lambda width: bar_chart(series, blocks, width, y=y),
    )


def _calibration(board: Board, entries: Sequence[Entry], styles: Styles, note: str) -> Figure:
    ranked = sorted(entries, key=lambda entry: entry.over_seeds("ece") or 0.0)
    series, notes = [], []
    for entry in ranked:
        bins = [
            [sum(run.bins[k][c] for run in entry.runs) for c in range(3)] for k in range(len(entry.runs[0].bins))
        ]
        points = [(sure / count, right / count) for count, sure, right in bins if count]
        series.append(_series(entry, styles, points))
        notes.append(f"ECE {entry.over_seeds('ece'):.1f} %")
    return Figure(
        "calibration",
        "Calibration: how often predictions of a confidence are right",
        f"On the dashed diagonal confidence and accuracy agree; below it a method is too sure. ECE is the "
        f"expected calibration error over 15 bins, mean over seeds. {board.origin(entries)}{note}",
        lambda width: panels(series, width, notes, x="confidence", y="accuracy"),
        full=True,
    )


def _forgetting(board: Board, entries: Sequence[Entry], styles: Styles, note: str) -> list[Figure]:
    measured = [entry for entry in entries if all(run.clean for run in entry.runs)]
    found = []
    for column, name, words in ((1, "batch", "batch statistics"), (2, "source", "source statistics")):
        series = []
        for entry in _best_last(measured):
            steps = zip(*(run.clean for run in entry.runs), strict=True)
            values = [statistics.fmean(float(item[column]) for item in step) for step in steps]
            series.append(_series(entry, styles, list(enumerate(values))))
        if not series:
            continue
        found.append(_forgetting_figure(board, measured, series, name, words, note))
    return found


def _forgetting_figure(
    board: Board, entries: Sequence[Entry], series: Sequence[Series], name: str, words: str, note: str
) -> Figure:
    names = [_words(board.short(domain)) for domain, _, _ in entries[0].runs[0].clean]
    every = -(-len(names) // 24)
    ticks = tuple((float(k), text) for k, text in enumerate(names) if k % every == 0)
    x = Axis(-0.3, max(len(names) - 0.7, 0.3), "", ticks)
    y = nice_axis((value for s in series for _, value in s.points), "clean error (%)")
    return Figure(
        f"forgetting-{name}",
        f"Forgetting: clean error with {words}",
        f"Error on clean images after each domain of the stream, without adapting to them, normalised with "
        f"{words}; mean over seeds. {board.origin(entries)}{note}",
        lambda width: line_chart(series, width, x=x, y=y, height=330, dots=len(names) < 30, turned=True),
    )


def _series(entry: Entry, styles: Styles, points: Sequence[tuple[float, float]]) -> Series:
    style = styles.get(entry.label, Style("c0"))
    return Series(entry.label, style, tuple(points), strong=entry.method == "palm")


def _clipped(series: Series, y: Axis) -> Series:
    """Hold the first points, which lie anywhere, inside the axis."""
    points = tuple((x, min(max(value, y.low), y.high)) for x, value in series.points)
    return Series(series.label, series.style, points, series.spread, series.strong)


def _best_last(entries: Sequence[Entry]) -> list[Entry]:
    """Order in which later lines cover earlier ones."""
    return sorted(entries, key=lambda entry: (entry.method == "palm", -entry.mean))


def _time(entries: Sequence[Entry]) -> dict[str, Any]:
    """The stream as x axis: a line where the corruption changes, its name below where all of them have room."""
    run = entries[0].runs[0]
    last = run.batches[-1]
    starts: list[tuple[int, str]] = []
    for start, domain in run.shifts:
        if not starts or starts[-1][1] != corruption_of(domain):
            starts.append((start, corruption_of(domain)))
    ends = [start for start, _ in starts[1:]] + [last]
    ends_and_names = zip(starts, ends, strict=True)
    names = tuple(((start + end) / 2, _words(name)) for (start, name), end in ends_and_names)
    if not 1 < len(names) <= 30:
        axis = nice_axis([0, last], "batches")
        return {"x": Axis(0.0, float(last), "batches", tuple(t for t in axis.ticks if t[0] <= last))}
    return {
        "x": Axis(0.0, float(last), "", names),
        "lines_at": [float(start) for start, _ in starts],
        "turned": len(names) > 4,
    }


def _words(name: str) -> str:
    return name.replace("_", " ")
