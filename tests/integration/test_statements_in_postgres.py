"""Compare which texts the gateway refuses with what a real Postgres does with them."""

import random
from collections.abc import AsyncIterator
from typing import NamedTuple

import asyncpg
import pytest

from gateway.base.errors import StatementRefused
from gateway.ledger.connection import Connection
from gateway.worker.statements import check_statement

TEXTS = 1_500
"""Random texts for each value of standard_conforming_strings."""

LOCK = 18
SETUP = """
create schema "begin";
create domain "begin".atomic as int;
create domain atomic as int;
create table t ("end" int, "begin" int, commit int);
"""

ENDINGS = [
    "commit",
    "END",
    "abort",
    "rollback",
    "commit work",
    "commit and chain",
    "Rollback and chain",
]
OTHERS = [
    "savepoint s1",
    "rollback to s",
    "ROLLBACK WORK TO SAVEPOINT s",
    "begin",
    "do $$ begin perform 1; end $$",
    "do 'begin perform 1; end'",
    "prepare transaction_ as select 1",
    "set local work_mem = '1MB'",
    "create or replace rule r as on delete to t do also (notify a; notify b)",
    "select begin atomic from t",
    "select begin, atomic from (select 1 as begin, 2 as atomic) as x",
    "create or replace function f(begin atomic) returns int language sql as 'select 1'",
    "create or replace function g() returns begin.atomic language sql as 'select 1'",
    "create or replace function h() returns int language sql"
    " set search_path = begin, atomic as 'select 1'",
    "create or replace function i(begin int, atomic int) returns int return begin + atomic",
    "create or replace function j() returns int begin atomic select 1; end",
    "create or replace function k() returns int begin atomic select 1 as end; select 1 end; end",
    "create or replace function l() returns setof int begin atomic select t.end from t; end",
    'create or replace function m() returns int begin atomic; select 1 as "end"; end',
    "create or replace function n() returns int begin atomic"
    " select case when true then case 1 when 1 then 2 end end; select 2; end",
    "create or replace procedure p() begin atomic insert into t values (1); delete from t; END",
]
VALUES = [
    "1",
    "1.5e3",
    "'a; commit'",
    "'it''s; commit; '",
    "'\\'",
    "'\\'';commit;'",
    "'\\\\'",
    "'\\''",
    "E'\\\\'",
    "e'it\\'s; commit; '",
    "e'it''s\\\\'''",
    "E'a' -- '\n  'b\\'; commit; '",
    "E'a' /* no continuation */ ",
    "'a'\n'b\\\\'",
    "U&'\\0041; commit; '",
    "u&'!0041; commit' uescape '!'",
    "n'a; commit; '",
    "x'1f'",
    "B'01'",
    "$$; commit; $$",
    "$$$$",
    "$$'$$",
    "$a$ $$; commit; $$ $b$; commit; $a$",
    "$a1_$; commit; $a1_$",
    "$é😀$; commit; $é😀$",
    "case when true then 1 end",
    "case when true then case 1 when 2 then 3 end end",
    "(select 1)",
    "array[1, 2]",
    "2*/* ; commit; */3",
    "2 +-- ; commit;\n3",
]
NAMES = [
    "",
    " as end",
    " end",
    " as commit",
    " as a$b$",
    " as a$$",
    " as é$a$",
    ' as "a; commit; "',
    ' as "a""; commit; "',
    ' as "\'"',
    ' as u&"a; commit; "',
    " as rollbac\u212a",
    " as \u00a0end",
]
SPACES = [
    " ",
    "\n",
    "\t",
    " -- ; commit '\n",
    "/* ; commit; ' */",
    " /* /* */ ; commit; */ ",
    "/**/",
]
SOUP = [
    *"'\"\\$;()eEu&xb1 \n-/*a",
    *["''", "\\'", "$$", "$a$", "a$", "--", "/*", "*/", "E'", "U&'", "$1"],
    *["; commit;", "; end;", "commit", "end", "select 1", "begin atomic", "case", " as ", "; "],
]


