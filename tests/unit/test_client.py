"""The client: comes again while that is safe, and tells apart what it is told."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

import gateway.client
from gateway.base.errors import CommandFailed
from gateway.client import Client, Conflict, Refused, Unavailable
from gateway.config.settings import Settings
from gateway.operations.send import publish_job

URL = "https://hooks.example.com"
JOBS = f"{URL}/v1/queues/orders/jobs"
TOKEN = "a-token-for-the-tests"
NO_DELAY = timedelta(0)
ACCEPTED = httpx.Response(201, json={"id": "k", "status": "accepted"})
DUPLICATE = httpx.Response(200, json={"id": "k", "status": "duplicate"})


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What it would have slept."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("gateway.client.asyncio.sleep", sleep)
    return slept


@pytest.fixture
def gateway_far_away() -> Iterator[respx.MockRouter]:
    with respx.mock(assert_all_called=False) as router:
        yield router


def sent(router: respx.MockRouter) -> list[Any]:
    return [json.loads(call.request.content) for call in router.calls]


async def publish(**options: Any) -> gateway.client.Published:
    async with Client(URL, token=TOKEN) as client:
        return await client.publish("orders", {"order": 1}, **options)


async def test_a_job_is_published_with_all_that_was_said(
    gateway_far_away: respx.MockRouter,
) -> None:
    gateway_far_away.post(JOBS).mock(ACCEPTED)
    job = await publish(key="k", type="order.charge", delay=timedelta(minutes=1))
    assert (job.id, job.is_new) == ("k", True)
    assert sent(gateway_far_away) == [
        {
            "payload": {"order": 1},
            "idempotencyKey": "k",
            "type": "order.charge",
            "delaySeconds": 60,
        }
    ]
    [call] = gateway_far_away.calls
    assert call.request.headers["authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize(
    "first",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("cut"),
        httpx.DecodingError("a broken proxy"),
        *(httpx.Response(status) for status in (408, 425, 429, 500, 502, 503, 504, 520)),
    ],
)
async def test_what_may_have_been_lost_is_sent_again_as_the_same_job(
    gateway_far_away: respx.MockRouter, first: Any, pauses: list[float]
) -> None:
    gateway_far_away.post(JOBS).mock(side_effect=[first, first, DUPLICATE])
    job = await publish()
    assert job.is_new  # the key was made up by this call: who else should have published it
    one, two, three = sent(gateway_far_away)
    assert one == two == three
    assert one["idempotencyKey"].startswith("job_")
    assert len(pauses) == 2
    assert all(0.05 <= pause <= 0.2 for pause in pauses)


async def test_two_calls_without_a_key_are_two_jobs(gateway_far_away: respx.MockRouter) -> None:
    gateway_far_away.post(JOBS).mock(ACCEPTED)
    await publish()
    await publish()
    one, two = sent(gateway_far_away)
    assert one["idempotencyKey"] != two["idempotencyKey"]


async def test_a_given_key_that_was_there_is_not_new(gateway_far_away: respx.MockRouter) -> None:
    gateway_far_away.post(JOBS).mock(DUPLICATE)
    assert not (await publish(key="k")).is_new


async def test_it_waits_for_as_long_as_it_is_asked_to(
    gateway_far_away: respx.MockRouter, pauses: list[float]
) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    busy = [httpx.Response(503, headers={"retry-after": value}) for value in ("7", later)]
    gateway_far_away.post(JOBS).mock(side_effect=[*busy, ACCEPTED])
    await publish(key="k")
    assert pauses[0] == 7
    assert 25 < pauses[1] <= 30


@pytest.mark.parametrize(
    "value",
    [
        *("", "soon", "-5", "1e9", "\u0663", "Mon, 99 Nov 2026"),
        "Tue, 17 Nov 2026 02:00:00 +99999999999999",
    ],
)
async def test_a_retry_after_that_says_nothing_is_left_alone(
    gateway_far_away: respx.MockRouter, pauses: list[float], value: str
) -> None:
    busy = httpx.Response(503, headers=[(b"retry-after", value.encode())])
    gateway_far_away.post(JOBS).mock(side_effect=[busy, ACCEPTED])
    await publish(key="k")
    assert pauses[0] <= 0.1


async def test_it_gives_up_in_the_end_and_says_where(gateway_far_away: respx.MockRouter) -> None:
    gateway_far_away.post(JOBS).mock(side_effect=httpx.ConnectError("refused"))
    with pytest.raises(Unavailable, match=r"gateway at hooks\.example\.com in time: refused"):
        async with Client(URL, token=TOKEN, give_up_after=0) as client:
            await client.publish("orders", 1, key="k")


async def test_who_gives_up_is_told_the_key_that_was_made_up(
    gateway_far_away: respx.MockRouter,
) -> None:
    gateway_far_away.post(JOBS).mock(side_effect=httpx.ReadTimeout("slow"))
    async with Client(URL, token=TOKEN, give_up_after=0) as client:
        with pytest.raises(Unavailable) as unavailable:
            await client.publish("orders", 1)
        gateway_far_away.post(JOBS).mock(DUPLICATE)
        await client.publish("orders", 1, key=unavailable.value.key)
    one, two = sent(gateway_far_away)
    assert one == two


async def test_the_command_says_under_which_key_to_publish_again(
    gateway_far_away: respx.MockRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.operations.send.GIVE_UP_AFTER_S", 0)
    monkeypatch.setenv("ORDERS_TOKEN", TOKEN)
    routes = tmp_path / "routes.yaml"
    routes.write_text("routes: {orders: {provider: publish, tokens: [env:ORDERS_TOKEN]}}")
    gateway_far_away.post(JOBS).mock(side_effect=httpx.ReadTimeout("slow"))
    with pytest.raises(CommandFailed) as failed:
        await publish_job(
            Settings(config=routes), "orders", b"{}", url=URL, key=None, type=None, delay=NO_DELAY
        )
    [request] = sent(gateway_far_away)
    assert str(failed.value).endswith(f"publish it again with --key {request['idempotencyKey']}")


async def test_it_does_not_wait_for_longer_than_it_would(
    gateway_far_away: respx.MockRouter, pauses: list[float]
) -> None:
    busy = httpx.Response(503, headers={"retry-after": "86400"})
    gateway_far_away.post(JOBS).mock(busy)
    with pytest.raises(Unavailable):
        await publish(key="k")
    assert pauses == []


async def test_another_payload_under_the_key_is_a_conflict(
    gateway_far_away: respx.MockRouter, pauses: list[float]
) -> None:
    told = {"error": "CONFLICT", "detail": "another payload"}
    gateway_far_away.post(JOBS).mock(httpx.Response(409, json=told))
    with pytest.raises(Conflict, match="409 CONFLICT: another payload"):
        await publish(key="k")
    assert pauses == []


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (httpx.Response(400, json={"error": "BAD_PAYLOAD", "detail": "x"}), "BAD_PAYLOAD"),
        (httpx.Response(401, json={"error": "UNAUTHORIZED"}), "UNAUTHORIZED"),
        (httpx.Response(302, headers={"location": "/login"}), "NO_GATEWAY"),
        (httpx.Response(200, text="<html>"), "NO_GATEWAY"),
        (httpx.Response(200, json={"ok": True}), "NO_GATEWAY"),
        (httpx.Response(404, json=[]), "NO_GATEWAY"),
    ],
)
async def test_what_is_refused_is_not_sent_again(
    gateway_far_away: respx.MockRouter, answer: httpx.Response, code: str
) -> None:
    gateway_far_away.post(JOBS).mock(answer)
    with pytest.raises(Refused) as refusal:
        await publish(key="k")
    assert (refusal.value.status, refusal.value.code) == (answer.status_code, code)
    assert len(gateway_far_away.calls) == 1


async def test_an_empty_key_is_not_taken_for_none(gateway_far_away: respx.MockRouter) -> None:
    gateway_far_away.post(JOBS).mock(httpx.Response(400, json={"error": "BAD_REQUEST"}))
    with pytest.raises(Refused):
        await publish(key="")
    assert sent(gateway_far_away)[0]["idempotencyKey"] == ""


@pytest.mark.parametrize("url", ["", "hooks", "ftp://hooks", "http://", "http://a:b:c"])
def test_a_url_that_cannot_be_used_is_told_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="found a URL that cannot be used"):
        Client(url, token=TOKEN)


@pytest.mark.parametrize(
    "token", ["", f"{TOKEN}\n", f" {TOKEN}", f"{TOKEN}\0", f"{TOKEN}\xe9", f"{TOKEN} {TOKEN}"]
)
def test_a_token_that_cannot_be_used_is_told_at_once_and_not_shown(token: str) -> None:
    with pytest.raises(ValueError, match="found a token that no header can carry") as refusal:
        Client(URL, token=token)
    assert TOKEN not in str(refusal.value)


async def test_a_name_that_no_url_can_hold_is_refused(gateway_far_away: respx.MockRouter) -> None:
    async with Client(URL, token=TOKEN) as client:
        with pytest.raises(Refused, match="NOT_SENT"):
            await client.job("orders", "x" * 70_000)


async def test_no_error_shows_a_secret(gateway_far_away: respx.MockRouter) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 (its text is what is looked at)
        Client("http://ann:hunter2@hooks:x", token=TOKEN)
    assert "hunter2" not in str(refusal.value)
    with pytest.raises(ValueError, match="with a user name or a password") as refusal:
        Client("https://ann:hunter2@hooks.example.com", token=TOKEN)
    assert "hunter2" not in str(refusal.value)
    gateway_far_away.post(JOBS).mock(side_effect=httpx.ConnectError("no"))
    async with Client(URL, token=TOKEN, give_up_after=0) as client:
        with pytest.raises(Unavailable) as unavailable:
            await client.publish("orders", 1)
        assert TOKEN not in f"{unavailable.value!r} {client!r}"


async def test_a_job_is_looked_up_whatever_its_id(gateway_far_away: respx.MockRouter) -> None:
    told = {
        "id": "../a/b", "queue": "orders", "type": "orders", "status": "dead", "attempts": 3,
        "error": "ValueError: no", "received_at": "2026-11-17T02:00:00Z", "due_at": None,
        "deliveries": [{"handler": "h", "status": "dead"}],
    }  # fmt: skip
    asked = gateway_far_away.get(url__startswith=JOBS).mock(httpx.Response(200, json=told))
    async with Client(URL, token=TOKEN) as client:
        job = await client.job("orders", "../a/b")
    assert asked.calls[0].request.url.raw_path == b"/v1/queues/orders/jobs/%2E%2E%2Fa%2Fb"
    assert (job.status, job.attempts, job.error) == ("dead", 3, "ValueError: no")
    assert job.received_at == datetime(2026, 11, 17, 2, tzinfo=UTC)
