"""Erasing a subject: nothing of it is left but the key, and nothing of anybody else is touched."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

import asyncpg
import orjson
import pytest

from gateway import Context, Event, Reject, Retry
from gateway.base.errors import CommandFailed, NotFound, TransitionRefused
from gateway.base.model import Retention
from gateway.config.registry.key_path import KeyPath
from gateway.ledger import walk as walk_module
from gateway.ledger.claims import Claim
from gateway.ledger.connection import Connection
from gateway.ledger.deliveries import DONE, lease_due, replay, settle
from gateway.ledger.effects import retry_effects
from gateway.ledger.erasure import Erased, find_subject
from gateway.ledger.filter import Filter
from gateway.ledger.retention import Pruned, Pruner
from gateway.operations import stored_data as erase_module
from gateway.operations.inspect import find, list_events, list_unknown_effects
from gateway.operations.stored_data import ErasureSubject, count_to_erase, erase
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.waiting import until
from tests.support.workers import count, subscribe, working

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
HANDLERS = [("stripe", "handlers.count")]
ACCOUNT = "acct_grace_hopper"
NAME = "Grace Hopper"
SUBJECT = ErasureSubject(account=ACCOUNT)
TABLES = """
select table_name from information_schema.tables
where table_schema = 'gateway' and table_type = 'BASE TABLE'
"""


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


def of(account: str, event_id: str, name: str = NAME, **changes: Any) -> Claim:
    """An event about a person, in everything that it has."""
    body = orjson.dumps({"id": event_id, "name": name, "mail": f"{name}@example.com"})
    claim = make_claim(event_id, body=body, **changes)
    envelope = replace(claim.envelope, account=account)
    return claim._replace(envelope=envelope, headers={"x-name": name})


async def erase_all(
    connection: Connection, subject: ErasureSubject = SUBJECT, reason: str = "request 7"
) -> Erased:
    erased, after = await erase(connection, subject, None, actor="ann", reason=reason)
    assert after is None
    return erased


async def holding(ledger: Reader, *texts: str) -> dict[str, int]:
    """Which tables have one of these texts anywhere, bytes included, and in how many rows."""
    found: dict[str, int] = {}
    for row in await ledger.rows(TABLES):
        for text in texts:
            n = await ledger.value(
                f"select count(*) from gateway.{row['table_name']} t"  # noqa: S608 (our own)
                " where strpos(t::text, $1) > 0 or strpos(t::text, $2) > 0",
                text,
                text.encode().hex(),
            )
            if n:
                found[row["table_name"]] = found.get(row["table_name"], 0) + n
    return found


async def fail(event: Event, ctx: Context) -> None:
    """Tells all that it knows."""
    name = event.payload["name"]

    async def send() -> str:
        return f"sent to {name}"

    await ctx.once(f"mail {name}", send)
    if event.id.endswith("dead"):
        raise Reject(f"{name} has no address")
    if event.id.endswith("again"):
        raise Retry(f"{name} is busy", after=3600)
    await count(event, ctx)


async def live(url: str, ledger: Reader, *claims: Claim) -> None:
    """Lets them come and run: some are done, one is dead, one waits for a retry."""
    await claim_all(url, list(claims))
    handler = subscribe(fail, once_per=KeyPath.parse("mail"))
    async with working(url, handler):
        await until(lambda: settled(ledger, len(claims)))
    await ledger.run("update gateway.deliveries set due_at = now() where status = 'pending'")


async def test_an_effect_of_unknown_outcome_is_erased_and_no_longer_listed(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    """Without its payload nobody could have it made again."""
    await claim_all(database_url, [of(ACCOUNT, "evt_1", NAME)])

    async def skip(event: Event, ctx: Context) -> None:
        async def send() -> None:
            raise TimeoutError

        await ctx.once(f"mail {event.payload['name']}", send, unknown="skip")

    async with working(database_url, subscribe(skip)):
        await until(
            lambda: ledger.value("select exists (select from gateway.deliveries"
                                 " where status = 'done')")
        )  # fmt: skip
    id = await ledger.value("select id from gateway.deliveries")
    await ledger.run(
        "insert into gateway.audit (actor, action, delivery_id, effect)"
        " select 'ann', 'retry effect', delivery_id, name from gateway.effects"
    )
    assert (await list_unknown_effects(connection, Filter(), (None,) * 3, 9)).rows
    assert (await holding(ledger, NAME)).keys() >= {"effects", "audit"}
    await erase_all(connection)
    assert await holding(ledger, NAME, ACCOUNT) == {}
    assert (await list_unknown_effects(connection, Filter(), (None,) * 3, 9)).rows == []
    with pytest.raises(TransitionRefused, match="no effect of unknown outcome"):
        await retry_effects(connection, id, None, actor="ann", reason=None)


async def settled(ledger: Reader, total: int) -> bool:
    tried = await ledger.value("select count(distinct delivery_id) from gateway.attempts")
    return bool(tried == total)


async def test_nothing_is_left_of_a_subject_but_its_keys(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    other = [of("acct_other", f"evt_other_{n}", "Ada Lovelace") for n in ("done", "dead")]
    await live(
        database_url,
        ledger,
        *(of(ACCOUNT, f"evt_{n}", f"{NAME} {n}") for n in ("done", "dead", "again")),
        *other,
    )
    await claim_all(database_url, [of(ACCOUNT, "evt_unheard", handlers=[])])
    dead = await ledger.value("select id from gateway.deliveries where event_id = 'evt_dead'")
    await replay(connection, dead, actor="bob", reason=f"{ACCOUNT} called")
    await ledger.run(
        "insert into gateway.bulk_orders (action, filter, actor, reason, began_at, total, mark_at)"
        " values ('replay', $1, 'bob', $2, now(), 1, now())",
        orjson.dumps({"account": ACCOUNT, "route": "stripe"}).decode(),
        f"{ACCOUNT} called",
    )
    await ledger.run(
        "insert into gateway.audit (actor, action, order_id, reason)"
        " select 'bob', 'bulk replay', id, reason from gateway.bulk_orders"
    )
    await ledger.run(
        "insert into gateway.alert_messages"
        " (kind, route, handler, destination, id, message, next_at)"
        " values ('dead', 'stripe', 'handlers.count', 'slack', 'alert_1', $1, now())",
        orjson.dumps({"data": {"error": f"Reject: {NAME} has no address", "count": 1}}).decode(),
    )
    before = await holding(ledger, NAME, ACCOUNT)
    assert before.keys() >= {
        "processed_events", "deliveries", "attempts", "effects", "once_keys", "audit",
        "bulk_orders", "alert_messages",
    }  # fmt: skip
    untouched = await holding(ledger, "Ada Lovelace", "acct_other")

    counted, _ = await count_to_erase(connection, SUBJECT, None)
    assert (counted.events, counted.pending, counted.dead) == (4, 2, 0)
    assert await holding(ledger, NAME, ACCOUNT) == before
    erased = await erase_all(connection)
    assert (erased.events, erased.pending, erased.dead) == (4, 2, 0)

    assert await holding(ledger, NAME, ACCOUNT) == {}
    assert await holding(ledger, "Ada Lovelace", "acct_other") == untouched
    keys = await ledger.rows("select event_id from gateway.processed_events")
    assert len(keys) == 6
    statuses = await ledger.rows(
        "select event_id, status from gateway.deliveries where event_id not like '%other%'"
    )
    assert {row["event_id"]: row["status"] for row in statuses} == {
        "evt_done": "done", "evt_dead": "discarded", "evt_again": "discarded",
    }  # fmt: skip
    audit = await ledger.rows(
        "select event_id, actor, reason from gateway.audit where action = 'erase' order by 1"
    )
    assert [row["event_id"] for row in audit] == [
        "evt_again",
        "evt_dead",
        "evt_done",
        "evt_unheard",
    ]
    assert {(row["actor"], row["reason"]) for row in audit} == {("ann", "request 7")}
    assert await erase_all(connection) == Erased()
    assert len(await ledger.rows("select from gateway.audit where action = 'erase'")) == 4


async def test_an_account_is_taken_out_of_what_people_said_whosever_it_was_about(
    connection: Connection, ledger: Reader
) -> None:
    """Of events that are long forgotten, of bulk operations by an error's text, and of pauses."""
    account = "acct_1.x"
    await ledger.run(
        "insert into gateway.audit (actor, action, delivery_id, route, handler, reason) values"
        " ('bob', 'replay', 4711, 'stripe', null, 'for acct_1.x, who called'),"
        " ('bob', 'replay', 4712, 'stripe', null, 'for acct_1.xy, who called'),"
        " ('bob', 'replay', 4713, 'stripe', null, 'for acct_12x, who called'),"
        " ('bob', 'pause', null, 'stripe', 'h', 'acct_1.x floods us')"
    )
    await ledger.run(
        "insert into gateway.pauses (route, handler, actor, reason)"
        " values ('stripe', 'h', 'bob', 'acct_1.x floods us'), ('stripe', '', 'bob', 'a fire')"
    )
    await ledger.run(
        "insert into gateway.bulk_orders (action, filter, actor, began_at, total, mark_at)"
        " select 'replay', f::jsonb, 'bob', now(), 1, now() from unnest($1::text[]) f",
        [
            '{"error": "no card of acct_1.x", "route": "stripe"}',
            '{"account": "acct_1.x"}',
            '{"account": "acct_1.xy"}',
            "{}",
        ],
    )
    await ledger.run(
        "insert into gateway.gaps (route, event_id, run_id, type, handle, handled_at, occurred_at,"
        " is_first, status) select 'stripe', 'evt_' || s, 1, 'a', 'acct_1.x', now(), now(), true, s"
        " from unnest(array['unrecoverable', 'missing']) s"
    )
    await erase_all(connection, ErasureSubject(account=account))
    said = await ledger.rows("select reason from gateway.audit order by id")
    assert [row["reason"] for row in said] == [
        None, "for acct_1.xy, who called", "for acct_12x, who called", None,
    ]  # fmt: skip
    said = await ledger.rows("select reason from gateway.pauses order by handler")
    assert [row["reason"] for row in said] == ["a fire", None]
    asked = await ledger.rows("select filter from gateway.bulk_orders order by id")
    assert [orjson.loads(row["filter"]) for row in asked] == [
        {"error": "(erased)", "route": "stripe"},
        {"account": "(erased)"},
        {"account": "acct_1.xy"},
        {},
    ]
    handles = await ledger.rows("select status, handle from gateway.gaps order by status")
    # What is still to be fetched cannot be without: it is an event that comes later.
    assert [row["handle"] for row in handles] == [account, ""]


