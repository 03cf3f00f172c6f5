"""Pausing: across all workers, at once, and nothing that waits is lost or pruned."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from gateway import Context, Event
from gateway.base.errors import CommandFailed, NotFound
from gateway.base.model import Lease, Outcome, Retention, Status
from gateway.config.registry.key_path import KeyPath
from gateway.ledger import pauses
from gateway.ledger.connection import QUERIES, Connection, open_pool
from gateway.ledger.deliveries import (
    Limit,
    Settlement,
    lease_due,
    lease_hinted,
    lease_limited,
    replay,
    settle,
)
from gateway.ledger.ordering import OrderingKey, advance
from gateway.ledger.retention import Pruned, Pruner
from gateway.operations.pause import pause, resume
from gateway.worker import runner as runner_module
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.waiting import until
from tests.support.workers import count, subscribe, swept, working

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
COUNT = ("stripe", "handlers.count")
FREE = Limit(concurrency=5, period=None)


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


async def hold(
    connection: Connection, route: str = "stripe", handler: str | None = "handlers.count"
) -> None:
    """Pauses it, whether anybody knows it or not."""
    await pauses.pause(connection, route, handler, actor="ann", reason="mail is down")


async def free(
    connection: Connection, route: str = "stripe", handler: str | None = "handlers.count"
) -> None:
    assert await pauses.resume(connection, route, handler, actor="ann", reason=None)


Take = Callable[[Connection, list[int]], Awaitable[list[Lease]]]
TAKES: dict[str, Take] = {
    "due": lambda connection, _: lease_due(connection, 5, [COUNT], HOUR),
    "hinted": lambda connection, ids: lease_hinted(connection, ids, [COUNT], HOUR),
    "limited": lambda connection, _: lease_limited(connection, 5, COUNT, FREE, HOUR),
}


@pytest.mark.parametrize("handler", ["handlers.count", None])
@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
async def test_what_is_paused_is_not_leased_and_then_all_of_it(
    take: Take, handler: str | None, database_url: str, connection: Connection
) -> None:
    claims = [make_claim(f"evt_{n}") for n in range(5)]
    ids = [i for answer in await claim_all(database_url, claims) for i in answer.delivery_ids]
    await hold(connection, handler=handler)
    assert await take(connection, ids) == []
    await free(connection, handler=handler)
    assert [lease.delivery_id for lease in await take(connection, ids)] == ids


async def test_other_handlers_and_routes_go_on(database_url: str, connection: Connection) -> None:
    both = ["handlers.count", "handlers.other"]
    await claim_all(database_url, [make_claim("evt_1", handlers=both)])
    await claim_all(database_url, [make_claim("evt_1", route="github")])
    await hold(connection)
    mine = [COUNT, ("stripe", "handlers.other"), ("github", "handlers.count")]
    leased = await lease_due(connection, 9, mine, HOUR)
    assert {(lease.event.route, lease.handler) for lease in leased} == set(mine) - {COUNT}


LEASES: dict[str, tuple[Any, ...]] = {
    "lease_due": ([COUNT[0]], [COUNT[1]], 5, HOUR, 1, 1, False),
    "lease_hinted": ([1], [COUNT[0]], [COUNT[1]], HOUR, 1, 1),
    "lease_limited": (*COUNT, 5, None, 5, HOUR, 1, 1, False),
}


@pytest.mark.parametrize("query", LEASES)
async def test_a_pause_returns_when_leases_under_way_have_ended(
    query: str, database_url: str, connection: Connection, ledger: Reader
) -> None:
    """A lease that had looked at the pauses before there was one: its delivery may still begin."""
    await claim_all(database_url, [make_claim("evt_1")])
    worker = await asyncpg.connect(database_url)
    async with worker.transaction():
        assert len(await worker.fetch(QUERIES[query], *LEASES[query])) == 1
        pausing = asyncio.create_task(hold(connection))
        await until(lambda: ledger.value("select count(*) from gateway.pauses"))
        for _ in range(5):
            await looked(ledger, connection, pausing)
    assert await ledger.statuses() == {"running": 1}
    await pausing
    await ledger.run("update gateway.deliveries set status = 'pending', lease_token = null")
    assert await worker.fetch(QUERIES[query], *LEASES[query]) == []
    await worker.close()


async def looked(ledger: Reader, connection: Connection, pausing: "asyncio.Task[None]") -> None:
    """Waits until it has asked once more."""
    asked = "select query_start from pg_stat_activity where pid = $1"
    before = await ledger.value(asked, connection.get_server_pid())

    async def again() -> bool:
        assert not pausing.done()
        return bool(await ledger.value(asked, connection.get_server_pid()) > before)

    await until(again)


async def test_a_pause_does_not_wait_for_a_backup(
    database_url: str, connection: Connection
) -> None:
    backup = await asyncpg.connect(database_url)
    async with backup.transaction(isolation="repeatable_read"):
        await backup.fetch("select * from gateway.pauses")
        await asyncio.wait_for(hold(connection), timeout=pauses.LEASES_END_S / 2)
    await backup.close()


class Busy:
    """A handler that notes each delivery that it begins."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    async def __call__(self, event: Event, ctx: Context) -> None:
        self.begun.append(event.id)
        await count(event, ctx)


