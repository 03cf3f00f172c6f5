"""Forwards on a real Postgres, to a real HTTP service: what each answer does."""

import asyncio
import base64
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from gateway import Context, Event
from gateway.config.registry import Subscription, load_registry
from gateway.config.routes import check_destinations, load_config
from gateway.processes.work import Worker
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.receiver import OK, Received, Receiver, Reply, answer, receiving
from tests.support.waiting import until
from tests.support.workers import subscribe, working

KEY: Final = "whsec_" + base64.b64encode(b"k" * 32).decode()
NEXT_KEY: Final = "whsec_" + base64.b64encode(b"n" * 32).decode()
SECRET: Final = "hunter2_hunter2"
BOTH: Final = ("forward.orders", "handlers.count")


@asynccontextmanager
async def forwarding(
    url: str,
    receiver: Receiver,
    folder: Path,
    *others: Subscription,
    within: str = "5s",
    more: str = "",
) -> AsyncIterator[Worker]:
    """A worker whose only route forwards to the receiver."""
    file = folder / "routes.yaml"
    file.write_text(
        f"""
defaults: {{retry: {{attempts: 3, backoff: fixed, base: 20ms, cap: 20ms}}}}
routes:
  stripe:
    provider: stripe
    secrets: [env:A]
    forward:
      - name: orders
        url: env:URL
        headers: {{authorization: env:AUTH}}
        sign: env:KEY
        timeout: {within}
        {more}
"""
    )
    config = load_config(file)
    environ = {"URL": f"{receiver.url}/hooks/{SECRET}", "AUTH": f"Bearer {SECRET}", "KEY": KEY}
    destinations = check_destinations(config, environ | {"NEXT": NEXT_KEY})
    subscriptions = load_registry(config).subscriptions
    async with working(
        url, *subscriptions, *others, config=config, destinations=destinations
    ) as worker:
        yield worker


async def forward_one(
    url: str, ledger: Reader, folder: Path, *replies: Reply, status: str, within: str = "5s"
) -> tuple[dict[str, Any], list[Received]]:
    """One event, until its delivery has this status; the row, and what was received."""
    claim = make_claim("evt_1", handlers=["forward.orders"])
    headers = {"content-type": "application/json; charset=utf-8", "stripe-signature": "original"}
    await claim_all(url, [claim._replace(headers=headers)])

    async def reached() -> bool:
        return bool((await ledger.delivery())["status"] == status)

    async with receiving(*replies) as receiver, forwarding(url, receiver, folder, within=within):
        await until(reached)
    return await ledger.delivery(), receiver.requests


async def test_an_event_arrives_signed_with_its_raw_body(
    database_url: str, ledger: Reader, tmp_path: Path
) -> None:
    delivery, [request] = await forward_one(database_url, ledger, tmp_path, status="done")
    event = Webhook(KEY).verify(request.body, dict(request.headers))
    assert event == {"id": "evt_1", "type": "invoice.paid"}
    assert request.path == f"/hooks/{SECRET}"
    assert request.headers["authorization"] == f"Bearer {SECRET}"
    assert request.headers["content-type"] == "application/json; charset=utf-8"
    assert request.headers["gateway-event-id"] == "evt_1"
    assert request.headers["gateway-event-type"] == "invoice.paid"
    assert request.headers["gateway-route"] == "stripe"
    assert request.headers["gateway-attempt"] == "1"
    assert "." not in request.id
    assert "stripe-signature" not in request.headers
    assert (delivery["handler"], delivery["attempts"]) == ("forward.orders", 1)
    with pytest.raises(WebhookVerificationError):
        Webhook(NEXT_KEY).verify(request.body, dict(request.headers))


async def test_while_keys_change_both_sign(
    database_url: str, ledger: Reader, tmp_path: Path
) -> None:
    more = "concurrency: 1\n      - {name: second, url: env:URL, sign: [env:KEY, env:NEXT]}"
    async with receiving() as receiver:
        claim = make_claim("evt_1", handlers=["forward.orders", "forward.second"])
        await claim_all(database_url, [claim])
        async with forwarding(database_url, receiver, tmp_path, more=more):
            await until(lambda: len(receiver.requests) == 2)
    signatures = {len(r.headers["webhook-signature"].split()): r for r in receiver.requests}
    both = signatures[2]
    for key in (KEY, NEXT_KEY):
        Webhook(key).verify(both.body, dict(both.headers))
    assert both.id != signatures[1].id  # each destination has an id of its own


