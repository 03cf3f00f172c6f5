"""Payloads and attempts by the day: made ahead, and dropped without what is still wanted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import asyncpg
import pytest

from gateway.base import failpoints
from gateway.base.errors import TransitionRefused
from gateway.base.model import Retention
from gateway.ledger import partitions
from gateway.ledger.connection import PREPARED_ONCE, QUERIES, Connection
from gateway.ledger.deliveries import lease_due, replay
from gateway.ledger.partitions import keep_retention, make_partitions, prepare, tend
from gateway.ledger.retention import Pruner
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.partitions import let_pass
from tests.support.waiting import PATIENCE_S, until

DAY: Final = timedelta(days=1)
KEPT: Final = Retention(key=35 * DAY, payload=14 * DAY, dead=90 * DAY)
ROUTES: Final = {"stripe": KEPT}
HANDLERS: Final = [("stripe", "handlers.count")]

DROP_ALL: Final = """
do $$
declare p record;
begin
    for p in select * from gateway.partitions loop
        execute format('drop table gateway.%I', p.name);
    end loop;
end
$$
"""


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


async def claim(url: str, *ids: str, **changes: Any) -> list[int]:
    answers = await claim_all(url, [make_claim(id, **changes) for id in ids])
    return [id for answer in answers for id in answer.delivery_ids]


async def finish(ledger: Reader, delivery_id: int, status: str = "done") -> None:
    await ledger.run(
        "update gateway.deliveries set status = $2, finished_at = now(), lease_token = null"
        " where id = $1",
        delivery_id,
        status,
    )
    await ledger.run(
        "insert into gateway.attempts (delivery_id, number, started_at, finished_at, outcome)"
        " values ($1, 1, now(), now(), 'done')",
        delivery_id,
    )


async def kept(ledger: Reader) -> set[str]:
    rows = await ledger.rows("select event_id from gateway.events where body is not null")
    return {row["event_id"] for row in rows}


async def days(ledger: Reader, parent: str) -> list[date]:
    rows = await ledger.rows(
        "select day from gateway.partitions where parent = $1 order by day", parent
    )
    return [row["day"] for row in rows]


async def forget_on(connection: Connection) -> date:
    """Return the day under which a payload that arrives now is filed.

    It is 15 days ahead, and 16 in the last hour of a day (UTC).
    """
    day: date = await connection.fetchval("select gateway.forget_on(now(), '14 days')")
    return day


async def due(ledger: Reader) -> int:
    n: int = await ledger.value(
        "select count(*) from gateway.partitions where day <= (now() at time zone 'UTC')::date"
    )
    return n


@pytest.mark.parametrize(
    ("at", "age", "expected"),
    [
        ("2026-11-17 08:00+00", "14 days", "2026-12-02"),
        ("2026-11-17 22:59+00", "14 days", "2026-12-02"),
        ("2026-11-17 23:01+00", "14 days", "2026-12-03"),  # it may end an hour later
        ("2026-11-17 23:59+14", "14 days", "2026-12-02"),
        ("2026-11-17 08:00+00", "1 hour", "2026-11-18"),
        ("2026-11-17 08:00+00", "31 days", "2026-12-19"),
        ("2026-11-17 08:00+00", "35 days", "2026-12-28"),  # a Monday
        ("2026-11-16 08:00+00", "35 days", "2026-12-28"),
        ("2026-11-17 08:00+00", "181 days", "2027-06-01"),
        ("2026-12-01 00:00+00", "365 days", "2028-01-01"),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/New_York"])
async def test_a_day_is_the_first_on_which_it_may_be_forgotten(
    at: str, age: str, expected: str, zone: str, connection: Connection
) -> None:
    await connection.execute(f"set timezone = '{zone}'")
    day = await connection.fetchval(
        "select gateway.forget_on($1::text::timestamptz, $2::text::interval)", at, age
    )
    assert day == date.fromisoformat(expected)


async def test_there_are_tables_for_the_next_days_and_what_is_claimed_is_in_one(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    today = datetime.now(UTC).date()
    routes = {
        "stripe": KEPT,
        "long": Retention(key=400 * DAY, payload=60 * DAY, dead=90 * DAY),
    }
    await keep_retention(connection, routes)
    await make_partitions(connection)
    first = await forget_on(connection)
    ahead = await days(ledger, "payloads")
    assert {first + n * DAY for n in range(8)} <= set(ahead)
    assert any(day.weekday() == 0 and day > today + 60 * DAY for day in ahead)
    assert any(day.day == 1 and day > today + 400 * DAY for day in await days(ledger, "attempts"))
    await claim(database_url, "evt_1")
    await claim(database_url, "evt_2", route="long")
    assert await ledger.rows("select from gateway.payloads_default") == []
    assert await make_partitions(connection) == 0


async def test_a_table_by_the_day_keeps_bodies_in_the_row(ledger: Reader) -> None:
    rows = await ledger.rows(
        "select c.reloptions, a.attstorage::text as storage from pg_inherits i"
        " join pg_class c on c.oid = i.inhrelid"
        " join pg_attribute a on a.attrelid = c.oid and a.attname = 'body'"
        " where i.inhparent = 'gateway.payloads'::regclass"
    )
    assert len(rows) > 5
    assert {(*row["reloptions"], row["storage"]) for row in rows} == {
        ("toast_tuple_target=8160", "m")
    }


async def test_a_day_that_has_come_is_dropped_with_what_nobody_wants(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    [delivery_id] = await claim(database_url, "evt_1")
    await finish(ledger, delivery_id)
    await let_pass(ledger, 16)
    assert await kept(ledger) == {"evt_1"}
    tended = await tend(connection, ROUTES)
    assert (tended.refiled, tended.waiting, await due(ledger)) == (0, 0, 0)
    assert tended.dropped > 0
    assert await kept(ledger) == set()
    [answer] = await claim_all(database_url, [make_claim("evt_1")])
    assert answer.verdict == "duplicate"
    with pytest.raises(TransitionRefused, match="payload was pruned"):
        await replay(connection, delivery_id, actor="ann", reason=None)
    await let_pass(ledger, 35)
    assert await ledger.value("select count(*) from gateway.attempts") == 1
    await tend(connection, ROUTES)
    assert await ledger.value("select count(*) from gateway.attempts") == 0


async def test_who_is_in_no_hurry_rests_for_what_he_gave_back_to_the_disk(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    await claim(database_url, "evt_1")
    await let_pass(ledger, 20)
    due = await ledger.rows(QUERIES["list_due_partitions"])
    assert len(due) > 1
    tended = await tend(connection, ROUTES, bytes_per_s=5e6)
    assert tended.dropped == len(due)
    assert tended.rested_s == pytest.approx(sum(row["bytes"] for row in due) / 5e6)
    assert tended.rested_s > 0


@pytest.mark.parametrize("status", ["pending", "running", "dead"])
async def test_what_is_not_finished_keeps_its_payload_and_its_attempts(
    status: str, database_url: str, ledger: Reader, connection: Connection
) -> None:
    [kept_id, other_id] = await claim(database_url, "evt_1", "evt_2")
    await finish(ledger, other_id)
    await finish(ledger, kept_id)
    await ledger.run(
        "update gateway.deliveries set status = $2::text, lease_token = case when $2::text ="
        " 'running' then gen_random_uuid() end, finished_at = case when $2::text = 'dead'"
        " then now() end where id = $1",
        kept_id,
        status,
    )
    for _ in range(3):
        await let_pass(ledger, 30)
        await tend(connection, ROUTES)
        assert await due(ledger) == 0
        assert await kept(ledger) == {"evt_1"}
    rows = await ledger.rows("select delivery_id from gateway.attempts")
    assert [row["delivery_id"] for row in rows] == [kept_id]


async def test_a_payload_is_kept_from_the_end_of_the_last_delivery_on(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    [delivery_id] = await claim(database_url, "evt_1")
    await let_pass(ledger, 10)
    await finish(ledger, delivery_id)
    await let_pass(ledger, 6)
    await tend(connection, ROUTES)
    assert await kept(ledger) == {"evt_1"}, "it ended six days ago"
    await let_pass(ledger, 16)
    await tend(connection, ROUTES)
    assert await kept(ledger) == set()


async def test_what_is_replayed_on_its_last_day_runs(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    """The order, and not the look at what is wanted, sees to it that the payload stays."""
    [delivery_id] = await claim(database_url, "evt_1")
    await finish(ledger, delivery_id)
    await let_pass(ledger, 16)
    await replay(connection, delivery_id, actor="ann", reason=None)
    for row in await ledger.rows(QUERIES["list_due_partitions"]):
        await connection.execute(QUERIES["detach_partition"], row["parent"], row["day"])
    [lease] = await lease_due(connection, 1, HANDLERS, DAY)
    assert b"evt_1" in lease.event.body


async def test_a_bulk_delivery_on_its_last_day_keeps_the_payload(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    await claim(database_url, "evt_1", handlers=[])
    await let_pass(ledger, 16)
    await connection.fetch(
        QUERIES["deliver_events"], ["stripe"], ["evt_1"], [None], "handlers.count", "ann", None, 7
    )
    await tend(connection, ROUTES)
    assert await kept(ledger) == {"evt_1"}
    await ledger.run("update gateway.deliveries set status = 'done', finished_at = now()")
    await let_pass(ledger, 9)
    await tend(connection, ROUTES)
    assert await kept(ledger) == {"evt_1"}, "its delivery was made for an old event, and ended late"


async def test_a_longer_retention_keeps_what_was_filed_for_a_shorter_one(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    await keep_retention(connection, ROUTES)
    await claim(database_url, "evt_1", handlers=[])
    longer = {"stripe": Retention(key=90 * DAY, payload=30 * DAY, dead=90 * DAY)}
    await keep_retention(connection, longer)
    await let_pass(ledger, 16)
    await ledger.run("update gateway.retention set longer_until = longer_until - 16")
    tended = await tend(connection, longer)
    assert (tended.refiled, await kept(ledger)) == (1, {"evt_1"})
    await let_pass(ledger, 17)
    await tend(connection, longer)
    assert await kept(ledger) == set()


async def test_a_shorter_retention_holds_at_once_for_what_was_filed_for_a_longer_one(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    await claim(database_url, "evt_1", handlers=[])
    await let_pass(ledger, 3)
    short = {"stripe": Retention(key=35 * DAY, payload=2 * DAY, dead=90 * DAY)}
    assert (await Pruner(short).step(connection)).payloads == 1
    assert await ledger.rows("select from gateway.payloads") == []


async def test_a_prune_leaves_to_a_day_what_is_filed_under_it(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    await claim(database_url, "evt_1", handlers=[])
    await ledger.run(
        "update gateway.processed_events set received_at = received_at - interval '14 days 30 min',"
        " payload_until = gateway.forget_on(received_at - interval '14 days 30 min', '14 days')"
    )
    pruned = await Pruner(ROUTES).step(connection)
    assert (pruned.payloads, pruned.looked_at) == (0, 1)


async def test_a_claim_never_fails_for_want_of_a_table_and_is_put_in_order_later(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    await ledger.run(DROP_ALL)
    [delivery_id] = await claim(database_url, "evt_1")
    [lease] = await lease_due(connection, 1, HANDLERS, DAY)
    assert b"evt_1" in lease.event.body
    await finish(ledger, delivery_id)
    assert len(await ledger.rows("select from gateway.payloads_default")) == 1
    await tend(connection, ROUTES)
    await tend(connection, ROUTES)
    assert await ledger.rows("select from gateway.payloads_default") == []
    assert await ledger.rows("select from gateway.attempts_default") == []
    assert await kept(ledger) == {"evt_1"}


async def test_what_was_never_put_in_order_is_forgotten_all_the_same(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    await ledger.run(DROP_ALL)
    one, two = await claim(database_url, "evt_1", "evt_2")
    for delivery_id in (one, two):
        await finish(ledger, delivery_id)
    await ledger.run("update gateway.deliveries set status = 'dead' where id = $1", two)
    await ledger.run("update gateway.payloads set until = current_date - 1")
    await ledger.run("update gateway.attempts set until = current_date - 1")
    await ledger.run(
        "update gateway.processed_events set payload_until = current_date - 1,"
        " received_at = received_at - interval '20 days'"
    )
    await ledger.run(
        "update gateway.deliveries set created_at = created_at - interval '20 days',"
        " finished_at = finished_at - interval '40 days'"
    )
    await tend(connection, ROUTES)
    assert await kept(ledger) == {"evt_2"}
    rows = await ledger.rows("select delivery_id from gateway.attempts")
    assert [row["delivery_id"] for row in rows] == [two]


async def test_a_clock_that_was_months_ahead_for_a_while_takes_no_unfinished_work(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    await prepare(connection, ROUTES)
    _, dead, done = await claim(database_url, "pending", "dead", "done")
    await finish(ledger, dead, "dead")
    await finish(ledger, done)
    await let_pass(ledger, 60)
    await claim(database_url, "ahead")
    await tend(connection, ROUTES)
    assert await kept(ledger) == {"pending", "dead", "ahead"}
    await let_pass(ledger, -60)
    await claim(database_url, "back")
    assert len(await ledger.rows("select from gateway.payloads_default")) == 1
    for _ in range(2):  # what lies there keeps a table for its day from being made
        await tend(connection, ROUTES)
    assert await ledger.rows("select from gateway.payloads_default") == []
    assert await kept(ledger) == {"pending", "dead", "ahead", "back"}
    first = await forget_on(connection)
    assert {first + n * DAY for n in range(8)} <= set(await days(ledger, "payloads"))


async def test_an_open_transaction_that_has_read_payloads_stops_no_claim(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    [delivery_id] = await claim(database_url, "evt_1")
    await finish(ledger, delivery_id)
    await let_pass(ledger, 16)
    reader = await asyncpg.connect(database_url)
    async with reader.transaction():
        await reader.execute("select count(*) from gateway.payloads")
        tending = asyncio.create_task(tend(connection, ROUTES))
        await claim(database_url, *(f"evt_{n}" for n in range(2, 200)))
        tended = await tending
        assert (tended.dropped, tended.waiting > 0) == (0, True)
        assert "evt_1" in await kept(ledger)
    await reader.close()
    assert (await tend(connection, ROUTES)).waiting == 0
    assert "evt_1" not in await kept(ledger)


async def test_an_open_transaction_that_has_read_payloads_is_not_waited_for(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    """Not even for the moment that a drop may wait: all claims would wait behind it."""
    await let_pass(ledger, 20)
    await connection.execute("set lock_timeout = 0")
    await ledger.run(
        "alter function gateway.detach_partition set lock_timeout = 0"  # it would wait for ever
    )
    reader = await asyncpg.connect(database_url)
    async with reader.transaction():
        await reader.execute("select count(*) from gateway.payloads")
        tended = await asyncio.wait_for(tend(connection, ROUTES), PATIENCE_S)
        assert tended.waiting > 0
    await reader.close()


async def test_a_drop_waits_for_nobody(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    """Were it to wait, everybody would wait behind it: the look before it is only a courtesy."""
    await let_pass(ledger, 20)
    reader = await asyncpg.connect(database_url)
    async with reader.transaction():
        await reader.execute("select count(*) from gateway.payloads")
        rows = await ledger.rows(QUERIES["list_due_partitions"])
        [row, *_] = [row for row in rows if row["parent"] == "payloads"]
        with pytest.raises(asyncpg.LockNotAvailableError):
            await connection.execute(QUERIES["detach_partition"], "payloads", row["day"])
    assert await connection.fetchval(QUERIES["detach_partition"], "payloads", row["day"])
    async with reader.transaction():
        await reader.execute(f"select count(*) from gateway.payloads_{row['day']:%Y%m%d}")  # noqa: S608 (our own)
        with pytest.raises(asyncpg.LockNotAvailableError):
            await connection.execute(QUERIES["drop_partition"], "payloads", row["day"])
    await reader.close()


async def test_a_day_that_has_not_come_is_not_dropped(
    ledger: Reader, connection: Connection
) -> None:
    before = await days(ledger, "payloads")
    for day in before:
        for query in ("detach_partition", "drop_partition"):
            assert not await connection.fetchval(QUERIES[query], "payloads", day)
    assert await days(ledger, "payloads") == before


STEPS_OF_A_DROP: Final = (
    "partition.step",
    "partition.refiled",
    "partition.detached",
    "partition.dropped",
)


class Killed(Exception):
    """As far as the test let it come."""


@pytest.mark.parametrize("step", STEPS_OF_A_DROP)
async def test_whoever_dies_on_the_way_leaves_nothing_half_done(
    step: failpoints.Step,
    database_url: str,
    ledger: Reader,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.ledger.partitions.BATCH", 2)
    wanted = await claim(database_url, *(f"dead_{n}" for n in range(5)))
    for delivery_id in await claim(database_url, *(f"done_{n}" for n in range(5))):
        await finish(ledger, delivery_id)
    await ledger.run(
        "update gateway.deliveries set status = 'dead', finished_at = now() where id = any ($1)",
        wanted,
    )
    await let_pass(ledger, 16)

    def die(reached: failpoints.Step) -> None:
        if reached == step:
            raise Killed

    monkeypatch.setattr(failpoints, "_action", die)
    with suppress(Killed):
        await tend(connection, ROUTES)
    monkeypatch.setattr(failpoints, "_action", None)
    assert {f"dead_{n}" for n in range(5)} <= await kept(ledger)
    await tend(connection, ROUTES)
    assert await kept(ledger) == {f"dead_{n}" for n in range(5)}
    assert await due(ledger) == 0


async def test_two_who_tend_at_once_do_it_once(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    wanted = await claim(database_url, *(f"evt_{n}" for n in range(50)))
    await let_pass(ledger, 16)
    other = await asyncpg.connect(database_url)
    done = await asyncio.gather(tend(connection, ROUTES), tend(other, ROUTES))
    await other.close()
    assert len(await kept(ledger)) == len(wanted) == sum(tended.refiled for tended in done)
    await tend(connection, ROUTES)
    assert await due(ledger) == 0


async def test_a_lease_reads_a_payload_that_is_filed_elsewhere_meanwhile(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    """Plans that were made once, while tables come and go."""
    session = await asyncpg.connect(database_url, server_settings=PREPARED_ONCE)
    for n in range(3):
        await claim(database_url, f"evt_{n}")
        await let_pass(ledger, 16)
        await tend(connection, ROUTES)
        [lease] = await lease_due(session, 1, HANDLERS, DAY)
        assert lease.event.id.encode() in lease.event.body
    await session.close()


async def test_nothing_is_dropped_while_another_still_files_what_is_wanted(
    database_url: str,
    ledger: Reader,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.ledger.partitions.BATCH", 2)
    ids = [f"evt_{n}" for n in range(6)]
    await claim(database_url, *ids)
    await let_pass(ledger, 16)
    await prepare(connection, ROUTES)
    other = await asyncpg.connect(database_url)
    step = other.transaction()
    await step.start()
    rows = await other.fetch(QUERIES["find_wanted_payloads"], 2)
    columns = zip(*(tuple(row) for row in rows), strict=True)
    await other.execute(QUERIES["refile_payloads"], *(list(column) for column in columns))
    tending = asyncio.create_task(tend(connection, ROUTES))
    await waits_for_another(ledger, connection.get_server_pid())
    await step.commit()
    await tending
    await other.close()
    assert await kept(ledger) == set(ids)


async def waits_for_another(ledger: Reader, pid: int) -> None:
    async def is_blocked() -> bool:
        return bool(await ledger.value("select cardinality(pg_blocking_pids($1)) > 0", pid))

    await until(is_blocked)


async def test_a_day_that_comes_while_others_are_forgotten_is_left_for_the_next_time(
    database_url: str, ledger: Reader, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await connection.execute(DROP_ALL)
    [old, _] = await claim(database_url, "evt_old", "evt_wanted")
    await finish(ledger, old)
    await file_by_hand(ledger, "evt_old", -3)
    await file_by_hand(ledger, "evt_wanted", 1)
    await let_pass_for_deliveries(ledger)
    refile = partitions._refile_wanted

    async def refile_at_midnight(connection: Connection) -> int:
        refiled = await refile(connection)
        await file_by_hand(ledger, "evt_wanted", 0)
        return refiled

    monkeypatch.setattr(partitions, "make_partitions", nothing_made)
    monkeypatch.setattr(partitions, "_refile_wanted", refile_at_midnight)
    await tend(connection, ROUTES)
    assert await kept(ledger) == {"evt_wanted"}


async def test_a_replay_beside_the_forgetting_of_what_has_no_table_is_refused(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    """It would find the payload, wait for it, and run without it."""
    await connection.execute(DROP_ALL)
    [delivery_id] = await claim(database_url, "evt_1")
    await finish(ledger, delivery_id)
    await file_by_hand(ledger, "evt_1", -3)
    operator = await asyncpg.connect(database_url)
    async with connection.transaction():
        today = datetime.now(UTC).date()
        await connection.execute(QUERIES["forget_misfiled_payloads"], 10, today)
        replaying = asyncio.create_task(replay(operator, delivery_id, actor="ann", reason=None))
        await waits_for_another(ledger, operator.get_server_pid())
    with pytest.raises(TransitionRefused):
        await replaying
    await operator.close()


async def nothing_made(_: Connection) -> int:
    return 0


async def file_by_hand(ledger: Reader, event_id: str, days: int) -> None:
    """Under the day that is so many days from now."""
    until = datetime.now(UTC).date() + days * DAY
    await ledger.run("update gateway.payloads set until = $2 where event_id = $1", event_id, until)
    await ledger.run(
        "update gateway.processed_events set payload_until = $2 where event_id = $1",
        event_id,
        until,
    )


async def let_pass_for_deliveries(ledger: Reader) -> None:
    await ledger.run(
        "update gateway.deliveries set created_at = created_at - interval '40 days',"
        " finished_at = finished_at - interval '40 days'"
    )
