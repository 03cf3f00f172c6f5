"""The HTTP table of the design, row by row, against a real server."""

import asyncio
import hashlib
import hmac
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, urlsplit
from uuid import uuid4

import asyncpg
import httpx
import pytest

from gateway.http.protocol import HEAD_BYTES
from gateway.providers import PROVIDERS
from tests.support.ledger import Reader
from tests.support.processes import (
    GITHUB_SECRET,
    STRIPE_SECRET,
    Project,
    Serving,
    github_request,
    stripe_request,
)
from tests.support.sockets import read_by_server
from tests.support.waiting import PATIENCE_S, until


def new_id() -> str:
    return f"evt_{uuid4().hex}"


def error(answer: httpx.Response) -> tuple[int, object]:
    return answer.status_code, answer.json().get("error")


def signed(body: bytes, *, at: float = 0) -> dict[str, str]:
    """A Stripe header for any bytes, so many seconds from now."""
    now = datetime.now(UTC) + timedelta(seconds=at)
    secret = STRIPE_SECRET.encode()
    return PROVIDERS["stripe"].sign(body, secret=secret, id="", type="", now=now).headers


async def test_verified_and_new_is_accepted(serving: Serving) -> None:
    event_id = new_id()
    answer = await serving.post(*stripe_request(event_id))
    assert answer.status_code == 200
    assert answer.json() == {"status": "accepted", "event_id": event_id}
    assert answer.headers["content-type"] == "application/json"
    assert "server" not in answer.headers


async def test_verified_and_seen_is_a_duplicate(serving: Serving) -> None:
    event_id = new_id()
    await serving.post(*stripe_request(event_id))
    answer = await serving.post(*stripe_request(event_id))
    assert (answer.status_code, answer.json()) == (
        200,
        {"status": "duplicate", "event_id": event_id},
    )


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"stripe-signature": ""},
        {"stripe-signature": "t=1,v1=00"},
        {"stripe-signature": "garbage"},
        {"stripe-signature": "t=1700000000"},
        {"stripe-signature": "v1=" + "0" * 64},
    ],
)
async def test_a_missing_or_malformed_signature_is_refused(
    serving: Serving, headers: Mapping[str, str]
) -> None:
    answer = await serving.post(b"{}", headers)
    assert error(answer) == (403, "BAD_SIGNATURE")


@pytest.mark.parametrize("junk", [b"\xff\xfe", b"\x80", b"t=1,v1=\xe9", b"\xc3\x28" * 300])
async def test_hostile_bytes_in_the_signature_are_a_refusal(serving: Serving, junk: bytes) -> None:
    answer = await raw(serving, {b"stripe-signature": junk}, b"{}")
    assert answer.startswith(b"HTTP/1.1 403"), answer


async def test_another_secret_is_refused(serving: Serving) -> None:
    answer = await serving.post(*stripe_request(new_id(), secret="whsec_other"))
    assert error(answer) == (403, "BAD_SIGNATURE")


@pytest.mark.parametrize("at", [-302, 302, 86400 * 3650])
async def test_a_timestamp_outside_the_tolerance_is_refused(serving: Serving, at: float) -> None:
    body, _ = stripe_request(new_id())
    assert error(await serving.post(body, signed(body, at=at))) == (403, "STALE_TIMESTAMP")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b"null",
        b'"x"',
        b"{}",
        b'{"id":"evt_1"}',
        b'{"id":"","object":"event","type":"t","created":1,"livemode":false}',
        b'{"id":"evt\\u0000","object":"event","type":"t","created":1,"livemode":false}',
        b'{"id":"evt\\ud800","object":"event","type":"t","created":1,"livemode":false}',
        b'{"id":"evt_1","object":"event","type":"a\\u0000","created":1,"livemode":false}',
        b'{"id":7,"object":"event","type":"t","created":1,"livemode":false}',
        b"\xff\xfe\xfd",
        b"[" * 100_000,
        b'{"id":"' + b"x" * 300 + b'","object":"event","type":"t","created":1}',
    ],
)
async def test_verified_but_unusable_is_a_bad_payload(serving: Serving, body: bytes) -> None:
    assert error(await serving.post(body, signed(body))) == (400, "BAD_PAYLOAD")


async def test_the_signature_comes_before_the_payload(serving: Serving) -> None:
    assert error(await serving.post(b"not json", {})) == (403, "BAD_SIGNATURE")


async def test_an_announced_body_over_the_limit_is_refused(serving: Serving) -> None:
    answer = await serving.post(b"x" * (1024 * 1024 + 1), {})
    assert error(answer) == (413, "TOO_LARGE")


