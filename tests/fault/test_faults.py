"""What goes wrong in the world: kills, full disks, flipped bits, bad batches at any place of a stream."""

import random
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ctta
from ctta.checks.networks import NETWORKS
from ctta.checks.promises import bad_batches

NETWORK = NETWORKS["resnet"]
PRELUDE = """
    import torch, ctta, sys
    from ctta.checks.networks import NETWORKS
    torch.set_num_threads(1)
    net = NETWORKS["resnet"]
"""


def start(code, *arguments, **options):
    script = textwrap.dedent(PRELUDE) + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finish(process):
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    return out


@pytest.mark.parametrize("method", [entry.name for entry in ctta.list_methods()])
def test_saved_in_one_process_and_loaded_in_another_the_stream_goes_on_bit_for_bit(method, tmp_path):
    adapter = ctta.adapt(NETWORK.make(), method, seed=11)
    stream = NETWORK.stream((5, 6, 3, 6))
    for x in stream[:2]:
        adapter(x)
    adapter.save(tmp_path / "adapter")
    expected = [adapter(x) for x in stream[2:]]
    finish(
        start(
            """
            adapter = ctta.load(sys.argv[1], net.make())
            torch.save([adapter(x) for x in net.stream((5, 6, 3, 6))[2:]], sys.argv[2])
            """,
            tmp_path / "adapter",
            tmp_path / "logits",
        )
    )
    for a, b in zip(torch.load(tmp_path / "logits", weights_only=True), expected, strict=True):
        assert torch.equal(a, b)


def test_killed_at_any_moment_of_saving_the_file_is_always_whole(tmp_path):
    path = tmp_path / "adapter"
    loop = """
        adapter = ctta.adapt(net.make(), "palm", eta=1e9)
        stream = net.stream((4,) * 3)
        adapter.save(sys.argv[1])
        print("saved", flush=True)
        while True:
            for x in stream:
                adapter(x)
                adapter.save(sys.argv[1])
    """
    draw = random.Random(0)
    for _ in range(3):
        process = start(loop, path)
        assert process.stdout.readline() == "saved\n"
        time.sleep(draw.uniform(0.02, 0.3))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        adapter = ctta.load(path, NETWORK.make())
        assert adapter(NETWORK.stream((4,))[0]).isfinite().all()


def test_a_full_disk_is_reported_and_the_old_file_survives(tmp_path):
    path = tmp_path / "adapter"
    code = """
        import resource, signal, os
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        adapter = ctta.adapt(net.make(), "palm", eta=1e9)
        adapter.save(sys.argv[1])
        before = open(sys.argv[1], "rb").read()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        adapter(net.stream((4,))[0])
        try:
            adapter.save(sys.argv[1])
        except ctta.StateError as error:
            assert "is unchanged" in str(error), error
            assert isinstance(error.__cause__, OSError)
        else:
            raise SystemExit("a full disk went unnoticed")
        assert open(sys.argv[1], "rb").read() == before
        print(os.listdir(os.path.dirname(sys.argv[1])))
    """
    assert finish(start(code, path)).strip() == "['adapter']"
    ctta.load(path, NETWORK.make())


def test_any_flipped_bit_or_missing_end_is_noticed(tmp_path):
    adapter = ctta.adapt(NETWORK.make(), "palm", eta=1e9)
    adapter(NETWORK.stream((4,))[0])
    path = tmp_path / "adapter"
    adapter.save(path)
    data = path.read_bytes()
    draw = random.Random(1)
    for _ in range(150):
        spoiled = bytearray(data)
        spoiled[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(spoiled)
        with pytest.raises(ctta.CttaError):
            ctta.load(path, NETWORK.make())
    for _ in range(30):
        path.write_bytes(data[: draw.randrange(len(data))])
        with pytest.raises(ctta.StateError):
            ctta.load(path, NETWORK.make())
    path.write_bytes(data)
    ctta.load(path, NETWORK.make())


@pytest.mark.parametrize("method", [entry.name for entry in ctta.list_methods()])
@given(places=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 20)), max_size=8))
@settings(max_examples=15)
def test_bad_batches_at_random_places_change_no_bit_of_the_answers_to_good_ones(method, places):
    stream = NETWORK.stream((4, 1, 5, 4))
    clean, disturbed = (ctta.adapt(NETWORK.make(), method, seed=5) for _ in range(2))
    for place, x in enumerate(stream):
        bad = list(bad_batches(x).values())
        for _, kind in (p for p in places if p[0] == place):
            with pytest.raises(ctta.CttaError):
                disturbed(bad[kind % len(bad)])
        assert torch.equal(disturbed(x), clean(x))
        assert disturbed.last == clean.last
