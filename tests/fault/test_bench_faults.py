"""A benchmark in the world: kills at random moments, Ctrl-C, full and read-only disks, many writers at once.

CTTA_KILLS=30 kills the runner thirty times instead of six.
"""

import contextlib
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest
from tests.bench_kit import a_row, hearing_ctrl_c, read, tiny, write_model

from ctta.bench.cell import prepare
from ctta.bench.runner import run_task
from ctta.bench.store import Store
from ctta.errors import StoreError

pytestmark = pytest.mark.timeout(600 if "CTTA_KILLS" not in os.environ else 7200)  # machines may be busy

KILLS = int(os.environ.get("CTTA_KILLS", "6"))

# processes are forked from a server that has imported torch once; each runs the real command line
FORKS = multiprocessing.get_context("forkserver")
PRELOADED = "cli.bench cli.reproduce cli.sweep bench.reproduction bench.local bench.ray_engine report.comparison"
FORKS.set_forkserver_preload([f"ctta.{name}" for name in PRELOADED.split()])


def bench(model, store, *more):
    words = f"bench --model {model} --images 30 --batch-size 5 --corruptions contrast,brightness --seeds 0-1"
    words += f" --methods source,palm --threads 1 --clean 10 --snapshots 0 --json --store {store}"
    return [*words.split(), *more]


def reproduce(model, store, *more):
    words = f"reproduce pseudo-labels importance forgetting --dataset embedded --model {model} --images 30 --json"
    words += f" --batch-size 5 --corruptions contrast,brightness --threads 1 --snapshots 0 --store {store}"
    return [*words.split(), *more]


def start(arguments):
    process = FORKS.Process(target=hearing_ctrl_c, args=(arguments,))
    process.start()
    return process


def finish(process):
    process.join(1000)
    return process.exitcode


def until(true, seconds=300):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)


def rows_in(path):
    try:
        with Store(path, read_only=True) as store:
            return sum(record.done for record in store.cells())
    except StoreError:  # not there yet
        return 0


def finished(path):
    """When each finished cell was finished; {} before the store is there."""
    with contextlib.suppress(StoreError), Store(path, read_only=True) as store:
        return {record.key: record.finished for record in store.cells("done")}
    return {}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A model, and what an uninterrupted run of the grid comes to: its rows, and how long it takes."""
    folder = tmp_path_factory.mktemp("whole")
    model, begin = write_model(folder), time.monotonic()
    assert finish(start(bench(model, folder / "whole.db", "--processes", "1"))) == 0
    rows = read(folder / "whole.db")
    assert len(rows) == 4
    return model, rows, time.monotonic() - begin


def test_killed_at_random_moments_and_started_again_the_rows_are_those_of_an_uninterrupted_run(tmp_path, whole):
    model, expected, length = whole
    store = tmp_path / "bench.db"
    draw, kills, before = random.Random(0), 0, {}
    while kills < KILLS:
        process = start(bench(model, store, "--processes", "1"))
        process.join(draw.uniform(0, 0.4 * length))
        if process.exitcode is None:
            process.kill()
            kills += 1
            finish(process)
        else:  # it came to its end first: look at it, and begin anew
            assert process.exitcode == 0
            assert read(store) == expected
            for file in tmp_path.glob("bench.db*"):
                file.unlink()
        now = finished(store)
        assert before.items() <= now.items() or process.exitcode == 0  # no finished cell is run again
        before = now if process.exitcode else {}
    assert finish(start(bench(model, store, "--processes", "1"))) == 0
    assert read(store) == expected
    assert before.items() <= finished(store).items()
    assert not Path(f"{store}.snapshots").exists()


@pytest.mark.slow
def test_ctrl_c_and_a_killed_parent_leave_no_worker_and_no_cell_behind(tmp_path, whole):
    (model, expected, _), store = whole, tmp_path / "bench.db"
    command = bench(model, store, "--processes", "2")

    process = start(command)
    until(lambda: rows_in(store) >= 2)
    os.kill(process.pid, signal.SIGINT)
    assert finish(process) == 130
    assert owners(store) == {None}
    there = rows_in(store)
    assert there > 0

    process = start(command)
    until(lambda: rows_in(store) >= there + 2)
    workers = {owner.split(":")[1] for owner in owners(store) if owner}
    process.kill()
    until(lambda: not any(running(worker) for worker in workers))

    assert finish(start(command)) == 0
    assert read(store) == expected


def owners(path):
    db = sqlite3.connect(path)
    found = {owner for (owner,) in db.execute("SELECT owner FROM cells")}
    db.close()
    return found


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def test_ctrl_c_gives_the_cell_back_and_ends_with_130(tmp_path, whole):
    (model, _, _), store = whole, tmp_path / "bench.db"
    process = start(bench(model, store, "--processes", "1"))
    until(lambda: rows_in(store) >= 1)
    os.kill(process.pid, signal.SIGINT)
    assert finish(process) == 130
    assert owners(store) == {None}


def test_a_killed_reproduction_goes_on_and_ends_in_the_tables_of_an_uninterrupted_one(tmp_path):
    model, whole, store = write_model(tmp_path), tmp_path / "whole.db", tmp_path / "bench.db"
    assert finish(start(reproduce(model, whole, "--processes", "1"))) == 0
    assert len(read(whole)) == 5
    before = {}
    for kill in (signal.SIGKILL, signal.SIGINT, signal.SIGKILL):
        there = rows_in(store)
        process = start(reproduce(model, store, "--processes", "1"))
        until(lambda there=there: rows_in(store) > there)
        os.kill(process.pid, kill)
        assert finish(process) == (130 if kill == signal.SIGINT else -kill)
        assert before.items() <= finished(store).items()  # no finished cell is run again
        before = finished(store)
    assert finish(start(reproduce(model, store, "--processes", "1"))) == 0
    assert before.items() <= finished(store).items()
    assert read(store) == read(whole)
    tables = [{file.name: file.read_text() for file in path.iterdir()} for path in tmp_path.glob("*.tables")]
    assert len(tables) == 2
    assert tables[0] == tables[1]


def test_two_runners_of_one_command_share_the_cells_and_both_end_with_all(tmp_path, whole):
    (model, expected, _), store = whole, tmp_path / "bench.db"
    pair = [start(bench(model, store, "--processes", "1")) for _ in range(2)]
    assert [finish(process) for process in pair] == [0, 0]
    assert read(store) == expected


APPENDS = """
    import os, sys, time
    from ctta.bench.store import Store
    from tests.bench_kit import a_row

    def work(number):
        with Store(sys.argv[1]) as store:  # all eight make the store at the same moment
            assert store.claim(f"cell {number}", "palm", {}, 200)
            for batch in range(200):
                store.append(f"cell {number}", [a_row(batch, wrong=number)])
            store.finish(f"cell {number}")

    children = []
    for number in range(8):
        child = os.fork()
        if child == 0:
            try:
                work(number)
            except BaseException as error:
                print(error, file=sys.stderr)
                os._exit(1)
            os._exit(0)
        children.append(child)
    sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


