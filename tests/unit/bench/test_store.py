"""The store: who may write what, what survives, and what old and foreign files do."""

import contextlib
import random
import signal
import socket
import sqlite3
import subprocess
import time

import pytest
from tests.bench_kit import a_row, comparable

from ctta.bench import store as store_module
from ctta.bench.export import export
from ctta.bench.owners import LEASE, birth, process
from ctta.bench.results import read_run
from ctta.bench.store import SCHEMA, Store, TakenOverError
from ctta.errors import StoreError
from ctta.report import page

MANIFEST = {"method": "palm", "seed": 0}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "bench.db"


def claim(store, key="k", total=4):
    return store.claim(key, "palm", MANIFEST, total)


def give_to(store, owner, beat=None):
    store.db.execute("UPDATE cells SET owner = ?, beat = coalesce(?, beat)", (owner, beat))


def snapshot(store, batch, key="k"):
    file = store.snapshot_path(key, batch)
    file.write_bytes(b"state")
    return file


def test_rows_come_back_as_they_went_in(path):
    with Store(path) as store:
        claim(store, total=2)
        store.append("k", [a_row(0), a_row(1)], [(1, {"domain": "fog-5", "clean_error": 3.5})])
        store.finish("k")
    with Store(path, read_only=True) as store:
        assert store.batches("k") == [a_row(0), a_row(1)]
        assert store.domains("k") == [{"domain": "fog-5", "clean_error": 3.5}]
        record = store.cell("k")
        assert (record.status, record.done, record.total, record.manifest) == ("done", 2, 2, MANIFEST)
        with pytest.raises(StoreError, match="no cell other"):
            store.cell("other")


def test_a_finished_cell_is_never_given_out_again(path):
    with Store(path) as store:
        claim(store, total=1)
        store.append("k", [a_row(0)])
        store.finish("k")
        assert claim(store) is None


def test_a_cell_without_all_its_rows_cannot_be_finished_and_stays_ours(path):
    with Store(path) as store:
        claim(store)
        store.append("k", [a_row(0)])
        with pytest.raises(StoreError, match="1 of 4 rows"):
            store.finish("k")
        store.append("k", [a_row(1)])
        assert store.cell("k").status == "running"


def test_a_batch_cannot_be_entered_twice(path):
    with Store(path) as store:
        claim(store)
        store.append("k", [a_row(0)])
        with pytest.raises(StoreError):
            store.append("k", [a_row(1), a_row(0)])
        assert [row.batch for row in store.batches("k")] == [0]
        assert store.cell("k").done == 1


def test_the_cell_of_a_living_process_is_not_taken_and_that_of_a_dead_one_is(path):
    process = subprocess.Popen(["sleep", "600"])
    try:
        with Store(path) as store:
            claim(store)
            give_to(store, f"{socket.gethostname()}:{process.pid}:{birth(process.pid)}:x")
            assert claim(store) is None
            process.send_signal(signal.SIGKILL)
            end = time.monotonic() + 30
            while birth(process.pid) and time.monotonic() < end:
                time.sleep(0.01)
            assert claim(store) is not None  # still a zombie here: nobody has waited for it
    finally:
        process.kill()
        process.wait()


def test_a_process_number_used_again_is_not_taken_for_the_runner(path):
    with Store(path) as store:
        claim(store)
        own, _, _ = store.owner.partition(f":{birth(store_module.os.getpid())}:")
        give_to(store, f"{own}:12345:another run")
        assert claim(store) is not None


def test_a_runner_elsewhere_keeps_its_cell_while_it_shows_signs_of_life(path):
    with Store(path) as store:
        claim(store)
        give_to(store, "elsewhere:1:1:x", time.time() - LEASE / 2)
        assert claim(store) is None
        give_to(store, "elsewhere:1:1:x", time.time() - LEASE - 1)
        assert claim(store) is not None


def test_signs_of_life_go_on_during_a_batch_that_takes_long(path, monkeypatch):
    monkeypatch.setattr(store_module, "LEASE", 0.04)
    with Store(path) as store:
        claim(store)
        give_to(store, store.owner, 1.0)
        with store.beating("k"):
            end = time.monotonic() + 60
            while time.monotonic() < end:
                if store.db.execute("SELECT beat FROM cells").fetchone()[0] > 1:
                    break
                time.sleep(0.01)
        assert store.db.execute("SELECT beat FROM cells").fetchone()[0] > 1


