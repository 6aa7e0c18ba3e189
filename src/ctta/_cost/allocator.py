"""Memory that a step frees stays with the process, so that the next step need not ask for it again.

By default glibc hands large freed blocks back to the system and every step then pays for getting its pages anew:
about a tenth of the time of a PALM step on the networks of the benchmark (docs/speed.md).
"""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # names and numbers of glibc's malloc.h
LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc takes no larger one
NEVER = -1


def keep_freed_memory() -> bool:
    """Tell the C library to keep freed memory for this process from now on; returns whether it took the advice.

    For the whole process, so it is the application's to decide: `ctta` on the command line does, `import ctta`
    does not. The process stays as large as its largest step. Only glibc (Linux) has the switch.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)) and bool(mallopt(M_TRIM_THRESHOLD, NEVER))
