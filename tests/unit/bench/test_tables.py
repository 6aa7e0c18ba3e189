"""Tables as text, Markdown, LaTeX and CSV, and the tables made of summaries."""

import csv
import io

import pytest
from rich.console import Console

from ctta.bench import paper_tables as tables
from ctta.bench.metrics import Visit
from ctta.bench.reading import CellRecord
from ctta.bench.results import Result, Run, results_of, spread_of
from ctta.bench.table import Difference, Table, marked
from ctta.report.comparison import side_by_side


def run(mean=20.0, **facts):
    """A finished cell in numbers, made by hand."""
    cell = {"model": "m", "data": "d", "precision": facts.pop("precision", "full")}
    manifest = {"method": "palm", "settings": {"eta": facts.pop("eta", 1.0)}, "seed": facts.pop("seed", 0)}
    manifest |= {"processes": facts.pop("processes", 1), "cell": cell}
    record = CellRecord("key", "label", "done", manifest, 1, 1, None, 0.0, 1.0)
    values = {
        "record": record,
        "visits": (),
        "error": {"fog-5": mean - 5, "contrast-5": mean + 5},
        "mean": mean,
        "levels": {"4": mean, "5": mean + 2},
        "ece": 3.0,
        "nll": 0.5,
        "brier": 0.25,
        "selected": 4.0,
        "moved": 8.0,
        "ever_selected": 12.0,
        "importance": {"fog-5": {"block1": 0.5, "block2": 0.1}, "snow-5": {"block1": 0.7, "block2": 0.0}},
        "seconds": {"median": 0.4, "p95": 0.5, "p99": 0.6},
        "passes": 8.0,
        "memory": 500.0,
        "skipped": 0,
        "clean_error": {"batch_last": 12.0, "batch_mean": 10.0, "source_last": 16.0, "source_mean": 14.0},
    }
    return Run(**(values | facts))


def beside(kind, results):
    return tables.beside(tables.BESIDE[kind], "t", "T", results)


def column(table, name):
    return [entry[table.heads.index(name)] for entry in table.rows]


SMALL = Table(
    "small",
    "Error (%) of a_b & c",
    ("method", "ours", "paper", "difference"),
    (("PALM | x", 15.4375, 15.5, Difference(-0.0625)), ("T_1 & 50%", "not run", 20.0, None)),
    ("needs a_file",),
)


def test_markdown_has_a_rule_aligned_numbers_and_escaped_bars():
    lines = SMALL.markdown().splitlines()
    assert lines[0] == "### Error (%) of a_b & c"
    assert lines[2:6] == [
        "| method | ours | paper | difference |",
        "| --- | ---: | ---: | ---: |",
        "| PALM \\| x | 15.4 | 15.5 | -0.1 |",
        "| T_1 & 50% | not run | 20.0 | – |",  # noqa: RUF001
    ]
    assert "- needs a_file" in lines


def test_latex_uses_booktabs_and_escapes_what_latex_would_read():
    text = SMALL.latex()
    for word in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{lrrr}", r"a\_b \& c"):
        assert word in text
    assert r"T\_1 \& 50\% & not run & 20.0 & -- \\" in text
    assert text.count(r"\begin{") == text.count(r"\end{") == 2


def test_csv_keeps_numbers_in_full_and_leaves_absent_ones_empty():
    found = list(csv.reader(io.StringIO(SMALL.csv())))
    assert found[0] == ["method", "ours", "paper", "difference"]
    assert found[1] == ["PALM | x", "15.4375", "15.5", "-0.0625"]
    assert found[2] == ["T_1 & 50%", "not run", "20.0", ""]


def test_text_shows_title_rows_and_notes_without_reading_markup():
    console = Console(width=120, file=io.StringIO())
    Table("t", "A [slice]", ("m", "n"), (("[bold]x", 1.25),), ("see [here]",)).show(console)
    for word in ("A [slice]", "[bold]x", "1.2", "see [here]"):
        assert word in console.file.getvalue()


def test_on_a_narrow_terminal_no_row_is_cut_and_no_note_is_broken():
    console = Console(width=20, file=io.StringIO())
    numbers = tuple(float(k) for k in range(20))
    note = "not run: needs weights, get them with: ctta data get wrn-28-10"
    Table("t", "T", ("method", *"abcdefghijklmnopqrst"), (("PALM", *numbers),), (note,)).show(console)
    lines = console.file.getvalue().splitlines()
    assert any(all(f"{number:.1f}" in line for number in numbers) for line in lines)
    assert any(note in line for line in lines)


