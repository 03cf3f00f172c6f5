"""Encrypted routes: what is stored, who can read it, and what becomes of it without its key."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import orjson
import pytest
import structlog

from gateway import Context, Event, Reject
from gateway.base.errors import CommandFailed, PushFailed
from gateway.base.model import RepeatPolicy
from gateway.config.registry import Subscription
from gateway.config.registry.key_path import KeyPath
from gateway.config.routes import Config
from gateway.ledger.bulk import Action
from gateway.ledger.claims import Claim, ClaimVerdict
from gateway.ledger.encryption import EncryptionKeys, open_error
from gateway.ledger.erasure import ErasureRequest, erase_events
from gateway.ledger.filter import outline_of
from gateway.operations.encryption import hide, reveal
from gateway.operations.inspect import find
from gateway.privacy.redaction import FieldPath, RedactAt, Redaction
from gateway.providers import PROVIDERS
from gateway.worker import policy
from gateway.worker.codec import outline
from tests.support.bulk import clerk
from tests.support.keys import find_in_ledger, make_key, make_vault
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.waiting import until
from tests.support.workers import Function, make_config, make_route, subscribe, working

MARK = "Zebra-4711"
"""What is to be found nowhere."""

QUEUE = make_route("tasks", provider=PROVIDERS["publish"], encrypt=True)
HEADERS = {"content-type": "application/json", "x-note": f"header of {MARK}"}
YEAR_AGO = datetime.now(UTC) - timedelta(days=365)
BODY = orjson.dumps({"id": "evt_1", "key": f"{MARK}@example.com", "secret": MARK})


def sealed_claim(
    encryption: EncryptionKeys, event_id: str = "evt_1", body: bytes = BODY, **more: Any
) -> Claim:
    """As the endpoint makes it for an encrypted route."""
    return encryption.seal_claim(make_claim(event_id, body=body, **more)._replace(headers=HEADERS))


def encrypted(*others: Any) -> Config:
    return make_config(make_route(encrypt=True), *others)


async def run(
    url: str,
    ledger: Reader,
    encryption: EncryptionKeys,
    *handlers: Function | Subscription,
    to: Mapping[str, int],
    config: Config | None = None,
) -> None:
    """Until the deliveries stand like this."""
    subscriptions = [h if isinstance(h, Subscription) else subscribe(h) for h in handlers]

    async def stand() -> bool:
        return await ledger.statuses() == to

    async with working(url, *subscriptions, config=config or encrypted(), ring=encryption.ring):
        await until(stand)


async def test_a_handler_reads_what_the_ledger_does_not_show(
    database_url: str, ledger: Reader
) -> None:
    encryption, got = make_vault(), list[Event]()

    async def handler(event: Event, _: Context) -> None:
        got.append(event)

    await claim_all(database_url, [sealed_claim(encryption)])
    assert await find_in_ledger(database_url, MARK) == []
    await run(database_url, ledger, encryption, handler, to={"done": 1})
    [event] = got
    assert (event.headers, event.body, event.payload["secret"]) == (HEADERS, BODY, MARK)
    row = await ledger.row("select * from gateway.events")
    assert row["key_id"] == encryption.ring.first
    assert (row["event_id"], row["type"]) == ("evt_1", "invoice.paid")


async def test_a_duplicate_a_conflict_and_a_replay_are_known_by_keyed_digests(
    database_url: str, ledger: Reader
) -> None:
    encryption = make_vault()
    [first] = await claim_all(database_url, [sealed_claim(encryption, repeats=RepeatPolicy.REFUSE)])
    assert first.verdict is ClaimVerdict.ACCEPTED
    [again, other, replayed] = await claim_all(
        database_url,
        [
            sealed_claim(encryption),
            sealed_claim(encryption, body=b"{}"),
            sealed_claim(encryption, "evt_2", repeats=RepeatPolicy.REFUSE),
        ],
    )
    assert (again.verdict, again.conflict) == (ClaimVerdict.DUPLICATE, False)
    assert (other.verdict, other.conflict) == (ClaimVerdict.DUPLICATE, True)
    assert (replayed.verdict, replayed.first_event_id) == (ClaimVerdict.REPEATED_BODY, "evt_1")
    plain = make_claim("evt_1", body=BODY)
    assert await ledger.value("select digest from gateway.processed_events") != plain.digest
    [turned_off] = await claim_all(database_url, [plain])
    assert (turned_off.verdict, turned_off.conflict) == (ClaimVerdict.DUPLICATE, False)


async def test_errors_keep_their_class_and_place_and_their_text_is_sealed(
    database_url: str, ledger: Reader
) -> None:
    encryption = make_vault()

    async def failing(event: Event, _: Context) -> None:
        raise ValueError(f"no such customer: {event.payload['key']}")

    async def rejecting(event: Event, _: Context) -> None:
        raise Reject(f"not for us: {event.payload['key']}")

    names = ("handlers.count", "handlers.reject")
    await claim_all(database_url, [sealed_claim(encryption, handlers=names)])
    both = [subscribe(failing), subscribe(rejecting, name="handlers.reject")]
    await run(database_url, ledger, encryption, *both, to={"dead": 2})
    assert await find_in_ledger(database_url, MARK) == []
    errors = await ledger.rows("select error from gateway.deliveries order by handler")
    assert errors[0]["error"].startswith("ValueError in failing (test_encryption.py:")
    assert errors[1]["error"].startswith("REJECTED in rejecting (test_encryption.py:")
    attempts = await ledger.rows(
        "select delivery_id, number, error, sealed from gateway.attempts order by 1, 2"
    )
    assert len(attempts) == 4
    for row in attempts:
        text = open_error(encryption.ring, row["delivery_id"], row["number"], row["sealed"])
        assert f"{MARK}@example.com" in text
        assert "its text is encrypted" in row["error"]
        assert "in failing" in row["error"] or "in rejecting" in row["error"]


async def test_results_of_once_are_sealed_and_returned_to_a_rerun(
    database_url: str, ledger: Reader
) -> None:
    encryption, got = make_vault(), list[Any]()

    async def handler(event: Event, ctx: Context) -> None:
        got.append(await ctx.once("mail", lambda: {"to": event.payload["key"]}))
        if len(got) == 1:
            raise RuntimeError(MARK)

    await claim_all(database_url, [sealed_claim(encryption)])
    await run(database_url, ledger, encryption, handler, to={"done": 1})
    assert got == [{"to": f"{MARK}@example.com"}] * 2
    row = await ledger.row("select * from gateway.effects")
    assert (row["result"], row["key_id"], row["calls"]) == (None, encryption.ring.first, 1)
    assert await find_in_ledger(database_url, MARK) == []


async def test_jobs_of_an_encrypted_queue_are_sealed_with_their_keys(
    database_url: str, ledger: Reader
) -> None:
    encryption, got = make_vault(routes=["stripe", "tasks"]), list[Any]()

    async def publisher(event: Event, ctx: Context) -> None:
        await ctx.publish("tasks", event.payload, key="job")
        assert not await ctx.publish("tasks", event.payload, key="job")

    async def job(event: Event, _: Context) -> None:
        got.append(event.payload)

    turns = KeyPath.parse("key")
    await claim_all(database_url, [sealed_claim(encryption)])
    await run(
        database_url, ledger, encryption,
        subscribe(publisher), subscribe(job, name="jobs", route="tasks", once_per=turns),
        to={"done": 2}, config=encrypted(QUEUE),
    )  # fmt: skip
    assert got == [orjson.loads(BODY)]
    assert await find_in_ledger(database_url, MARK) == []
    row = await ledger.row("select * from gateway.once_keys")
    assert row["key"].startswith("digest:")
    assert row["key"] == await ledger.value(
        "select order_key from gateway.deliveries where route = 'tasks'"
    )


async def test_what_was_done_once_per_key_before_a_route_was_encrypted_stays_done(
    database_url: str, ledger: Reader
) -> None:
    encryption, ran = make_vault(), list[str]()

    async def handler(event: Event, _: Context) -> None:
        ran.append(event.id)

    once = subscribe(handler, once_per=KeyPath.parse("key"))
    await claim_all(database_url, [make_claim("evt_1", body=BODY)])
    await run(database_url, ledger, encryption, once, to={"done": 1}, config=make_config())
    await claim_all(database_url, [sealed_claim(encryption, "evt_2")])
    await run(database_url, ledger, encryption, once, to={"done": 2})
    assert ran == ["evt_1"]
    assert await ledger.outcomes() == ["done", "skipped"]


async def test_without_its_key_a_delivery_waits_burns_nothing_and_says_what_to_do(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, ran = make_key(), make_key(), list[str]()

    async def handler(event: Event, _: Context) -> None:
        ran.append(event.payload["secret"])

    await claim_all(database_url, [sealed_claim(make_vault(old))])
    async with working(
        database_url, subscribe(handler), config=encrypted(), ring=make_vault(new).ring
    ):
        await until(lambda: _has(ledger, "deferred"))
    row = await ledger.delivery()
    assert (row["status"], row["attempts"], row["losses"], ran) == ("pending", 0, 0, [])
    told = f"encrypted under key {make_vault(old).ring.first}, which is not among `keys`"
    assert told in row["error"]
    wait = await ledger.value("select due_at - now() from gateway.deliveries")
    assert wait > policy.WITHOUT_KEY - timedelta(seconds=20)
    await ledger.run("update gateway.deliveries set due_at = now()")
    await run(database_url, ledger, make_vault(new, old), handler, to={"done": 1})
    assert ran == [MARK]


async def _has(ledger: Reader, outcome: str) -> bool:
    return outcome in await ledger.outcomes()


async def test_bodies_that_were_swapped_are_dead_letters_and_reach_no_handler(
    database_url: str, ledger: Reader
) -> None:
    encryption, ran = make_vault(), list[str]()

    async def handler(event: Event, _: Context) -> None:
        ran.append(event.id)

    claims = [sealed_claim(encryption, f"evt_{n}", body=b'{"n":%d}' % n) for n in range(2)]
    await claim_all(database_url, claims)
    await ledger.run(
        "update gateway.payloads p set body = o.body"
        " from gateway.payloads o where o.event_id <> p.event_id"
    )
    await run(database_url, ledger, encryption, handler, to={"dead": 2})
    assert ran == []
    errors = await ledger.rows("select error from gateway.deliveries")
    assert all("moved here from another" in row["error"] for row in errors)


async def test_an_erasure_takes_what_is_sealed_too(database_url: str, ledger: Reader) -> None:
    encryption = make_vault()

    async def failing(event: Event, ctx: Context) -> None:
        await ctx.once("mail", lambda: event.payload)
        raise Reject(MARK)

    await claim_all(database_url, [sealed_claim(encryption)])
    await run(database_url, ledger, encryption, failing, to={"dead": 1})
    connection = await asyncpg.connect(database_url)
    await erase_events(
        connection, [("stripe", "evt_1")], ErasureRequest(actor="ann", reason="asked")
    )
    await connection.close()
    gone = {"sealed": None, "key_id": None}
    assert await ledger.row("select sealed, key_id from gateway.attempts") == gone
    assert await ledger.row("select sealed, key_id from gateway.effects") == gone
    emptied = {"body": None, "key_id": None, "sealed": True}
    assert await ledger.row("select body, key_id, sealed from gateway.events") == emptied


async def test_a_reveal_is_on_record_and_a_look_shows_nothing(
    database_url: str, ledger: Reader
) -> None:
    encryption = make_vault()
    await claim_all(database_url, [sealed_claim(encryption), make_claim("evt_2", route="plain")])
    connection = await asyncpg.connect(database_url)
    try:
        found = await find(connection, "evt_1", None)
        assert MARK not in repr(hide(found[0]))
        assert (hide(found[0])["encrypted"], hide(found[0])["body"]) == (True, None)
        [shown] = await reveal(connection, found, encryption.ring, actor="ann", reason="ticket 7")
        assert (shown["headers"], shown["body"]) == (HEADERS, BODY)
        [plain] = await find(connection, "evt_2", None)
        await reveal(connection, [plain], encryption.ring, actor="ann", reason="nothing hidden")
        with pytest.raises(CommandFailed, match="evt_1 on stripe: it is encrypted under key"):
            await reveal(connection, found, make_vault().ring, actor="bob", reason=None)
    finally:
        await connection.close()
    row = await ledger.row("select actor, action, route, event_id, reason from gateway.audit")
    assert list(row.values()) == ["ann", "reveal", "stripe", "evt_1", "ticket 7"]


async def test_old_events_are_delivered_to_a_new_handler_in_their_order(
    database_url: str, ledger: Reader
) -> None:
    encryption, ran = make_vault(), list[str]()

    async def handler(event: Event, _: Context) -> None:
        ran.append(event.id)

    await claim_all(
        database_url, [sealed_claim(encryption, f"evt_{n}", handlers=[]) for n in range(3)]
    )
    ordered = subscribe(handler, order_by=KeyPath.parse("key"))
    async with clerk(database_url, ordered) as ann:
        ann.encryption = encryption
        bulk = await ann.do(Action.DELIVER, handler="handlers.count", since=YEAR_AGO)
    assert bulk["moved"] == 3
    keys = await ledger.rows("select distinct order_key from gateway.deliveries")
    assert [row["order_key"].startswith("digest:") for row in keys] == [True]
    await run(database_url, ledger, encryption, ordered, to={"done": 3})
    ids = await ledger.rows("select event_id from gateway.deliveries order by id")
    assert ran == [row["event_id"] for row in ids]


def test_a_forward_that_failed_is_told_by_its_status_alone() -> None:
    error = PushFailed(f"HTTP 503 Service Unavailable: no {MARK}")
    assert outline(error) == "PushFailed HTTP 503, its text is encrypted"
    assert outline(Reject(f"nack (HTTP 410): {MARK}")) == "REJECTED HTTP 410, its text is encrypted"
    assert outline_of(f"KeyError: '{MARK}'") == "KeyError, its text is encrypted"
    assert outline_of(f"{MARK} is no class: at all") == "an error, its text is encrypted"


async def test_a_redacted_field_of_an_encrypted_route_is_in_no_line_and_not_even_sealed(
    database_url: str, ledger: Reader
) -> None:
    encryption = make_vault()
    redaction = Redaction((FieldPath.parse("secret"), FieldPath.parse("key")), RedactAt.SHOW)

    async def failing(event: Event, ctx: Context) -> None:
        ctx.log.info("looking at", who=event.payload["key"])
        raise Reject(f"no {event.payload['secret']}")

    config = make_config(make_route(encrypt=True, redaction=redaction))
    await claim_all(database_url, [sealed_claim(encryption)])
    with structlog.testing.capture_logs() as lines:
        await run(database_url, ledger, encryption, failing, to={"dead": 1}, config=config)
    assert [line["who"] for line in lines if line["event"] == "looking at"] == ["[redacted]"]
    assert MARK not in str(lines)
    row = await ledger.row("select delivery_id, number, sealed from gateway.attempts")
    told = open_error(encryption.ring, row["delivery_id"], row["number"], row["sealed"])
    assert told.startswith("REJECTED: no [redacted]")
