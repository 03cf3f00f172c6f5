"""Refuse SQL of a handler that would end its transaction.

`gateway.settle_done` proves afterwards that the transaction is the one that began with the lease,
but what a handler has committed by then cannot be undone. So the usual case, `COMMIT` in the text
of a statement, is found before it is sent. When in doubt, the text passes.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from gateway.errors import StatementRefused

SUSPECT: Final = re.compile(
    r"\b(?:commit|end|abort|rollback|prepare|deallocate|reset)\b", re.IGNORECASE
)
"""Texts without any of these words need no further look."""

AMBIGUOUS: Final = "\\'"
"""Whether this quote ends its literal depends on the kind of the literal, and on the setting
standard_conforming_strings. Such texts are not looked at."""

TOKEN: Final = re.compile(
    r"""
    --[^\r\n]*
  | '[^']*' | "[^"]*"                                         # '' inside counts as two literals
  | (?<![\w$]) \$(?P<tag>(?:[^\W\d]\w*)?)\$ .*? \$(?P=tag)\$
  | (?P<comment> /\* )
  | (?P<word>    [^\W\d][\w$]* )
  | (?P<end>     ; )
    """,
    re.VERBOSE | re.DOTALL,
)
"""The lexical rules of Postgres, as far as they decide where a statement begins:
https://www.postgresql.org/docs/current/sql-syntax-lexical.html"""

COMMENT_EDGE: Final = re.compile(r"/\*|\*/")

CACHED_CHARS: Final = 2_000
"""Longer texts are generated, and seldom come twice: they would only fill the cache."""

ENDS_TRANSACTION: Final = re.compile(
    r"(?:commit|end|abort|rollback)\b(?!(?: work| transaction)? to\b)|prepare transaction$"
)
BREAKS_SESSION: Final = re.compile(r"(?:deallocate(?: prepare)?|reset) all$")

ENDING: Final = (
    "it would end the transaction that is committed together with the delivery's completion. "
    "Leave the end of the transaction to the gateway; to undo a part of it, use "
    "`async with ctx.db.transaction():`, which is a savepoint"
)
BREAKING: Final = (
    "it would also reset what the gateway and its driver need in this session. "
    "Name a setting or a statement; the gateway resets the others after each delivery"
)


def check_statement(query: str) -> None:
    """Raise StatementRefused if the text must not be sent.

    Statements inside a function or a DO block are not seen. They cannot end a transaction that was
    begun outside: Postgres refuses that.
    """
    if len(query) <= CACHED_CHARS:
        _check_cached(query)
    else:
        _check(query)


def _check(query: str) -> None:
    if SUSPECT.search(query) is None or AMBIGUOUS in query:
        return
    for statement in _statements(query):
        if ENDS_TRANSACTION.match(statement):
            raise StatementRefused(f"{_quoted(statement)} was not sent: {ENDING}")
        if BREAKS_SESSION.match(statement):
            raise StatementRefused(f"{_quoted(statement)} was not sent: {BREAKING}")


_check_cached = lru_cache(maxsize=1024)(_check)


def _quoted(statement: str) -> str:
    return f"`{' '.join(statement.split()[:3]).upper()}`"


def _statements(query: str) -> Iterator[str]:
    """Yield the unquoted words of each statement, in lower case, separated by spaces."""
    words: list[str] = []
    place, open_bodies = 0, 0
    while token := TOKEN.search(query, place):
        place = token.end()
        if token["comment"]:
            place = _end_of_comment(query, place)
        elif token["word"]:
            words.append(token["word"].lower())
            if words[-2:] == ["begin", "atomic"]:  # the body of an SQL function, up to its END
                open_bodies = 1
            elif open_bodies:  # a CASE in the body has an END of its own
                open_bodies += (words[-1] == "case") - (words[-1] == "end")
        elif token["end"] and not open_bodies:
            yield " ".join(words)
            words = []
    yield " ".join(words)


def _end_of_comment(query: str, place: int) -> int:
    """Return where a block comment ends. In Postgres they nest."""
    depth = 1
    while depth and (edge := COMMENT_EDGE.search(query, place)):
        depth += 1 if edge[0] == "/*" else -1
        place = edge.end()
    return len(query) if depth else place
