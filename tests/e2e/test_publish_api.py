"""Publishing over HTTP: the table of answers, row by row, against a real server."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import asyncpg
import httpx
import orjson
import pytest

from gateway.api.jobs import PATH
from gateway.api.openapi import describe_api
from tests.support.fuzzing import fuzz
from tests.support.ledger import Reader
from tests.support.processes import Project, Serving
from tests.support.queues import (
    ADMIN_TOKEN,
    OLD_TOKEN,
    OTHER_TOKEN,
    TOKEN,
    jobs,
    new_key,
    publish,
    with_queues,
)
from tests.support.waiting import PATIENCE_S

ADMIN = {"authorization": f"Bearer {ADMIN_TOKEN}"}


@pytest.fixture(scope="module")
def module_project(module_project: Project) -> Project:
    return with_queues(module_project)


@pytest.fixture
async def reader(module_project: Project) -> AsyncIterator[Reader]:
    connection = await asyncpg.connect(module_project.environ["GATEWAY_DATABASE_URL"])
    yield Reader(connection)
    await connection.close()


async def test_the_first_time_is_201_and_ever_after_200_with_the_same_id(serving: Serving) -> None:
    request = {"payload": {"order": 9482}, "idempotencyKey": new_key()}
    first = await publish(serving, request)
    again = await publish(serving, request)
    in_header = await publish(
        serving, {"payload": {"order": 9482.0}}, idempotency_key=f'"{request["idempotencyKey"]}"'
    )
    assert (first.status_code, first.json()) == (
        201,
        {"id": request["idempotencyKey"], "status": "accepted"},
    )
    assert first.headers["content-type"] == "application/json"
    for answer in (again, in_header):
        assert (answer.status_code, answer.json()) == (
            200,
            {"id": request["idempotencyKey"], "status": "duplicate"},
        )


@pytest.mark.parametrize("change", [{"payload": {"order": 2}}, {"type": "order.other"}])
async def test_the_same_key_with_another_payload_or_type_is_409(
    serving: Serving, change: Any
) -> None:
    request = {"payload": {"order": 1}, "idempotencyKey": new_key()}
    await publish(serving, request)
    answer = await publish(serving, request | change)
    assert (answer.status_code, answer.json()["error"]) == (409, "CONFLICT")
    assert (await publish(serving, request)).status_code == 200


async def test_without_a_key_each_request_is_its_own_job(serving: Serving) -> None:
    answers = [await publish(serving, {"payload": 1}) for _ in range(3)]
    assert {a.status_code for a in answers} == {201}
    assert len({a.json()["id"] for a in answers}) == 3


async def test_one_key_in_two_queues_is_two_jobs(serving: Serving) -> None:
    request = {"payload": 1, "idempotencyKey": new_key()}
    assert (await publish(serving, request)).status_code == 201
    other = await publish(serving, request, queue="parcels", token=OTHER_TOKEN)
    assert other.status_code == 201


async def test_racers_with_one_key_and_different_payloads_one_wins(
    serving: Serving, reader: Reader
) -> None:
    key = new_key()
    requests = [json.dumps({"payload": n % 10, "idempotencyKey": key}).encode() for n in range(40)]
    headers = {"authorization": f"Bearer {TOKEN}"}
    answers = await serving.post_all([(body, headers) for body in requests], path=jobs())
    kept = await reader.value("select body from gateway.events where event_id = $1", key)
    told = Counter((n % 10 == int(kept), a.status_code) for n, a in enumerate(answers))
    assert told == {(True, 201): 1, (True, 200): 3, (False, 409): 36}


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer wrong",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {OTHER_TOKEN}",
        f"Bearer {ADMIN_TOKEN}",
        TOKEN,
    ],
)
async def test_without_its_token_a_queue_takes_nothing(
    serving: Serving, reader: Reader, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    key = new_key()
    body = json.dumps({"payload": 1, "idempotencyKey": key}).encode()
    for path in (jobs(), jobs(id="a")):
        answer = await serving.post(body, headers, path=path)
        assert (answer.status_code, answer.json()) == (401, {"error": "UNAUTHORIZED"})
        assert answer.headers["www-authenticate"] == "Bearer"
    query = "select count(*) from gateway.processed_events where event_id = $1"
    assert await reader.value(query, key) == 0


async def test_a_token_in_rotation_opens_too(serving: Serving) -> None:
    assert (await publish(serving, {"payload": 1}, token=OLD_TOKEN)).status_code == 201


async def test_strangers_learn_nothing_of_what_there_is(serving: Serving) -> None:
    paths = [jobs(), jobs("nothing"), jobs("closed"), jobs(id="a"), "/v1/", "/v1/queues/", "/v1/x"]
    async with httpx.AsyncClient(base_url=serving.url, timeout=PATIENCE_S) as client:
        answers = [
            await client.request(method, path)
            for path in paths
            for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS")
        ]
    assert {(a.status_code, a.content) for a in answers} == {(401, b'{"error":"UNAUTHORIZED"}')}


async def test_with_a_token_there_are_404_and_405(serving: Serving) -> None:
    async with httpx.AsyncClient(
        base_url=serving.url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE_S
    ) as client:
        for path in (jobs("nothing"), jobs("closed"), "/v1/", "/v1/queues/orders", jobs(id="none")):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["error"]) == (404, "NOT_FOUND"), path
        assert (await client.post(jobs("nothing"), json={"payload": 1})).status_code == 404
        wrong = await client.get(jobs())
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        wrong = await client.delete(jobs(id="a"))
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD")


async def test_a_large_body_of_a_stranger_is_not_read_to_its_end(serving: Serving) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65536

    with pytest.raises((httpx.ReadError, httpx.WriteError)):
        await serving.post(endless(), {"authorization": "Bearer wrong"}, path=jobs())
    small = await serving.post(b"x" * 500_000, {"authorization": "Bearer wrong"}, path=jobs())
    assert small.status_code == 401


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (b"not json", "BAD_PAYLOAD", "not JSON"),
        (b'{"payload": {"a": 1, "a": 2}}', "BAD_PAYLOAD", "found the key 'a' twice"),
        (b'{"payload": 1, "idempotencyKey": "a\\u0000"}', "BAD_REQUEST", "found 'a\\x00'"),
        (b'{"payload": 1, "type": "\\ud800"}', "BAD_PAYLOAD", "not JSON"),
        (b'{"payload": 1, "delaySeconds": 1e9}', "BAD_REQUEST", "expected a number from 0"),
        (b'{"payload": ' + b"[" * 300 + b"]" * 300 + b"}", "BAD_PAYLOAD", "254 levels"),
        (b'{"payload": ' + b"1" * 5000 + b"}", "BAD_PAYLOAD", "number"),
    ],
)
async def test_what_cannot_be_published_is_told(
    serving: Serving, body: bytes, code: str, said: str
) -> None:
    answer = await publish(serving, body)
    assert (answer.status_code, answer.json()["error"]) == (400, code)
    assert said in answer.json()["detail"]


async def test_a_body_over_the_limit_is_413(serving: Serving) -> None:
    answer = await publish(serving, {"payload": "x" * 65536})
    assert (answer.status_code, answer.json()["error"]) == (413, "TOO_LARGE")


@pytest.mark.parametrize(
    "lines",
    [
        b"idempotency-key: a\r\nidempotency-key: b",
        b"idempotency-key: a\r\nidempotency-key: a",
        b"idempotency-key: \xff\xfe",
        b"idempotency-key: " + b"x" * 5000,
        b'idempotency-key: "a", "b"',
        b"idempotency-key:",
    ],
)
async def test_hostile_key_headers_are_a_refusal(serving: Serving, lines: bytes) -> None:
    url = urlsplit(serving.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(
        b"POST /v1/queues/orders/jobs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n%b\r\n"
        b'content-length: 13\r\nconnection: close\r\n\r\n{"payload":1}' % (TOKEN.encode(), lines)
    )
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert b'"BAD_REQUEST"' in answer


@pytest.mark.parametrize("id", ["a/b/jobs/c", "50% off?#x", "clé & co", "..", ".", "a b", "+"])
async def test_any_key_is_found_again_by_its_id(serving: Serving, id: str) -> None:
    await publish(serving, {"payload": 1, "idempotencyKey": id, "type": "nobody.knows"})
    encoded = quote(id, safe="").replace(".", "%2E")
    async with httpx.AsyncClient(
        headers={"authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE_S
    ) as client:
        answer = await client.get(f"{serving.url}{jobs()}/{encoded}")
        assert (await client.head(f"{serving.url}{jobs()}/{encoded}")).status_code == 200
    assert (answer.status_code, answer.json()["id"]) == (200, id)


async def test_hostile_ids_are_not_found(serving: Serving) -> None:
    async with httpx.AsyncClient(
        headers={"authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE_S
    ) as client:
        for id in ("%00", "%0A", "%FF", "x" * 5000, "%ED%A0%80", ""):
            answer = await client.get(f"{serving.url}{jobs()}/{id}")
            assert answer.status_code == 404, id


async def test_outcomes_are_counted(serving: Serving) -> None:
    key = new_key()
    for payload in (1, 1, 2):
        await publish(serving, {"payload": payload, "idempotencyKey": key})
    await publish(serving, b"")
    await publish(serving, b"", token="wrong")
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        text = (await client.get(f"{serving.url}/metrics", headers=ADMIN)).text
    for outcome in ("accepted", "duplicate", "CONFLICT", "BAD_PAYLOAD", "UNAUTHORIZED"):
        counted = f'gateway_requests_total{{outcome="{outcome}",route="orders"}}'
        assert f"{counted} " in text
        assert f"{counted} 0.0" not in text
    assert 'gateway_conflicts_total{route="orders"} 0.0' not in text


async def test_no_token_is_logged(serving: Serving) -> None:
    for token in (TOKEN, "a-token-that-is-wrong"):
        await publish(serving, b"{}", token=token)
        assert token not in serving.running.output


async def test_the_document_of_the_admin_api_has_the_queues_that_are_open(
    serving: Serving,
) -> None:
    async with httpx.AsyncClient(base_url=serving.url, timeout=PATIENCE_S) as client:
        document = (await client.get("/api/v1/openapi.json", headers=ADMIN)).json()
    described = document["paths"][PATH]["post"]
    assert described["security"] == [{"queueToken": []}]
    assert described["parameters"][0]["schema"]["enum"] == ["orders", "parcels"]
    assert PATH + "/{id}" in document["paths"]


def test_the_document_and_what_is_answered_agree_whatever_is_asked(
    serving: Serving, tmp_path: Path
) -> None:
    (tmp_path / "openapi.json").write_bytes(orjson.dumps(describe_api((), ["orders"])))
    # A schema cannot say that two keys must be equal, nor what is printable.
    options = ("--url", serving.url, "--exclude-checks", "positive_data_acceptance")
    fuzz("openapi.json", *options, directory=tmp_path, token=TOKEN, examples=40)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nothing", "--payload", "order.json"), 1, "it has orders, parcels"),
        (("closed", "--payload", "order.json"), 1, "there is no queue 'closed' with `tokens`"),
        (("orders", "--payload", "none.json"), 1, "none.json: cannot be read: No such file"),
        (("orders", "--payload", "twice.json"), 1, "--payload: found the key 'a' twice"),
        (("orders", "--payload", "order.json", "--delay", "x"), 2, "--delay"),
        (("orders", "--payload", "order.json", "--url", "nonsense"), 1, "--url: found a URL"),
        (("orders",), 2, "--payload"),
    ],
)
def test_the_command_says_in_one_line_what_is_wrong(
    module_project: Project, arguments: tuple[str, ...], code: int, said: str
) -> None:
    module_project.write("order.json", "{}")
    module_project.write("twice.json", '{"a": 1, "a": 1}')
    ran = module_project.run("publish", *arguments)
    assert ran.returncode == code, ran.stderr
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_command_without_a_token_is_exit_2(module_project: Project) -> None:
    module_project.write("order.json", "{}")
    ran = module_project.run("publish", "orders", "--payload", "order.json", ORDERS_TOKEN="")
    assert ran.returncode == 2
    assert "routes.orders.tokens[0]: found env:ORDERS_TOKEN, which is empty" in ran.stderr
