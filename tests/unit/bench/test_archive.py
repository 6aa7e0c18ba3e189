"""Kept reproductions: the same tables come out of the file, and a damaged one is refused."""

import json

import pytest
from click.testing import CliRunner
from tests.unit.cli.test_reproduce import MODEL

from ctta.bench import archive
from ctta.bench.results import read_run
from ctta.bench.store import Store
from ctta.cli import cli
from ctta.errors import DataError
from ctta.report.collect import boards_of, collect

NAMES = ("adapted", "importance", "forgetting", "pseudo-labels", "cost")
KEPT = 2 * 10 ** (1 - archive.DIGITS)
"""How far a mean or a ratio of kept numbers may be from that of the numbers themselves, relative to it."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Some experiments on an untrained model, two corruptions, several batches a domain; rows kept."""
    folder = tmp_path_factory.mktemp("kept")
    _, found = keep(folder, "importance", "forgetting", "pseudo-labels")
    return folder, found | keep(folder, "adapted", "cost", "--only", "PALM")[1]


def keep(folder, *given):
    """Run and keep experiments, with further options or without."""
    (folder / "own.py").write_text(MODEL)
    words = [
        *("reproduce", *given, "--model", f"{folder / 'own.py'}:make", "--dataset", "embedded", "--json"),
        *("--corruptions", "fog,contrast", "--images", "6", "--batch-size", "2", "--seeds", "0,1"),
        *("--store", str(folder / "r.sqlite"), "--processes", "1", "--threads", "1", "--rows", str(folder)),
    ]
    result = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = {item["experiment"]: item for item in json.loads(result.stdout)["experiments"]}
    return folder, found


def file_of(folder, name):
    (file,) = folder.glob(f"{name}.*.jsonl")
    return file


@pytest.mark.parametrize("name", NAMES)
def test_the_tables_come_out_of_the_file_as_they_were(kept, name):
    folder, found = kept
    again = archive.read(file_of(folder, name)).to_dict()
    assert again["title"] == found[name]["title"]
    assert again["cells"] == found[name]["cells"]
    for mine, theirs in zip(again["tables"], found[name]["tables"], strict=True):
        assert (mine["columns"], mine["notes"]) == (theirs["columns"], theirs["notes"])
        for row, expected in zip(mine["rows"], theirs["rows"], strict=True):
            assert numbers(mine["columns"], row) == pytest.approx(numbers(mine["columns"], expected), rel=KEPT)
            assert [v for v in row if isinstance(v, str)] == [v for v in expected if isinstance(v, str)]


def numbers(columns, row):
    """Numbers of a row by their columns; of a difference, what is ahead of it in the row is added to it again.

    Ours minus the paper's may be as small as it likes, and is then no more exact than ours.
    """
    values = {name: value for name, value in zip(columns, row, strict=True) if isinstance(value, float)}
    if "difference" in values:
        values["difference"] += row[columns.index("difference") - 1]
    return values


def test_errors_are_kept_to_the_last_image_and_each_stay_is_one_row(kept):
    folder, _ = kept
    kept_runs = archive.read(file_of(folder, "forgetting")).runs
    with Store(folder / "r.sqlite", read_only=True) as store:
        for key, run in kept_runs.items():
            whole = read_run(store, store.cell(key))
            assert run.visits == whole.visits
            assert (run.mean, run.number("levels/5")) == (whole.mean, whole.number("levels/5"))
            assert len(list(archive.stays(store.batches(key)))) == len(whole.visits) == 2
            assert run.record.manifest == store.cell(key).manifest


def test_kept_runs_come_on_the_same_boards_as_those_in_the_store(kept):
    folder, _ = kept
    runs = [run for name in NAMES for run in archive.read(file_of(folder, name)).runs.values()]
    with Store(folder / "r.sqlite", read_only=True) as store:
        (board,), (whole,) = boards_of({run.key: run for run in runs}.values()), collect(store)
    assert board.facts == whole.facts
    assert "12 images in 6 batches" in board.facts["images"], "as they were run, though only stays are kept"
    assert [entry.label for entry in board.entries] == [entry.label for entry in whole.entries]
    assert [entry.mean for entry in board.entries] == [entry.mean for entry in whole.entries]


def test_the_file_says_which_command_gives_its_numbers_again(kept):
    folder, _ = kept
    command = archive.read(file_of(folder, "adapted")).command
    assert command.startswith("ctta reproduce adapted --dataset embedded --model ")
    assert command.endswith("--images 6 --corruptions fog,contrast --only PALM --batch-size 2 --seeds 0,1")


def test_a_reproduction_in_bf16_is_kept_with_the_word_for_it_and_does_not_join_one_in_full(kept, tmp_path):
    name, label = "importance", "convolutions and matrix products in bfloat16"
    _, found = keep(tmp_path, name, "--precision", "bf16", "--preset", "cifar10-c")
    half, full = archive.read(file_of(tmp_path, name)), archive.read(file_of(kept[0], name))
    assert ".batch-2.cifar10-c.bf16.seeds-0-1.jsonl" in file_of(tmp_path, name).name
    assert half.command.endswith("--batch-size 2 --preset cifar10-c --precision bf16 --seeds 0,1")
    assert half.title == found[name]["title"]
    assert label in half.title
    assert label not in full.title
    assert half.runs.keys().isdisjoint(full.runs)
    with pytest.raises(DataError, match="one precision, but got bf16, full"):
        archive.merge([half, full])
    boards = boards_of([*half.runs.values(), *full.runs.values()])
    assert [board.facts.get("precision") for board in boards] == [None, "bf16"]