async def test_a_late_retry_of_what_was_erased_is_still_a_duplicate(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    claims = [of(ACCOUNT, "evt_1"), of(ACCOUNT, "guid_1", route="github", repeats="refuse")]
    await claim_all(database_url, claims)
    assert (await erase_all(connection)).events == 2
    answers = await claim_all(database_url, claims)
    assert [(a.verdict, a.conflict) for a in answers] == [("duplicate", False)] * 2
    assert await holding(ledger, NAME) == {}


async def test_the_same_bytes_under_a_fresh_id_are_still_refused(
    database_url: str, connection: Connection
) -> None:
    first = of(ACCOUNT, "guid_1", route="github", repeats="refuse")
    await claim_all(database_url, [first])
    await erase_all(connection)
    envelope = replace(first.envelope, id="guid_2")
    [answer] = await claim_all(database_url, [first._replace(envelope=envelope)])
    assert answer.verdict == "repeated_body"


async def test_a_job_that_was_erased_is_still_a_duplicate(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("order:1", route="tasks", body=b'{"name": "Grace"}')])
    erased = await erase_all(connection, ErasureSubject(event_id="order:1", route="tasks"))
    assert (erased.events, erased.pending) == (1, 1)
    [again] = await claim_all(
        database_url, [make_claim("order:1", route="tasks", body=b'{"name": "Grace"}')]
    )
    assert (again.verdict, again.conflict) == ("duplicate", False)
    assert await holding(ledger, "Grace") == {}


