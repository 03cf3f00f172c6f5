"""`ctx.upsert`: insert or converge, guarded by a version."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from gateway import Context, Event
from gateway.base.model import Lease
from gateway.config.registry import Registry
from gateway.ledger.encryption import OPEN
from gateway.ledger.sessions import Sessions
from gateway.worker.codec import LeaseCodec
from gateway.worker.context import transaction_of
from gateway.worker.resources import WorkerContext
from tests.support.ledger import Reader
from tests.support.workers import count, make_config, subscribe

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.fixture
async def sessions(database_url: str) -> AsyncIterator[Sessions]:
    sessions = Sessions(database_url, name="test")
    yield sessions
    await sessions.close()


def make_context(
    sessions: Sessions, *, received_at: datetime = NOON, event_id: str = "evt_1"
) -> Context:
    event = Event(
        id=event_id, type="t", route="stripe", provider="stripe", account=None, livemode=None,
        occurred_at=NOON, received_at=received_at, headers={}, body=b"{}",
    )  # fmt: skip
    lease = Lease(delivery_id=1, token=UUID(int=0), handler="h", attempt=1, event=event)
    worker = WorkerContext(
        work=sessions, ledger=None, http=None, patience=SECOND,  # type: ignore[arg-type]
        config=make_config(), registry=Registry(()),
        codec=LeaseCodec(make_config(), OPEN),
    )  # fmt: skip
    subscription = subscribe(count, timeout=SECOND)
    return Context(lease=lease, subscription=subscription, worker=worker)


async def upsert(
    sessions: Sessions, status: str, received_at: datetime = NOON, **options: Any
) -> bool:
    ctx = make_context(sessions, received_at=received_at)
    try:
        wrote = await ctx.upsert("orders", key={"id": "o_1"}, values={"status": status}, **options)
        await transaction_of(ctx).run_own("commit")
        return wrote
    finally:
        await transaction_of(ctx).close()


async def status(ledger: Reader) -> str:
    found: str = await ledger.value("select status from orders where id = 'o_1'")
    return found


async def test_it_inserts_and_then_converges(sessions: Sessions, ledger: Reader) -> None:
    assert await upsert(sessions, "open")
    assert await upsert(sessions, "paid")
    assert await status(ledger) == "paid"
    assert await ledger.value("select count(*) from orders") == 1


async def test_older_state_never_overwrites_newer(sessions: Sessions, ledger: Reader) -> None:
    assert await upsert(sessions, "newer", version=NOON + SECOND)
    assert not await upsert(sessions, "older", version=NOON)
    assert await status(ledger) == "newer"


@pytest.mark.parametrize("late", [timedelta(milliseconds=1), 5 * SECOND, timedelta(days=3)])
async def test_on_a_tie_the_later_claim_wins_whichever_runs_first(
    late: timedelta, sessions: Sessions, ledger: Reader
) -> None:
    """Two changes in one second; the first one's delivery failed once and runs after the second."""
    first, second = NOON + 2 * SECOND, NOON + 2 * SECOND + late
    assert await upsert(sessions, "second", second, version=NOON)
    assert not await upsert(sessions, "first", first, version=NOON)
    assert await status(ledger) == "second"
    await ledger.run("delete from orders")
    assert await upsert(sessions, "first", first, version=NOON)
    assert await upsert(sessions, "second", second, version=NOON)
    assert await status(ledger) == "second"


async def test_a_tie_break_never_reaches_into_the_next_second(
    sessions: Sessions, ledger: Reader
) -> None:
    assert await upsert(sessions, "a year late", NOON + timedelta(days=900), version=NOON)
    assert await upsert(sessions, "next second", NOON + SECOND, version=NOON + SECOND)
    assert await status(ledger) == "next second"
    assert not await upsert(sessions, "a year late", NOON + timedelta(days=900), version=NOON)


async def test_the_same_delivery_run_again_writes_again(sessions: Sessions) -> None:
    assert await upsert(sessions, "paid", version=NOON)
    assert await upsert(sessions, "paid", version=NOON)


async def test_a_row_without_a_version_takes_any(sessions: Sessions, ledger: Reader) -> None:
    await upsert(sessions, "old")
    assert await upsert(sessions, "new", version=NOON - timedelta(days=999))
    assert await status(ledger) == "new"


async def test_version_none_is_an_error_and_not_a_silent_no_guard(sessions: Sessions) -> None:
    with pytest.raises(ValueError, match="version=None"):
        await upsert(sessions, "x", version=None)


async def test_a_naive_time_is_an_error(sessions: Sessions) -> None:
    with pytest.raises(ValueError, match="no time zone"):
        await upsert(sessions, "x", version=datetime(2026, 1, 1))  # noqa: DTZ001


async def test_a_missing_unique_index_is_said_in_words(sessions: Sessions) -> None:
    ctx = make_context(sessions)
    with pytest.raises(ValueError, match=r"needs a unique index on \(status\)"):
        await ctx.upsert("orders", key={"status": "x"}, values={"id": "o_9"})
    await transaction_of(ctx).close()


async def test_a_dict_becomes_json(sessions: Sessions, ledger: Reader) -> None:
    ctx = make_context(sessions)
    values = {"status": "open", "details": {"a": [1, "é"]}}
    await ctx.upsert("orders", key={"id": "o_1"}, values=values)
    await transaction_of(ctx).run_own("commit")
    await transaction_of(ctx).close()
    assert await ledger.value("select details->'a'->>1 from orders") == "é"


async def test_names_are_quoted_and_nothing_else(sessions: Sessions) -> None:
    ctx = make_context(sessions)
    with pytest.raises(asyncpg.UndefinedTableError):
        await ctx.upsert('orders" (id) values (1); drop table orders; --', key={"id": 1}, values={})
    await transaction_of(ctx).close()
    ctx = make_context(sessions)
    assert await ctx.upsert("public.orders", key={"id": "o_2"}, values={"status": "x"})
    await transaction_of(ctx).close()


async def test_without_a_key_it_refuses(sessions: Sessions) -> None:
    with pytest.raises(ValueError, match="at least one key"):
        await make_context(sessions).upsert("orders", key={}, values={"status": "x"})


def test_idempotency_keys_are_stable_and_distinct() -> None:
    one, again = make_context(None), make_context(None)  # type: ignore[arg-type]
    other = make_context(None, event_id="evt_2")  # type: ignore[arg-type]
    assert one.idempotency_key("charge") == again.idempotency_key("charge")
    keys = {one.idempotency_key("charge"), one.idempotency_key(), other.idempotency_key("charge")}
    assert len(keys) == 3
    assert all(len(key) <= 255 for key in keys)
