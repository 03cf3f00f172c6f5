"""`make audit`: what was not looked up is never said to be clean."""

import json

import pytest

from tests.audit import PINNED, judge

CLEAN = {"name": "arq", "version": "0.28.0", "vulns": []}
SKIPPED = {"name": "orjson", "skip_reason": "Dependency not found on PyPI"}
FOUND = {
    "name": "h11",
    "version": "0.14.0",
    "vulns": [{"id": "GHSA-vqfr-h8mv-ghfj", "fix_versions": ["0.16.0"], "aliases": []}],
}


def told(*dependencies: object) -> tuple[str, str]:
    return json.dumps({"dependencies": dependencies, "fixes": []}), "No known vulnerabilities found"


def test_packages_that_were_looked_up_are_clean() -> None:
    assert judge(told(CLEAN, CLEAN)) == ("2 packages without a known vulnerability", False)


def test_what_was_not_looked_up_is_named() -> None:
    words, is_bad = judge(told(CLEAN, SKIPPED))
    assert words == "1 packages without a known vulnerability; could not be looked up: orjson"
    assert not is_bad


@pytest.mark.parametrize("answer", [told(SKIPPED, SKIPPED), told(), ("", "Traceback"), ("{}", "")])
def test_an_audit_of_nothing_is_none(answer: tuple[str, str]) -> None:
    """Which pip-audit ends with "No known vulnerabilities found" and exit code 0."""
    words, is_bad = judge(answer)
    assert words.startswith("not run (")
    assert not is_bad


def test_without_a_network_it_says_so() -> None:
    complaints = "...\nrequests.exceptions.ConnectionError: Failed to resolve 'a.registry.example'"
    assert judge(("", complaints)) == ("not run (no network)", False)


def test_a_vulnerability_is_bad() -> None:
    words, is_bad = judge(told(CLEAN, FOUND, SKIPPED))
    assert is_bad
    assert "h11 0.14.0: GHSA-vqfr-h8mv-ghfj (fixed in 0.16.0)" in words


def test_what_is_audited_is_what_is_installed() -> None:
    assert "cryptography==" in PINNED.read_text(encoding="utf-8")