DAMAGES = (  # each of them ended in another raw error, or was read and failed later
    lambda header, cell: header.pop("command"),
    lambda header, cell: header.update(rows=["a row"]),
    lambda header, cell: header.update(notes=[[]]),
    lambda header, cell: header.update(rows={f"{place} of none": keys for place, keys in header["rows"].items()}),
    lambda header, cell: cell["manifest"].update(seed={}),
    lambda header, cell: cell["manifest"].update(cell="embedded"),
    lambda header, cell: cell["stays"][0].update(bins=[[]]),
    lambda header, cell: cell["stays"][0].update(counts="none"),
    lambda header, cell: cell["stays"][0].update(domain=3),
    lambda header, cell: cell["stays"][0].pop("nll"),
    lambda header, cell: cell.update(domains=[{"clean_error": 1.0}]),
)


def test_a_damaged_file_and_one_of_a_later_format_are_refused(kept, tmp_path):
    text = file_of(kept[0], "adapted").read_text()
    bad = tmp_path / "bad.jsonl"
    for content in (text[: len(text) // 2], "", "{}\n", text.replace('"stays"', '"days"')):
        bad.write_text(content)
        with pytest.raises(DataError, match=r"bad\.jsonl is not a kept reproduction"):
            archive.read(bad)
    for damage in DAMAGES:
        header, cell, *cells = [json.loads(line) for line in text.splitlines()]
        damage(header, cell)
        bad.write_text("\n".join(map(json.dumps, [header, cell, *cells])))
        with pytest.raises(DataError, match=r"bad\.jsonl is not a kept reproduction"):
            archive.read(bad)
    bad.write_text(text.replace('"format": 1', '"format": 9', 1))
    with pytest.raises(DataError, match="format 9, and this version reads 1"):
        archive.read(bad)


def split(file, folder, keep):
    """A copy of an archive with the cells of some rows only, as a run with --only makes it."""
    header, *cells = [json.loads(line) for line in file.read_text().splitlines()]
    header["rows"] = {place: keys for place, keys in header["rows"].items() if keep(place)}
    wanted = {key for keys in header["rows"].values() for key in keys}
    header["command"] += f" --only {'/'.join(header['rows'])}"
    lines = [header, *(cell for cell in cells if cell["key"] in wanted)]
    target = folder / f"{len(list(folder.iterdir()))}.jsonl"
    target.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return archive.read(target)


def test_archives_of_different_rows_join_to_the_whole_table_in_any_order(kept, tmp_path):
    folder, _ = kept
    whole = archive.read(file_of(folder, "forgetting"))
    one = split(file_of(folder, "forgetting"), tmp_path, lambda place: "PALM" in place)
    rest = split(file_of(folder, "forgetting"), tmp_path, lambda place: "PALM" not in place)
    for parts in ([one, rest], [rest, one], [one, rest, one]):
        joined = archive.merge(parts)
        assert [table.rows for table in joined.tables] == [table.rows for table in whole.tables]
        assert joined.notes.count("Mean over the seeds 0, 1.") == 1
        assert joined.command.splitlines() == list(dict.fromkeys(part.command for part in parts))
        assert joined.runs.keys() == whole.runs.keys()


def test_a_row_that_two_archives_have_with_one_seed_counts_once_as_it_was_run_last(kept, tmp_path):
    file = file_of(kept[0], "pseudo-labels")
    header, *cells = [json.loads(line) for line in file.read_text().splitlines()]
    other = {cell["key"]: f"h{cell['key'][1:]}" for cell in cells}  # another version of the code, another key
    header["rows"] = {place: [other[key] for key in keys] for place, keys in header["rows"].items()}
    header["command"] += " --later"
    for cell in cells:
        cell["key"], cell["finished"] = other[cell["key"]], cell["finished"] + 60
    again = tmp_path / "again.jsonl"
    again.write_text("".join(json.dumps(line) + "\n" for line in (header, *cells)))
    first, last = archive.read(file), archive.read(again)
    for parts in ([first, last], [last, first]):
        joined = archive.merge(parts)
        assert joined.keys == last.keys
        assert joined.runs.keys() == last.runs.keys()
        assert joined.command == last.command
        assert joined.notes.count("Mean over the seeds 0, 1.") == 1


def test_a_cell_is_called_by_the_row_of_its_file_whoever_ran_it_first(kept, tmp_path):
    header, *cells = [json.loads(line) for line in file_of(kept[0], "pseudo-labels").read_text().splitlines()]
    lines = (header, *({**cell, "label": "official"} for cell in cells))
    file = tmp_path / "shared.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert {run.label for run in archive.read(file).runs.values()} == {"Pseudo-labels", "PALM"}


def test_archives_of_different_experiments_do_not_join(kept):
    folder, _ = kept
    with pytest.raises(DataError, match="one experiment, but got adapted, cost"):
        archive.merge([archive.read(file_of(folder, name)) for name in ("cost", "adapted")])