async def test_the_id_is_the_same_in_every_attempt_and_replay(
    database_url: str, ledger: Reader, tmp_path: Path
) -> None:
    claim = make_claim("evt_1", handlers=["forward.orders"])
    await claim_all(database_url, [claim])
    async with (
        receiving(answer(500), answer(500), OK) as receiver,
        forwarding(database_url, receiver, tmp_path),
    ):
        await until(lambda: _status(ledger, "done"))
        await ledger.replay((await ledger.delivery())["id"])
        await until(lambda: len(receiver.requests) == 4)
        await until(lambda: _status(ledger, "done"))
    assert len({request.id for request in receiver.requests}) == 1
    attempts = [request.headers["gateway-attempt"] for request in receiver.requests]
    assert attempts == ["1", "2", "3", "1"]
    for request in receiver.requests:
        Webhook(KEY).verify(request.body, dict(request.headers))


async def _status(ledger: Reader, status: str) -> bool:
    return bool((await ledger.delivery())["status"] == status)


async def _close(_: Received, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _hang(_: Received, writer: asyncio.StreamWriter) -> None:
    await writer.wait_closed()


async def _dribble(_: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


async def _never_end(_: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"x" * 65536)
        await writer.drain()


ECHO: Final = answer(500, f"unknown token {SECRET} at /hooks/{SECRET}".encode())
LATE: Final = "TIMEOUT: no whole answer within 1 s"


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (answer(500, b"\x1b[31mboom"), "PushFailed: HTTP 500 Internal Server Error: [31mboom"),
        (answer(302, location="http://127.0.0.1/"), "PushFailed: HTTP 302 Found: redirects"),
        (answer(503), "PushFailed: HTTP 503 Service Unavailable"),
        (answer(200, {"nack": {"retryable": True, "reason": "busy"}}), "nack (HTTP 200): busy"),
        (answer(200, {"nack": "?"}), "PushFailed: the answer cannot be understood: nack"),
        (b"garbage\r\n\r\n", "PushFailed: the answer is no HTTP"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000, "PushFailed: the answer is no HTTP"),
        (_close, "PushFailed: the answer is no HTTP: Server disconnected"),
        (_hang, LATE),
        (_dribble, LATE),
        (ECHO, "unknown token (hidden) at (hidden)"),
    ],
    ids=["500", "302", "503", "nack", "malformed", "garbage", "headers", "close", "hang",
         "dribble", "echo"],
)  # fmt: skip
async def test_a_failure_is_tried_again_by_policy_and_then_dead(
    database_url: str, ledger: Reader, tmp_path: Path, reply: Reply, error: str
) -> None:
    delivery, requests = await forward_one(
        database_url,
        ledger,
        tmp_path,
        reply,
        status="dead",
        within="1s" if error == LATE else "5s",
    )
    assert error in delivery["error"]
    assert delivery["error"].isprintable()
    assert len(requests) == 3
    assert await ledger.outcomes() == ["retry", "retry", "dead"]
    kept = repr(await ledger.rows("select * from gateway.attempts"))
    assert SECRET not in kept
    assert "gateway/worker" not in kept


async def test_nobody_there_is_a_failure_too(
    database_url: str, ledger: Reader, tmp_path: Path
) -> None:
    await claim_all(database_url, [make_claim("evt_1", handlers=["forward.orders"])])
    async with receiving() as receiver:
        pass
    async with forwarding(database_url, receiver, tmp_path):
        await until(lambda: _status(ledger, "dead"))
    assert "PushFailed: cannot connect" in (await ledger.delivery())["error"]


async def test_an_answer_without_end_is_cut_and_its_status_counts(
    database_url: str, ledger: Reader, tmp_path: Path
) -> None:
    await forward_one(database_url, ledger, tmp_path, _never_end, status="done")


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (answer(410, b"closed"), "REJECTED: HTTP 410 Gone: closed"),
        (answer(200, {"nack": {"retryable": False, "reason": f"no {SECRET}"}}),
         "REJECTED: nack (HTTP 200): no (hidden)"),
        (answer(500, {"nack": {"retryable": False}}),
         "REJECTED: nack (HTTP 500): the service gives no reason"),
    ],
)  # fmt: skip
async def test_a_service_that_will_never_take_it_makes_it_a_dead_letter_at_once(
    database_url: str, ledger: Reader, tmp_path: Path, reply: Reply, error: str
) -> None:
    delivery, requests = await forward_one(database_url, ledger, tmp_path, reply, OK, status="dead")
    assert delivery["error"] == error
    assert len(requests) == 1


