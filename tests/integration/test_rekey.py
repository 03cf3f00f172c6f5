"""`gateway rekey`: a change of keys beside live traffic, and what was stored before."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

import asyncpg
import orjson
import pytest

from gateway import Context, Event, Reject
from gateway.base.model import RepeatPolicy
from gateway.config.registry.key_path import KeyPath
from gateway.ledger import rekeying
from gateway.ledger.claims import ClaimVerdict
from gateway.ledger.connection import Connection
from gateway.ledger.encryption import EncryptionKeys, open_rejected, seal_rejected
from gateway.ledger.rekeying import BATCH, KINDS, KeyUse, Rekeyed, RekeyKind, count_keys
from gateway.operations import stored_data
from gateway.operations.stored_data import RekeyCursor, rekey
from tests.integration.test_encryption import BODY, MARK, encrypted, run, sealed_claim
from tests.support.keys import find_in_ledger, make_key, make_vault
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.waiting import until
from tests.support.workers import make_config, subscribe, working

OLD, NEW = make_key(), make_key()
BEFORE, BOTH, AFTER = make_vault(OLD), make_vault(NEW, OLD), make_vault(NEW)


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


async def failing(event: Event, ctx: Context) -> None:
    await ctx.once("mail", lambda: event.payload)
    raise Reject(f"no {event.payload['secret']}")


async def rekey_all(connection: Connection, encryption: EncryptionKeys, **options: Any) -> Rekeyed:
    """Piece by piece, as the command does."""
    cursor: RekeyCursor | None = None
    total = Rekeyed()
    while True:
        done, cursor = await rekey(lambda: nullcontext(connection), encryption, cursor, **options)
        total += done
        if cursor is None:
            return total


async def test_after_a_rekey_nothing_needs_the_old_key(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    count = BATCH + 5
    await claim_all(
        database_url, [sealed_claim(BEFORE, f"evt_{n:03}", body=BODY) for n in range(count)]
    )
    await ledger.run("delete from gateway.deliveries where event_id <> 'evt_007'")
    await run(database_url, ledger, BEFORE, failing, to={"dead": 1})
    old = KeyUse(key_id=BEFORE.ring.first, events=count, attempts=1, effects=1)
    assert await count_keys(connection) == [old]
    done = await rekey_all(connection, BOTH, rate=200)
    assert (done.events, done.attempts, done.effects, done.past) == (count, 1, 1, 0)
    new = KeyUse(key_id=AFTER.ring.first, events=count, attempts=1, effects=1)
    assert await count_keys(connection) == [new]
    assert await rekey_all(connection, BOTH) == Rekeyed()
    got = list[Any]()

    async def handler(event: Event, ctx: Context) -> None:
        got.append((event.body, await ctx.once("mail", lambda: None)))

    await ledger.replay(await ledger.value("select id from gateway.deliveries"))
    await run(database_url, ledger, AFTER, handler, to={"done": 1})
    assert got == [(BODY, orjson.loads(BODY))]
    assert await find_in_ledger(database_url, MARK) == []


async def test_a_rekey_of_a_route_leaves_the_others(
    database_url: str, connection: Connection
) -> None:
    both = make_vault(OLD, routes=["stripe", "github"])
    await claim_all(
        database_url, [both.seal_claim(make_claim(route=r)) for r in ("stripe", "github")]
    )
    assert (await rekey_all(connection, BOTH, route="github")).events == 1
    assert {use.key_id: use.events for use in await count_keys(connection)} == {
        BEFORE.ring.first: 1,
        AFTER.ring.first: 1,
    }


async def test_what_is_under_a_missing_key_or_broken_is_left_and_told(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    lost = make_vault()
    await claim_all(database_url, [sealed_claim(lost, "evt_lost")])
    await claim_all(database_url, [sealed_claim(BEFORE, f"evt_{n}") for n in range(3)])
    await ledger.run(
        "update gateway.payloads set body = set_byte(body, 40, get_byte(body, 40) # 1)"
        " where event_id = 'evt_1'"
    )
    done = await rekey_all(connection, BOTH)
    assert (done.events, done.broken) == (2, ("processed_events stripe evt_1",))
    left = {use.key_id: use.events for use in await count_keys(connection)}
    assert left == {lost.ring.first: 1, BEFORE.ring.first: 1, AFTER.ring.first: 2}


async def test_a_row_that_changes_while_it_is_sealed_anew_is_left_to_whoever_changed_it(
    database_url: str, ledger: Reader, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await claim_all(database_url, [sealed_claim(BEFORE, f"evt_{n}") for n in range(3)])
    to_thread = asyncio.to_thread

    async def meanwhile(*args: Any) -> Any:
        await ledger.run("delete from gateway.payloads where event_id = 'evt_1'")
        return await to_thread(*args)

    monkeypatch.setattr(asyncio, "to_thread", meanwhile)
    assert (await rekey_all(connection, BOTH)).events == 2
    assert [use.key_id for use in await count_keys(connection)] == [AFTER.ring.first]


async def test_two_rekeys_at_once_do_it_once_beside_workers_that_run(
    database_url: str,
    ledger: Reader,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stored_data, "REKEY_BATCH", 7)
    ran = list[str]()

    async def handler(event: Event, _: Context) -> None:
        assert event.body == BODY
        ran.append(event.id)

    count = 300
    await claim_all(database_url, [sealed_claim(BEFORE, f"evt_{n:03}") for n in range(count)])
    other = await asyncpg.connect(database_url)
    async with working(database_url, subscribe(handler), config=encrypted(), ring=BOTH.ring):
        one, two = await asyncio.gather(rekey_all(connection, BOTH), rekey_all(other, BOTH))
        await until(lambda: _are_done(ledger, count))
    await other.close()
    assert one.events + two.events == count
    assert (len(ran), len(set(ran))) == (count, count)
    assert [use.events for use in await count_keys(connection)] == [count]


async def _are_done(ledger: Reader, count: int) -> bool:
    return await ledger.statuses() == {"done": count}


async def test_what_was_stored_before_its_route_was_encrypted_is_sealed_with_all_of_it(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    turns = KeyPath.parse("key")
    claim = make_claim("evt_1", body=BODY, repeats=RepeatPolicy.REFUSE)
    keyed = claim._replace(
        headers={"x-note": MARK}, order_keys={"handlers.count": f"{MARK}@example.com"}
    )
    await claim_all(database_url, [keyed])
    once = subscribe(failing, once_per=turns)
    await run(database_url, ledger, AFTER, once, to={"dead": 1}, config=make_config())
    assert len({line.split(":")[0] for line in await find_in_ledger(database_url, MARK)}) >= 4
    done = await rekey_all(connection, AFTER)
    assert (done.past, done.busy) == (1, 0)
    assert await find_in_ledger(database_url, MARK) == []
    row = await ledger.delivery()
    assert row["error"] == "REJECTED, its text is encrypted"
    assert await rekey_all(connection, AFTER) == Rekeyed()
    sealed = AFTER.seal_claim(keyed)
    [same, replayed] = await claim_all(
        database_url, [sealed, sealed._replace(envelope=make_claim("evt_2").envelope)]
    )
    assert (same.verdict, same.conflict, replayed.verdict) == (
        "duplicate",
        False,
        "repeated_body",
    )

    ran = list[Any]()

    async def handler(event: Event, ctx: Context) -> None:
        ran.append((event.headers, await ctx.once("mail", lambda: None)))

    await ledger.replay(row["id"])
    again = subscribe(handler, once_per=turns)
    await run(database_url, ledger, AFTER, again, to={"done": 1})
    assert ran == [({"x-note": MARK}, orjson.loads(BODY))]


async def test_what_must_not_come_again_is_known_through_it(
    database_url: str, connection: Connection
) -> None:
    """By its body, or by what is signed in the place of one."""
    refuse = RepeatPolicy.REFUSE
    by_body = make_claim("evt_1", body=b"body", repeats=refuse)
    by_proof = make_claim("evt_2", repeats=refuse)._replace(guard=b"g" * 32)
    await claim_all(database_url, [by_body, by_proof])
    assert (await rekey_all(connection, AFTER)).past == 2
    again = [
        make_claim("evt_3", body=b"body", repeats=refuse),
        make_claim("evt_4", repeats=refuse)._replace(guard=b"g" * 32),
    ]
    answers = await claim_all(database_url, [AFTER.seal_claim(claim) for claim in again])
    assert [answer.first_event_id for answer in answers] == ["evt_1", "evt_2"]
    assert {answer.verdict for answer in answers} == {ClaimVerdict.REPEATED_BODY}


async def test_deliveries_that_wait_for_their_turn_keep_their_order_through_it(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    body = orjson.dumps({"key": MARK})
    keyed = {"handlers.count": MARK}
    plain = [make_claim(f"evt_{n}", body=body, order_keys=keyed) for n in range(3)]
    for claim in (*plain, AFTER.seal_claim(make_claim("evt_3", body=body, order_keys=keyed))):
        await claim_all(database_url, [claim])
    assert (await rekey_all(connection, AFTER)).past == 3
    keys = await ledger.rows("select distinct order_key from gateway.deliveries")
    assert len(keys) == 1
    assert keys[0]["order_key"].startswith("digest:")
    ran = list[str]()

    async def handler(event: Event, _: Context) -> None:
        ran.append(event.id)

    ordered = subscribe(handler, order_by=KeyPath.parse("key"))
    await run(database_url, ledger, AFTER, ordered, to={"done": 4})
    assert sorted(ran) == [f"evt_{n}" for n in range(4)]
    assert [n for n in ran if n != "evt_3"] == ["evt_0", "evt_1", "evt_2"]


async def test_what_runs_is_left_for_the_next_time(
    database_url: str, ledger: Reader, connection: Connection
) -> None:
    await claim_all(database_url, [make_claim("evt_1", body=BODY), make_claim("evt_2", body=BODY)])
    await ledger.run(
        "update gateway.deliveries set status = 'running', lease_token = gen_random_uuid(),"
        " leased_until = now() + interval '1 h' where event_id = 'evt_1'"
    )
    done = await rekey_all(connection, AFTER)
    assert (done.past, done.busy) == (1, 1)
    await ledger.run("update gateway.deliveries set status = 'pending', lease_token = null")
    assert (await rekey_all(connection, AFTER)).past == 1


async def test_refused_requests_are_put_under_the_new_key_too(
    ledger: Reader, connection: Connection
) -> None:
    at = datetime(2026, 11, 17, 6, 30, tzinfo=UTC)
    sealed = seal_rejected(BEFORE.ring, "stripe", at, "/webhooks/stripe", {"x": MARK}, BODY)
    await ledger.run(
        "insert into gateway.rejected"
        " (route, at, code, cause, detail, method, path, sender, body, key_id, size)"
        " values ('stripe', $1, 'BAD_SIGNATURE', 'a', 'b', 'POST', '', 'c', $2, $3, 1)",
        at,
        sealed,
        BEFORE.ring.first,
    )
    assert [use.rejected for use in await count_keys(connection)] == [1]
    assert (await rekey_all(connection, BOTH)).rejected == 1
    row = await ledger.row("select body, key_id from gateway.rejected")
    assert row["key_id"] == AFTER.ring.first
    opened = open_rejected(AFTER.ring, "stripe", at, row["body"])
    assert (opened["headers"], opened["body"]) == ({"x": MARK}, BODY)


async def test_a_refused_request_of_which_no_body_was_kept_holds_no_key(
    ledger: Reader, connection: Connection
) -> None:
    await ledger.run(
        "insert into gateway.rejected"
        " (route, at, code, cause, detail, method, path, sender, key_id, size)"
        " values ('', now(), 'NOT_FOUND', 'a', 'b', 'POST', '', 'c', $1, 0)",
        BEFORE.ring.first,
    )
    assert await count_keys(connection) == []


async def test_large_rows_are_rekeyed_a_few_at_a_time(
    database_url: str, ledger: Reader, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred results of effects can be as many megabytes."""
    count, at = 5, datetime(2026, 11, 17, 6, 30, tzinfo=UTC)
    sealed = seal_rejected(BEFORE.ring, "stripe", at, "/webhooks/stripe", {}, BODY)
    await claim_all(
        database_url, [sealed_claim(BEFORE, f"evt_{n}", body=BODY) for n in range(count)]
    )
    await run(database_url, ledger, BEFORE, failing, to={"dead": count})
    await ledger.run(
        "insert into gateway.rejected"
        " (route, at, code, cause, detail, method, path, sender, body, key_id, size)"
        " select 'stripe', $1, 'BAD_SIGNATURE', 'a', 'b', 'POST', '', n::text, $2, $3, 1"
        " from generate_series(1, $4) n",
        at,
        sealed,
        BEFORE.ring.first,
        count,
    )
    read = list[tuple[str, int]]()
    seal_anew = rekeying._seal_anew

    def measured(ring: Any, kind: RekeyKind, rows: Any) -> Any:
        read.append((kind.table, len(rows)))
        return seal_anew(ring, kind, rows)

    monkeypatch.setattr(rekeying, "BATCH_BYTES", 1)
    monkeypatch.setattr(rekeying, "_seal_anew", measured)
    done = await rekey_all(connection, BOTH)
    assert (done.events, done.attempts, done.effects, done.rejected) == (count,) * 4
    assert Counter(read) == {(kind.table, 1): count for kind in KINDS.values()}
