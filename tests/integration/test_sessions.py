"""Connections for handlers: nothing of one delivery is left for the next."""

import time
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from gateway.ledger.sessions import AHEAD_S, Session, Sessions
from tests.support.ledger import Reader
from tests.support.waiting import until

LIMIT = timedelta(minutes=5)
"""Longer than a test waits: or the server ends what the session should have ended."""


@pytest.fixture
async def sessions(database_url: str) -> AsyncIterator[Sessions]:
    sessions = Sessions(database_url, name="sessions under test")
    yield sessions
    await sessions.close()


async def chained(sessions: Sessions) -> Session:
    session = await sessions.take()
    await session.begin(LIMIT)
    await session.commit("select 1", chain=True)
    sessions.give_back(session)
    return session


async def in_transaction(ledger: Reader) -> int:
    count: int = await ledger.value(
        "select count(*) from pg_stat_activity"
        " where application_name = 'sessions under test' and state like 'idle in transaction%'"
    )
    return count


async def test_a_session_is_used_again(sessions: Sessions) -> None:
    first = await sessions.take()
    sessions.give_back(first)
    assert await sessions.take() is first


async def test_one_that_the_server_closed_is_not_given_out(
    sessions: Sessions, ledger: Reader
) -> None:
    first = await sessions.take()
    sessions.give_back(first)
    await ledger.run(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where application_name = 'sessions under test'"
    )

    async def is_closed() -> bool:
        return first.connection.is_closed()

    await until(is_closed)
    second = await sessions.take()
    assert second is not first
    assert await second.connection.fetchval("select 1") == 1


async def test_a_transaction_begun_ahead_is_taken_without_asking_the_server(
    sessions: Sessions, ledger: Reader
) -> None:
    session = await chained(sessions)
    assert await sessions.take() is session
    assert session.connection.is_in_transaction()
    await session.connection.execute("create table t (id int)")
    await session.begin(LIMIT)  # the one that is there
    assert session.connection.is_in_transaction()
    await session.commit("select 1", chain=False)
    assert await ledger.value("select to_regclass('t') is not null")


async def test_nobody_is_given_an_old_transaction(sessions: Sessions) -> None:
    session = await chained(sessions)
    assert await sessions.take() is session
    before = await session.connection.fetchval("select now()")
    begun = time.monotonic()
    await until(lambda: time.monotonic() - begun > AHEAD_S)
    await session.begin(LIMIT)
    assert await session.connection.fetchval("select now()") > before


async def test_a_transaction_that_nobody_takes_is_ended(sessions: Sessions, ledger: Reader) -> None:
    session = await chained(sessions)
    assert await in_transaction(ledger) == 1

    async def is_ended() -> bool:
        return await in_transaction(ledger) == 0

    await until(is_ended)

    async def is_given_out_again() -> bool:
        """A moment after the server has ended it, we have heard so."""
        taken = await sessions.take()
        if taken is not session:
            sessions.drop(taken)
        return taken is session

    await until(is_given_out_again)


async def test_a_handler_with_another_limit_gets_its_own(sessions: Sessions) -> None:
    show = "select current_setting('idle_in_transaction_session_timeout')"
    session = await chained(sessions)
    await session.begin(timedelta(seconds=7))
    assert await session.connection.fetchval(show) == "7s"
    await session.commit("select 1", chain=True)
    await session.begin(timedelta(seconds=8))
    assert await session.connection.fetchval(show) == "8s"


async def test_a_rollback_takes_the_limit_with_it(sessions: Sessions) -> None:
    """It was set in the transaction that was undone: without it, a stopped worker's next
    transaction would hold its locks for ever."""
    show = "select current_setting('idle_in_transaction_session_timeout')"
    session = await sessions.take()
    for _ in range(2):
        await session.begin(LIMIT)
        assert await session.connection.fetchval(show) == "5min"
        await session.roll_back()


async def test_a_limit_that_a_waiting_transaction_could_exceed_is_not_chained(
    sessions: Sessions,
) -> None:
    session = await sessions.take()
    await session.begin(timedelta(milliseconds=20))
    await session.commit("select 1", chain=True)
    assert not session.connection.is_in_transaction()


async def test_one_that_was_idle_for_long_is_not_used_again(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = [await sessions.take() for _ in range(3)]
    for session in old:
        sessions.give_back(session)
    monkeypatch.setattr("gateway.ledger.sessions.IDLE_S", 0.0)
    assert await sessions.take() not in old
    assert all(session.connection.is_closed() for session in old)


async def test_where_one_is_dead_the_idle_ones_are_given_up(sessions: Sessions) -> None:
    old = [await sessions.take() for _ in range(2)]
    for session in old:
        sessions.give_back(session)
    sessions.drop_idle()
    assert await sessions.take() not in old


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_what_a_handler_did_to_its_session_is_undone(
    end: str, sessions: Sessions, ledger: Reader
) -> None:
    session = await sessions.take()
    await session.begin(LIMIT)
    session.is_foreign = True
    await session.connection.execute(
        "select pg_advisory_lock(7); set work_mem = '1MB'; listen x; create temp table t (id int)"
    )
    await (session.roll_back() if end == "rollback" else session.commit("select 1", chain=True))
    assert not session.connection.is_in_transaction(), "a changed session is not chained"
    assert await ledger.value("select pg_try_advisory_lock(7)")
    assert await session.connection.fetchval("select current_setting('work_mem')") != "1MB"
    assert await session.connection.fetchval("select to_regclass('pg_temp.t')") is None
    assert await session.connection.fetch("select pg_listening_channels()") == []
    await session.begin(LIMIT)
    show = "select current_setting('idle_in_transaction_session_timeout')"
    assert await session.connection.fetchval(show) == "5min", "the limit went with the rest"


async def test_a_failed_end_leaves_the_session_to_be_dropped(sessions: Sessions) -> None:
    session = await sessions.take()
    await session.begin(LIMIT)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await session.commit("select 1 / 0", chain=True)
    assert session.begun_at is None
    sessions.drop(session)
    assert await sessions.take() is not session


@pytest.mark.parametrize("chain", [True, False])
async def test_a_constraint_that_fails_at_the_commit_undoes_it_all(
    chain: bool, sessions: Sessions, ledger: Reader
) -> None:
    await ledger.run(
        "create table parents (id int primary key);"
        "create table children (id int references parents deferrable initially deferred)"
    )
    session = await sessions.take()
    await session.begin(LIMIT)
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await session.commit("insert into children values (1)", chain=chain)
    assert session.begun_at is None
    await session.roll_back()
    assert await ledger.value("select count(*) from children") == 0
    await session.begin(LIMIT)
    await session.commit("insert into parents values (1)", chain=chain)
    assert await ledger.value("select count(*) from parents") == 1
