"""The report: what it says is what the rows say, it stands alone, and nothing in a label can break it."""

import csv
import dataclasses
import io
import itertools
import json
import re
import statistics
import sys
import xml.etree.ElementTree as ElementTree
from html import escape
from html.parser import HTMLParser

import matplotlib.figure
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.synthetic import CORRUPTIONS, METHODS, add_cell, full_store

import ctta
from ctta.bench.cell import Cell
from ctta.bench.metrics import thin
from ctta.bench.runner import run
from ctta.bench.store import Store
from ctta.cli import cli, main
from ctta.errors import DataError, StoreError
from ctta.report import drawing
from ctta.report.chart import spread_out
from ctta.report.collect import collect
from ctta.report.comparison import tables_of
from ctta.report.figures import figure_of, figures_of, styles_of
from ctta.report.page import render, verdict, write_figures, write_page, write_tables

OLDEST = ["source", "bn1", "tent", "adacontrast", "cotta", "ecotta", "sft", "dss", "law", "palm"]
NASTY = '<b>x</b> & "y" | \\_%'
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Balance(HTMLParser):
    """Fails on a tag that is not closed, or closed twice."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)


def parsed(page):
    parser = Balance()
    parser.feed(page)
    parser.close()
    assert not parser.open
    return parser.seen


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    with full_store(tmp_path_factory.mktemp("report") / "full.db", batches=3, seeds=2) as store:
        yield store


@pytest.fixture(scope="module")
def board(full):
    (board,) = collect(full)
    return board


@pytest.fixture(scope="module")
def page(full):
    return render(full)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """One method on two domains."""
    with Store(tmp_path_factory.mktemp("report") / "small.db") as store:
        add_cell(store, "palm", domains=("fog-5", "snow-5"), batches=1, clean=True)
        yield store


def texts_of(figure):
    return {text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_visible()}


def names_of(store, **options):
    boards = collect(store)
    return [figure.name for board in boards for figure in figures_of(board, styles_of(boards), **options)]


def test_the_page_stands_alone(page):
    for outside in ("http:", "https:", "//", "<script", "src=", "@import", "url(", "<link"):
        assert outside not in page, outside
    seen = parsed(page)
    assert seen.count("figure") == 12
    assert "prefers-color-scheme:dark" in page
    assert "var(--c0)" in page
    assert "@media print" in page
    assert 'name="viewport"' in page


def test_every_figure_of_the_issue_is_drawn_with_title_and_origin(page, board):
    figures = figures_of(board, styles_of([board]))
    assert {figure.name for figure in figures} == {
        *("error-per-corruption", "error-over-stream", "selected-share", "cost", "calibration"),
        *("importance-glass_blur", "importance-snow", "palm-temperature", "palm-alpha", "palm-lam"),
        *("forgetting-batch", "forgetting-source"),
    }
    for figure in figures:
        assert escape(figure.title) in page
        assert "seeds 0, 1" in figure.caption
        assert "9,000 images in 45 batches" in figure.caption


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_store_of_ten_methods_fifteen_domains_and_curves_at_their_longest_stays_under_two_megabytes(tmp_path):
    # 255 batches: curves keep at most 240 points
    with full_store(tmp_path / "large.db", batches=17, seeds=1, sweeps=False) as store:
        size = write_page(store, tmp_path / "page.html").stat().st_size
    assert size < 1_000_000  # the promise is 2 MB; half of it leaves room for more boards


def test_labels_are_escaped_everywhere(store, tmp_path):
    few = {"domains": ("fog-5", "snow-5"), "batches": 1}
    add_cell(store, "palm", label=NASTY, **few)
    add_cell(store, "source", label="</svg><script>alert(1)</script>\x00$", **few)
    page = render(store)
    assert "<b>x" not in page
    assert "<script" not in page
    assert "&lt;b&gt;x&lt;/b&gt; &amp;" in page
    assert "&lt;/svg&gt;&lt;script&gt;alert(1)&lt;/script&gt;" in page
    parsed(page)
    (board,) = collect(store)
    chart = figures_of(board)[0]
    assert NASTY in texts_of(chart.draw())
    ElementTree.fromstring(drawing.standalone(chart.draw(), NASTY, NASTY))
    table = tables_of(board)[0]
    assert r"$<$" not in table.latex()
    assert r"\textbackslash{}\_\%" in table.latex()
    assert r"\| \\_%" in table.markdown()
    assert next(row[0] for row in csv.reader(io.StringIO(table.csv())) if row[0] == NASTY)


def test_runs_in_bf16_stand_on_a_board_of_their_own_that_says_so(store):
    for precision in ("bf16", "full"):
        add_cell(store, "palm", precision=precision)
    key = add_cell(store, "source")
    manifest = store.cell(key).manifest
    del manifest["cell"]["precision"]  # a row from before there was a choice
    store.db.execute("UPDATE cells SET manifest = ? WHERE key = ?", (json.dumps(manifest), key))
    full, half = collect(store)
    assert [entry.label for entry in full.entries] == ["source", "palm"]
    assert [entry.label for entry in half.entries] == ["palm"]
    assert half.title == full.title + " (bf16)"
    assert half.origin(half.entries).endswith("model embedded (bf16).")
    assert "precision" not in full.facts
    assert half.facts["precision"] == "bf16"


def test_a_run_from_before_its_method_had_a_setting_joins_the_seeds_that_have_it_at_its_default(store):
    add_cell(store, "palm", seed=0)
    add_cell(store, "palm", seed=1, settings={"anchor": 0.0})
    add_cell(store, "palm", seed=1, settings={"anchor": 0.02})
    (board,) = collect(store)
    found = {entry.label: [run.seed for run in entry.runs] for entry in board.entries}
    assert found == {"palm": [0, 1], "palm, anchor 0.02": [1]}


def test_the_comparison_is_mean_standard_deviation_and_worst_over_seeds(store):
    keys = [add_cell(store, "palm", seed=seed, shift=shift) for seed, shift in ((0, 0), (1, 3), (2, 9))]
    add_cell(store, "source")
    means = []
    for key in keys:
        by_domain = {}
        for row in store.batches(key):
            by_domain.setdefault(row.domain, []).append(row.error)
        means.append(statistics.fmean(statistics.fmean(errors) for errors in by_domain.values()))
    (board,) = collect(store)
    table = tables_of(board)[0]
    rows = {row["method"]: row for row in csv.DictReader(io.StringIO(table.csv()))}
    assert float(rows["palm"]["error, mean (%)"]) == pytest.approx(statistics.fmean(means))
    assert float(rows["palm"]["± std"]) == pytest.approx(statistics.stdev(means))
    assert float(rows["palm"]["worst seed"]) == pytest.approx(means[2])
    assert rows["palm"]["seeds"] == "3.0"
    assert rows["source"]["± std"] == ""
    assert f"<b>{statistics.fmean(means):.1f}</b>" in table.html()
    assert verdict(board).startswith(f"Lowest mean error: palm with {statistics.fmean(means):.1f} ± ")
    assert "the source model without adaptation has 4" in verdict(board)


def test_all_that_share_the_lowest_error_are_named(store):
    for label in ("a", "b"):
        add_cell(store, "palm", label=label, settings={"kind": label})
    (board,) = collect(store)
    assert verdict(board).startswith("Lowest mean error: a, b with ")


def test_the_error_table_has_a_column_a_domain_and_marks_the_best_of_each(store):
    for method in ("source", "palm"):
        add_cell(store, method)
    (board,) = collect(store)
    table = tables_of(board)[1]
    assert table.heads == ("method", *(c.replace("_", " ") for c in CORRUPTIONS), "mean")
    source, palm = table.written()
    assert all(best for _, best in palm[1:])
    assert not any(best for _, best in source)


def test_unfinished_cells_are_listed_but_never_counted(page, board):
    assert "&lt;too&gt; slow &amp; sad" in page
    assert "failed, 3 of 45 batches" in page
    assert "1 more is not finished and not counted" in page
    assert "cotta, slow" not in [entry.label for entry in board.entries]


def test_every_run_has_its_manifest(page, full):
    runs = page[page.index('id="runs"') :]
    for record in full.cells():
        assert record.key in runs
    assert "What all 32 runs share" in runs
    assert runs.count("<details>") == len(full.cells()) + 1
    assert "4f1f4e31d3a1a7b2" in runs
    assert "<dt>cell.data</dt><dd>embedded</dd>" in runs
    assert "<dt>settings.temperature</dt><dd>1000.0</dd>" in runs


def test_a_store_without_a_finished_cell_is_refused(store):
    with pytest.raises(StoreError, match="no finished cell"):
        render(store)
    add_cell(store, "palm", finish=False)
    with pytest.raises(StoreError, match=r"no finished cell \(1 begun\)"):
        render(store)


def test_runs_that_differ_in_one_setting_become_a_curve_and_leave_the_other_figures(board):
    found = {sweep.setting: [value for value, _ in sweep.points] for sweep in board.sweeps}
    assert found == {
        "temperature": [1.0, 10.0, 50.0, 100.0, 1000.0],
        "alpha": [0.1, 0.3, 0.5, 0.7, 0.9],
        "lam": [0.0, 0.005, 0.01, 0.05],
    }
    assert sorted({entry.method for entry in board.headline}) == sorted(METHODS)
    assert len(board.headline) == len(METHODS)  # PALM once, as it was run without changes
    hub = next(entry for entry in board.headline if entry.method == "palm")
    assert hub.settings["temperature"] == 50.0
    assert hub.label == "palm"
    assert len(board.entries) == len(METHODS) + 11
    labels = [entry.label for entry in board.entries]
    assert {"palm, alpha 0.1", "palm, temperature 1000", "palm, lam 0"} <= set(labels)
    assert len(set(labels)) == len(labels)
    assert [table.name for table in tables_of(board)] == ["comparison", "errors", "variations"]
    assert [row[0] for row in tables_of(board)[2].rows] == [label for label in labels if ", " in label]


def test_variants_make_room_where_figures_could_not_hold_them_all(store):
    for method in METHODS:
        add_cell(store, method)
    for k in range(2):
        add_cell(store, "palm", label=f"variant {k}", settings={"selection": f"kind {k}"})
    (board,) = collect(store)
    assert len(board.headline) == 12  # all of them: there is room
    add_cell(store, "palm", label="variant 2", settings={"selection": "kind 2"})
    (board,) = collect(store)
    assert [entry.label for entry in board.headline] == sorted(METHODS, key=OLDEST.index)
    assert [entry.label for entry in board.variations] == ["variant 0", "variant 1", "variant 2"]


def test_the_order_on_the_page_does_not_depend_on_which_cell_was_begun_first(store):
    for setting in ("mixed", "gradual", "continual"):
        for method in ("palm", "cotta", "source"):
            add_cell(store, method, scenario=setting)
    boards = collect(store)
    assert [board.facts["stream"] for board in boards] == ["continual", "gradual", "mixed"]
    assert all([entry.method for entry in board.entries] == ["source", "cotta", "palm"] for board in boards)


def test_a_cell_that_measures_forgetting_beside_another_gives_its_numbers_not_its_name(store):
    add_cell(store, "bn1", label="Source (batch statistics)", clean=True)
    add_cell(store, "bn1", label="BN-1")
    (board,) = collect(store)
    (entry,) = board.entries
    assert entry.label == "BN-1"
    assert entry.runs[0].clean


def test_a_curve_has_its_points_inside_their_domains(store):
    for method in ("source", "palm"):
        add_cell(store, method, domains=("fog-5", "snow-5"), batches=1)
    boards = collect(store)
    for name in ("error-over-stream", "selected-share"):
        (axes,) = figure_of(boards[0], name).axes
        start, border, *curves = (list(line.get_xdata()) for line in axes.lines)
        assert start == [0, 0]
        assert all(curve[0] < border[0] < curve[-1] for curve in curves)


def test_times_taken_side_by_side_are_said_to_be(store):
    add_cell(store, "source")
    add_cell(store, "palm")
    boards = collect(store)
    assert "at once" not in next(f for f in figures_of(boards[0], styles_of(boards)) if f.name == "cost").caption
    add_cell(store, "tent", processes=4)
    boards = collect(store)
    caption = next(f for f in figures_of(boards[0], styles_of(boards)) if f.name == "cost").caption
    assert "Timed while up to 4 cells ran at once." in caption


def test_a_line_far_above_the_others_is_named_in_the_caption_instead(store, board):
    figures = {figure.name: figure for figure in figures_of(board, styles_of([board]))}
    for name in ("error-over-stream", "error-per-corruption"):
        texts = texts_of(figures[name].draw())
        assert "source" not in texts
        assert set(METHODS) - {"source"} <= texts
        assert re.search(r"source lies above the figure, at 4\d\.\d %", figures[name].caption)
    for method in ("bn1", "palm"):
        add_cell(store, method)
    (board,) = collect(store)
    assert "lies above" not in figures_of(board, styles_of([board]))[1].caption


def test_two_values_are_no_curve_and_truth_values_are_no_numbers(store):
    for flag, lr in ((True, 1.0), (False, 1.0), (True, 2.0)):
        add_cell(store, "palm", settings={"flag": flag, "lr": lr})
    (board,) = collect(store)
    assert not board.sweeps
    assert len(board.headline) == 3


def test_importance_is_shown_for_the_domains_asked_for_else_for_the_first_ones(store):
    add_cell(store, "palm")
    assert [n for n in names_of(store) if "importance" in n] == ["importance-glass_blur", "importance-snow"]
    chosen = names_of(store, domains=["fog", "contrast-5"])
    assert [n for n in chosen if "importance" in n] == ["importance-fog", "importance-contrast"]
    nowhere = names_of(store, domains=["rain"])
    assert [n for n in nowhere if "importance" in n] == ["importance-gaussian_noise", "importance-shot_noise"]


def test_importance_bars_are_the_means_over_batches_and_seeds(store):
    keys = [add_cell(store, "palm", seed=seed) for seed in (0, 1)]
    rows = [row for key in keys for row in store.batches(key) if row.domain == "snow-5"]
    boards = collect(store)
    figures = figures_of(boards[0], styles_of(boards))
    figure = next(figure for figure in figures if figure.name == "importance-snow")
    expected = statistics.fmean(row.importance["block1.0"] for row in rows)
    drawn = figure.draw()
    assert drawn.axes[0].patches[1].get_height() == pytest.approx(expected)
    assert f"<title>palm, block1.0: {expected:.4g}</title>" in drawing.inline(drawn, "x")


def test_a_cell_run_again_by_newer_code_replaces_the_old_one(store):
    add_cell(store, "palm", shift=20)
    add_cell(store, "palm", ctta="0.2.0")
    (board,) = collect(store)
    (entry,) = board.entries
    assert [run.version for run in entry.runs] == ["0.2.0, numbers 1"]
    assert board.facts["ctta"] == "0.2.0, numbers 1"


def test_what_was_measured_on_clean_images_is_kept_by_the_same_code(store):
    add_cell(store, "palm", clean=True)
    add_cell(store, "palm", label="palm")  # finished later, without clean images
    (board,) = collect(store)
    assert len(board.entries[0].runs) == 1
    assert board.entries[0].runs[0].clean


def test_different_models_and_streams_are_never_compared(store, tmp_path):
    few = {"domains": ("fog-5", "snow-5"), "batches": 1}
    add_cell(store, "source", **few)
    add_cell(store, "source", weights="other", **few)
    add_cell(store, "source", scenario="recurring", **few)
    assert len(collect(store)) == 3
    page = render(store)
    assert page.count('<section id="board-') == 3
    files = write_tables(store, tmp_path)
    assert {path.name.split("-")[0] for path in files} == {"1", "2", "3"}
    assert len(files) == len(set(files)) == 18


def test_a_gradual_stream_is_averaged_in_three_ways_and_drawn_by_corruption(store):
    levels = [f"{name}-{level}" for name in ("fog", "snow") for level in (1, 2, 3, 4, 5, 4, 3, 2, 1)]
    for method in ("source", "palm"):
        add_cell(store, method, domains=levels, scenario="gradual", batches=1)
    (board,) = collect(store)
    table = tables_of(board)[0]
    assert [head for head in table.heads if "severit" in head] == [
        "error, mean over severities (%)",
        "error at severity 5 (%)",
    ]
    figure = figures_of(board, styles_of([board]))[0]
    rows = texts_of(figure.draw())
    assert {"fog", "snow"} <= rows
    assert not {"fog-1", "fog 1"} & rows
    importance = [name for name in names_of(store) if "importance" in name]
    assert importance == ["importance-snow-5"]  # the severest


def test_a_mixed_stream_is_reported(store):
    add_cell(store, "palm", scenario="mixed", domains=("mixed",), batches=6)
    key = store.cells()[0].key
    rows = [
        dataclasses.replace(row, counts={"fog-5": [100, 20], "snow-5": [100, 30]}) for row in store.batches(key)
    ]
    with store.transaction() as db:
        db.execute("DELETE FROM batches")
        db.executemany(
            "INSERT INTO batches (key, batch, row) VALUES (?, ?, ?)",
            [(key, row.batch, json.dumps(row.to_dict())) for row in rows],
        )
    (board,) = collect(store)
    assert board.domains == ("fog", "snow")
    assert board.short("mixed") == "mixed"
    assert board.short("fog-5") == "fog"
    assert tables_of(board)[1].rows[0][1:] == (20.0, 30.0, 25.0)
    parsed(render(store))


def test_real_rows_make_a_page(store, tmp_path):
    model = tmp_path / "own.py"
    model.write_text(
        "import torch\nfrom ctta.models import build\n\n\ndef make():\n    torch.manual_seed(0)\n"
        "    return build('wrn-10-1').eval()\n"
    )
    for method in ("source", "palm"):
        cell = Cell(
            method,
            model=f"{model}:make",
            images=10,
            batch_size=5,
            corruptions=("fog", "snow"),
            clean=5 if method == "palm" else 0,
        )
        run([cell], store)
    page = render(store)
    parsed(page)
    assert "a slice: 10 images per domain" in page
    assert "Learning-rate importance by block: snow" in page
    assert "Forgetting" in page


def test_tables_as_files(full, tmp_path):
    files = {path.name: path.read_text() for path in write_tables(full, tmp_path)}
    names = ("comparison", "errors", "variations")
    assert files.keys() == {f"{name}.{end}" for name in names for end in ("md", "tex", "csv")}
    assert files["errors.md"].splitlines()[2].startswith("| method | gaussian noise | shot noise")
    assert r"\textbf{" in files["errors.tex"]
    assert r"$\pm$ std" in files["comparison.tex"]
    assert len(list(csv.reader(io.StringIO(files["errors.csv"])))) == 1 + len(METHODS)


def test_figures_as_svg_files_stand_alone(small, tmp_path):
    files = write_figures(small, tmp_path)
    assert [path.name for path in files] == [f"{name}.svg" for name in names_of(small)]
    for path in files:
        text = path.read_text()
        assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
        assert "#0072b2" in text  # colours are in the file
        assert "var(" not in text


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_without_its_extra_a_report_says_what_to_install_and_tables_are_written_all_the_same(
    small, tmp_path, monkeypatch, package
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataError, match=re.escape(f'need {package}: pip install "ctta[report]"')):
        write_page(small, tmp_path / "page.html")
    if package == "matplotlib":
        with pytest.raises(DataError, match=re.escape('pip install "ctta[report]"')):
            write_figures(small, tmp_path)
    assert not list(tmp_path.iterdir())
    assert len(write_tables(small, tmp_path)) == 6


def test_figures_as_pdf_are_the_same_every_time(store, tmp_path):
    add_cell(store, "source", domains=("fog-5", "snow-5"), batches=1)
    files = write_figures(store, tmp_path / "f", "pdf")
    assert [path.name for path in files] == [f"{name}.pdf" for name in names_of(store)]
    assert all(path.read_bytes().startswith(b"%PDF-") for path in files)
    (board,) = collect(store)
    chart = figures_of(board)[0]
    assert drawing.pdf(chart.draw(), chart.title) == files[0].read_bytes()


def test_a_figure_is_matplotlibs_and_free_to_be_changed(tmp_path, board):
    figure = figure_of(board, "cost")
    assert isinstance(figure, matplotlib.figure.Figure)
    figure.axes[0].set_title("what <i> saw")
    figure.savefig(tmp_path / "mine.svg")
    assert "what &lt;i&gt; saw" in (tmp_path / "mine.svg").read_text()
    with pytest.raises(DataError, match=r"Expected one of the figures error-per-corruption, .*but got 'costs'"):
        figure_of(board, "costs")


def test_what_a_user_has_set_in_matplotlib_changes_no_figure_and_stays_set(small):
    (board,) = collect(small)
    before = drawing.inline(figure_of(board, "selected-share"), "x")
    with matplotlib.rc_context({"font.size": 30, "axes.grid": False, "lines.linewidth": 9}):
        assert drawing.inline(figure_of(board, "selected-share"), "x") == before
        assert matplotlib.rcParams["font.size"] == 30


def call(*arguments):
    result = CliRunner().invoke(cli, ["report", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_verb_writes_page_figures_and_tables_and_the_same_store_gives_the_same_page(small, tmp_path):
    folders = "--figures", tmp_path / "f", "--tables", tmp_path / "t"
    out = call(small.path, "--json", "--out", tmp_path / "deep" / "p.html", "--domains", "fog", *folders)
    paths = json.loads(out)
    assert paths["page"] == str(tmp_path / "deep" / "p.html")
    assert (tmp_path / "deep" / "p.html").read_text() == render(small, ["fog"])
    assert str(tmp_path / "f" / "importance-fog.svg") in paths["figures"]
    assert len(paths["tables"]) == 6


def test_the_verb_refuses_what_is_no_store_and_never_writes_over_one(store, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path / "nowhere.db")])
    assert ended.value.code == 1
    assert "There is no store" in capsys.readouterr().err
    add_cell(store, "source", domains=("fog-5",), batches=1)
    with pytest.raises(StoreError, match="the store itself"):
        write_page(store, store.path)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        write_page(store, tmp_path / "file" / "page.html")


def test_one_batch_of_one_method_in_a_store_being_written_is_enough_for_a_page(store):
    add_cell(store, "source", domains=("fog-5",), batches=1)
    assert f"page in {store.path.with_suffix('.html')}" in call(store.path)
    parsed(store.path.with_suffix(".html").read_text())


def test_report_is_still_where_it_was():
    from ctta.report import Report

    assert Report is ctta.Report
    assert ctta.report.Report is ctta.Report


@given(st.lists(st.floats(0, 300), min_size=1, max_size=12))
def test_labels_are_moved_apart_and_stay_in_order(wanted):
    places = spread_out(sorted(wanted), 15.0, 0.0, 300.0)
    assert len(places) == len(wanted)
    assert all(b - a >= 15.0 - 1e-6 for a, b in itertools.pairwise(places))
    assert min(places) >= -1e-6
    assert max(places) <= 300 + 1e-6


@given(st.integers(1, 5000), st.integers(1, 300))
def test_a_thinned_curve_keeps_its_end_and_never_repeats(count, most):
    kept = thin(count, most)
    assert kept[-1] == count - 1
    assert len(kept) == min(count, most)
    assert kept == sorted(set(kept))
