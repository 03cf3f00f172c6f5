"""`ctx.once(..., per=...)`: one call for all events of one thing, whatever becomes of a run."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx
import orjson
import pytest

from gateway import Context, Event
from gateway.base.errors import LeaseLost
from gateway.base.model import Lease, Retention
from gateway.config.registry import Subscription
from gateway.ledger.bulk import Action
from gateway.ledger.connection import QUERIES, Connection, Pool, open_pool
from gateway.ledger.deliveries import KnownEffects, count_effects, lease_hinted
from gateway.ledger.effects import (
    Effect,
    EffectName,
    begin_effect_of_key,
    finish_effect,
    name_effect,
    release_effect,
    retry_effects,
)
from gateway.ledger.encryption import OPEN
from gateway.ledger.erasure import ErasureRequest, erase_events
from gateway.ledger.filter import Filter
from gateway.operations.encryption import reveal
from gateway.operations.inspect import find, list_unknown_effects
from gateway.operations.stored_data import prune
from gateway.privacy.redaction import FieldPath, RedactAt, Redaction
from tests.integration.test_encryption import encrypted
from tests.integration.test_rekey import rekey_all
from tests.support.bulk import Clerk, clerk
from tests.support.keys import find_in_ledger, make_vault
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.receiver import Receiver, answer, receiving
from tests.support.waiting import until
from tests.support.workers import QUICK, Function, make_config, make_route, subscribe, working

SENT = answer(200, {"id": "msg_1"})
SESSION = "cs_Zebra-4711"
HANDLER = ("stripe", "handlers.count")
NAME = f"receipt per {SESSION}"
ONE_TRY = replace(QUICK, attempts=1)
MANY_TRIES = replace(QUICK, attempts=20)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
Got = list[tuple[str, Any]]


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    """A second one, beside that of the reader."""
    found: Connection = await asyncpg.connect(database_url)
    yield found
    await found.close()


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    found = await open_pool(database_url, name="test", size=4, command_timeout_s=60)
    yield found
    await found.close()


def of_session(event_id: str, session: str = SESSION, **more: Any) -> Any:
    body = orjson.dumps({"id": event_id, "session": session})
    return make_claim(event_id, body=body, **more)


def mailing(mail: Receiver, got: Got, **options: Any) -> Function:
    """A receipt per session, whichever event tells that it was paid."""

    async def handler(event: Event, ctx: Context) -> None:
        session = event.payload["session"]

        async def send_receipt() -> str:
            async with httpx.AsyncClient(base_url=mail.url) as client:
                headers = {"Idempotency-Key": ctx.idempotency_key("receipt")}
                sent = await client.post("/send", json={"of": session}, headers=headers)
                sent.raise_for_status()
                return str(sent.json()["id"])

        given = {"unknown": "skip", "per": session} | options
        got.append((event.id, await ctx.once("receipt", send_receipt, **given)))

    return handler


async def run(url: str, ledger: Reader, handler: Function | Subscription, **to: int) -> None:
    """Until this is how the deliveries stand."""
    subscription = handler if isinstance(handler, Subscription) else subscribe(handler)
    async with working(url, subscription):
        await until(lambda: _stand(ledger, to))


async def _stand(ledger: Reader, to: dict[str, int]) -> bool:
    return await ledger.statuses() == to


async def run_one(url: str, ledger: Reader, claim: Any, handler: Function, **to: int) -> None:
    """Claim an event and run it before the next one comes."""
    await claim_all(url, [claim])
    await run(url, ledger, handler, **to)


async def id_of(ledger: Reader, event_id: str) -> int:
    id: int = await ledger.value("select id from gateway.deliveries where event_id = $1", event_id)
    return id


async def unknown(ann: Clerk) -> list[tuple[str, str]]:
    """The effects that `gateway effects` lists: event and name."""
    listed = await list_unknown_effects(ann.connection, Filter(), (None, None, None), 50)
    return [(row["event_id"], row["name"]) for row in listed.rows]


async def effect_of(ann: Clerk, event_id: str) -> dict[str, Any]:
    """The only effect of an event, as people see it."""
    [event] = await find(ann.connection, event_id, None)
    [delivery] = event["deliveries"]
    [effect] = delivery["effects"]
    return dict(effect)


async def test_two_events_of_one_session_are_one_receipt(database_url: str, ledger: Reader) -> None:
    got: Got = []
    async with receiving(SENT) as mail, clerk(database_url) as ann:
        handler = mailing(mail, got)
        await run_one(database_url, ledger, of_session("evt_1"), handler, done=1)
        await run_one(database_url, ledger, of_session("evt_2"), handler, done=2)
        await run_one(database_url, ledger, of_session("evt_3", "cs_other"), handler, done=3)
        assert got == [("evt_1", "msg_1"), ("evt_2", "msg_1"), ("evt_3", "msg_1")]
        assert [orjson.loads(r.body)["of"] for r in mail.requests] == [SESSION, "cs_other"]
        first, second = await effect_of(ann, "evt_1"), await effect_of(ann, "evt_2")
        assert (first["name"], first["status"], first["made_by_event"]) == (NAME, "done", None)
        assert (second["status"], second["calls"], second["made_by_event"]) == ("done", 0, "evt_1")
        for event_id in ("evt_1", "evt_2"):
            await ledger.replay(await id_of(ledger, event_id))
        await run(database_url, ledger, handler, done=3)
        assert len(mail.requests) == 2
        assert got[3:] == [("evt_1", "msg_1"), ("evt_2", "msg_1")] or got[3:] == [
            ("evt_2", "msg_1"),
            ("evt_1", "msg_1"),
        ]


async def test_another_handler_and_another_name_have_keys_of_their_own(
    database_url: str, ledger: Reader
) -> None:
    calls: list[str] = []

    def calling(of: str, *names: str) -> Function:
        async def handler(event: Event, ctx: Context) -> None:
            for name in names:
                await ctx.once(name, calls.append, f"{of} {name}", per=event.payload["session"])

        return handler

    names = ["handlers.count", "handlers.other"]
    await claim_all(database_url, [of_session(f"evt_{n}", handlers=names) for n in range(3)])
    one = subscribe(calling("one", "receipt", "invoice"))
    other = subscribe(calling("other", "receipt"), name="handlers.other")
    async with working(database_url, one, other):
        await until(lambda: _stand(ledger, {"done": 6}))
    assert sorted(calls) == ["one invoice", "one receipt", "other receipt"]


async def test_of_two_at_the_same_time_one_calls_and_the_other_waits_for_its_result(
    database_url: str, ledger: Reader
) -> None:
    got: Got = []
    calls, go = [], asyncio.Event()

    async def handler(event: Event, ctx: Context) -> None:
        async def send() -> str:
            calls.append(event.id)
            await go.wait()
            return f"sent by {event.id}"

        got.append((event.id, await ctx.once("receipt", send, per=event.payload["session"])))

    await claim_all(database_url, [of_session("evt_1"), of_session("evt_2")])
    async with working(database_url, subscribe(handler)), working(database_url, subscribe(handler)):
        await until(lambda: _deferred(ledger))
        go.set()
        await until(lambda: _stand(ledger, {"done": 2}))
    assert len(calls) == 1
    assert dict(got) == dict.fromkeys(["evt_1", "evt_2"], f"sent by {calls[0]}")
    rows = await ledger.rows("select attempts, losses from gateway.deliveries")
    assert [tuple(row.values()) for row in rows] == [(1, 0), (1, 0)], "waiting burns no attempt"
    error = await ledger.value("select error from gateway.attempts where outcome = 'deferred'")
    assert f"ctx.once('{NAME}') is running for event {calls[0]}" in error


async def _deferred(ledger: Reader) -> bool:
    return "deferred" in await ledger.outcomes()


async def test_a_call_that_was_refused_leaves_the_key_to_the_other_event(
    database_url: str, ledger: Reader
) -> None:
    got: Got = []
    async with receiving(answer(401)) as mail:
        await run_one(database_url, ledger, of_session("evt_1"), mailing(mail, got), dead=1)
        assert len(mail.requests) == 3
        assert await ledger.value("select count(*) from gateway.once_keys") == 0
        mail.replies[:] = [SENT]
        await run_one(database_url, ledger, of_session("evt_2"), mailing(mail, got), dead=1, done=1)
        await ledger.replay(await id_of(ledger, "evt_1"))
        await run(database_url, ledger, mailing(mail, got), done=2)
        assert got == [("evt_2", "msg_1"), ("evt_1", "msg_1")]
        assert len(mail.requests) == 4


async def test_an_unknown_outcome_is_listed_once_and_its_retry_sends_for_both(
    database_url: str, ledger: Reader
) -> None:
    got: Got = []
    async with receiving(answer(500)) as mail, clerk(database_url) as ann:
        handler = mailing(mail, got)
        await run_one(database_url, ledger, of_session("evt_1"), handler, done=1)
        await run_one(database_url, ledger, of_session("evt_2"), handler, done=2)
        assert len(mail.requests) == 1
        assert got == [("evt_1", None), ("evt_2", None)]
        assert await unknown(ann) == [("evt_1", NAME)]
        passed = await effect_of(ann, "evt_2")
        assert (passed["status"], passed["made_by_event"]) == ("unknown", "evt_1")
        other = await id_of(ledger, "evt_2")
        assert await count_effects(ann.connection, other) == KnownEffects(kept=0, unknown=0)
        mail.replies[:] = [SENT]
        bulk = await ann.do(action=Action.RETRY_EFFECTS, effect="receipt")
        assert (bulk["total"], bulk["moved"]) == (1, 1)
        await run(database_url, ledger, handler, done=2)
        await ledger.replay(other)
        await run(database_url, ledger, handler, done=2)
        assert got[2:] == [("evt_1", "msg_1"), ("evt_2", "msg_1")]
        assert len(mail.requests) == 2
        assert await unknown(ann) == []
        passed = await effect_of(ann, "evt_2")
        assert (passed["status"], passed["made_by_event"]) == ("done", "evt_1")


async def order_retry(ann: Clerk, ledger: Reader, event_id: str) -> None:
    id = await id_of(ledger, event_id)
    await retry_effects(ann.connection, id, None, actor="ann", reason=None)


async def test_an_ordered_call_is_made_by_the_event_that_comes_first(
    database_url: str, ledger: Reader
) -> None:
    """Also with `skip`: a person has ordered it, for whichever event."""
    got: Got = []
    async with receiving(answer(500), SENT) as mail, clerk(database_url) as ann:
        handler = mailing(mail, got)
        await run_one(database_url, ledger, of_session("evt_1"), handler, done=1)
        await order_retry(ann, ledger, "evt_1")
        await ledger.run("update gateway.deliveries set due_at = now() + interval '1 h'")
        await run_one(database_url, ledger, of_session("evt_2"), handler, pending=1, done=1)
        assert (len(mail.requests), got[1:]) == (2, [("evt_2", "msg_1")])
        await ledger.run("update gateway.deliveries set due_at = now() where status = 'pending'")
        await run(database_url, ledger, handler, done=2)
        assert (len(mail.requests), got[2:]) == (2, [("evt_1", "msg_1")])
        assert await unknown(ann) == []


async def test_a_refused_call_that_was_ordered_for_another_event_is_listed_if_its_error_is_caught(
    database_url: str, ledger: Reader
) -> None:
    got: Got = []
    async with receiving(answer(500), answer(401)) as mail, clerk(database_url) as ann:
        handler = mailing(mail, got)

        async def careless(event: Event, ctx: Context) -> None:
            with contextlib.suppress(httpx.HTTPStatusError):
                await handler(event, ctx)

        await run_one(database_url, ledger, of_session("evt_1"), handler, done=1)
        await order_retry(ann, ledger, "evt_1")
        await ledger.run("update gateway.deliveries set due_at = now() + interval '1 h'")
        await run_one(database_url, ledger, of_session("evt_2"), careless, pending=1, done=1)
        assert len(mail.requests) == 2
        listed = await list_unknown_effects(ann.connection, Filter(), (None, None, None), 50)
        [row] = listed.rows
        assert (row["event_id"], row["calls"], row["error"]) == ("evt_2", 1, "HTTPStatusError 500")


async def test_a_confirmed_effect_is_done_for_all_events_of_its_key(
    database_url: str, ledger: Reader
) -> None:
    got: Got = []
    async with receiving(answer(500)) as mail, clerk(database_url) as ann:
        handler = mailing(mail, got)
        await run_one(database_url, ledger, of_session("evt_1"), handler, done=1)
        bulk = await ann.do(action=Action.CONFIRM_EFFECTS, effect=NAME)
        assert (bulk["total"], bulk["moved"]) == (1, 1)
        await run_one(database_url, ledger, of_session("evt_2"), handler, done=2)
        assert got == [("evt_1", None), ("evt_2", None)]
        assert len(mail.requests) == 1
        assert await unknown(ann) == []


async def test_with_retry_the_next_event_calls_again_under_the_same_idempotency_key(
    database_url: str, ledger: Reader
) -> None:
    """The first delivery is dead with an unknown outcome: it has the effect no more."""
    got: Got = []
    async with receiving(*[answer(500)] * 3, SENT) as mail, clerk(database_url) as ann:
        handler = mailing(mail, got, unknown="retry")
        await run_one(database_url, ledger, of_session("evt_1"), handler, dead=1)
        await run_one(database_url, ledger, of_session("evt_2"), handler, dead=1, done=1)
        await ledger.replay(await id_of(ledger, "evt_1"))
        await run(database_url, ledger, handler, done=2)
        assert got == [("evt_2", "msg_1"), ("evt_1", "msg_1")]
        assert len(mail.requests) == 4
        assert len({r.headers["idempotency-key"] for r in mail.requests}) == 1
        first, second = await effect_of(ann, "evt_1"), await effect_of(ann, "evt_2")
        assert (first["status"], first["made_by_event"]) == ("done", "evt_2")
        assert (second["calls"], second["made_by_event"]) == (4, None)


async def test_a_refusal_after_a_call_of_another_event_that_ended_unknown_proves_nothing(
    database_url: str, ledger: Reader
) -> None:
    got: Got = []
    async with receiving(answer(500), answer(500), answer(500), answer(401)) as mail:
        await run_one(
            database_url, ledger, of_session("evt_1"), mailing(mail, got, unknown="retry"), dead=1
        )
        await run_one(
            database_url, ledger, of_session("evt_2"), mailing(mail, got, unknown="retry"), dead=2
        )
        count = len(mail.requests)
        await run_one(database_url, ledger, of_session("evt_3"), mailing(mail, got), dead=2, done=1)
        assert len(mail.requests) == count
        assert got == [("evt_3", None)]
        async with clerk(database_url) as ann:
            assert await unknown(ann) == [("evt_3", NAME)]


@pytest.mark.parametrize("fate", ["dead", "discarded"])
@pytest.mark.parametrize("unknown_is", ["skip", "retry"])
async def test_what_an_ended_delivery_may_have_called_is_listed_or_called_again(
    database_url: str, ledger: Reader, unknown_is: str, fate: str
) -> None:
    got: Got = []
    async with receiving(answer(500), SENT) as mail, clerk(database_url) as ann:
        first = subscribe(mailing(mail, got), retry=ONE_TRY)
        await claim_all(database_url, [of_session("evt_1")])
        await run(database_url, ledger, first, dead=1)
        if fate == "discarded":
            await ledger.discard(await id_of(ledger, "evt_1"))
        second = mailing(mail, got, unknown=unknown_is)
        await run_one(database_url, ledger, of_session("evt_2"), second, **{fate: 1}, done=1)
        if unknown_is == "retry":
            assert (len(mail.requests), got) == (2, [("evt_2", "msg_1")])
            assert await unknown(ann) == []
        else:
            assert (len(mail.requests), got) == (1, [("evt_2", None)])
            # It was listed when its delivery was discarded; a dead letter lists nothing.
            listed_for = "evt_1" if fate == "discarded" else "evt_2"
            assert await unknown(ann) == [(listed_for, NAME)]


async def test_a_loop_calls_once_per_item(database_url: str, ledger: Reader) -> None:
    calls: list[str] = []

    async def handler(event: Event, ctx: Context) -> None:
        for item in event.payload["items"]:
            await ctx.once("ship", calls.append, item, per=("order", item))
        with pytest.raises(ValueError, match=r"ship per \[.*\]'\) twice in one run"):
            await ctx.once("ship", calls.append, "again", per=("order", event.payload["items"][0]))

    for n, items in enumerate(["ab", "bc"]):
        body = orjson.dumps({"items": list(items)})
        claim = make_claim(f"evt_{n}", body=body)
        await run_one(database_url, ledger, claim, handler, done=n + 1)
    assert calls == ["a", "b", "c"]


async def test_a_name_that_reads_like_a_name_with_a_key_is_another_effect(
    database_url: str, ledger: Reader
) -> None:
    calls: list[str] = []

    async def handler(event: Event, ctx: Context) -> None:
        if event.id == "evt_1":
            await ctx.once("receipt per 1", calls.append, "plain")
        else:
            await ctx.once("receipt", calls.append, "keyed", per=1)
            with pytest.raises(ValueError, match="twice in one run"):
                await ctx.once("receipt per 1", calls.append, "plain")

    await claim_all(database_url, [make_claim("evt_1"), make_claim("evt_2")])
    await run(database_url, ledger, handler, done=2)
    assert sorted(calls) == ["keyed", "plain"]


async def test_what_is_no_key_is_not_taken_for_none(database_url: str, ledger: Reader) -> None:
    calls: list[str] = []

    async def handler(event: Event, ctx: Context) -> None:
        await ctx.once("receipt", calls.append, "called", per=event.payload.get("session"))

    await claim_all(database_url, [make_claim("evt_1")])
    await run(database_url, ledger, handler, dead=1)
    assert calls == []
    error = (await ledger.delivery())["error"]
    assert error == (
        "REJECTED: ctx.once('receipt', per=...): the event has no value for it: found None"
    )
    assert await ledger.outcomes() == ["dead"], "a retry would find none either"


@pytest.mark.parametrize("redact_at", list(RedactAt))
async def test_a_redacted_value_is_no_key(
    database_url: str, ledger: Reader, redact_at: RedactAt
) -> None:
    redaction = Redaction((FieldPath.parse("session"),), redact_at)
    route = make_route(redaction=redaction)
    calls: list[str] = []

    async def handler(event: Event, ctx: Context) -> None:
        await ctx.once("receipt", calls.append, "called", per=event.payload["session"])

    claim = of_session("evt_1")
    await claim_all(database_url, [claim._replace(body=route.redacted({}, claim.body))])
    async with working(database_url, subscribe(handler), config=make_config(route)):
        await until(lambda: _stand(ledger, {"dead": 1}))
    assert calls == []
    assert "a field that the route redacts" in (await ledger.delivery())["error"]
    assert await find_in_ledger(database_url, SESSION) == [] or redact_at is RedactAt.SHOW


async def test_keys_of_all_events_of_a_thing_are_the_same(
    database_url: str, ledger: Reader
) -> None:
    keys: dict[str, list[str]] = {}

    async def handler(event: Event, ctx: Context) -> None:
        inside: list[str] = []
        await ctx.once("call", lambda: inside.append(ctx.idempotency_key("a")), per=event.id)
        keys[event.id] = [
            ctx.idempotency_key("a", per="cs_1"),
            ctx.idempotency_key("b", per="cs_1"),
            ctx.idempotency_key("a", per=("cs", 1)),
            ctx.idempotency_key("a"),
            *inside,
        ]
        assert inside == [ctx.idempotency_key("a", per=event.id)]

    await claim_all(database_url, [make_claim("evt_1"), make_claim("evt_2")])
    await run(database_url, ledger, handler, done=2)
    one, two = keys["evt_1"], keys["evt_2"]
    assert one[:3] == two[:3]
    assert len({*one, *two}) == 3 + 2 * 2


async def test_a_flood_of_events_makes_one_call_per_thing(
    database_url: str, ledger: Reader
) -> None:
    """Calls that are refused, time out and are broken; deliveries that run into each other."""
    dice = random.Random(7)  # noqa: S311 (no secret)
    calls, done = Counter[str](), Counter[str]()
    got: dict[str, set[str]] = {}

    async def handler(event: Event, ctx: Context) -> None:
        session = event.payload["session"]

        async def send() -> str:
            calls[session] += 1
            await asyncio.sleep(0)
            if dice.random() < 0.3:
                raise ConnectionRefusedError
            done[session] += 1
            return f"{session} {event.id}"

        result = await ctx.once("receipt", send, per=session, unknown="skip")
        got.setdefault(session, set()).add(result)
        if dice.random() < 0.2:
            raise ValueError("after the call")

    claims = [of_session(f"evt_{n}", f"cs_{n % 7}") for n in range(70)]
    await claim_all(database_url, claims)
    patient = subscribe(handler, retry=MANY_TRIES)
    async with working(database_url, patient), working(database_url, patient):
        await until(lambda: _stand(ledger, {"done": 70}))
    assert done == dict.fromkeys((f"cs_{n}" for n in range(7)), 1)
    assert {session: len(results) for session, results in got.items()} == dict(done)


async def lease_of(connection: Connection, ledger: Reader, event_id: str) -> Lease:
    id = await id_of(ledger, event_id)
    [lease] = await lease_hinted(connection, [id], [HANDLER], HOUR)
    return lease


async def lose(ledger: Reader, lease: Lease) -> None:
    """As the sweep takes back the lease of a worker that died."""
    await ledger.run(
        "update gateway.deliveries set status = 'pending', lease_token = null, leased_until = null"
        " where id = $1",
        lease.delivery_id,
    )


@pytest.fixture
async def two(
    database_url: str, connection: Connection, ledger: Reader
) -> tuple[Lease, Lease, EffectName]:
    """The leases of two events of one session, and their effect."""
    await claim_all(database_url, [of_session("evt_1"), of_session("evt_2")])
    leases = [await lease_of(connection, ledger, f"evt_{n}") for n in (1, 2)]
    return (*leases, name_effect(OPEN, leases[0], "receipt", SESSION))  # type: ignore[return-value]


Two = tuple[Lease, Lease, EffectName]


async def test_a_run_without_its_lease_reserves_nothing(
    pool: Pool, ledger: Reader, two: Two
) -> None:
    lost, other, of = two
    await lose(ledger, lost)
    with pytest.raises(LeaseLost):
        await begin_effect_of_key(pool, lost, of, again=True, encryption=OPEN)
    assert await ledger.value("select count(*) from gateway.once_keys") == 0
    assert (await begin_effect_of_key(pool, other, of, again=True, encryption=OPEN)).is_ours
    await finish_effect(pool, other, of.name, b'"sent"', encryption=OPEN)
    with pytest.raises(LeaseLost):
        await begin_effect_of_key(pool, lost, of, again=True, encryption=OPEN)
    assert await ledger.value("select count(*) from gateway.effects") == 1


async def test_a_call_that_another_event_took_over_cannot_be_kept_by_the_first(
    pool: Pool, ledger: Reader, two: Two
) -> None:
    """The first worker is only slow: its call counts as one of unknown outcome, not as done."""
    slow, other, of = two
    assert (await begin_effect_of_key(pool, slow, of, again=True, encryption=OPEN)).is_ours
    assert (await begin_effect_of_key(pool, other, of, again=True, encryption=OPEN)).is_busy
    await lose(ledger, slow)
    assert (await begin_effect_of_key(pool, other, of, again=True, encryption=OPEN)).is_ours
    with pytest.raises(LeaseLost):
        await finish_effect(pool, slow, of.name, b'"slow"', encryption=OPEN)
    await release_effect(pool, slow, of, Effect(is_ours=True))
    await finish_effect(pool, other, of.name, b'"other"', encryption=OPEN)
    rows = await ledger.rows(
        "select delivery_id, status, calls, made_by, result from gateway.effects"
        " order by delivery_id"
    )
    assert [tuple(row.values()) for row in rows] == [
        (slow.delivery_id, "begun", 1, other.delivery_id, None),
        (other.delivery_id, "done", 2, None, '"other"'),
    ]
    key = await ledger.row("select delivery_id, token from gateway.once_keys")
    assert key == {"delivery_id": other.delivery_id, "token": other.token}


async def test_a_call_of_a_lost_lease_that_nobody_took_over_is_kept(
    pool: Pool, ledger: Reader, two: Two
) -> None:
    slow, other, of = two
    await begin_effect_of_key(pool, slow, of, again=True, encryption=OPEN)
    await lose(ledger, slow)
    await finish_effect(pool, slow, of.name, b'"slow"', encryption=OPEN)
    effect = await begin_effect_of_key(pool, other, of, again=True, encryption=OPEN)
    assert (effect.is_done, effect.result, effect.by_event) == (True, "slow", "evt_1")


async def test_a_key_that_is_being_reserved_is_waited_for(
    connection: Connection, pool: Pool, ledger: Reader, two: Two
) -> None:
    """Neither sees the other's reservation yet: one has it, and the other learns of it."""
    first, second, of = two
    async with connection.transaction():
        reserve = (*HANDLER, of.reserved, first.delivery_id, first.token, None)
        assert await connection.fetchval(QUERIES["reserve_effect"], *reserve)
        asking = asyncio.create_task(
            begin_effect_of_key(pool, second, of, again=True, encryption=OPEN)
        )
        await until(ledger.is_blocked)
    effect = await asking
    assert effect.is_ours, "it was reserved, and nothing was begun"
    assert (await begin_effect_of_key(pool, first, of, again=True, encryption=OPEN)).is_busy


