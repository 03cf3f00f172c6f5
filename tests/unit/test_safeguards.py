"""The list of safeguards fits the code, the tests and the documentation."""

import ast
from pathlib import Path

import pytest

from tests.safeguards import ROOT, SAFEGUARDS, Safeguard

PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=lambda s: s.name)
def test_a_safeguard_is_where_it_is_said_to_be(safeguard: Safeguard) -> None:
    """Once, or in both statements that lease."""
    assert (ROOT / safeguard.file).read_text(encoding="utf-8").count(safeguard.code) in {1, 2}


@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=lambda s: s.name)
def test_a_safeguard_has_a_test_and_the_page_names_both(safeguard: Safeguard) -> None:
    file, _, name = safeguard.test.partition("::")
    function = name.partition("[")[0]
    module = ast.parse(Path(ROOT / file).read_text(encoding="utf-8"))
    assert function in {getattr(node, "name", None) for node in module.body}
    assert f"| {safeguard.name} | `{name}` |" in PAGE