@pytest.mark.parametrize(
    "flow",
    [{}, {"concurrency": 6}, {"order_by": KeyPath.parse("id")}],
    ids=["plain", "limited", "ordered"],
)
async def test_after_a_pause_no_worker_begins_another_delivery(
    flow: dict[str, Any], database_url: str, connection: Connection, ledger: Reader
) -> None:
    """Two workers in the midst of a backlog, with deliveries leased ahead."""
    total, busy = 400, Busy()
    keys = [{"handlers.count": f"key_{n % 40}"} if "order_by" in flow else {} for n in range(total)]
    await claim_all(
        database_url, [make_claim(f"evt_{n}", order_keys=keys[n]) for n in range(total)]
    )
    async with AsyncExitStack() as workers:
        for _ in range(2):
            handler = subscribe(busy, **flow)
            await workers.enter_async_context(working(database_url, handler, concurrency=4))
        await until(lambda: len(busy.begun) >= 50)
        await hold(connection)
        begun = len(busy.begun)
        await until(lambda: nothing_runs(ledger))
        await swept(ledger)
        assert len(busy.begun) == begun < total
        await free(connection)
        await until(lambda: all_done(ledger, total))
    assert await ledger.effects() == total


async def nothing_runs(ledger: Reader) -> bool:
    return "running" not in await ledger.statuses()


async def all_done(ledger: Reader, total: int) -> bool:
    return await ledger.statuses() == {"done": total}


async def test_what_was_leased_ahead_and_found_no_slot_is_handed_back(
    database_url: str, connection: Connection, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker hoards more than it can begin; then its handler is paused."""
    monkeypatch.setattr(runner_module.Runner, "_look_at_pace", hoard)
    begun, gate = [], asyncio.Event()

    async def stuck(event: Event, ctx: Context) -> None:
        begun.append(event.id)
        await gate.wait()

    await claim_all(database_url, [make_claim(f"evt_{n}") for n in range(10)])
    seldom: dict[str, Any] = {"lease": HOUR, "sweep": HOUR}  # heartbeats and sweeps hand back, too
    async with working(database_url, subscribe(stuck), concurrency=2, **seldom):
        await until(lambda: leased(ledger, 10))
        await hold(connection)
        assert len(begun) == 2
        gate.set()
        await until(lambda: ended(ledger, done=2, pending=8))
        assert len(begun) == 2
    assert (await ledger.outcomes()).count("released") == 8
    assert await ledger.value("select max(attempts) from gateway.deliveries") == 1


def hoard(runner: Any) -> None:
    runner._ahead = 8


async def leased(ledger: Reader, total: int) -> bool:
    return await ledger.statuses() == {"running": total}


async def ended(ledger: Reader, **statuses: int) -> bool:
    return await ledger.statuses() == statuses


async def test_an_answer_that_was_long_on_its_way_is_not_begun_where_it_is_paused(
    database_url: str, connection: Connection, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose loop was blocked, or that was stopped, gets its leases after the pause."""
    taken, begun = runner_module.Runner._accept, Busy()

    async def late(runner: Any, leases: list[Lease], asked_at: float) -> None:
        await connection.execute(
            "insert into gateway.pauses values ('stripe', 'handlers.count', 'ann', 'why')"
            " on conflict do nothing"
        )
        await taken(runner, leases, asked_at - 2 * runner_module.LONGEST_AHEAD_S)

    monkeypatch.setattr(runner_module.Runner, "_accept", late)
    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(begun)):
        await until(lambda: ended(ledger, pending=1))
        await until(lambda: released(ledger))
    assert begun.begun == []


async def released(ledger: Reader) -> bool:
    return await ledger.outcomes() == ["released"]