def test_a_difference_is_written_with_its_sign_and_an_absent_number_as_a_dash():
    values = (Difference(0.26), Difference(-3), 2.25, 1234.5, 7, "x", None, float("nan"))
    table = Table("t", "T", ("value",), tuple((value,) for value in values))
    texts = [text for ((text, _),) in table.written()]
    assert texts == ["+0.3", "-3.0", "2.2", "1,234.5", "7", "x", "–", "–"]  # noqa: RUF001
    assert table.csv().splitlines()[1:] == ["0.26", "-3.0", "2.25", "1234.5", "7", "x", '""', '""']


def test_the_best_is_judged_as_printed_and_is_none_where_all_are_equal():
    x, y, z = marked([1.0, 1.01, 1.02]), marked([2.04, 2.0, 3.0]), marked([None, 5.0, float("nan")])
    table = Table("t", "T", ("method", *"xyzw"), tuple(zip("abc", x, y, z, (3.0, 4.0, 5.0), strict=True)))
    assert [[best for _, best in row] for row in table.written()] == [
        [False, False, True, False, False],
        [False, False, True, False, False],
        [False, False, False, False, False],
    ]
    assert "| a | 1.0 | **2.0** |" in table.markdown()
    assert r"a & 1.0 & \textbf{2.0} & -- &" in table.latex()
    assert '<th scope="row">a</th><td>1.0</td><td><b>2.0</b></td>' in table.html()


def test_the_best_of_numbers_above_a_thousand_is_the_least_number_not_the_first_word():
    ms = marked([1040.0, 999.0], 0)
    table = Table("t", "T", ("m", "ms"), tuple(zip("ab", ms, strict=True)), digits=(1, 0))
    assert [row[1] for row in table.written()] == [("1,040", False), ("999", True)]


def test_html_escapes_every_word_and_lets_long_names_take_several_lines():
    text = Table("t", "<T>", ("<m>", "n"), (("<b>x</b>", "&"), ("a name of many letters, too many", 1.0))).html()
    assert "<b>" not in text
    assert "&lt;b&gt;x&lt;/b&gt;" in text
    assert "<td>&amp;</td>" in text
    assert 'aria-label="&lt;T&gt;"' in text
    assert text.count('class="long"') == 1


def test_a_row_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="Expected 2 entries"):
        Table("t", "t", ("a", "b"), (("x",),))


def test_over_seeds_is_mean_sample_deviation_and_worst():
    spread = spread_of([10.0, 12.0, 17.0])
    assert (spread.mean, spread.worst) == (13.0, 17.0)
    assert spread.std == pytest.approx(3.605551275)
    assert spread_of([90.0, 80.0], min).worst == 80.0
    assert spread_of([5.0]).std is None


def test_seeds_in_another_precision_are_another_line_of_another_table():
    full, half = results_of(run(10.0 + s, seed=s, precision=p) for p in ("full", "bf16") for s in (0, 2))
    assert (full.seeds, half.seeds, full.mean) == ((0, 2), (0, 2), 11.0)
    assert (full.first.precision, half.first.precision) == ("full", "bf16")
    assert full.first.ground != half.first.ground


def test_means_stand_beside_the_papers_with_the_difference():
    entries = [
        Result("PALM", (run(15.0),), "cifar10-c", {"mean": 15.5}),
        Result("LAW", (), "cifar10-c", {"mean": 17.2}),
        Result("Mine", (run(18.0),), "cifar10-c"),
    ]
    table = beside("means", entries)
    assert table.heads == ("dataset", "method", "ours", "paper", "difference")
    assert tuple(table.rows) == (
        ("cifar10-c", "PALM", 15.0, 15.5, -0.5),
        ("cifar10-c", "LAW", "not run", 17.2, None),
        ("cifar10-c", "Mine", 18.0, None, None),
    )


def test_without_any_published_number_there_are_no_columns_for_them():
    table = beside("sweep", [Result("T = 1", (run(18.0),), "d")])
    assert table.heads == ("dataset", "method", "ours", "selected")