def test_a_runner_that_was_taken_over_changes_nothing_more(path):
    with Store(path) as slow, Store(path) as new:
        claim(slow)
        slow.append("k", [a_row(0)])
        give_to(slow, "elsewhere:1:1:x", 0.0)
        assert claim(new) is not None
        new.append("k", [a_row(0, wrong=2)])
        for write in (
            lambda: slow.append("k", [a_row(1)]),
            lambda: slow.finish("k"),
            lambda: slow.fail("k", "no"),
            lambda: slow.release("k"),
            lambda: slow.rewind("k"),
        ):
            with pytest.raises(TakenOverError):
                write()
        assert new.batches("k") == [a_row(0, wrong=2)]
        new.append("k", [a_row(n) for n in (1, 2, 3)])
        new.finish("k")


def test_a_released_or_failed_cell_goes_on_from_its_snapshot(path):
    with Store(path) as store:
        claim(store)
        store.append("k", [a_row(0), a_row(1)], [(1, {})], snapshot=snapshot(store, 2))
        for give_up in (lambda: store.release("k"), lambda: store.fail("k", "SomeError: no")):
            give_up()
            claimed = claim(store)
            assert claimed is not None
            assert (claimed.start, claimed.snapshot) == (2, store.snapshot_path("k", 2))
        assert len(store.batches("k")) == 2
        assert store.cell("k").error is None


def test_rows_after_the_snapshot_and_a_snapshot_that_is_gone_are_not_trusted(path):
    with Store(path) as store:
        claim(store)
        kept = snapshot(store, 1)
        store.append("k", [a_row(0)], snapshot=kept)
        store.append("k", [a_row(1)], [(1, {})])
        store.release("k")
        assert claim(store).start == 1
        assert len(store.batches("k")) == 1
        assert store.domains("k") == []
        kept.unlink()
        store.release("k")
        claimed = claim(store)
        assert (claimed.start, claimed.snapshot) == (0, None)
        assert store.batches("k") == []


def test_who_is_stopped_gives_back_all_it_holds_and_nothing_of_others(path):
    with Store(path) as store, Store(path) as other:
        claim(store)
        claim(store, "second")
        claim(other, "theirs")
        store.give_back()
        assert store.mine() == []
        assert other.mine() == ["theirs"]
        assert other.standings(["k", "second", "theirs", "new"]) == {
            "k": "free",
            "second": "free",
            "theirs": "ours",
            "new": "free",
        }


def test_a_worker_leaves_the_cell_of_a_dead_one_of_its_run_to_the_parent_and_others_take_it(path):
    with Store(path) as parent, Store(path, owner=process(2**22 + 1, parent.owner)) as dead:
        claim(dead)
        sibling = Store(path, owner=process(2**22 + 2, parent.owner))
        with sibling, Store(path) as stranger:
            assert claim(sibling) is None
            assert claim(stranger) is not None


def test_what_failed_in_this_run_is_not_tried_again_in_it(path):
    with Store(path) as store:
        begun = time.time()
        claim(store)
        store.fail("k", "ModelError: no")
        assert store.claim("k", "palm", MANIFEST, 4, since=begun) is None
        assert store.standings(["k"], begun) == {"k": "failed"}
        assert store.claim("k", "palm", MANIFEST, 4, since=time.time() + 1) is not None


def test_only_the_last_snapshot_of_a_cell_is_kept_and_other_cells_keep_theirs(path):
    with Store(path) as store:
        claim(store)
        claim(store, "other")
        store.append("other", [a_row(0)], snapshot=snapshot(store, 1, "other"))
        (store.snapshots / ".k-1.safetensors.abc.tmp").write_bytes(b"half a file that a kill left")
        store.append("k", [a_row(0)], snapshot=snapshot(store, 1))
        store.append("k", [a_row(1)], snapshot=snapshot(store, 2))
        assert sorted(file.name for file in store.snapshots.iterdir()) == [
            "k-2.safetensors",
            "other-1.safetensors",
        ]


def test_the_snapshot_folder_goes_with_the_last_running_cell_and_not_before(path):
    with Store(path) as store:
        claim(store, total=1)
        claim(store, "other", total=1)
        store.append("k", [a_row(0)], snapshot=snapshot(store, 1))
        store.finish("k")
        assert store.snapshots.is_dir()  # the other runner may be about to write into it
        store.append("other", [a_row(0)])
        store.finish("other")
        assert not store.snapshots.exists()


def test_snapshots_left_by_a_runner_that_was_killed_right_after_its_last_cell_go_when_the_store_is_opened(path):
    with Store(path) as store:
        claim(store, total=1)
        store.append("k", [a_row(0)], snapshot=snapshot(store, 1))
        store.finish("k")
        snapshot(store, 1)  # as if the kill had come before it was swept away
        (store.snapshots / ".k-1.safetensors.abc.tmp").write_bytes(b"half a file")
        claim(store, "other")
        store.append("other", [a_row(0)], snapshot=snapshot(store, 1, "other"))
        store.release("other")
    with Store(path) as store:
        assert [file.name for file in store.snapshots.iterdir()] == ["other-1.safetensors"]