async def test_retries_replays_and_turns_wait_too(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    handler = subscribe(count, order_by=KeyPath.parse("id"))
    keys = {"handlers.count": "same"}
    claims = [make_claim(f"evt_{n}", order_keys=keys) for n in range(3)]
    answers = [a for claim in claims for a in await claim_all(database_url, [claim])]
    first = answers[0].delivery_ids[0]
    await advance(
        connection, [OrderingKey(*COUNT, "same")]
    )  # if the claimer was stopped before it could
    [lease] = await lease_due(connection, 1, [COUNT], HOUR)
    assert lease.delivery_id == first
    await settle(connection, lease, Settlement(status=Status.PENDING, outcome=Outcome.RETRY))
    await hold(connection)
    await replay(connection, first, actor="ann", reason=None)
    async with working(database_url, handler):
        await swept(ledger)
        assert await ledger.statuses() == {"pending": 3}
        await free(connection)
        await until(lambda: all_done(ledger, 3))
    order = await ledger.rows("select event_id from public.effects order by n")
    assert [row["event_id"] for row in order] == ["evt_0", "evt_1", "evt_2"]


async def test_what_waits_is_never_pruned_however_old(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    old = datetime.now(UTC) - 4000 * DAY
    await hold(connection)
    await claim_all(database_url, [make_claim("evt_1", received_at=old)])
    await ledger.run("update gateway.deliveries set created_at = $1, due_at = $1", old)
    pruner = Pruner(
        {"stripe": Retention(key=2 * DAY, payload=DAY, dead=DAY)}, again_after=timedelta()
    )
    pool = await open_pool(database_url, name="test", size=1, command_timeout_s=10)
    async with pool.acquire() as pooled:
        assert await pruner.step(pooled) + await pruner.step(pooled) == Pruned(looked_at=2)
    await pool.close()
    await free(connection)
    [lease] = await lease_due(connection, 1, [COUNT], HOUR)
    assert lease.event.body != b""


async def test_a_pause_is_of_a_name_that_somebody_knows(
    database_url: str, connection: Connection
) -> None:
    await claim_all(database_url, [make_claim("evt_1", handlers=["handlers.waits"])])
    configured = [("github", ""), ("github", "handlers.push"), ("stripe", "")]

    async def order(route: str, handler: str | None) -> None:
        await pause(
            connection, route, handler, actor="ann", reason="r", configured=lambda: configured
        )

    for route, handler in [
        ("stripe", "handlers.waits"),
        ("stripe", None),
        ("github", None),
        ("github", "handlers.push"),
    ]:
        await order(route, handler)
    with pytest.raises(NotFound, match="no route 'strip': known are github, stripe"):
        await order("strip", None)
    with pytest.raises(NotFound, match=r"no handler 'push': known are handlers\.push"):
        await order("github", "push")
    assert len(await pauses.list_pauses(connection)) == 4


async def test_a_second_pause_gives_a_new_reason_and_both_leave_an_audit_row(
    connection: Connection, ledger: Reader
) -> None:
    since, is_new = await pauses.pause(connection, *COUNT, actor="ann", reason="one")
    assert is_new
    assert await pauses.pause(connection, *COUNT, actor="bob", reason="two") == (since, False)
    [found] = await pauses.list_pauses(connection)
    assert (found.actor, found.reason, found.since) == ("bob", "two", since)
    await resume(connection, *COUNT, actor="eve", reason="mail is back")
    rows = await ledger.rows(
        "select actor, action, route, handler, reason from gateway.audit order by id"
    )
    assert [tuple(row.values()) for row in rows] == [
        ("ann", "pause", *COUNT, "one"),
        ("bob", "pause", *COUNT, "two"),
        ("eve", "resume", *COUNT, "mail is back"),
    ]


async def test_a_resume_says_what_is_still_paused_and_wakes_only_what_is_not(
    database_url: str, connection: Connection
) -> None:
    both = ["handlers.count", "handlers.other"]
    [answer] = await claim_all(database_url, [make_claim("evt_1", handlers=both)])
    await hold(connection, handler=None)
    await hold(connection)
    with pytest.raises(CommandFailed, match="but all of stripe is"):
        await resume(connection, "stripe", "handlers.other", actor="ann", reason=None)
    resumed, due = await resume(connection, "stripe", None, actor="ann", reason=None)
    assert due == [answer.delivery_ids[1]]
    assert [other["handler"] for other in resumed["still_paused"]] == ["handlers.count"]
    with pytest.raises(CommandFailed, match=r"only handlers\.count, to be resumed by name"):
        await resume(connection, "stripe", None, actor="ann", reason=None)
    resumed, due = await resume(connection, *COUNT, actor="ann", reason=None)
    assert (due, resumed["waiting"]) == ([answer.delivery_ids[0]], 1)
    with pytest.raises(CommandFailed, match=r"stripe handlers\.count is not paused"):
        await resume(connection, *COUNT, actor="ann", reason=None)