async def test_a_chunked_body_over_the_limit_is_refused_while_it_streams(serving: Serving) -> None:
    assert error(await serving.post(chunks(24), {})) == (413, "TOO_LARGE")


async def test_a_body_without_end_is_cut_off(serving: Serving) -> None:
    with pytest.raises((httpx.ReadError, httpx.WriteError)):
        await serving.post(chunks(10_000), {})


async def chunks(n: int) -> AsyncIterator[bytes]:
    for _ in range(n):
        yield b"x" * 65536


async def test_a_chunked_body_within_the_limit_is_taken(serving: Serving) -> None:
    body, headers = stripe_request(new_id())

    async def pieces() -> AsyncIterator[bytes]:
        for n in range(0, len(body), 7):
            yield body[n : n + 7]

    answer = await serving.post(pieces(), headers)
    assert answer.json()["status"] == "accepted"


async def test_an_unknown_path_is_404(serving: Serving) -> None:
    for path in ("/", "/webhooks", "/webhooks/stripe/", "/webhooks/other", "/webhooks//stripe"):
        assert error(await serving.post(b"{}", {}, path=path)) == (404, "NOT_FOUND")


async def test_a_wrong_method_is_405(serving: Serving) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        for method in ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"):
            answer = await client.request(method, f"{serving.url}/webhooks/stripe")
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        assert (await client.post(f"{serving.url}/healthz")).status_code == 405


async def test_alive_ready_and_metrics(serving: Serving) -> None:
    async with httpx.AsyncClient(base_url=serving.url, timeout=PATIENCE_S) as client:
        assert (await client.get("/healthz")).json() == {"status": "alive"}
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        text = (await client.get("/metrics")).text
    assert 'gateway_requests_total{outcome="accepted",route="stripe"}' in text
    assert "gateway_acknowledge_seconds_bucket" in text


# GitHub


async def test_github_json_and_form_are_accepted(serving: Serving, reader: Reader) -> None:
    document = json.dumps({"action": "opened", "n": uuid4().hex}).encode()
    body = b"payload=" + quote(document).encode()
    headers = (
        PROVIDERS["github"]
        .sign(
            body, secret=GITHUB_SECRET.encode(), id="form-1", type="issues", now=datetime.now(UTC)
        )
        .headers
    )
    headers["content-type"] = "application/x-www-form-urlencoded"
    answer = await serving.post(body, headers, path="/webhooks/github")
    assert answer.json() == {"status": "accepted", "event_id": "form-1"}
    row = await reader.row("select type, body from gateway.events where event_id = 'form-1'")
    assert row == {"type": "issues.opened", "body": body}


async def test_githubs_sha1_header_never_suffices(serving: Serving) -> None:
    body, headers = github_request("sha1-1")
    del headers["x-hub-signature-256"]
    sha1 = hmac.new(GITHUB_SECRET.encode(), body, hashlib.sha1).hexdigest()
    headers["x-hub-signature"] = f"sha1={sha1}"
    answer = await serving.post(body, headers, path="/webhooks/github")
    assert error(answer) == (403, "BAD_SIGNATURE")


async def test_github_without_a_delivery_id_is_refused(serving: Serving) -> None:
    body, headers = github_request("gone")
    del headers["x-github-delivery"]
    answer = await serving.post(body, headers, path="/webhooks/github")
    assert error(answer) == (400, "BAD_PAYLOAD")


async def test_the_same_bytes_under_a_fresh_guid_are_replayed(serving: Serving) -> None:
    body = json.dumps({"ref": uuid4().hex}).encode()
    first = await serving.post(*github_request("g-1", body=body), path="/webhooks/github")
    assert first.json()["status"] == "accepted"
    again = await serving.post(*github_request("g-2", body=body), path="/webhooks/github")
    assert error(again) == (403, "REPEATED_BODY")
    disguised = await serving.post(
        *github_request("g-3", "ping", body=body), path="/webhooks/github"
    )
    assert error(disguised) == (403, "REPEATED_BODY")
    redelivered = await serving.post(*github_request("g-1", body=body), path="/webhooks/github")
    assert redelivered.json()["status"] == "duplicate"


async def test_a_ping_may_honestly_repeat_and_is_flagged(serving: Serving, reader: Reader) -> None:
    body = json.dumps({"zen": uuid4().hex}).encode()
    for guid in ("ping-1", "ping-2"):
        answer = await serving.post(
            *github_request(guid, "ping", body=body), path="/webhooks/github"
        )
        assert answer.json() == {"status": "accepted", "event_id": guid}
    row = await reader.row(
        "select repeat_of from gateway.processed_events where event_id = 'ping-2'"
    )
    assert row == {"repeat_of": "ping-1"}


