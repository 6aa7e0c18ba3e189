"""Freed memory stays with a process that asked for it; `import ctta` asks for nothing."""

import subprocess
import sys

import pytest

from ctta._cost import allocator

GROW_AND_FREE = """
import sys
from pathlib import Path
import torch
from ctta._cost.allocator import keep_freed_memory

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024

print(keep_freed_memory() if sys.argv[1] == "keep" else None)
before = resident()
blocks = [torch.ones(2**22) for _ in range(16)]  # 256 MB in blocks of 16
del blocks
print(resident() - before)
"""


def kept(how):
    command = [sys.executable, "-c", GROW_AND_FREE, how]
    answer, megabytes = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return answer, int(megabytes)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_a_process_that_asks_keeps_what_it_freed_and_one_that_does_not_gives_it_back():
    assert kept("leave")[1] < 100
    answer, megabytes = kept("keep")
    assert answer in ("True", "False")
    assert (megabytes > 200) == (answer == "True")


def test_without_glibc_nothing_is_asked(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not allocator.keep_freed_memory()


def test_a_c_library_without_the_switch_is_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _name: object())
    assert not allocator.keep_freed_memory()
