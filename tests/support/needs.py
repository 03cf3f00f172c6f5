"""Skips a test that needs something which this machine lacks. In CI it fails instead."""

import os
from collections import Counter
from collections.abc import Iterable
from typing import Final, NoReturn

import pytest

from tests.tools import APT, COMMAND, NPM, find

NEEDS: Final = "needs "
"""How the reason of every such skip begins."""


def program(name: str) -> str:
    """Return the path of a program of the suite, or skip the test."""
    assert name in APT or name in NPM, f"{name} is not in tests/tools.py"
    found = find(name)
    if found is None:
        lacks(name)
    return found


def lacks(what: str) -> NoReturn:
    """Skip the test for want of `what`; fail in CI, which skips nothing."""
    if os.environ.get("CI"):
        pytest.fail(f"{NEEDS}{what}, and nothing is skipped in CI: {COMMAND}", pytrace=False)
    pytest.skip(f"{NEEDS}{what}")


def unless(available: bool, what: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test on a machine without `what`; in CI it runs, and fails."""
    skips = not available and not os.environ.get("CI")
    return pytest.mark.skipif(skips, reason=f"{NEEDS}{what}")


def summarize(reasons: Iterable[str]) -> list[str]:
    """Return the lines for the end of a run: one per reason, and one for all missing programs."""
    counted = Counter(reason.removeprefix("Skipped: ") for reason in reasons)
    tools = {name: n for name in sorted(APT | NPM) if (n := counted.pop(f"{NEEDS}{name}", 0))}
    lines = [f"{n} skipped: {reason}" for reason, n in sorted(counted.items())]
    if tools:
        listed = ", ".join(f"{name} ({n})" for name, n in tools.items())
        total = sum(tools.values())
        lines.append(f"{total} skipped for lack of {listed}; install everything with: {COMMAND}")
    return lines