async def test_a_github_body_of_several_megabytes_is_taken(serving: Serving) -> None:
    body = json.dumps({"blob": "x" * 8_000_000, "n": uuid4().hex}).encode()
    answer = await serving.post(*github_request("big-1", body=body), path="/webhooks/github")
    assert answer.json()["status"] == "accepted"


# What only a raw connection can do


async def raw(serving: Serving, headers: Mapping[bytes, bytes], body: bytes) -> bytes:
    lines = [b"%s: %s" % item for item in headers.items()]
    head = b"\r\n".join(
        [
            b"POST /webhooks/stripe HTTP/1.1",
            b"host: x",
            b"content-length: %d" % len(body),
            b"connection: close",
            *lines,
        ]
    )
    return await talk(serving, head + b"\r\n\r\n" + body)


async def talk(serving: Serving, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(serving.url).port)
    writer.write(data)
    await writer.drain()
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    return answer


async def test_credentials_and_nul_bytes_do_not_reach_the_ledger(
    serving: Serving, reader: Reader
) -> None:
    event_id = new_id()
    body, headers = stripe_request(event_id)
    headers |= {"authorization": "Bearer hush", "cookie": "hush", "x-odd": "a\x80b"}
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        answer = await client.post(
            f"{serving.url}/webhooks/stripe",
            content=body,
            headers=[(k.encode(), v.encode("latin-1")) for k, v in headers.items()],
        )
    assert answer.json()["status"] == "accepted"
    kept = json.loads(
        await reader.value("select headers from gateway.events where event_id = $1", event_id)
    )
    assert "hush" not in str(kept)
    assert kept["x-odd"] == "a\x80b"