def old_store(path):
    db = sqlite3.connect(path)
    db.executescript(SCHEMA[0])
    db.execute("PRAGMA user_version = 1")
    db.execute(
        "INSERT INTO cells (key, label, status, manifest, total, done, started) "
        "VALUES ('k', 'palm', 'done', '{}', 1, 1, 1.0)"
    )
    row = '{"batch": 0, "domain": "fog-5", "samples": 10, "wrong": 1, "counts": {"fog-5": [10, 1]}, '
    row += '"confidence": 0.5, "nll": 1.25, "brier": 0.1, "bins": [], "seconds": 0.01, "gone": 1}'
    db.execute("INSERT INTO batches VALUES ('k', 0, ?)", (row,))
    db.commit()
    db.close()


def test_an_old_schema_is_read_as_it_is_and_brought_up_with_its_rows_when_written(path):
    old_store(path)
    with Store(path, read_only=True) as store:
        assert [row.wrong for row in store.batches("k")] == [1]
        assert store.cell("k").status == "done"
    with Store(path) as store:
        assert [row.wrong for row in store.batches("k")] == [1]
        claim(store, "new")
        store.append("new", [a_row(0)], snapshot=snapshot(store, 1, "new"))
        assert store.db.execute("PRAGMA user_version").fetchone()[0] == len(SCHEMA)


def test_a_store_of_0_1_is_read_with_the_scenario_under_its_name(path):
    with Store(path) as store:
        manifest = {"setting": {"name": "gradual"}, "cell": {"method": "palm", "setting": "gradual"}}
        store.claim("k", "palm", manifest, 1)
        assert store.cell("k").manifest == {
            "scenario": {"name": "gradual"},
            "cell": {"method": "palm", "scenario": "gradual"},
        }


def test_a_newer_schema_is_refused_with_what_to_do(path):
    Store(path).close()
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {len(SCHEMA) + 1}")
    db.close()
    for read_only in (False, True):
        with pytest.raises(StoreError, match="install a newer version"):
            Store(path, read_only=read_only)


def test_foreign_files_and_missing_ones_get_a_clear_error(tmp_path):
    (tmp_path / "notes.txt").write_text("not a database, but quite long enough to be looked at" * 100)
    with pytest.raises(StoreError, match="not a store of ctta"):
        Store(tmp_path / "notes.txt")
    with pytest.raises(StoreError, match="There is no store"):
        Store(tmp_path / "none.db", read_only=True)
    with pytest.raises(StoreError):
        Store(tmp_path)
    with pytest.raises(StoreError):
        Store(tmp_path / "notes.txt" / "bench.db")


CELL = ("status", "manifest", "total", "owner", "beat", "snapshot", "started")
PLACES = (
    *(("cells", column, "1") for column in CELL),
    *3 * (("batches", "row", "batch = 1"), ("domains", "row", "1")),
)
VALUES = (None, 3, -1.5, "", "x", "null", "[]", "[" * 100_000, '{"batch": 0}', b"\xff\xfe{", b"{}")


def change_a_value(path, draw):
    """Give a value of a row another kind, or replace, cut out or insert characters of it."""
    table, column, where = draw.choice(PLACES)
    db = sqlite3.connect(path)
    (old,) = db.execute(f"SELECT {column} FROM {table} WHERE key = 'k' AND {where}").fetchone()
    new = draw.choice(VALUES)
    if isinstance(old, str) and draw.random() < 0.7:
        start = draw.randrange(len(old))
        new = (
            old[:start] + draw.choice(("", "x", "9", '"', "[", "\\ud8", "null")) + old[start + draw.randrange(3) :]
        )
        if draw.random() < 0.2:
            new = sqlite3.Binary(new.encode()[:-1] + b"\xff")
    value = draw.choice(("?", "CAST(? AS TEXT)"))
    with contextlib.suppress(sqlite3.IntegrityError), db:
        db.execute(f"UPDATE {table} SET {column} = {value} WHERE key = 'k' AND {where}", (new,))
    db.close()


def change_bytes(path, draw):
    """Overwrite bytes of the file, often of its header, or cut it off."""
    data = bytearray(path.read_bytes())
    end = draw.choice((100, 4096, len(data)))
    for _ in range(draw.choice((1, 4, 40))):
        data[draw.randrange(end)] = draw.randrange(256)
    path.write_bytes(data[: draw.choice((len(data), len(data), draw.randrange(len(data))))])


def use(path):
    """Read all there is, and go on with a cell."""
    with Store(path, read_only=True) as store:
        for record in store.cells():
            read_run(store, record)
            store.domains(record.key)
    with Store(path) as store:
        found = claim(store)
        if found:
            store.append("k", [a_row(batch) for batch in range(found.start, 3)], snapshot=snapshot(store, 3))
            store.finish("k")