class Outcome(NamedTuple):
    has_ended: bool
    """Whether the text ended the transaction that was open before."""
    has_failed: bool


class Session:
    """A session that finds out what becomes of its transaction."""

    def __init__(self, connection: Connection, watcher: Connection) -> None:
        self._connection = connection
        self._watcher = watcher

    async def set_standard_strings(self, value: bool) -> None:
        await self._connection.execute(
            f"set standard_conforming_strings = {'on' if value else 'off'}"
        )

    async def run(self, text: str) -> Outcome:
        """Run a text in a new transaction, and undo it."""
        # An error aborts only the savepoint: the lock is gone if and only if a statement ended the
        # transaction, also if the text began another one.
        await self._connection.execute(f"begin; select pg_advisory_xact_lock({LOCK}); savepoint s")
        has_failed = False
        try:
            await self._connection.execute(text, timeout=30)
        except asyncpg.PostgresError:
            has_failed = True
        query = "select count(*) from pg_locks where locktype = 'advisory' and objid = $1"
        has_ended = await self._watcher.fetchval(query, LOCK) == 0
        await self._connection.execute("rollback")
        return Outcome(has_ended, has_failed)


@pytest.fixture
async def session(empty_database_url: str) -> AsyncIterator[Session]:
    connection = await asyncpg.connect(empty_database_url)
    watcher = await asyncpg.connect(empty_database_url)
    await connection.execute(SETUP)
    yield Session(connection, watcher)
    await connection.close()
    await watcher.close()


def is_refused(text: str, *, standard_strings: bool) -> bool:
    try:
        check_statement(text, standard_strings=standard_strings)
    except StatementRefused:
        return True
    return False


def make_statement(rng: random.Random) -> str:
    if rng.random() < 0.15:
        return rng.choice(ENDINGS)
    if rng.random() < 0.3:
        return rng.choice(OTHERS)
    columns = [rng.choice(VALUES) + rng.choice(NAMES) for _ in range(rng.randint(1, 3))]
    return f"select{rng.choice(SPACES)}" + ",".join(rng.choice(SPACES) + one for one in columns)


def make_text(rng: random.Random) -> str:
    statements = [make_statement(rng) for _ in range(rng.randint(1, 4))]
    text = ";".join(rng.choice(SPACES) + one + rng.choice(SPACES) for one in statements)
    if rng.random() < 0.5:
        return text
    # Splice a few fragments in: most such texts are syntax errors, the others are surprises.
    for _ in range(rng.randint(1, 3)):
        place = rng.randint(0, len(text))
        text = text[:place] + rng.choice(SOUP) + text[place + rng.randint(0, 2) :]
    return f"select 0;{text}"  # asyncpg fails if a text consists of comments


@pytest.mark.parametrize("standard_strings", [True, False])
async def test_a_text_is_refused_if_and_only_if_postgres_would_end_the_transaction(
    session: Session, standard_strings: bool
) -> None:
    rng = random.Random(18)  # noqa: S311 (reproducible)
    await session.set_standard_strings(standard_strings)
    ended = ran = 0
    for text in (make_text(rng) for _ in range(TEXTS)):
        outcome = await session.run(text)
        refused = is_refused(text, standard_strings=standard_strings)
        if outcome.has_ended:
            assert refused, f"Postgres ended the transaction in {text!r}"
        elif not outcome.has_failed:
            assert not refused, f"Postgres ran {text!r} and did not end the transaction"
        ended += outcome.has_ended
        ran += not outcome.has_failed
    assert min(ended, ran) > TEXTS / 10, "the texts prove something"


@pytest.mark.parametrize("statement", [*OTHERS, *(f"select {value}" for value in VALUES)])
async def test_the_statements_of_the_texts_run(session: Session, statement: str) -> None:
    """With one value of standard_conforming_strings at least."""
    outcomes = []
    for standard_strings in (True, False):
        await session.set_standard_strings(standard_strings)
        outcomes.append(await session.run(statement))
    assert Outcome(has_ended=False, has_failed=False) in outcomes
