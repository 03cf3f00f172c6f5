"""The transaction of one delivery: the handler's statements and the completion in one commit.

Handlers use it as `ctx.db` (`Database` in worker/context.py), which has only the public methods.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final

import asyncpg

from gateway.base.errors import StatementRefused, StorageUnavailable, TransactionEnded
from gateway.base.model import Lease
from gateway.ledger.connection import LOST, QUERIES, TROUBLE, Connection
from gateway.ledger.deliveries import ENDED_EARLY, settle_done
from gateway.ledger.sessions import OWN_ROLE, Session, Sessions

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


CLOSED: Final = "ctx.db is closed: this delivery has been settled"


class DeliveryTransaction:
    """The delivery's transaction. It commits with the delivery's completion, or not at all.

    It is opened at first use, and closed when the delivery is settled. It runs one statement at a
    time: concurrent calls wait for each other.
    """

    def __init__(self, sessions: Sessions, timeout: timedelta) -> None:
        self._sessions = sessions
        self._timeout = timeout
        self._turn = asyncio.Lock()
        self._session: Session | None = None
        self._savepoints = 0
        self._closed = False
        self._lost = False

    async def execute(self, query: str, *args: Any) -> str:
        async with self._turn:
            return await (await self._open_foreign(query)).execute(query, *args)

    async def executemany(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        async with self._turn:
            await (await self._open_foreign(query)).executemany(query, rows)

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]:
        async with self._turn:
            return await (await self._open_foreign(query)).fetch(query, *args)

    async def fetchrow(self, query: str, *args: Any) -> asyncpg.Record | None:
        async with self._turn:
            return await (await self._open_foreign(query)).fetchrow(query, *args)

    async def fetchval(self, query: str, *args: Any, column: int = 0) -> Any:
        async with self._turn:
            connection = await self._open_foreign(query)
            return await connection.fetchval(query, *args, column=column)

    async def run_own(self, query: str, *args: Any) -> asyncpg.Record | None:
        """Run a statement of the gateway itself, which does not change the state of the session."""
        async with self._turn:
            return await (await self._open()).fetchrow(query, *args)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Roll back the statements inside if they fail, and keep the rest of the transaction."""
        self._savepoints += 1
        name = f"gateway_{self._savepoints}"
        await self.execute(f"savepoint {name}")
        try:
            yield
        except BaseException:
            with suppress(*TROUBLE, RuntimeError):  # the first error is the one to raise
                await self.execute(f"rollback to savepoint {name}; release savepoint {name}")
            raise
        await self.execute(f"release savepoint {name}")

    @property
    def used(self) -> bool:
        """Whether the handler has begun a transaction."""
        return self._session is not None

    @property
    def lost(self) -> bool:
        """Whether the connection to the server was lost during the run."""
        return self._lost or (self._session is not None and self._session.connection.is_closed())

    @property
    def may_have_broken_it(self) -> bool:
        """Whether the run itself may be why its connection was lost.

        Not if it never had one, and not if the server said that the process of another one crashed.
        """
        return self._session is not None and not self._session.is_bystander

    async def complete(self, lease: Lease, *, chain: bool) -> None:
        """Settle the delivery as done in the handler's transaction, and commit both.

        With `chain`, the connection is left ready for the next delivery.
        """
        async with self._turn:
            self._closed = True
            session = self._session
            if session is None:
                raise RuntimeError("the handler has begun no transaction")
            self._check_not_ended(session)
            await settle_done(session, lease, chain=chain)
            self._session = None
            self._sessions.give_back(session)

    async def check_transaction(self) -> None:
        """Raise TransactionEnded if the handler ended the transaction that was begun for it."""
        session = self._session
        if session is not None and session.is_foreign and not await session.is_proven():
            raise TransactionEnded(ENDED_EARLY)

    async def take_own_role(self) -> None:
        """Reset a role that the handler may have set, before statements of the gateway itself.

        Raises TransactionEnded if these would be committed on their own, without the completion.
        """
        if self._session is not None and self._session.is_foreign:
            self._check_not_ended(self._session)
            await self._session.connection.execute(OWN_ROLE)

    def _check_not_ended(self, session: Session) -> None:
        """Raise TransactionEnded if no transaction is open. Costs no round trip."""
        if not self.lost and not session.connection.is_in_transaction():
            raise TransactionEnded(ENDED_EARLY)

    async def mark_effects(self, delivery_id: int) -> None:
        """Mark the effects that the delivery completes without. They are committed with it."""
        await self.take_own_role()
        async with self._turn:
            await (await self._open()).execute(QUERIES["mark_own_effects"], delivery_id)

    async def is_read_only(self) -> bool:
        """Return whether the server itself refuses writes, not only the handler's transaction."""
        return self._session is None or await self._session.is_read_only()

    async def close(self) -> None:
        """Roll back uncommitted changes, and return the connection to the pool."""
        self._closed = True
        self._lost = self.lost
        session, self._session = self._session, None
        if session is None:
            return
        try:
            await session.roll_back()
        except BaseException as error:
            self._sessions.drop(session)
            if not isinstance(error, TROUBLE):
                raise
        else:
            self._sessions.give_back(session)

    def abandon(self) -> None:
        """Close the connection, so that a handler that cannot be stopped can no longer write."""
        self._closed = True
        if self._session is not None:
            self._sessions.drop(self._session)

    def give_up(self) -> None:
        """Close all connections to a server that no longer accepts writes."""
        self.abandon()
        self._sessions.drop_idle()

    async def _open_foreign(self, query: str) -> Connection:
        """Open the transaction for a statement of the handler, which may change the session.

        Raises StatementRefused if the statement must not be sent.
        """
        connection = await self._open()
        # Postgres reports each change of this setting to its client.
        strings = getattr(connection.get_settings(), "standard_conforming_strings", "on")
        check_statement(query, standard_strings=strings == "on")
        if self._session is not None:
            self._session.is_foreign = True
        return connection

    async def _open(self) -> Connection:
        if self._closed:
            raise RuntimeError(CLOSED)
        if self._session is None:
            try:
                self._session = await self._begin()
            except (StorageUnavailable, *LOST):
                self._lost = True
                self._sessions.drop_idle()
                raise
            if self._closed:  # settled while the transaction was being opened
                await self.close()
                raise RuntimeError(CLOSED)
        return self._session.connection

    async def _begin(self) -> Session:
        session = await self._sessions.take()
        try:
            await session.begin(self._timeout)
        except BaseException:
            self._sessions.drop(session)
            raise
        return session