async def test_what_was_done_once_per_key_stays_done(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    """The key is gone, and another event with the same one is not acted on all the same."""
    await live(database_url, ledger, of(ACCOUNT, "evt_1"))
    assert await ledger.effects() == 1
    await erase_all(connection)
    await live(database_url, ledger, of("acct_2", "evt_2"))
    assert await ledger.effects() == 1
    skipped = await ledger.row("select error from gateway.attempts where outcome = 'skipped'")
    assert "was done before, by event evt_1" in skipped["error"]
    kept = await ledger.value("select key from gateway.once_keys where finished_at is not null")
    assert kept == "erased:" + hashlib.sha256(f"{NAME}@example.com".encode()).hexdigest()


async def test_a_run_that_began_before_its_key_was_erased_does_not_do_it_again(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    """It reserved the key in the moment in which the key had no name."""
    await live(database_url, ledger, of(ACCOUNT, "evt_1"))
    began, gate = asyncio.Event(), asyncio.Event()

    async def slow(event: Event, ctx: Context) -> None:
        began.set()
        await gate.wait()
        await count(event, ctx)

    await ledger.run("update gateway.once_keys set key = 'elsewhere'")
    await claim_all(database_url, [of("acct_2", "evt_2")])
    async with working(database_url, subscribe(slow, once_per=KeyPath.parse("mail"))):
        await began.wait()
        await ledger.run(
            "update gateway.once_keys set key = gateway.erased($1) where key = 'elsewhere'",
            f"{NAME}@example.com",
        )
        gate.set()
        await until(lambda: skipped(ledger))
    assert await ledger.effects() == 1


async def skipped(ledger: Reader) -> bool:
    return "skipped" in await ledger.outcomes()


async def test_what_runs_is_left_whole_and_named(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    await claim_all(database_url, [of(ACCOUNT, "evt_1"), of(ACCOUNT, "evt_2")])
    [lease] = await lease_due(connection, 1, HANDLERS, HOUR)
    erased = await erase_all(connection)
    assert (erased.events, erased.running) == (1, (("stripe", lease.event.id),))
    kept = await ledger.row("select * from gateway.events where body is not null")
    assert (kept["event_id"], kept["account"]) == (lease.event.id, ACCOUNT)
    assert await ledger.rows("select from gateway.audit where event_id = $1", lease.event.id) == []
    await settle(connection, lease, DONE)
    assert await erase_all(connection) == Erased(events=1)
    assert await holding(ledger, NAME, ACCOUNT) == {}


async def test_one_delivery_that_runs_keeps_the_whole_event(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    both = ["handlers.count", "handlers.other"]
    await claim_all(database_url, [of(ACCOUNT, "evt_1", handlers=both)])
    await lease_due(connection, 1, HANDLERS, HOUR)
    assert (await erase_all(connection)).running == (("stripe", "evt_1"),)
    assert await ledger.statuses() == {"running": 1, "pending": 1}


async def test_a_lease_that_comes_first_is_waited_for_and_left(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    await claim_all(database_url, [of(ACCOUNT, "evt_1")])
    worker = await asyncpg.connect(database_url)
    transaction = worker.transaction()
    await transaction.start()
    assert len(await lease_due(worker, 1, HANDLERS, HOUR)) == 1
    erasing = asyncio.create_task(erase_all(connection))
    await until(lambda: ledger.value("select count(*) from gateway.deliveries"))
    await transaction.commit()
    assert (await erasing).running == (("stripe", "evt_1"),)
    await worker.close()
    assert await ledger.statuses() == {"running": 1}


async def test_what_stays_in_anothers_hands_is_named_and_left(
    database_url: str,
    connection: Connection,
    ledger: Reader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(erase_module, "TRIES", 2)
    await claim_all(database_url, [of(ACCOUNT, "evt_1"), of(ACCOUNT, "evt_2")])
    another = await asyncpg.connect(database_url)
    async with another.transaction():
        await another.execute("select from gateway.deliveries where event_id = 'evt_1' for update")
        await another.execute(
            "select from gateway.processed_events where event_id = 'evt_2' for key share"
        )
        erased = await erase_all(connection)
    assert sorted(erased.running) == [("stripe", "evt_1"), ("stripe", "evt_2")]
    assert erased.events == 0
    assert (await erase_all(connection)).events == 2
    await another.close()


async def test_an_attempt_that_is_filed_under_another_day_meanwhile_is_erased_too(
    connection: Connection, database_url: str, ledger: Reader
) -> None:
    async def fail(event: Event, ctx: Context) -> None:
        raise Reject(f"no account of {NAME}")

    await claim_all(database_url, [of(ACCOUNT, "evt_1")])
    async with working(database_url, subscribe(fail)):
        await until(lambda: ledger.value("select count(*) from gateway.attempts"))
    mover = await asyncpg.connect(database_url)
    async with mover.transaction():
        await mover.execute("update gateway.attempts set until = until + 60")
        erasing = asyncio.create_task(erase_all(connection))
        waits = (
            "select count(*) from pg_stat_activity"
            " where wait_event_type = 'Lock' and datname = current_database()"
        )
        await until(lambda: ledger.value(waits))
    await mover.close()
    assert (await erasing).events == 1
    assert await holding(ledger, NAME) == {}


async def test_a_lease_passes_over_what_is_being_erased(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    await claim_all(database_url, [of(ACCOUNT, "evt_1")])
    worker = await asyncpg.connect(database_url)
    async with connection.transaction():
        await erase_all(connection)
        assert await lease_due(worker, 1, HANDLERS, HOUR) == []
    assert await lease_due(worker, 1, HANDLERS, HOUR) == []
    await worker.close()
    assert await ledger.statuses() == {"discarded": 1}


async def test_a_replay_that_waited_for_an_erasure_is_refused(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    [answer] = await claim_all(database_url, [of(ACCOUNT, "evt_1")])
    [delivery_id] = answer.delivery_ids
    operator = await asyncpg.connect(database_url)
    async with connection.transaction():
        await erase_all(connection)
        late = asyncio.create_task(replay(operator, delivery_id, actor="bob", reason=None))
        blocked = "select cardinality(pg_blocking_pids($1)) > 0"
        await until(lambda: ledger.value(blocked, operator.get_server_pid()))
    with pytest.raises(TransitionRefused, match="payload was pruned or erased"):
        await late
    await operator.close()
    assert await ledger.statuses() == {"discarded": 1}


async def test_a_prune_and_an_erasure_at_once_leave_each_other_alone(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    await claim_all(database_url, [of(ACCOUNT, f"evt_{n}", handlers=["a", "b"]) for n in range(40)])
    await ledger.run(
        "update gateway.processed_events set received_at = now() - interval '40 d';"
        "update gateway.deliveries set status = 'done', finished_at = now() - interval '40 d',"
        " error = 'Grace Hopper';"
    )
    kept = Retention(key=35 * DAY, payload=14 * DAY, dead=90 * DAY)
    other = await asyncpg.connect(database_url)
    pruner = Pruner({"stripe": kept}, again_after=timedelta())
    async with connection.transaction():
        await erase_all(connection)
        assert await pruner.step(other) == Pruned(looked_at=40)
    assert (await pruner.step(other)).keys == 40
    await other.close()
    assert await ledger.rows("select from gateway.deliveries") == []


async def test_an_event_that_is_pruned_meanwhile_is_nothing_to_erase(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch, ledger: Reader
) -> None:
    async def found_late(*arguments: Any) -> Any:
        found = await find_subject(*arguments)
        await ledger.run("delete from gateway.processed_events")
        return found

    monkeypatch.setattr(erase_module, "find_subject", found_late)
    await claim_all(database_url, [of(ACCOUNT, "evt_1", handlers=[])])
    assert await erase_all(connection) == Erased()


async def test_erasing_while_workers_run_everything_loses_nothing_of_others(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    """Racing leases, settlements and turns: what was not erased is applied once, and vice versa."""
    claims = [
        of(
            ACCOUNT if n % 2 else "acct_other",
            f"evt_{n}",
            order_keys={"handlers.count": f"{n % 7}"},
        )
        for n in range(300)
    ]
    await claim_all(database_url, claims)
    handler = subscribe(count, order_by=KeyPath.parse("id"))
    async with AsyncExitStack() as workers:
        for _ in range(2):
            await workers.enter_async_context(working(database_url, handler, concurrency=8))
        await until(lambda: ledger.value("select count(*) > 20 from public.effects"))
        while (await erase_all(connection)).running:
            pass
        await until(lambda: nothing_waits(ledger))
    effects = await ledger.rows("select event_id from public.effects")
    done = await ledger.rows("select event_id from gateway.deliveries where status = 'done'")
    assert sorted(e["event_id"] for e in effects) == sorted(d["event_id"] for d in done)
    others = {claim.envelope.id for claim in claims if claim.envelope.account == "acct_other"}
    assert others <= {d["event_id"] for d in done}
    assert await holding(ledger, ACCOUNT) == {}
    assert "dead" not in await ledger.statuses()


async def nothing_waits(ledger: Reader) -> bool:
    return not {"pending", "running"} & (await ledger.statuses()).keys()


async def test_a_key_that_what_was_erased_held_up_goes_on(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    keys = {"handlers.count": "same"}
    for claim in (of(ACCOUNT, "evt_1", order_keys=keys), of("acct_2", "evt_2", order_keys=keys)):
        await claim_all(database_url, [claim])
    await ledger.run(
        "insert into gateway.handlers values ('stripe', 'handlers.count', 'block');"
        "update gateway.deliveries set status = 'dead', finished_at = now() - interval '80 d',"
        " due_at = now() where event_id = 'evt_1'"
    )
    erased = await erase_all(connection)
    assert (erased.events, erased.dead) == (1, 1)
    [lease] = await lease_due(connection, 5, HANDLERS, HOUR)
    assert (lease.delivery_id,) == erased.due
    ended = "select finished_at > now() - interval '1 h' from gateway.deliveries where status = $1"
    assert await ledger.value(ended, "discarded")  # from here on its key is kept


async def test_an_account_is_erased_piece_by_piece_and_only_on_the_route_that_was_named(
    database_url: str, connection: Connection, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erase_module, "BATCH", 3)
    monkeypatch.setattr(walk_module, "PIECE_S", 0.0)
    await claim_all(database_url, [of(ACCOUNT, f"evt_{n}") for n in range(10)])
    await claim_all(database_url, [of(ACCOUNT, "evt_1", route="github")])
    subject = replace(SUBJECT, route="stripe")
    counted, total, after, pieces = Erased(), Erased(), None, 0
    while True:
        piece, after = await count_to_erase(connection, subject, after)
        counted += piece
        if after is None:
            break
    while True:
        piece, after = await erase(connection, subject, after, actor="ann", reason="r")
        total, pieces = total + piece, pieces + 1
        if after is None:
            break
    assert (counted.events, total.events, total.pending) == (10, 10, 10)
    assert pieces > 3
    left = await ledger.rows("select route from gateway.payloads")
    assert [row["route"] for row in left] == ["github"]


async def test_the_reason_is_kept_and_must_not_name_the_account(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    await claim_all(database_url, [of(ACCOUNT, "evt_1")])
    with pytest.raises(CommandFailed, match="found the account in it"):
        await erase_all(connection, reason=f"{ACCOUNT} asked for it")
    assert await ledger.value("select count(*) from gateway.payloads") == 1


async def test_who_is_meant_must_be_clear(database_url: str, connection: Connection) -> None:
    for unclear in ({}, {"account": "a", "event_id": "b"}):
        with pytest.raises(CommandFailed, match="either an account or one event"):
            ErasureSubject(**unclear)
    with pytest.raises(NotFound, match="there is no event 'evt_1' on route 'github'"):
        await erase_all(connection, ErasureSubject(event_id="evt_1", route="github"))
    await claim_all(database_url, [of(ACCOUNT, "evt_1"), of(ACCOUNT, "evt_1", route="github")])
    with pytest.raises(CommandFailed, match="on several routes"):
        await erase_all(connection, ErasureSubject(event_id="evt_1"))
    assert (
        await erase_all(connection, ErasureSubject(event_id="evt_1", route="github"))
    ).events == 1


async def test_what_was_erased_says_so_and_by_whom(
    database_url: str, connection: Connection
) -> None:
    await claim_all(database_url, [of(ACCOUNT, "evt_1"), of("acct_2", "evt_2", handlers=[])])
    await erase_all(connection)
    [event] = await find(connection, "evt_1", None)
    assert (event["erased"]["actor"], event["erased"]["reason"]) == ("ann", "request 7")
    assert (event["body"], event["headers"], event["account"]) == (None, None, None)
    [other] = await find(connection, "evt_2", None)
    assert other["erased"] is None
    listed = (await list_events(connection, Filter(), (None, None, None), 10)).rows
    assert {row["event_id"]: row["note"] for row in listed} == {"evt_1": "erased", "evt_2": None}
