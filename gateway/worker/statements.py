"""SQL texts: the check of the statements of handlers, and the statement of `ctx.upsert`."""

import math
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import orjson

from gateway.base.errors import StatementRefused
from gateway.base.times import to_utc

SUSPECT: Final = re.compile(
    r"\b(?:commit|end|abort|rollback|prepare|deallocate|reset|copy)\b", re.IGNORECASE
)
"""Texts without any of these words need no further look."""

SPACE: Final = r"[ \t\r\n\f\v]"

NAME_START: Final = r"[a-zA-Z_\x80-\U0010ffff]"

NAME_PART: Final = r"[a-zA-Z_0-9\x80-\U0010ffff]"
"""Any character outside ASCII belongs to a name, even a no-break space."""

STANDARD: Final = r"'[^']*(?:'|\Z)"
"""A string constant without escapes. With a doubled quote inside it is read as two constants."""

ESCAPED: Final = r"'(?:[^'\\]|\\.?|'')*+(?:'|\Z)"
"""A string constant in which a backslash escapes the character behind it."""

CONTINUED: Final = rf"""
    (?: (?> (?:[ \t\f\v]|--[^\r\n]*)* ) [\r\n] (?> (?:{SPACE}|--[^\r\n]*[\r\n])* ) {ESCAPED} )*
"""
"""Constants with a newline between them are one: the prefix of the first counts for all."""


def _tokens(plain: str) -> re.Pattern[str]:
    """Return the pattern of a token, given the pattern of a string constant without a prefix."""
    return re.compile(
        rf"""
        --[^\r\n]*
      | (?P<comment> /\* )
      | (?P<quoted>  [eE]{ESCAPED}{CONTINUED} | (?:[bBxX]|[uU]&){STANDARD} | {plain}
                   | (?:[uU]&)?"[^"]*(?:"|\Z)
                   | \$(?P<tag>(?:{NAME_START}{NAME_PART}*)?)\$ .*? (?:\$(?P=tag)\$|\Z) )
      | (?P<word>    {NAME_START}(?:{NAME_PART}|\$)* )
      | (?P<mark>    \$?[0-9]+ | [;()/$-] | [^\s;()/$'"a-zA-Z_0-9\x80-\U0010ffff-]+ )
        """,
        re.VERBOSE | re.DOTALL,
    )


TOKEN: Final = {True: _tokens(STANDARD), False: _tokens(ESCAPED)}
"""Token patterns by the setting standard_conforming_strings. The lexical rules of Postgres are in
https://www.postgresql.org/docs/current/sql-syntax-lexical.html and src/backend/parser/scan.l."""

COMMENT_EDGE: Final = re.compile(r"/\*|\*/")

FUNCTION: Final = re.compile(r"create (?:or replace )?(?:function|procedure) ")

QUOTED: Final = "'"
"""Stands for a string constant or a quoted name among the tokens of a statement."""

CACHED_CHARS: Final = 2_000
"""Longer texts are generated, and seldom come twice: they would only fill the cache."""

ENDS_TRANSACTION: Final = re.compile(
    r"(?:commit|end|abort|rollback)\b(?!(?: work| transaction)? to\b)|prepare transaction '"
)

BREAKS_SESSION: Final = re.compile(r"(?:deallocate(?: prepare)?|reset) all$")

WANTS_DATA: Final = re.compile(r"copy .*\b(?:from stdin|to stdout)\b")

ENDING: Final = (
    "it would end the transaction that is committed together with the delivery's completion. "
    "Leave the end of the transaction to the gateway; to undo a part of it, use "
    "`async with ctx.db.transaction():`, which is a savepoint"
)

BREAKING: Final = (
    "it would also reset what the gateway and its driver need in this session. "
    "Name a setting or a statement; the gateway resets the others after each delivery"
)

COPYING: Final = (
    "ctx.db carries no data of a COPY, so that the call would wait for it for ever. "
    "Use `ctx.db.executemany`, or INSERT ... SELECT from unnest($1::text[])"
)


def check_statement(query: str, *, standard_strings: bool = True) -> None:
    """Raise StatementRefused if the text must not be sent.

    `standard_strings` is the setting standard_conforming_strings of the session. If it is off, a
    backslash in a string constant without a prefix is an escape.

    Statements inside a function or a DO block are not seen. They cannot end a transaction that was
    begun outside: Postgres refuses that.
    """
    if len(query) <= CACHED_CHARS:
        _check_cached(query, standard_strings)
    else:
        _check(query, standard_strings)


def _check(query: str, standard_strings: bool) -> None:
    if SUSPECT.search(query) is None:
        return
    for statement in _statements(query, TOKEN[standard_strings]):
        if ENDS_TRANSACTION.match(statement):
            raise StatementRefused(f"{_shown(statement)} was not sent: {ENDING}")
        if BREAKS_SESSION.match(statement):
            raise StatementRefused(f"{_shown(statement)} was not sent: {BREAKING}")
        if WANTS_DATA.match(statement):
            raise StatementRefused(f"{_shown(statement)} was not sent: {COPYING}")