def test_eight_processes_append_200_rows_each_and_none_is_lost_or_doubled(tmp_path):
    path = tmp_path / "bench.db"
    root = Path(__file__).parents[2]
    script = [sys.executable, "-c", textwrap.dedent(APPENDS), str(path)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=1000, cwd=root, check=False)
    assert done.returncode == 0, done.stderr
    with Store(path, read_only=True) as store:
        assert {record.key: (record.status, record.done) for record in store.cells()} == {
            f"cell {number}": ("done", 200) for number in range(8)
        }
        for number in range(8):
            rows = store.batches(f"cell {number}")
            assert [row.batch for row in rows] == list(range(200))
            assert {row.wrong for row in rows} == {number}


@contextlib.contextmanager
def files_of_at_most(size):
    """No file of this process may grow beyond a size, as on a disk with no room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def append_until_it_fails(store):
    for batch in range(10_000):
        store.append("k", [a_row(batch)])


def test_a_disk_without_room_for_rows_is_a_clear_error_and_the_rows_before_stay(tmp_path):
    path = tmp_path / "bench.db"
    with Store(path) as store:
        store.claim("k", "palm", {}, 10_000)
        with files_of_at_most(400_000), pytest.raises(StoreError, match="rows so far are safe"):
            append_until_it_fails(store)
        with Store(path, read_only=True) as reader:
            written = reader.cell("k").done
            assert written > 10
            assert [row.batch for row in reader.batches("k")] == list(range(written))
        store.append("k", [a_row(written)])  # there is room again
        assert store.cell("k").done == written + 1


def test_a_full_disk_is_called_full(tmp_path):
    with Store(tmp_path / "bench.db") as store:
        store.claim("k", "palm", {}, 10_000)
        store.db.execute("PRAGMA max_page_count = 30")
        with pytest.raises(StoreError, match="The disk is full: make room"):
            append_until_it_fails(store)


def test_a_disk_without_room_for_a_snapshot_stops_the_cell_and_it_goes_on_when_there_is_room(tmp_path):
    cell = tiny(write_model(tmp_path))
    with Store(tmp_path / "whole.db") as whole:
        run_task(prepare(cell), whole)
    with Store(tmp_path / "bench.db") as store:

        def fill(_, row):
            if row.batch == 1:
                resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))

        with (
            files_of_at_most(resource.RLIM_INFINITY),
            pytest.raises(StoreError, match="run the same command again"),
        ):
            run_task(prepare(cell), store, watch=fill, snapshot_seconds=0)
        store.db.execute("UPDATE cells SET owner = NULL")  # the process that had no room has ended
        run_task(prepare(cell), store)
    assert read(tmp_path / "bench.db") == read(tmp_path / "whole.db")


@pytest.fixture
def read_only_folder():
    """A folder with a store of one row that this process may read and not write."""
    folder = Path(tempfile.mkdtemp())  # not tmp_path, which nobody but its owner may enter
    with Store(folder / "bench.db") as store:
        store.claim("k", "palm", {}, 2)
        store.append("k", [a_row(0)])
    (folder / "bench.db").chmod(0o444)
    folder.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)  # rights do not bind root
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_read_only_store_is_a_clear_error_to_write_and_can_still_be_read(read_only_folder):
    path = read_only_folder / "bench.db"
    with pytest.raises(StoreError, match="cannot be written"):
        Store(path)
    with pytest.raises(StoreError):
        Store(read_only_folder / "new.db")
    with Store(path, read_only=True) as store:
        assert store.batches("k") == [a_row(0)]
        assert store.cell("k").status == "running"
