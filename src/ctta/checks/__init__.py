"""The public conformance suite: what every method promises, tested on networks of many kinds.

::

    from ctta.checks import check_method
    check_method("tent")                     # a registered name, or your own class
    check_method(MyMethod, lr=0.1)

Each check is a function of a `Case` that fails with an AssertionError; `CHECKS` holds them by name, so that a
test suite can run them one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ctta._core.method import Method
from ctta._core.registry import find
from ctta.checks.cases import Case
from ctta.checks.networks import MODEL_NEEDS, NETWORKS, Network
from ctta.checks.promises import CHECKS, check_refusal
from ctta.errors import ConformanceError

__all__ = ["CHECKS", "MODEL_NEEDS", "NETWORKS", "Case", "Network", "check_method", "run_check"]


def check_method(
    method: str | type[Method[Any]], *, networks: Iterable[str | Network] | None = None, **settings: Any
) -> int:
    """Run every check on every network; return how many ran, or raise with the list of broken promises.

    Networks that do not meet the method's `needs` must be refused with an `UnsupportedModelError`.
    """
    entry, broken, count = find(method), [], 0
    for item in networks or NETWORKS.values():
        case = Case(entry, NETWORKS[item] if isinstance(item, str) else item, settings)
        for name in CHECKS if case.supported else ["refusal"]:
            count += 1
            try:
                run_check(name, case)
            except Exception as error:  # noqa: BLE001 - whatever a method raises is a finding
                broken.append(f"{name} on {case.network.name}: {type(error).__name__}: {error}")
    if broken:
        lines = "\n  ".join(broken)
        raise ConformanceError(f"{entry.name} breaks {len(broken)} of {count} promises:\n  {lines}")
    return count


def run_check(name: str, case: Case) -> None:
    """Run one check; for a network the method does not support, only the refusal can be checked."""
    (CHECKS[name] if case.supported else check_refusal)(case)