def test_several_seeds_add_standard_deviation_and_worst():
    table = beside("means", [Result("PALM", (run(10.0), run(14.0)), "d"), Result("LAW", (run(20.0),), "d")])
    assert column(table, "ours") == [12.0, 20.0]
    assert column(table, "std") == [pytest.approx(2.8284271), None]
    assert column(table, "worst") == [14.0, 20.0]


def test_errors_per_corruption_come_in_three_lines_and_without_the_paper_in_one():
    entries = [
        Result("PALM", (run(20.0), run(22.0)), "d", {"fog": 12.0, "mean": 15.0}),
        Result("Mine", (run(),), "d"),
    ]
    table = tables.corruptions("t", "T", entries, ("fog", "contrast"))
    assert table.heads == ("method", "", "fog", "contrast", "mean")
    assert tuple(table.rows) == (
        ("PALM", "ours", 16.0, 26.0, 21.0),
        ("PALM", "paper", 12.0, None, 15.0),
        ("PALM", "difference", 4.0, None, 6.0),
        ("Mine", "ours", 15.0, 25.0, 20.0),
    )


def test_a_row_that_did_not_run_has_no_number_anywhere():
    entry = Result("PALM", (), "d", {"fog": 12.0, "mean": 15.0, "seconds": 1.0, "selected": 4.3})
    for table in (
        beside("means", [entry]),
        beside("gradual", [entry]),
        beside("shares", [entry]),
        beside("sweep", [entry]),
        beside("forgetting", [entry]),
        tables.cost("t", "T", [entry], "PALM"),
        tables.corruptions("t", "T", [entry], ("fog",)),
        tables.calibration("t", "T", [entry]),
    ):
        numbers = [v for line in table.rows if "paper" not in line for v in line if isinstance(v, float)]
        assert set(numbers) <= {12.0, 15.0, 1.0, 4.3}, table.rows
        assert not any("difference" not in line and isinstance(v, Difference) for line in table.rows for v in line)
    assert tables.importance("t", "T", entry).rows == []


def test_a_gradual_table_has_both_weightings_and_every_severity():
    table = beside("gradual", [Result("PALM", (run(10.0),), "d", {"mean": 9.5}), Result("LAW", (), "d")])
    assert table.heads[5:] == ("equal severities", "severity 4", "severity 5")
    assert table.rows[0][2:] == (10.0, 9.5, 0.5, 11.0, 10.0, 12.0)
    assert table.rows[1][2:] == ("not run", None, None, None, None, None)


def test_a_recurring_table_has_every_pass():
    visits = tuple(
        Visit(domain, 100, wrong)
        for domain, wrong in zip(["fog-5", "contrast-5"] * 3, (20, 30, 10, 20, 4, 6), strict=True)
    )
    table = beside("recurring", [Result("PALM", (run(15.0, visits=visits),), "d"), Result("LAW", (), "d")])
    assert table.heads == ("dataset", "method", "ours", "pass 1", "pass 2", "pass 3")
    assert tuple(table.rows) == (("d", "PALM", 15.0, 25.0, 15.0, 5.0), ("d", "LAW", "not run", None, None, None))
    assert beside("recurring", [Result("LAW", (), "d")]).heads == ("dataset", "method", "ours")


def test_a_recurring_table_has_the_passes_of_the_run_that_has_most():
    long, short = (
        run(15.0, visits=tuple(Visit(domain, 10, 1) for domain in ["fog-5", "snow-5"] * passes))
        for passes in (3, 2)
    )
    table = beside("recurring", [Result("PALM", (long,), "d"), Result("LAW", (short,), "d")])
    assert table.heads[3:] == ("pass 1", "pass 2", "pass 3")
    assert table.rows[1][3:5] == (10.0, 10.0)


def test_forgetting_is_shown_as_accuracy_and_its_worst_seed_is_the_lowest():
    runs = (
        run(),
        run(clean_error={"batch_last": 22.0, "batch_mean": 20.0, "source_last": 26.0, "source_mean": 24.0}),
    )
    table = beside("forgetting", [Result("PALM", runs, "d", {"clean_accuracy": 86.0})])
    assert (column(table, "ours"), column(table, "worst"), column(table, "difference")) == ([85.0], [80.0], [-1.0])
    assert column(table, "after the last task") == [83.0]
    assert column(table, "source statistics") == [81.0]