_check_cached = lru_cache(maxsize=1024)(_check)


def _shown(statement: str) -> str:
    words = [token for token in statement.split() if token.isalpha()]
    return f"`{' '.join(words[:3]).upper()}`"


def _statements(query: str, pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the tokens of each statement, in lower case, separated by spaces.

    The body of an SQL function (BEGIN ATOMIC ... END) is left out. Its statements end with a
    semicolon, so that its own END is the one right behind a semicolon, or right behind ATOMIC. Any
    other END in it belongs to a CASE, or is the name of a column.
    """
    tokens: list[str] = []
    place, depth, in_body = 0, 0, False
    while found := pattern.search(query, place):
        place = found.end()
        if found["comment"]:
            place = _end_of_comment(query, place)
        elif found["mark"] == ";":
            if not in_body:
                yield " ".join(tokens)
            tokens = []
        elif found["quoted"]:
            tokens.append(QUOTED)
        elif found["mark"]:
            depth += (found["mark"] == "(") - (found["mark"] == ")")
            tokens.append(found["mark"])
        elif word := found["word"]:
            # A keyword in another case differs by ASCII letters only: the Kelvin sign is no k.
            tokens.append(word.lower() if word.isascii() else word)
            if in_body and tokens == ["end"]:
                in_body, tokens = False, []
            elif not (in_body or depth) and tokens[-2:] == ["begin", "atomic"]:
                in_body = FUNCTION.match(" ".join(tokens)) is not None
                tokens = [] if in_body else tokens
    yield " ".join(tokens)


def _end_of_comment(query: str, place: int) -> int:
    """Return where a block comment ends. In Postgres they nest."""
    depth = 1
    while depth and (edge := COMMENT_EDGE.search(query, place)):
        depth += 1 if edge[0] == "/*" else -1
        place = edge.end()
    return len(query) if depth else place


LONGEST_S: Final = 366 * 24 * 3600.0
"""Claims later than a year after the event's time all get the last fraction of its second."""


class Unversioned:
    """Marker for an omitted version, as opposed to a version that is None."""


UNVERSIONED: Final = Unversioned()


@lru_cache(maxsize=512)
def upsert_statement(
    table: str, key: tuple[str, ...], values: tuple[str, ...], versioned: bool
) -> str:
    """Return the SQL for a row with these columns."""
    columns = [*key, *values, *(["version"] if versioned else [])]
    names = ", ".join(map(quote, columns))
    places = ", ".join(f"${n}" for n in range(1, len(columns) + 1))
    changes = ", ".join(f"{quote(c)} = excluded.{quote(c)}" for c in columns[len(key) :])
    guard = " where t.version is null or t.version <= excluded.version" if versioned else ""
    action = f"update set {changes}{guard}" if changes else "nothing"
    return (
        f"insert into {quote_table(table)} as t ({names}) values ({places}) "  # noqa: S608
        f"on conflict ({', '.join(map(quote, key))}) do {action} returning true"
    )


def quote_table(name: str) -> str:
    """Quote a table name, with or without a schema: `orders` or `shop.orders`."""
    return ".".join(map(quote, name.split(".")))


def quote(name: str) -> str:
    """Quote an identifier. Raises ValueError if it cannot be one."""
    if not name or "\0" in name:
        raise ValueError(f"not a name of a table or column: {name!r}")
    return '"' + name.replace('"', '""') + '"'


def arguments(
    key: Mapping[str, Any], values: Mapping[str, Any], version: Any, received_at: datetime
) -> list[Any]:
    """Return the values in the order of the columns, with a dict as JSON."""
    row = [*key.values(), *values.values()]
    if not isinstance(version, Unversioned):
        row.append(ordered_version(version, received_at))
    return [orjson.dumps(v).decode() if isinstance(v, dict) else v for v in row]


def ordered_version(version: Any, received_at: datetime) -> Any:
    """Return the version. A time in whole seconds gets a fraction that orders it by claim time.

    Providers stamp events in steps of a second, so two changes of one object can tie. Of those,
    the one that was claimed later wins, whichever runs first. The fraction grows with the time
    from the event to the claim, finely at first: it distinguishes claims 0.1 ms apart in the first
    second, and a minute apart after a month.
    """
    if not isinstance(version, datetime):
        return version
    if version.tzinfo is None:
        raise ValueError(f"version={version!r} has no time zone: pass an aware datetime")
    try:
        version = to_utc(version)
    except ValueError as error:
        raise ValueError(f"version={version!r} is {error}") from None
    if version.microsecond:
        return version
    late_s = min(max((received_at - version).total_seconds(), 0.0), LONGEST_S)
    share = math.log1p(late_s * 1000) / math.log1p(LONGEST_S * 1000)
    return version + timedelta(microseconds=int(share * 999_999))