async def test_a_key_whose_effect_another_one_changes_is_not_waited_for(
    connection: Connection, pool: Pool, ledger: Reader, two: Two
) -> None:
    """An erasure or a retry may hold more than this: who waits for nobody is in no deadlock."""
    first, second, of = two
    await begin_effect_of_key(pool, first, of, again=True, encryption=OPEN)
    await lose(ledger, first)
    for table in ("once_keys", "effects"):
        async with connection.transaction():
            await connection.execute(f"select from gateway.{table} for update")
            assert (
                await begin_effect_of_key(pool, second, of, again=True, encryption=OPEN)
            ).is_busy


@pytest.mark.parametrize("is_done", [True, False])
async def test_an_erasure_in_the_middle_of_a_reservation_does_not_free_the_key(
    connection: Connection, pool: Pool, ledger: Reader, two: Two, is_done: bool
) -> None:
    first, second, of = two
    await begin_effect_of_key(pool, first, of, again=True, encryption=OPEN)
    if is_done:
        await finish_effect(pool, first, of.name, b'"sent"', encryption=OPEN)
    await lose(ledger, first)
    async with connection.transaction():
        await erase_events(
            connection, [("stripe", "evt_1")], ErasureRequest(actor="ann", reason="7")
        )
        asking = asyncio.create_task(
            begin_effect_of_key(pool, second, of, again=False, encryption=OPEN)
        )
        await until(lambda: asking.done() or ledger.is_blocked())
    effect = await asking
    if effect.is_busy:
        effect = await begin_effect_of_key(pool, second, of, again=False, encryption=OPEN)
    assert (effect.is_ours, effect.is_done) == (False, is_done)
    keys = await ledger.rows("select key from gateway.once_keys")
    assert [row["key"].startswith("erased:") for row in keys] == [True]
    assert (
        await begin_effect_of_key(pool, second, of, again=False, encryption=OPEN)
    ).is_ours is False


