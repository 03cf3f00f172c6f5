"""Finds words of a private dialect in docstrings and comments of gateway/.

`make check` runs it. Code in backticks is not looked at.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]

INSTEAD: Final = {
    r"whoever|nobody|somebody|whom": "the noun: the caller, the sender, no worker",
    r"tell|tells|told|telling": "return, log, notify, send, format or distinguish",
    r"what (?:is|was|came)": "the noun: the result, the rejected request",
}


class Found(NamedTuple):
    """A listed word, and where it is."""

    file: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: found {self.word!r}; write {self.instead}"


def find(source: str, file: str) -> Iterator[Found]:
    """Yield each listed word in the docstrings and comments of a module."""
    for line, text in (*_docstrings(source), *_comments(source)):
        text = re.sub(r"`[^`\n]+`", "", text)  # code that is quoted
        for words, instead in INSTEAD.items():
            for match in re.finditer(rf"\b(?:{words})\b", text, re.IGNORECASE):
                yield Found(file, line + text.count("\n", 0, match.start()), match[0], instead)


def _docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield every string that is a statement, as after a field."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def main() -> int:
    found = [
        one
        for file in sorted((ROOT / "gateway").rglob("*.py"))
        for one in find(file.read_text(encoding="utf-8"), str(file.relative_to(ROOT)))
    ]
    sys.stdout.writelines(f"{one}\n" for one in found)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
