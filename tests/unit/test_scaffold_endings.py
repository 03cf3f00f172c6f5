"""`gateway new handler` adds to a module of the user, and leaves every other byte as it was."""

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.dev.modules import add_function

IMPORTS = {"datetime": ["UTC", "datetime"], "gateway": ["Context", "Event", "handler"]}
FUNCTION = "def added() -> None:\n    ...\n"
ODD = "ODD = 'a\x0cb\x85c\u2028d\x1ce'  # stays\n"


def added(source: str, imports: dict[str, Sequence[str]] | None = None) -> str:
    return add_function(
        Path("handlers/x.py"), source, FUNCTION, IMPORTS if imports is None else imports
    )


def is_all_there(before: str, after: str) -> bool:
    rest = iter(after)
    return all(character in rest for character in before)


MODULES = {
    "insert": f"import re\n{ODD}",
    "insert first": f"import zlib\n\nimport zoneinfo\n{ODD}",
    "before own": f"from handlers.y import z\n{ODD}",
    "docstring": f'"""Ours."""\n{ODD}',
    "no imports": ODD,
    "odd above": f'"""a\x0cb\x85c\n\u2028d"""\n\x0c\nimport re\n{ODD}',
    "extend": f"{ODD}from gateway import Context\n{ODD}",
    "extend after another": f"import re; from gateway import Context; x = 1\n{ODD}",
    "nothing to import": f"from datetime import UTC, datetime\n"
    f"from gateway import Context, Event, handler\n{ODD}",
    "blank lines at the end": f"import re\n{ODD}\n\n\n\n\n",
    "spaces at the end": f"import re\n{ODD}    \n\x0c\n",
    "form feed at the end": f"import re\n{ODD}\x0c",
    "no final newline": f"import re\n{ODD}".rstrip("\n"),
}


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("module", MODULES)
def test_every_byte_of_the_module_is_there_afterwards(module: str, ending: str) -> None:
    before = MODULES[module].replace("\n", ending)
    after = added(before)
    assert is_all_there(before, after)
    assert after.endswith(ending + FUNCTION.replace("\n", ending))
    # The endings are all of one kind, and the module means what it meant.
    assert set(after.replace(ending, "")).isdisjoint("\r\n")
    kept = [ast.dump(node) for node in ast.parse(before).body if "ODD" in ast.dump(node)]
    assert [ast.dump(node) for node in ast.parse(after).body if "ODD" in ast.dump(node)] == kept


def test_the_module_is_written_with_its_own_ending_between_the_lines() -> None:
    before = '"""Ours."""\r\n\r\nimport re\r\n\r\nX = "\x0c\x85"\r\n'
    assert added(before, {"gateway": ["handler"]}) == (
        '"""Ours."""\r\n\r\nimport re\r\n\r\nfrom gateway import handler\r\n\r\nX = "\x0c\x85"\r\n'
        "\r\n\r\ndef added() -> None:\r\n    ...\r\n"
    )


def test_a_line_with_another_ending_keeps_it() -> None:
    before = "import re\r\nX = 1\nY = 2\r\n"
    after = added(before, {"gateway": ["handler"]})
    assert after.startswith(
        "import re\r\n\r\nfrom gateway import handler\r\nX = 1\nY = 2\r\n\r\n\r\ndef"
    )


def test_a_module_of_one_line_without_an_ending_gets_plain_ones() -> None:
    assert added("import re", {"gateway": ["handler"]}) == (
        f"import re\n\nfrom gateway import handler\n\n\n{FUNCTION}"
    )