def damaged_stores(folder, count, seed=0):
    """Use so many damaged stores; say how many were refused in words. Anything else is raised."""
    draw = random.Random(seed)
    whole = folder / "whole.db"
    with Store(whole) as store:
        for key in ("k", "other"):
            claim(store, key, total=3)
            measured = {"domain": "fog-5", "clean_error": 3.5, "clean_error_source_statistics": 4.5}
            store.append(key, [a_row(0), a_row(1)], [(1, measured)], snapshot=snapshot(store, 2, key))
            give_to(store, "elsewhere:1:1:x", 1.0)
    refused = 0
    for number in range(count):
        path = folder / f"{number}.db"
        path.write_bytes(whole.read_bytes())
        draw.choice((change_a_value, change_bytes))(path, draw)
        try:
            use(path)
        except StoreError as error:
            refused += str(path) in str(error)
    return refused


def test_a_damaged_store_is_read_or_refused_in_words(tmp_path):
    assert damaged_stores(tmp_path, 120) > 60


@pytest.mark.parametrize("row", [b"\xff", None, "{", "[]", '{"batch": 0}', '{"batch": "0"}'])
def test_a_damaged_row_is_refused_with_the_store_and_what_to_do(path, row):
    with Store(path) as store:
        claim(store)
        store.append("k", [a_row(0)])
        store.db.execute("UPDATE batches SET row = coalesce(?, 7)", (row,))
        with pytest.raises(StoreError, match=r"bench.db: row 0 .*go back to a copy of it, or name another"):
            store.batches("k")


@pytest.mark.parametrize(
    "manifest", ["{}", '{"cell": []}', '{"cell": {}, "seed": "x"}', '{"cell": {}, "seed": 0}']
)
def test_a_damaged_manifest_is_refused_by_whoever_needs_it(path, manifest):
    with Store(path) as store:
        claim(store)
        store.append("k", [a_row(0)])
        store.db.execute("UPDATE cells SET manifest = ?, status = 'done'", (manifest,))
        with pytest.raises(StoreError, match="manifest of cell.*go back to a copy of it, or name another"):
            export(store, path.with_suffix(".csv"))


def test_a_cell_without_rows_is_refused_in_words(path):
    with Store(path) as store:
        claim(store)
        with pytest.raises(StoreError, match="Cell k has no rows"):
            read_run(store, store.cell("k"))


@pytest.mark.parametrize("use", [page.render, lambda store: read_run(store, store.cell("k"))])
@pytest.mark.parametrize("there", [0, 3])
def test_a_finished_cell_that_lost_rows_is_refused_in_words(path, use, there):
    with Store(path) as store:
        manifest = {"cell": {"method": "tent", "data": "d"}, "scenario": {}, "settings": {}, "seed": 0}
        store.claim("k", "tent", manifest, total=4)
        store.append("k", [a_row(batch) for batch in range(4)])
        store.finish("k")
        store.db.execute("DELETE FROM batches WHERE batch >= ?", (there,))
        with pytest.raises(StoreError, match=f"bench.db: cell 'k' is done, but has {there} of its 4 rows.*copy"):
            use(store)


@pytest.mark.parametrize("moment", [float("inf"), 2**62, -1])
def test_a_time_that_no_calendar_has_is_refused_in_words(path, moment):
    with Store(path) as store:
        claim(store)
        store.db.execute("UPDATE cells SET started = ?", (moment,))
        with pytest.raises(StoreError, match="wrong `started`.*damaged"):
            store.cells()


@pytest.mark.parametrize("owner", ["nobody", "a:b:c:d", "host:99999999999999999999:1:x"])
def test_an_owner_that_names_no_runner_is_refused_in_words(path, owner):
    with Store(path) as store:
        claim(store)
        give_to(store, owner)
        with pytest.raises(StoreError, match="names no runner.*damaged"):
            claim(store)


def test_a_sign_of_life_from_the_future_keeps_no_cell(path):
    with Store(path) as store:
        claim(store)
        give_to(store, "elsewhere:1:1:x", time.time() + LEASE / 2)  # clocks differ a little
        assert claim(store) is None
        give_to(store, "elsewhere:1:1:x", time.time() + 10 * 24 * 3600)
        assert claim(store) is not None


def test_a_reader_sees_what_a_writer_has_committed_and_cannot_write(path):
    with Store(path) as store, Store(path, read_only=True) as reader:
        claim(store)
        store.append("k", [a_row(0)])
        assert comparable(reader) == comparable(store)
        with pytest.raises(StoreError, match="reading only"):
            reader.claim("other", "palm", {}, 1)