async def test_what_was_done_for_an_erased_event_stays_done_and_nothing_of_it_is_left(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    got: Got = []
    async with receiving(answer(200, {"id": "msg_Grace"})) as mail:
        handler = mailing(mail, got)
        await run_one(database_url, ledger, of_session("evt_1"), handler, done=1)
        await run_one(database_url, ledger, of_session("evt_2"), handler, done=2)
        order = ErasureRequest(actor="ann", reason="7")
        await erase_events(connection, [("stripe", "evt_1")], order)
        assert await find_in_ledger(database_url, "msg_Grace") == [], "nor as a copy"
        await run_one(database_url, ledger, of_session("evt_3"), handler, done=3)
        await erase_events(connection, [("stripe", "evt_2"), ("stripe", "evt_3")], order)
        assert await find_in_ledger(database_url, SESSION) == []
        await run_one(database_url, ledger, of_session("evt_4"), handler, done=4)
        assert len(mail.requests) == 1
    assert got[2:] == [("evt_3", None), ("evt_4", None)]


async def test_the_outcome_of_an_erased_event_stays_unknown_and_the_next_one_shows_it(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    got: Got = []
    async with receiving(answer(500)) as mail, clerk(database_url) as ann:
        handler = mailing(mail, got)
        await run_one(database_url, ledger, of_session("evt_1"), handler, done=1)
        await erase_events(
            connection, [("stripe", "evt_1")], ErasureRequest(actor="ann", reason="7")
        )
        assert await unknown(ann) == []
        await run_one(database_url, ledger, of_session("evt_2"), handler, done=2)
        assert len(mail.requests) == 1
        assert await unknown(ann) == [("evt_2", NAME)]
        mail.replies[:] = [SENT]
        await ann.do(action=Action.RETRY_EFFECTS)
        await run(database_url, ledger, handler, done=2)
        assert got[-1] == ("evt_2", "msg_1")


async def test_the_key_is_kept_as_long_as_its_event_and_the_result_as_long_as_each(
    database_url: str, connection: Connection, ledger: Reader
) -> None:
    got: Got = []
    kept = {"stripe": Retention(key=35 * DAY, payload=14 * DAY, dead=90 * DAY)}
    async with receiving(SENT, answer(200, {"id": "msg_2"})) as mail:
        handler = mailing(mail, got)
        old = of_session("evt_1", received_at=datetime.now(UTC) - 40 * DAY)
        await run_one(database_url, ledger, old, handler, done=1)
        await run_one(database_url, ledger, of_session("evt_2"), handler, done=2)
        await ledger.run(
            "update gateway.deliveries set finished_at = now() - interval '40 d'"
            " where event_id = 'evt_1'"
        )
        place = None
        while True:
            _, place = await prune(connection, kept, 400 * DAY, place)
            if place is None:
                break
        assert await ledger.value("select count(*) from gateway.once_keys") == 0
        await ledger.replay(await id_of(ledger, "evt_2"))
        await run(database_url, ledger, handler, done=1)
        assert (len(mail.requests), got[-1]) == (1, ("evt_2", "msg_1"))
        await run_one(database_url, ledger, of_session("evt_3"), handler, done=2)
        assert (len(mail.requests), got[-1]) == (1, ("evt_3", "msg_1")), "evt_2 has the key now"


async def test_on_an_encrypted_route_nothing_of_key_and_result_can_be_read(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    encryption, got = make_vault(), Got()
    async with receiving(answer(200, {"id": "msg_Grace"})) as mail, clerk(database_url) as ann:
        handler = subscribe(mailing(mail, got))
        for n in (1, 2):
            await claim_all(database_url, [encryption.seal_claim(of_session(f"evt_{n}"))])
            async with working(database_url, handler, config=encrypted(), ring=encryption.ring):
                await until(lambda n=n: _stand(ledger, {"done": n}))
        assert got == [("evt_1", "msg_Grace"), ("evt_2", "msg_Grace")]
        assert len(mail.requests) == 1
        for mark in (SESSION, "msg_Grace"):
            assert await find_in_ledger(database_url, mark) == []
        second = await effect_of(ann, "evt_2")
        assert second["name"].startswith("receipt per digest:")
        assert second["made_by_event"] == "evt_1"
        found = await find(connection, "evt_2", None)
        [shown] = await reveal(connection, found, encryption.ring, actor="ann", reason=None)
        assert shown["deliveries"][0]["effects"][0]["result"] == '"msg_Grace"'
        await ledger.replay(await id_of(ledger, "evt_2"))
        async with working(database_url, handler, config=encrypted(), ring=encryption.ring):
            await until(lambda: _stand(ledger, {"done": 2}))
        assert got[2:] == [("evt_2", "msg_Grace")]


@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize("status", [200, 500])
async def test_what_was_done_before_a_route_was_encrypted_stays_done(
    database_url: str, ledger: Reader, connection: Connection, status: int, is_sealed: bool
) -> None:
    """Before and after `gateway rekey` has encrypted what is there."""
    encryption, got = make_vault(), Got()
    result = "msg_Grace" if status == 200 else None
    async with receiving(answer(status, {"id": "msg_Grace"})) as mail, clerk(database_url) as ann:
        handler = subscribe(mailing(mail, got))
        for n in (1, 2):
            await run_one(database_url, ledger, of_session(f"evt_{n}"), handler.function, done=n)
        if is_sealed:
            assert (await rekey_all(connection, encryption)).past == 2
            for mark in (SESSION, "msg_Grace"):
                assert await find_in_ledger(database_url, mark) == []
        for event_id in ("evt_1", "evt_2"):
            await ledger.replay(await id_of(ledger, event_id))
        await claim_all(database_url, [encryption.seal_claim(of_session("evt_3"))])
        async with working(database_url, handler, config=encrypted(), ring=encryption.ring):
            await until(lambda: _stand(ledger, {"done": 3}))
        assert len(mail.requests) == 1
        assert {value for _, value in got} == {result}
        assert len(got) == 5
        listed = await unknown(ann)
        assert len(listed) == (status == 500)
        if not is_sealed:
            await rekey_all(connection, encryption)
        for mark in (SESSION, "msg_Grace"):
            assert await find_in_ledger(database_url, mark) == []