async def test_a_head_without_end_is_refused(serving: Serving) -> None:
    answer = await talk(serving, b"POST / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * (HEAD_BYTES + 2000))
    assert answer.startswith(b"HTTP/1.1 431"), answer[:100]


@pytest.mark.parametrize("cut", [40_000, HEAD_BYTES - 100])
async def test_a_head_that_ends_too_late_in_its_second_piece_is_refused(
    serving: Serving, cut: int
) -> None:
    head = b"POST /nowhere HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 70_000 + b"\r\n\r\n"
    assert await status_of_pieces(serving, head[:cut], head[cut:]) == b"431"


@pytest.mark.parametrize("back", range(1, 5))
async def test_a_large_body_after_a_head_that_was_cut_in_its_end_is_taken(
    serving: Serving, back: int
) -> None:
    head = b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 300000\r\n\r\n"
    cut = len(head) - back
    request = head + b"{" * 300_000
    assert await status_of_pieces(serving, request[:cut], request[cut:]) == b"404"


async def status_of_pieces(serving: Serving, first: bytes, second: bytes) -> bytes:
    """Sends a request in two pieces that arrive apart."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(serving.url).port)
    writer.write(first)
    await read_by_server(writer)  # together they would only be an easier case
    writer.write(second)
    answer = await reader.readline()
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return answer.split(b" ")[1]


async def test_keep_alive_and_pipelined_requests_are_all_answered(serving: Serving) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(serving.url).port)
    for _ in range(3):
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 3 + b"\r\n")
        for _ in range(3):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
            assert head.startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(18) == b'{"status":"alive"}'
    writer.close()


def on_the_wire(event_id: str, *lines: bytes, version: bytes = b"1.1") -> bytes:
    body, headers = stripe_request(event_id)
    head = [b"POST /webhooks/stripe HTTP/%b" % version, b"host: x", *lines]
    head += [f"{name}: {value}".encode() for name, value in headers.items()]
    head.append(b"content-length: %d" % len(body))
    return b"\r\n".join(head) + b"\r\n\r\n" + body


async def test_pipelined_events_are_answered_in_order(serving: Serving) -> None:
    ids = [new_id() for _ in range(20)]
    *most, last = ids
    answer = await talk(
        serving,
        b"".join(map(on_the_wire, most)) + on_the_wire(last, b"connection: close"),
    )
    assert answer.count(b"HTTP/1.1 200 OK") == 20
    places = [answer.index(event_id.encode()) for event_id in ids]
    assert places == sorted(places)


async def test_a_sender_of_the_last_century_is_answered_and_closed(serving: Serving) -> None:
    answer = await talk(serving, on_the_wire(new_id(), version=b"1.0"))
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"connection: close" in answer


async def test_a_sender_that_asks_first_is_told_to_go_on(serving: Serving) -> None:
    request = on_the_wire(new_id(), b"expect: 100-continue", b"connection: close")
    head, body = request.split(b"\r\n\r\n", 1)
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(serving.url).port)
    writer.write(head + b"\r\n\r\n")
    go_on = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
    assert go_on == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).startswith(b"HTTP/1.1 200 OK")
    writer.close()


async def test_head_is_answered_without_a_body(serving: Serving) -> None:
    answer = await talk(serving, b"HEAD /webhooks/stripe HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 405")
    assert answer.endswith(b"\r\n\r\n")


async def test_a_nul_in_a_header_is_refused(serving: Serving) -> None:
    answer = await talk(serving, on_the_wire(new_id(), b"x-odd: a\0b"))
    assert answer.startswith(b"HTTP/1.1 400")


async def test_a_sender_that_never_reads_its_answers_is_cut_off(serving: Serving) -> None:
    """Each refusal is small, and there is no end of them: they must not be kept for ever."""
    sender = socket.socket()
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sender.connect(("127.0.0.1", urlsplit(serving.url).port))
    request = b"POST /webhooks/stripe HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"

    async def send_for_ever() -> None:
        while True:
            sender.sendall(request * 50)
            await asyncio.sleep(0.002)  # so that the server reads whole requests

    with sender, pytest.raises(ConnectionError):
        await send_for_ever()
    assert (await serving.post(*stripe_request(new_id()))).status_code == 200


async def test_a_large_body_on_an_unknown_path_gets_one_answer(serving: Serving) -> None:
    body = b"x" * 300_000
    head = b"POST /nowhere HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    with suppress(ConnectionError):
        answer = await talk(serving, head % len(body) + body)
        assert answer.startswith(b"HTTP/1.1 404")
        assert answer.count(b"HTTP/1.1") == 1


async def test_trailers_are_dropped_and_bounded(serving: Serving) -> None:
    head = b"POST /webhooks/stripe HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    few = await talk(
        serving, head.replace(b"host: x", b"host: x\r\nconnection: close") + b"0\r\na: b\r\n\r\n"
    )
    assert few.startswith(b"HTTP/1.1 403")
    line = b"a: " + b"x" * 100 + b"\r\n"
    for endless in (line * 400, b"a: " + b"x" * 40_000):
        assert await cut_off(serving, head + b"0\r\n", endless)
    assert await cut_off(serving, head, b"1;" + b"x" * 40_000)


async def cut_off(serving: Serving, head: bytes, rest: bytes) -> bool:
    """Whether the server closes, without an answer, on what follows the head."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(serving.url).port)
    writer.write(head)
    await read_by_server(writer)
    try:
        writer.write(rest)
        await writer.drain()
        return await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    except ConnectionError:
        return True
    finally:
        writer.close()


async def test_a_refused_body_closes_the_connection(serving: Serving) -> None:
    answer = await talk(
        serving,
        b"POST /webhooks/stripe HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n",
    )
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer.lower()


async def test_a_sender_that_hangs_up_leaves_no_trace(serving: Serving) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(serving.url).port)
    writer.write(b"POST /webhooks/stripe HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc")
    await writer.drain()
    writer.close()
    await until(lambda: "sender_gone" in serving.running.output)


async def test_nothing_in_this_module_was_a_500(serving: Serving) -> None:
    assert "Traceback" not in serving.running.output
    assert STRIPE_SECRET not in serving.running.output
    assert GITHUB_SECRET not in serving.running.output


@pytest.fixture
async def reader(module_project: Project) -> AsyncIterator[Reader]:
    connection = await asyncpg.connect(module_project.environ["GATEWAY_DATABASE_URL"])
    yield Reader(connection)
    await connection.close()


# Processes of their own