@pytest.mark.parametrize(
    "reply",
    [
        answer(429, retry_after="0"),
        answer(503, retry_after="Tue, 17 Nov 2020 12:00:00 GMT"),
        answer(200, {"defer": {"retryAfter": 0}}),
    ],
    ids=["429", "503", "defer"],
)
async def test_a_deferral_burns_no_attempt(
    database_url: str, ledger: Reader, tmp_path: Path, reply: Reply
) -> None:
    delivery, requests = await forward_one(database_url, ledger, tmp_path, reply, OK, status="done")
    assert await ledger.outcomes() == ["deferred", "done"]
    assert delivery["attempts"] == 1
    assert [request.headers["gateway-attempt"] for request in requests] == ["1", "1"]


async def test_a_service_that_refuses_disturbs_no_handler_beside_it(
    database_url: str, ledger: Reader, tmp_path: Path
) -> None:
    seen: list[str] = []

    async def handler(event: Event, ctx: Context) -> None:
        seen.append(event.id)

    await claim_all(database_url, [make_claim("evt_1", handlers=BOTH)])
    async with (
        receiving(answer(410)) as receiver,
        forwarding(database_url, receiver, tmp_path, subscribe(handler)),
    ):
        await until(lambda: _statuses(ledger, {"done": 1, "dead": 1}))
    assert seen == ["evt_1"]


async def _statuses(ledger: Reader, expected: dict[str, int]) -> bool:
    return await ledger.statuses() == expected


async def test_no_more_are_pushed_at_once_than_the_concurrency_over_all_workers(
    database_url: str, ledger: Reader, tmp_path: Path
) -> None:
    now = most = 0

    async def slow(_: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        writer.write(answer(200, connection="close"))
        await writer.drain()

    claims = [make_claim(f"evt_{n}", handlers=["forward.orders"]) for n in range(24)]
    await claim_all(database_url, claims)
    async with (
        receiving(slow) as receiver,
        forwarding(database_url, receiver, tmp_path, more="concurrency: 2"),
        forwarding(database_url, receiver, tmp_path, more="concurrency: 2"),
    ):
        await until(lambda: _statuses(ledger, {"done": 24}))
    assert most == 2
    assert len(receiver.requests) == len({request.id for request in receiver.requests}) == 24


async def test_connections_are_kept_from_one_push_to_the_next(
    database_url: str, ledger: Reader, tmp_path: Path
) -> None:
    claims = [make_claim(f"evt_{n}", handlers=["forward.orders"]) for n in range(30)]
    await claim_all(database_url, claims)
    async with (
        receiving() as receiver,
        forwarding(database_url, receiver, tmp_path, more="concurrency: 3"),
    ):
        await until(lambda: _statuses(ledger, {"done": 30}))
    assert len(receiver.requests) == 30
    assert receiver.connections <= 3


async def test_a_name_that_comes_to_mean_a_metadata_service_is_told_and_tried_again(
    database_url: str, ledger: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It meant somebody's own service when the first event came."""
    addresses = ["127.0.0.1", "169.254.169.254"]
    real = socket.getaddrinfo

    def rebinding(host: str, *args: Any, **kwargs: Any) -> Any:
        if host == "orders.example":
            host = addresses.pop(0) if len(addresses) > 1 else addresses[0]
        return real(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    async with receiving(answer(500, connection="close")) as receiver:
        receiver.host = "orders.example"
        await claim_all(database_url, [make_claim("evt_1", handlers=["forward.orders"])])
        async with forwarding(database_url, receiver, tmp_path):
            await until(lambda: _status(ledger, "dead"))
    error = (await ledger.delivery())["error"]
    assert error.startswith("AddressRefused: nothing is sent to 169.254.169.254: it is link-local")
    assert len(receiver.requests) == 1
    assert await ledger.outcomes() == ["retry", "retry", "dead"]
