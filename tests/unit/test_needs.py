"""Tests whose tools are missing are skipped on a workstation, in one line, and fail in CI."""

import re
from pathlib import Path

import pytest

from tests import tools
from tests.support import needs

ROOT = Path(__file__).parents[2]


def test_skips_for_lack_of_programs_are_one_line_with_the_command_that_installs_them() -> None:
    lacking = ["Skipped: needs haproxy", *["Skipped: needs chromium"] * 90, "needs chromium"]
    assert needs.summarize(lacking) == [
        "92 skipped for lack of chromium (91), haproxy (1); install everything with: make tools"
    ]


def test_other_skips_are_one_line_per_reason() -> None:
    found = needs.summarize(
        ["Skipped: reads /proc", "needs root for mounts", "Skipped: reads /proc"]
    )
    assert found == ["1 skipped: needs root for mounts", "2 skipped: reads /proc"]
    assert needs.summarize([]) == []


def test_a_missing_program_skips_the_test_and_fails_it_in_ci(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(needs, "find", lambda name: None)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs haproxy"):
        needs.program("haproxy")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="nothing is skipped in CI: make tools"):
        needs.program("haproxy")


def test_ci_installs_the_same_tools_and_runs_every_test_once() -> None:
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.findall(r"^(?:export CI=true|make .*)$", steps, re.MULTILINE) == [
        "export CI=true",
        tools.COMMAND,
        "make check",
        "make test",
    ]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "last-failed" not in steps + makefile


def test_no_test_skips_itself_past_the_summary() -> None:
    """A skip of its own would be hidden from CI; conditions of the machine go through `lacks`."""
    allowed = {"tests/support/needs.py", "tests/unit/test_needs.py"}
    found = [
        str(file.relative_to(ROOT))
        for file in sorted((ROOT / "tests").rglob("*.py"))
        if re.search(r"pytest\.(skip|xfail|importorskip)\(", file.read_text(encoding="utf-8"))
    ]
    assert [name for name in found if name not in allowed] == []
