"""Alerts on a real ledger, to a real receiver: told once, again in time, and when it is over."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from standardwebhooks import Webhook

from gateway.base.errors import Reject
from gateway.base.secrets import Secret
from gateway.config.routes import AlertDestinations, Alerts
from gateway.ledger.alerts import (
    LOCK,
    MOST_ATTEMPTS,
    MOST_COUNTED,
    SENDING,
    list_alerts,
    start_evaluation,
)
from gateway.ledger.connection import PREPARED_ONCE, Pool, open_pool
from gateway.operations.alerts.message import make_message
from gateway.operations.alerts.sender import AlertSender
from gateway.operations.health.reading import read_snapshot_alone
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.receiver import OK, Received, Receiver, answer, receiving
from tests.support.waiting import until
from tests.support.workers import count, make_config, make_settings, subscribe, working

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
NOW = datetime.now(UTC)
HANDLER = "handlers.count"


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    pool = await open_pool(
        database_url, name="test alerts", size=4, command_timeout_s=10, **PREPARED_ONCE
    )
    yield pool
    await pool.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


def by_webhook(receiver: Receiver) -> AlertDestinations:
    return AlertDestinations(
        webhook=Secret(f"{receiver.url}/alerts".encode()), key=Secret(KEY.encode())
    )


def make_teller(pool: Pool, destinations: AlertDestinations, **changes: Any) -> AlertSender:
    return AlertSender(
        pool, alerts=Alerts(**changes), destinations=destinations, every=timedelta(seconds=5)
    )


async def tell(teller: AlertSender, at: datetime) -> int:
    """One round, at this time."""
    return await teller.round(at)


async def put(
    ledger: Reader,
    status: str,
    *,
    count: int = 1,
    at: datetime,
    handler: str = HANDLER,
    error: str | None = None,
) -> None:
    """Deliveries that died, or fell due, at this time."""
    await ledger.run(
        "insert into gateway.deliveries (route, event_id, handler, status, error, due_at,"
        " finished_at) select 'stripe', 'evt_' || gen_random_uuid(), $1, $2::text, $3, $4,"
        " case when $2::text = 'dead' then $4::timestamptz end from generate_series(1, $5)",
        handler,
        status,
        error,
        at,
        count,
    )


def types(received: Sequence[Received]) -> list[str]:
    return [orjson.loads(request.body)["type"] for request in received]


def data(request: Received) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(request.body)["data"]
    return found


async def test_dead_letters_are_told_once_signed_and_then_only_when_there_are_more(
    pool: Pool, ledger: Reader, receiver: Receiver
) -> None:
    teller = make_teller(pool, by_webhook(receiver))
    assert await tell(teller, NOW) == 0
    await put(ledger, "dead", count=3, at=NOW - MINUTE, error="Boom: <!channel>\nsecond line")
    for n in range(5):
        await tell(teller, NOW + n * MINUTE)
    [request] = receiver.requests
    assert request.path == "/alerts"
    told = Webhook(KEY).verify(request.body, dict(request.headers))
    assert told["type"] == "alert.raised"
    assert (told["data"]["count"], told["data"]["new"]) == (3, 3)
    assert told["data"]["error"] == "Boom: <!channel> second line"
    assert f"--handler {HANDLER}" in told["data"]["command"]
    assert await tell(teller, NOW + 2 * HOUR) == 0  # nothing new
    await put(ledger, "dead", count=2, at=NOW + 2 * HOUR)
    assert await tell(teller, NOW + 3 * HOUR) == 1
    assert types(receiver.requests) == ["alert.raised", "alert.repeated"]
    assert (data(receiver.requests[1])["count"], data(receiver.requests[1])["new"]) == (5, 2)
    await ledger.run("update gateway.deliveries set status = 'discarded'")
    assert await tell(teller, NOW + 4 * HOUR) == 1
    assert await tell(teller, NOW + 5 * HOUR) == 0
    assert types(receiver.requests)[2:] == ["alert.recovered"]
    assert len({request.id for request in receiver.requests}) == 3


async def test_five_thousand_dead_letters_are_one_message(
    pool: Pool, ledger: Reader, receiver: Receiver
) -> None:
    teller = make_teller(pool, by_webhook(receiver))
    await put(ledger, "dead", count=1000, at=NOW - MINUTE)
    for n in range(5):
        await tell(teller, NOW + n * timedelta(seconds=10))
        await put(ledger, "dead", count=800, at=NOW + n * timedelta(seconds=10))
    assert len(receiver.requests) == 1
    await tell(teller, NOW + HOUR)
    assert [data(request)["count"] for request in receiver.requests] == [1000, 5000]
    assert data(receiver.requests[1])["new"] == 4000


async def test_a_count_has_an_end(pool: Pool, ledger: Reader, receiver: Receiver) -> None:
    await put(ledger, "dead", count=MOST_COUNTED + 5, at=NOW - MINUTE)
    await tell(make_teller(pool, by_webhook(receiver)), NOW)
    told = data(receiver.requests[0])
    assert (told["count"], told["count_capped"]) == (MOST_COUNTED, True)


async def test_each_handler_is_an_alert_of_its_own_from_its_threshold_on(
    pool: Pool, ledger: Reader, receiver: Receiver
) -> None:
    teller = make_teller(pool, by_webhook(receiver), dead=3)
    await put(ledger, "dead", count=3, at=NOW - MINUTE, handler="a")
    await put(ledger, "dead", count=2, at=NOW - MINUTE, handler="b")
    await put(ledger, "dead", count=9, at=NOW - MINUTE, handler="c")
    await tell(teller, NOW)
    assert sorted(data(request)["handler"] for request in receiver.requests) == ["a", "c"]
    await put(ledger, "dead", at=NOW, handler="b")
    await tell(teller, NOW + MINUTE)
    assert data(receiver.requests[2])["handler"] == "b"


async def test_a_backlog_is_told_when_it_is_too_old_and_when_it_is_over(
    pool: Pool, ledger: Reader, receiver: Receiver
) -> None:
    teller = make_teller(pool, by_webhook(receiver))
    await put(ledger, "pending", count=7, at=NOW)
    await put(ledger, "pending", at=NOW + DAY, handler="later")
    await ledger.run(
        "insert into gateway.deliveries (route, event_id, handler, due_at, order_key)"
        " values ('stripe', 'evt_turn', 'waits', 'infinity', 'key')"
    )
    assert await tell(teller, NOW + 10 * MINUTE) == 0
    assert await tell(teller, NOW + 11 * MINUTE) == 1
    assert await tell(teller, NOW + 12 * MINUTE) == 0
    told = data(receiver.requests[0])
    assert (told["kind"], told["count"], told["orphaned"]) == ("backlog", 7, True)
    assert datetime.fromisoformat(told["since"]) == NOW
    await tell(teller, NOW + 72 * MINUTE)
    await ledger.run("update gateway.deliveries set status = 'done' where handler = $1", HANDLER)
    await tell(teller, NOW + 80 * MINUTE)
    assert types(receiver.requests) == ["alert.raised", "alert.repeated", "alert.recovered"]


@pytest.mark.parametrize("paused", [HANDLER, ""])
async def test_a_paused_handler_is_said_to_be_paused_and_alarms_nobody(
    pool: Pool, ledger: Reader, receiver: Receiver, paused: str
) -> None:
    teller = make_teller(pool, by_webhook(receiver))
    await put(ledger, "pending", count=2, at=NOW)
    await ledger.run(
        "insert into gateway.pauses (route, handler, actor, reason, since)"
        " values ('stripe', $1, 'ann', 'mail is down', $2)", paused, NOW,
    )  # fmt: skip
    for n in range(1, 20):
        await tell(teller, NOW + n * HOUR)
    [request] = receiver.requests
    assert data(request)["text"].startswith(f"Paused: {HANDLER} on route stripe, by ann")
    assert data(request)["paused"]["reason"] == "mail is down"
    assert data(request)["command"] == f"gateway resume stripe {paused}".strip()
    [row] = await list_alerts(pool)
    assert row.paused is not None
    assert row.paused.actor == "ann"
    await ledger.run("delete from gateway.pauses")
    assert await tell(teller, NOW + 20 * HOUR) == 0  # it may catch up
    assert await tell(teller, NOW + 21 * HOUR) == 1
    assert data(receiver.requests[1])["text"].startswith("Still: Backlog of")


async def test_two_workers_at_once_tell_once(
    pool: Pool, ledger: Reader, receiver: Receiver
) -> None:
    await put(ledger, "dead", count=3, at=NOW - MINUTE)
    await put(ledger, "pending", count=3, at=NOW - HOUR)
    tellers = [make_teller(pool, by_webhook(receiver)) for _ in range(4)]
    for n in range(3):
        await asyncio.gather(*(tell(teller, NOW + n * MINUTE) for teller in tellers))
    assert sorted(data(request)["kind"] for request in receiver.requests) == ["backlog", "dead"]


async def test_a_worker_does_not_decide_while_another_one_does(
    pool: Pool, ledger: Reader, receiver: Receiver
) -> None:
    """Nor does it wait: what it has seen would be old by then."""
    await put(ledger, "dead", at=NOW - MINUTE)
    teller = make_teller(pool, by_webhook(receiver))
    async with pool.acquire() as other, other.transaction():
        await other.execute("select pg_advisory_xact_lock($1)", LOCK)
        assert await teller.evaluate(NOW) == []
    assert len(await teller.evaluate(NOW)) == 1


async def test_a_worker_that_is_stopped_while_it_looks_is_cut_off(pool: Pool) -> None:
    """Else it would keep the lock, and nobody would be told of anything."""
    async with pool.acquire() as stopped:
        async with stopped.transaction():
            assert await start_evaluation(stopped, None)
            assert await stopped.fetchval("show idle_in_transaction_session_timeout") == "30s"
        assert await stopped.fetchval("show idle_in_transaction_session_timeout") == "0"


async def test_one_message_is_sent_by_one_worker_even_when_both_would(
    pool: Pool, ledger: Reader
) -> None:
    """The others look while the first one sends."""
    others_have_looked = asyncio.Event()

    async def reply(_: Received, writer: asyncio.StreamWriter) -> None:
        await others_have_looked.wait()
        writer.write(OK)
        await writer.drain()

    async with receiving(reply, OK) as receiver:
        await put(ledger, "dead", at=NOW - MINUTE)
        first, *others = [make_teller(pool, by_webhook(receiver)) for _ in range(4)]
        await first.evaluate(NOW)
        sending = asyncio.create_task(first.send(NOW))
        await until(lambda: bool(receiver.requests))
        sent = await asyncio.gather(*(teller.send(NOW) for teller in others))
        others_have_looked.set()
        assert [*sent, await sending] == [0, 0, 0, 1]
        assert len(receiver.requests) == 1


async def test_a_worker_lost_between_sending_and_noting_tells_twice_under_one_id(
    pool: Pool, ledger: Reader, receiver: Receiver
) -> None:
    await put(ledger, "dead", at=NOW - MINUTE)
    teller = make_teller(pool, by_webhook(receiver))
    await tell(teller, NOW)
    # As if the worker had been killed when the answer came.
    await ledger.run(
        "update gateway.alert_messages set status = 'waiting', sent_at = null, next_at = $1",
        NOW + SENDING,
    )
    assert await tell(teller, NOW + SENDING / 2) == 0
    for n in range(1, 10):
        await tell(teller, NOW + n * SENDING)
    first, second = receiver.requests
    assert first.id == second.id
    assert first.body == second.body
    assert first.headers["webhook-signature"] != "" != second.headers["webhook-signature"]


async def test_a_receiver_that_was_down_is_told_when_it_is_back(pool: Pool, ledger: Reader) -> None:
    async with receiving(
        answer(500), answer(302, location="http://127.0.0.1:1/"), answer(204)
    ) as r:
        teller = make_teller(pool, by_webhook(r))
        await put(ledger, "dead", at=NOW - MINUTE)
        sent = [await tell(teller, NOW + n * timedelta(seconds=5)) for n in range(12)]
        assert sum(sent) == 1
        assert len({request.id for request in r.requests}) == 1
        assert len(r.requests) == 3  # after 10 s, and after 20 more
        [row] = await list_alerts(pool)
        [told] = row.told
        assert (told.status, told.attempts, told.error) == ("sent", 3, None)


async def test_a_receiver_that_stays_down_is_tried_for_as_long_as_it_stands(
    pool: Pool, ledger: Reader
) -> None:
    """Nobody else tells of dead letters to which no others come."""
    async with receiving(answer(404, b"Cannot POST /alerts/SECRET")) as r:
        teller = make_teller(pool, by_webhook(r))
        await put(ledger, "dead", at=NOW - HOUR)
        for n in range(24 * 4):
            await tell(teller, NOW + n * HOUR / 4)
        assert 24 <= len(r.requests) <= 24 + MOST_ATTEMPTS
        assert len({request.id for request in r.requests}) == 1
        [row] = await list_alerts(pool)
        [told] = row.told
        assert (told.status, told.error, told.sent_at) == ("waiting", "status 404", None)
        assert "SECRET" not in str(await ledger.rows("select * from gateway.alert_messages"))
        r.replies[:] = [answer(200)]
        assert await tell(teller, NOW + 25 * HOUR) == 1


async def test_that_it_is_over_is_given_up_in_the_end(pool: Pool, ledger: Reader) -> None:
    async with receiving(answer(200), answer(500)) as r:
        teller = make_teller(pool, by_webhook(r))
        await put(ledger, "dead", at=NOW - HOUR)
        await tell(teller, NOW)
        await ledger.run("update gateway.deliveries set status = 'discarded'")
        for n in range(24 * 4):
            await tell(teller, NOW + n * HOUR / 4)
        assert types(r.requests) == ["alert.raised"] + ["alert.recovered"] * MOST_ATTEMPTS
        assert await ledger.value("select status from gateway.alert_messages") == "failed"


async def test_a_destination_that_was_taken_away_is_forgotten(
    pool: Pool, ledger: Reader, receiver: Receiver
) -> None:
    async with receiving(answer(500)) as broken:
        both = AlertDestinations(
            webhook=Secret(receiver.url.encode()), slack=Secret(broken.url.encode())
        )
        await put(ledger, "dead", at=NOW - MINUTE)
        await tell(make_teller(pool, both), NOW)
    await tell(make_teller(pool, by_webhook(receiver)), NOW + HOUR)
    [row] = await list_alerts(pool)
    assert [told.destination for told in row.told] == ["webhook"]
    assert len(receiver.requests) == 1


async def test_a_mistake_of_ours_ends_no_worker(
    database_url: str, ledger: Reader, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistakes = iter([KeyError("a mistake"), ZeroDivisionError()])

    def err(*arguments: Any, **named: Any) -> Any:
        for mistake in mistakes:
            raise mistake
        return make_message(*arguments, **named)

    monkeypatch.setattr("gateway.operations.alerts.sender.make_message", err)
    await put(ledger, "dead", at=NOW - MINUTE)
    async with working(database_url, subscribe(count), alerts=by_webhook(receiver)):
        await until(lambda: receiver.requests)
        await claim_all(database_url, [make_claim("evt_1")])
        await until(ledger.effects)
    assert types(receiver.requests) == ["alert.raised"]


async def test_a_later_message_takes_the_place_of_one_that_never_got_there(
    pool: Pool, ledger: Reader
) -> None:
    async with receiving(answer(503), answer(200)) as r:
        teller = make_teller(pool, by_webhook(r))
        await put(ledger, "pending", at=NOW - HOUR)
        await tell(teller, NOW)
        await ledger.run("update gateway.deliveries set status = 'done'")
        await tell(teller, NOW + MINUTE)
        await tell(teller, NOW + HOUR)
        assert types(r.requests) == ["alert.raised", "alert.recovered"]


async def test_who_asks_for_time_is_given_it(pool: Pool, ledger: Reader) -> None:
    async with receiving(answer(429, retry_after="300"), answer(200)) as r:
        teller = make_teller(pool, by_webhook(r))
        await put(ledger, "dead", at=NOW - MINUTE)
        sent = [await tell(teller, NOW + n * MINUTE) for n in range(7)]
        assert sent == [0, 0, 0, 0, 0, 1, 0]


async def test_one_destination_that_fails_keeps_nothing_from_the_other(
    pool: Pool, ledger: Reader, receiver: Receiver
) -> None:
    async with receiving(answer(500)) as broken:
        both = AlertDestinations(
            webhook=Secret(broken.url.encode()), slack=Secret(f"{receiver.url}/s/T0".encode())
        )
        await put(ledger, "dead", count=2, at=NOW - MINUTE, error="a `b` <!channel>")
        teller = make_teller(pool, both)
        assert await tell(teller, NOW) == 1
        await tell(teller, NOW + MINUTE)
    [message] = receiver.requests
    assert "webhook-id" not in message.headers
    assert orjson.loads(message.body)["text"].splitlines()[:2] == [
        f"2 dead letters of {HANDLER} on route stripe since {NOW - MINUTE:%Y-%m-%d %H:%M} UTC.",
        "> `a 'b' &lt;!channel&gt;`",
    ]
    assert len(broken.requests) == 2
    [row] = await list_alerts(pool)
    assert {told.destination: told.status for told in row.told} == {
        "slack": "sent",
        "webhook": "waiting",
    }


async def test_a_receiver_that_never_answers_delays_nobody_for_long(
    pool: Pool, ledger: Reader, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one that is not there, or whose answer has no end."""

    async def for_ever(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        await until(writer.is_closing)

    monkeypatch.setattr("gateway.operations.alerts.message.ANSWER_S", 0.2)
    async with receiving(for_ever) as silent:
        urls = AlertDestinations(
            webhook=Secret(silent.url.encode()), slack=Secret(b"http://127.0.0.1:1")
        )
        await put(ledger, "dead", at=NOW - MINUTE)
        assert await tell(make_teller(pool, urls), NOW) == 0
        [row] = await list_alerts(pool)
        errors = {told.destination: told.error or "" for told in row.told}
        assert errors["webhook"].startswith("no answer within")
        assert errors["slack"].startswith("cannot connect")


async def test_nothing_is_sent_to_where_clouds_keep_credentials(pool: Pool, ledger: Reader) -> None:
    urls = AlertDestinations(webhook=Secret(b"http://169.254.169.254/latest"))
    await put(ledger, "dead", at=NOW - MINUTE)
    assert await tell(make_teller(pool, urls), NOW) == 0
    [row] = await list_alerts(pool)
    assert "nothing is sent to 169.254.169.254" in (row.told[0].error or "")


async def test_what_is_switched_off_ends_in_silence(
    pool: Pool, ledger: Reader, receiver: Receiver
) -> None:
    await put(ledger, "dead", at=NOW - MINUTE)
    await put(ledger, "pending", at=NOW - HOUR)
    await tell(make_teller(pool, by_webhook(receiver)), NOW)
    assert len(await list_alerts(pool)) == 2
    await tell(make_teller(pool, by_webhook(receiver), dead=0, backlog=timedelta()), NOW + HOUR)
    assert await list_alerts(pool) == []
    assert types(receiver.requests) == ["alert.raised"] * 2


async def test_without_a_destination_alerts_are_listed_and_told_to_whoever_comes_later(
    pool: Pool, ledger: Reader, receiver: Receiver
) -> None:
    await put(ledger, "dead", count=2, at=NOW - MINUTE, error="boom")
    await tell(make_teller(pool, AlertDestinations()), NOW)
    [row] = await list_alerts(pool)
    assert (row.kind, row.count, row.error) == ("dead", 2, "boom")
    assert (row.told_at, row.told, row.rounds) == (None, [], 0)
    assert await tell(make_teller(pool, by_webhook(receiver)), NOW + MINUTE) == 1
    assert data(receiver.requests[0])["new"] == 2


async def test_a_death_that_is_committed_late_is_still_told(
    pool: Pool, ledger: Reader, receiver: Receiver
) -> None:
    """It has a time before that of a look that could not see it."""
    teller = make_teller(pool, by_webhook(receiver))
    await put(ledger, "dead", at=NOW - MINUTE)
    await tell(teller, NOW)
    await put(ledger, "dead", at=NOW - timedelta(seconds=1))
    assert await tell(teller, NOW + HOUR) == 1
    assert data(receiver.requests[1])["new"] == 1


async def test_status_says_that_nobody_hears(
    pool: Pool, ledger: Reader, database_url: str, tmp_path: Path
) -> None:
    settings = make_settings(database_url, data_dir=tmp_path, config=tmp_path / "none.yaml")
    async with receiving(answer(410), answer(200)) as r:
        teller = make_teller(pool, by_webhook(r))
        await put(ledger, "dead", at=NOW - MINUTE, handler="a")
        await put(ledger, "dead", at=NOW - MINUTE, handler="b")
        await tell(teller, NOW)
        status = await read_snapshot_alone(settings)
        assert [row.handler for row in status.alerts] == ["a", "b"]
        [unheard] = [a for a in status.attention if "get through" in a.text]
        assert unheard.text == "alerts do not get through to webhook: status 410"
        await tell(teller, NOW + MINUTE)
        status = await read_snapshot_alone(settings)
        assert not [a for a in status.attention if "get through" in a.text]


async def test_a_worker_tells_by_itself_and_stops_cleanly(
    database_url: str, ledger: Reader, receiver: Receiver
) -> None:
    async def reject(*_: object) -> None:
        raise Reject("no such customer")

    config = make_config()
    async with working(database_url, subscribe(reject), config=config, alerts=by_webhook(receiver)):
        await claim_all(database_url, [make_claim("evt_1"), make_claim("evt_2")])
        await until(lambda: receiver.requests)
    assert data(receiver.requests[0])["error"] == "REJECTED: no such customer"
