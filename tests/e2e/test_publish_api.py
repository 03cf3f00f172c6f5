"""Publishing over HTTP, against real servers: one key is one job, whatever happens in between."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import uuid4

import asyncpg
import httpx
import pytest
from jsonschema import Draft202012Validator

from gateway.api.openapi import describe_api
from gateway.api.queues import PATH
from tests.support.ledger import Reader
from tests.support.processes import Project, Serving, stripe_request
from tests.support.waiting import until

TOKEN = "orders-token-of-the-suite"
OLD_TOKEN = "orders-token-before-that-one"
OTHER_TOKEN = "parcels-token-of-the-suite"
ROUTES = """
schema: [handlers/schema.sql]
defaults:
  retry: {attempts: 2, backoff: fixed, base: 100ms, cap: 1s}
routes:
  stripe:
    provider: stripe
    secrets: [env:STRIPE_WEBHOOK_SECRET]
    handlers: [handlers.effects]
  orders:
    provider: publish
    tokens: [env:ORDERS_TOKEN, env:OLD_ORDERS_TOKEN]
    handlers: [handlers.jobs]
    max_body: 64KiB
  parcels:
    provider: publish
    tokens: [env:PARCELS_TOKEN]
  closed:
    provider: publish
"""
JOBS = '''
"""Two handlers for each order."""

from gateway import Context, Event, Reject, handler


@handler("*")
async def charge(event: Event, ctx: Context) -> None:
    await ctx.db.execute(
        "insert into effects (event_id, handler) values ($1, 'charge')", event.id
    )
    if event.type == "bad":
        raise Reject("no such card")


@handler("*")
async def pack(event: Event, ctx: Context) -> None:
    await ctx.db.execute("insert into effects (event_id, handler) values ($1, 'pack')", event.id)
'''


DOCUMENT = describe_api((), ["orders", "parcels"])


def with_queues(project: Project) -> Project:
    project.write("config/routes.yaml", ROUTES)
    project.write("handlers/jobs.py", JOBS)
    project.environ |= {
        "ORDERS_TOKEN": TOKEN,
        "OLD_ORDERS_TOKEN": OLD_TOKEN,
        "PARCELS_TOKEN": OTHER_TOKEN,
    }
    return project


@pytest.fixture(scope="module")
def module_project(module_project: Project) -> Project:
    return with_queues(module_project)


@pytest.fixture
async def reader(module_project: Project) -> AsyncIterator[Reader]:
    connection = await asyncpg.connect(module_project.environ["GATEWAY_DATABASE_URL"])
    yield Reader(connection)
    await connection.close()


def jobs(queue: str = "orders", id: str | None = None) -> str:
    path = f"/v1/queues/{queue}/jobs"
    return path if id is None else f"{path}/{quote(id, safe='')}"


async def publish(
    serving: Serving, request: Any, *, queue: str = "orders", token: str = TOKEN, **headers: str
) -> httpx.Response:
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await serving.post(
        body, {"authorization": f"Bearer {token}", **given}, path=jobs(queue)
    )
    return as_documented(answer, DOCUMENT["paths"][PATH]["post"])


async def look(serving: Serving, id: str, *, token: str = TOKEN) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        answer = await client.get(
            serving.url + jobs(id=id), headers={"authorization": f"Bearer {token}"}
        )
    return as_documented(answer, DOCUMENT["paths"][PATH + "/{id}"]["get"])


def as_documented(answer: httpx.Response, operation: Any) -> httpx.Response:
    """The same answer, if the OpenAPI document has it."""
    media = operation["responses"][str(answer.status_code)]["content"]["application/json"]
    schema = media["schema"] | {"components": DOCUMENT["components"]}
    Draft202012Validator(schema).validate(answer.json())
    return answer


def new_key() -> str:
    return f"order:{uuid4().hex}:charge"


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
    kept = await reader.value("select body from gateway.processed_events where event_id = $1", key)
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
    async with httpx.AsyncClient(base_url=serving.url) as client:
        answers = [
            await client.request(method, path)
            for path in paths
            for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS")
        ]
    assert {(a.status_code, a.content) for a in answers} == {(401, b'{"error":"UNAUTHORIZED"}')}


async def test_with_a_token_there_are_404_and_405(serving: Serving) -> None:
    async with httpx.AsyncClient(
        base_url=serving.url, headers={"authorization": f"Bearer {TOKEN}"}
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
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}) as client:
        answer = await client.get(f"{serving.url}{jobs()}/{encoded}")
        assert (await client.head(f"{serving.url}{jobs()}/{encoded}")).status_code == 200
    assert (answer.status_code, answer.json()["id"]) == (200, id)


async def test_hostile_ids_are_not_found(serving: Serving) -> None:
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}) as client:
        for id in ("%00", "%0A", "%FF", "x" * 5000, "%ED%A0%80", ""):
            answer = await client.get(f"{serving.url}{jobs()}/{id}")
            assert answer.status_code == 404, id


async def test_outcomes_are_counted(serving: Serving) -> None:
    key = new_key()
    for payload in (1, 1, 2):
        await publish(serving, {"payload": payload, "idempotencyKey": key})
    await publish(serving, b"")
    await publish(serving, b"", token="wrong")
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{serving.url}/metrics")).text
    for outcome in ("accepted", "duplicate", "CONFLICT", "BAD_PAYLOAD", "UNAUTHORIZED"):
        assert f'gateway_requests_total{{outcome="{outcome}",route="orders"}}' in text
    assert 'gateway_conflicts_total{route="orders"}' in text


async def test_no_token_is_logged(serving: Serving) -> None:
    for token in (TOKEN, "a-token-that-is-wrong"):
        await publish(serving, b"{}", token=token)
        assert token not in serving.running.output


async def test_a_job_is_told_from_pending_to_its_end(
    project: Project, ledger: Reader, database_url: str
) -> None:
    with_queues(project)
    project.run("migrate")
    with project.serve() as serving:
        await serving.ready()
        await publish(serving, {"payload": 1, "idempotencyKey": "good", "delaySeconds": 0})
        await publish(serving, {"payload": 1, "idempotencyKey": "bad", "type": "bad"})
        await publish(serving, {"payload": 1, "idempotencyKey": "later", "delaySeconds": 86400})
        waiting = (await look(serving, "good")).json()
        assert (waiting["status"], waiting["attempts"], waiting["error"]) == ("pending", 0, None)
        assert [d["handler"] for d in waiting["deliveries"]] == [
            "handlers.jobs.charge",
            "handlers.jobs.pack",
        ]
        with project.process("worker"):
            await until(lambda: _is(serving, "good", "done"))
            await until(lambda: _is(serving, "bad", "dead"))
        done = (await look(serving, "good")).json()
        assert (done["due_at"], done["attempts"], done["queue"]) == (None, 1, "orders")
        dead = (await look(serving, "bad")).json()
        assert {d["handler"][14:]: d["status"] for d in dead["deliveries"]} == {
            "charge": "dead",
            "pack": "done",
        }
        assert "no such card" in dead["error"]
        later = (await look(serving, "later")).json()
        assert (later["status"], later["attempts"]) == ("pending", 0)
        assert later["due_at"] > later["received_at"]
    assert await ledger.value("select count(*) from public.effects where event_id = 'later'") == 0


async def _is(serving: Serving, id: str, status: str) -> bool:
    return bool((await look(serving, id)).json()["status"] == status)


async def test_the_same_publish_50_times_at_once_and_after_a_kill_is_one_job(
    project: Project, ledger: Reader
) -> None:
    with_queues(project)
    project.run("migrate")
    body = json.dumps({"payload": {"order": 9482}, "idempotencyKey": "order:9482:charge"}).encode()
    request = (body, {"authorization": f"Bearer {TOKEN}"})
    statuses: Counter[int] = Counter()
    for _ in range(2):
        with ExitStack() as stack:
            pair = [stack.enter_context(project.serve()) for _ in range(2)]
            await asyncio.gather(*(serving.ready() for serving in pair))
            answers = await asyncio.gather(
                *(serving.post_all([request] * 25, path=jobs()) for serving in pair)
            )
            for serving in pair:
                serving.running.kill()
        for answer in (*answers[0], *answers[1]):
            statuses[answer.status_code] += 1
            assert answer.json()["id"] == "order:9482:charge"
    assert statuses == {201: 1, 200: 99}
    assert await ledger.value("select count(*) from gateway.processed_events") == 1
    handlers = await ledger.rows("select handler from gateway.deliveries order by handler")
    assert [row["handler"] for row in handlers] == ["handlers.jobs.charge", "handlers.jobs.pack"]
    with project.process("worker"):
        await until(lambda: _all_done(ledger))
    done = await ledger.rows("select handler from public.effects order by handler")
    assert [row["handler"] for row in done] == ["charge", "pack"]


async def _all_done(ledger: Reader) -> bool:
    return await ledger.statuses() == {"done": 2}


async def test_what_cannot_be_made_durable_is_503_and_never_spooled(
    project: Project, ledger: Reader
) -> None:
    with_queues(project)
    project.run("migrate")
    with project.serve() as serving:
        await serving.ready()
        await ledger.run("begin; lock table gateway.processed_events in access exclusive mode")
        answer = await publish(serving, {"payload": 1, "idempotencyKey": "a"})
        assert (answer.status_code, answer.json()) == (503, {"error": "UNAVAILABLE"})
        assert int(answer.headers["retry-after"]) > 0
        asked = await look(serving, "a")
        assert (asked.status_code, asked.json()) == (503, {"error": "UNAVAILABLE"})
        await ledger.run("rollback")
        again = await publish(serving, {"payload": 1, "idempotencyKey": "a"})
        assert (again.status_code, again.json()["id"]) in {(201, "a"), (200, "a")}
    assert not list(project.directory.glob(".gateway/spool/*"))


async def test_a_handler_that_holds_a_key_holds_up_no_webhook(
    project: Project, ledger: Reader
) -> None:
    """It publishes, and goes on for long: whoever publishes the same key is told to come again."""
    with_queues(project)
    project.run("migrate")
    with project.serve() as serving:
        await serving.ready()
        await ledger.run(
            "begin; insert into gateway.processed_events"
            " (route, event_id, provider, type, received_at, digest)"
            " values ('orders', 'held', 'publish', 'orders', now(), '\\x00')"
        )
        held = asyncio.create_task(publish(serving, {"payload": 1, "idempotencyKey": "held"}))
        others = [
            asyncio.create_task(publish(serving, {"payload": 1, "idempotencyKey": f"free-{n}"}))
            for n in range(20)
        ]
        webhook = await serving.post(*stripe_request("evt_beside"))
        assert webhook.json()["status"] == "accepted"
        assert not held.done()
        assert (await held).status_code == 503
        assert {(await other).status_code for other in others} == {201}
        await ledger.run("rollback")
        assert (await publish(serving, {"payload": 1, "idempotencyKey": "held"})).status_code == 201