@pytest.mark.parametrize(
    "start", [b"content-length: 10\r\n\r\nab", b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n"]
)
async def test_a_slow_body_is_408(project: Project, start: bytes) -> None:
    routes = (project.directory / "config/routes.yaml").read_text()
    project.write(
        "config/routes.yaml",
        routes.replace("provider: stripe", "provider: stripe\n    receive_within: 300ms", 1),
    )
    with project.serve() as serving:
        await serving.ready()
        answer = await talk(serving, b"POST /webhooks/stripe HTTP/1.1\r\nhost: x\r\n" + start)
    assert answer.startswith(b"HTTP/1.1 408")
    assert answer.endswith(b'{"error":"TIMEOUT"}')


async def test_what_cannot_be_made_durable_in_time_is_503(project: Project, ledger: Reader) -> None:
    """Both kinds of sender, where the route does not spool."""
    routes = (project.directory / "config/routes.yaml").read_text()
    project.write(
        "config/routes.yaml",
        routes.replace("    handlers:", "    ack_within: 500ms\n    spool: never\n    handlers:"),
    )
    with project.serve() as serving:
        await serving.ready()
        blocker = await asyncpg.connect(project.environ["GATEWAY_DATABASE_URL"])
        async with blocker.transaction():
            await blocker.execute("lock table gateway.processed_events in exclusive mode")
            for request, path in (
                (stripe_request("evt_1"), "/webhooks/stripe"),
                (github_request("guid-1"), "/webhooks/github"),
            ):
                answer = await serving.post(*request, path=path)
                assert error(answer) == (503, "UNAVAILABLE")
                assert int(answer.headers["retry-after"]) > 0
        await blocker.close()
        again = await serving.post(*stripe_request("evt_1"))
        assert again.status_code == 200
    assert await ledger.value("select count(*) from gateway.processed_events") <= 2


async def test_too_many_in_flight_is_503_at_once(project: Project) -> None:
    routes = (project.directory / "config/routes.yaml").read_text()
    patient = routes.replace("    handlers:", "    ack_within: 1m\n    handlers:")
    project.write("config/routes.yaml", patient)
    with project.serve(GATEWAY_MAX_IN_FLIGHT="6") as serving:  # of which Stripe may use three
        await serving.ready()
        blocker = await asyncpg.connect(project.environ["GATEWAY_DATABASE_URL"])

        async def is_full() -> bool:
            return error(await serving.post(b"{}", {})) == (503, "UNAVAILABLE")

        async with blocker.transaction():
            await blocker.execute("lock table gateway.processed_events in exclusive mode")
            last = b"connection: close"
            held = [
                asyncio.create_task(talk(serving, on_the_wire(new_id(), last))) for _ in range(3)
            ]
            await until(is_full)
        await blocker.close()
        assert all(answer.startswith(b"HTTP/1.1 200") for answer in await asyncio.gather(*held))
        assert (await serving.post(*stripe_request("evt_3"))).status_code == 200


async def test_bodies_that_do_not_arrive_keep_nobody_out(project: Project) -> None:
    with project.serve(GATEWAY_MAX_IN_FLIGHT="4") as serving:
        await serving.ready()
        half = b"POST /webhooks/stripe HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"
        held = [
            await asyncio.open_connection("127.0.0.1", urlsplit(serving.url).port) for _ in range(9)
        ]
        for _, writer in held:
            writer.write(half)
            await writer.drain()
        first, _ = held[0]
        assert (await first.readline()).startswith(b"HTTP/1.1 503")
        assert (await serving.post(*stripe_request("evt_1"))).status_code == 200
        for _, writer in held:
            writer.close()


async def test_too_many_bytes_in_flight_is_503(project: Project) -> None:
    with project.serve(GATEWAY_MAX_BUFFERED="1MiB") as serving:
        await serving.ready()
        body = json.dumps({"blob": "x" * 2_000_000}).encode()
        answer = await serving.post(*github_request("big", body=body), path="/webhooks/github")
        assert error(answer) == (503, "UNAVAILABLE")
        assert (await serving.post(*stripe_request("evt_1"))).status_code == 200


async def test_ignored_types_and_modes_are_answered_and_not_stored(
    project: Project, ledger: Reader
) -> None:
    routes = (project.directory / "config/routes.yaml").read_text()
    project.write(
        "config/routes.yaml",
        routes.replace(
            "provider: stripe", 'provider: stripe\n    livemode: false\n    types: ["invoice.*"]', 1
        ),
    )
    with project.serve() as serving:
        await serving.ready()
        answer = await serving.post(*stripe_request("evt_1", "customer.created"))
        assert answer.json() == {"status": "ignored", "event_id": "evt_1"}
        body = json.dumps(
            {
                "id": "evt_2",
                "object": "event",
                "type": "invoice.paid",
                "created": 1,
                "livemode": True,
            }
        ).encode()
        answer = await serving.post(body, signed(body))
        assert answer.json() == {"status": "ignored", "event_id": "evt_2"}
        answer = await serving.post(*stripe_request("evt_3", "invoice.paid"))
        assert answer.json() == {"status": "accepted", "event_id": "evt_3"}
    assert await ledger.value("select count(*) from gateway.processed_events") == 1