def test_cost_is_compared_in_units_of_the_reference():
    palm = Result("PALM", (run(),), "d", {"seconds": 0.8})
    sft = Result(
        "SFT", (run(seconds={"median": 0.1, "p95": 0.2, "p99": 0.3}, memory=None),), "d", {"seconds": 0.45}
    )
    table = tables.cost("t", "T", [sft, palm, Result("BN-1", (run(passes=1.0),), "d")], "PALM")
    assert column(table, "time / PALM's") == [pytest.approx(0.25), 1.0, 1.0]
    assert column(table, "paper time / PALM's") == [pytest.approx(0.5625), 1.0, None]
    assert column(table, "difference") == [pytest.approx(-0.3125), 0.0, None]
    assert column(table, "forward passes") == [8.0, 8.0, 1.0]
    assert column(table, "memory (MB)") == [None, 500.0, 500.0]


def test_cost_says_so_where_cells_were_timed_side_by_side():
    alone, shared = Result("PALM", (run(),), "d"), Result("LAW", (run(), run(processes=2)), "d")
    assert tables.cost("t", "T", [alone], notes=["a note"]).notes == ["a note"]
    first, *others = tables.cost("t", "T", [alone, shared], notes=["a note"]).notes
    assert "up to 2 cells ran at once" in first
    assert "--processes 1" in first
    assert others == ["a note"]


def test_importance_shows_the_chosen_domains_or_all_where_none_of_them_was_met():
    entry = Result("PALM", (run(), run(importance={"fog-5": {"block1": 0.7, "block2": 0.1}})), "d")
    table = tables.importance("t", "T", entry, ("fog",))
    assert table.heads == ("block", "fog-5")
    assert tuple(table.rows) == (("block1", pytest.approx(0.6)), ("block2", pytest.approx(0.1)))
    assert tables.importance("t", "T", entry, ("frost",)).heads == ("block", "fog-5", "snow-5")


@pytest.mark.parametrize(
    ("shares", "words"),
    [((1.0, 2.0, 2.0), "never falls"), ((1.0, 3.0, 2.0), "falls where it should not"), ((1.0,), "too few")],
)
def test_the_selected_share_is_checked_to_grow_with_the_temperature(shares, words):
    entries = [Result(f"T = {k}", (run(selected=share),), "d") for k, share in enumerate(shares)]
    assert words in tables.nondecreasing_note(entries)


def test_the_check_is_per_dataset_names_the_fall_and_is_off_for_an_automatic_eta():
    entries = [Result("T = 1", (run(selected=9.0),), "a"), Result("T = 1", (run(selected=1.0),), "b")]
    assert "too few" in tables.nondecreasing_note(entries)
    entries.append(Result("T = 9", (run(selected=7.5),), "a"))
    assert "a: from T = 1 (9.00 %) to T = 9 (7.50 %)" in tables.nondecreasing_note(entries)
    auto = [Result("T = 1", (run(selected=9.0, eta="auto"),), "a"), Result("T = 9", (run(selected=7.5),), "a")]
    assert "found anew" in tables.nondecreasing_note(auto)


def test_methods_side_by_side_have_a_row_a_domain_the_mean_and_the_cost():
    palm, law = Result("PALM", (run(10.0, seed=0), run(14.0, seed=1))), Result("LAW", (run(20.0),))
    table = side_by_side([palm, law], "T")
    rows = {row[0]: row[1:] for row in table.rows}
    assert table.heads == ("error (%)", "PALM", "LAW")
    assert rows["fog-5"] == (7.0, 15.0)
    assert rows["mean"] == (12.0, 20.0)
    assert rows["seeds"] == (2, 1)
    assert rows["standard deviation"] == (pytest.approx(2.8284271), None)
    assert rows["worst seed"] == (14.0, 20.0)
    assert rows["time per batch (forward passes)"] == (8.0, 8.0)
    assert rows["parameters adapted (%)"] == (4.0, 4.0)
    assert "steps undone" not in rows
    assert [best for _, best in table.written()[0]] == [False, True, False]
    alone = side_by_side([Result("LAW", (run(skipped=3),))], "T")
    assert [row for row in alone.rows if row[0] in ("seeds", "steps undone")] == [("steps undone", 3)]
