"""Encrypted routes with real processes: nothing to be read anywhere, and keys that change."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import asyncpg
import httpx
import pytest
from redis.asyncio import Redis as RedisClient

from gateway.base.secrets import Secret
from gateway.dev.embedded import Postgres
from tests.support.forked import Death
from tests.support.keys import find_in_ledger, make_key, make_vault
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.processes import Project, Serving, github_request, stripe_request
from tests.support.receiver import answer, receiving
from tests.support.waiting import PATIENCE_S, until

MARK: Final = "Wombat-90210"
TOKEN: Final = "admin-token-of-the-suite"
QUEUE_TOKEN: Final = "queue-token-of-the-suite"
OLD, NEW = make_key(), make_key()
ROUTES: Final = """
schema: [handlers/schema.sql]
keys: [env:NEW_KEY, env:OLD_KEY]
digest_key: env:DIGEST_KEY
defaults:
  retry: {attempts: 2, backoff: fixed, base: 50ms, cap: 1s}
routes:
  stripe:
    provider: stripe
    secrets: [env:STRIPE_WEBHOOK_SECRET]
    handlers: [handlers.private]
    encrypt: true
    forward: [{name: away, types: ["invoice.*"], url: env:AWAY_URL}]
  github:
    provider: github
    secrets: [env:GITHUB_WEBHOOK_SECRET]
    handlers: [handlers.pushes]
    encrypt: true
  tasks:
    provider: publish
    tokens: [env:QUEUE_TOKEN]
    handlers: [handlers.jobs]
    encrypt: true
"""
PRIVATE: Final = """
from gateway import Context, Event, handler

@handler("invoice.*", order_by="data.object.id", once_per="data.object.extra")
async def take(event: Event, ctx: Context) -> None:
    extra = event.payload["data"]["object"]["extra"]
    await ctx.once("call", lambda: {"said": extra})
    raise ValueError(f"cannot take {extra} from {event.headers}")


@handler("invoice.*")
async def tell(event: Event, ctx: Context) -> None:
    await ctx.publish("tasks", event.payload)
"""
PUSHES: Final = """
from gateway import Context, Event, handler

@handler("*", order_by="ref")
async def take(event: Event, ctx: Context) -> None:
    await ctx.db.execute("insert into effects (event_id, handler) values ($1, 'push')", event.id)
"""
JOBS: Final = """
from gateway import Context, Event, Retry, handler

@handler("*")
async def do(event: Event, ctx: Context) -> None:
    raise Retry(f"later: {event.payload}")
"""


def environ(*, digest: Secret | None = None, **keys: Secret) -> dict[str, str]:
    named = {name: key.reveal().hex() for name, key in keys.items()}
    return {"DIGEST_KEY": (digest or NEW).reveal().hex(), **named}


def encrypt(project: Project) -> None:
    project.write("config/routes.yaml", ROUTES)
    project.write("handlers/private.py", PRIVATE)
    project.write("handlers/pushes.py", PUSHES)
    project.write("handlers/jobs.py", JOBS)
    project.environ |= environ(digest=make_key(), NEW_KEY=NEW, OLD_KEY=OLD)
    project.environ |= {"QUEUE_TOKEN": QUEUE_TOKEN, "AWAY_URL": "http://127.0.0.1:1/"}
    project.environ |= {"GATEWAY_ADMIN_TOKEN": TOKEN}


@pytest.fixture
async def engine(engine_dir: Path) -> AsyncIterator[Postgres]:
    """A Postgres of this test's own, to be stopped and searched."""
    engine = Postgres(engine_dir / "postgres-searched", durable=False)
    engine.start()
    yield engine
    engine.remove()


def containing(files: Iterator[Path], *words: bytes) -> list[Path]:
    return [f for f in files if f.is_file() and any(word in f.read_bytes() for word in words)]


async def redis_holds(url: str, word: bytes) -> bool:
    client = RedisClient.from_url(url)
    try:
        keys = [key async for key in client.scan_iter()]
        dumps = [await client.dump(key) or b"" for key in keys]
        return any(word in found for found in (*keys, *dumps))
    finally:
        await client.aclose()


async def test_nothing_of_an_encrypted_route_can_be_read_anywhere(
    tmp_path: Path, engine: Postgres, engine_dir: Path, redis_url: str
) -> None:
    project = Project(tmp_path, engine.url, redis_url)
    encrypt(project)
    assert project.run("migrate").returncode == 0
    async with receiving(answer(500, f"no {MARK}".encode())) as away:
        project.environ["AWAY_URL"] = away.url
        with project.process("worker") as worker, project.serve() as serving:
            await worker.says("worker_started")
            await serving.ready()
            await _send(serving)
            await asyncio.to_thread(engine.stop)
            spooled = await _push(serving, "spooled")
            assert spooled.json()["status"] == "accepted"
            [kept] = (tmp_path / ".gateway" / "spool").glob("*")
            assert kept.stat().st_size > 100
            assert MARK.encode() not in kept.read_bytes()
            await asyncio.to_thread(engine.start)
            await _all_dead(engine.url)
            shown = await _look(project, serving)
            assert MARK.encode() in away.requests[0].body  # whom it was meant for
            project.run("replay", str(shown["delivery_id"]))
            await _all_dead(engine.url)
            revealed = project.run("show", "evt_1", "--reveal", "--reason", "ticket 481")
            assert MARK in revealed.stdout
            assert f'"extra": "{MARK}"' in json.dumps(
                json.loads(project.run("show", "evt_1", "--reveal", "--body").stdout)
            )
            assert not await redis_holds(redis_url, MARK.encode())
    assert await find_in_ledger(engine.url, MARK) == []
    assert MARK not in worker.output
    assert MARK not in serving.running.output
    assert "its text is encrypted" in worker.output
    audit = project.run("audit", "--json").stdout
    reveals = [row for row in json.loads(audit) if row["action"] == "reveal"]
    assert [row["reason"] for row in reveals] == [None, "ticket 481", None]
    await asyncio.to_thread(engine.stop)  # which writes all of it to its files
    data = engine_dir / "postgres-searched"
    assert containing(data.rglob("*"), b"evt_1") != []
    assert containing(data.rglob("*"), MARK.encode(), MARK.encode().hex().encode()) == []


async def _send(serving: Serving) -> None:
    """What is accepted, a duplicate, in conflict, ignored and refused, a job and a push."""
    body, headers = stripe_request("evt_1", object_id=f"in_{MARK}", extra=MARK)
    headers |= {"x-note": MARK}
    other, signed = stripe_request("evt_1", extra=f"another {MARK}")
    assert (await serving.post(body, headers)).json()["status"] == "accepted"
    assert (await serving.post(body, headers)).json()["status"] == "duplicate"
    assert (await serving.post(other, signed)).json()["status"] == "duplicate"
    assert (await serving.post(other, headers)).status_code == 403
    assert (await _push(serving, "first")).json()["status"] == "accepted"
    assert (await _push(serving, "again")).status_code == 403
    broken = b'{"ref": "%s", "no": json' % MARK.encode()
    refused = await serving.post(*github_request("broken", body=broken), path="/webhooks/github")
    assert refused.status_code == 400
    job = await serving.post(
        json.dumps({"payload": {"of": MARK}}).encode(),
        {"authorization": f"Bearer {QUEUE_TOKEN}", "content-type": "application/json"},
        path="/v1/queues/tasks/jobs",
    )
    assert job.status_code in (200, 201, 202), job.text


async def _push(serving: Serving, guid: str) -> httpx.Response:
    note = "" if guid == "again" else guid
    body = json.dumps({"ref": f"refs/heads/{MARK}", "note": note or "first"}).encode()
    headers = {**github_request(guid, body=body)[1], "x-note": MARK}
    return await serving.post(body, headers, path="/webhooks/github")


async def _all_dead(url: str) -> None:
    """But for the pushes and who publishes, which are done, all fail."""

    async def settled() -> bool:
        try:
            connection = await asyncpg.connect(url)
        except (OSError, asyncpg.PostgresError):
            return False
        try:
            found = await Reader(connection).statuses()
        finally:
            await connection.close()
        return found == {"dead": 4, "done": 3}

    await until(settled)


async def _look(project: Project, serving: Serving) -> dict[str, Any]:
    """What people and programs see without the right to see more."""
    refused = project.run("show", "evt_1", "--body")
    assert (refused.returncode, "say --reveal" in refused.stderr) == (1, True)
    shown = project.run("show", "evt_1").stdout
    assert MARK not in shown
    assert "encrypted under key" in shown
    assert "result encrypted (read it with --reveal)" in shown
    assert "ValueError in take (private.py:8), its text is encrypted" in shown
    assert "HTTP 500" in shown
    bearer = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(
        base_url=f"{serving.url}/api/v1", headers=bearer, timeout=PATIENCE_S
    ) as api:
        for path in ("events", "dead", "dead/groups", "status", "doctor", "audit", "alerts"):
            assert MARK not in (await api.get(f"/{path}")).text, path
        detail = await api.get("/events/evt_1")
        assert MARK not in detail.text
        revealed = await api.post("/reveal", json={"id": "evt_1"})
        assert MARK in revealed.text
        [event] = revealed.json()
        assert event["headers"]["x-note"] == MARK
        assert (await api.get("/events/evt_1?reveal=true")).status_code == 400
    delivery: dict[str, Any] = detail.json()[0]["deliveries"][0]
    return delivery


EVENTS: Final = 450


@pytest.mark.parametrize(
    ("step", "nth", "sealed"),
    [
        ("rekey.written", 1, 200),
        ("rekey.sealed", 3, 400),
        ("rekey.past", 1, 450),
    ],
)
async def test_a_rekey_that_dies_leaves_every_event_readable_and_goes_on(
    step: str, nth: int, sealed: int, project: Project, database_url: str, ledger: Reader
) -> None:
    encrypt(project)
    before = make_vault(OLD)
    claims = [before.seal_claim(make_claim(f"evt_{n:03}", handlers=[])) for n in range(EVENTS)]
    await claim_all(database_url, [*claims, make_claim("past", handlers=[])])
    with project.doomed(Death(step, nth), "rekey") as doomed:
        await until(lambda: doomed.process.poll() is not None)
    assert doomed.process.poll() == -signal.SIGKILL, doomed.output
    new = f"select count(*) from gateway.payloads where key_id = '{make_vault(NEW).ring.first}'"  # noqa: S608 (ours)
    assert await ledger.value(new) == sealed
    again = project.run("rekey", "--rate", "5000")
    assert again.returncode == 0, again.stderr
    assert f"Put under the first key: {EVENTS - sealed} events" in again.stdout
    assert "encrypted for the first time: 1 event." in again.stdout
    assert "no longer used by anything: it can be taken away" in again.stdout
    assert await ledger.value(new) == EVENTS + 1
    both = make_vault(NEW)
    rows = await ledger.rows("select event_id, body from gateway.payloads")
    for row in rows:
        identity = ("processed_events", "stripe", row["event_id"])
        assert row["event_id"].encode() in both.ring.open(row["body"], identity)


async def test_a_key_that_is_taken_away_too_early_is_missed_in_words_until_it_is_back(
    project: Project, database_url: str, ledger: Reader
) -> None:
    encrypt(project)
    old = make_vault(OLD).ring.first
    handlers = ["handlers.private.take"]
    claim = make_vault(OLD).seal_claim(
        make_claim("evt_1", handlers=handlers, body=b'{"data": {"object": {"extra": "x"}}}')
    )
    await claim_all(database_url, [claim])
    project.write("config/routes.yaml", ROUTES.replace(", env:OLD_KEY", ""))
    with project.process("worker") as worker:
        await worker.says("delivery_again")
    assert f"encrypted under key {old}, which is not among `keys`" in worker.output
    status = json.loads(project.run("status", "--json").stdout)[0]
    told = [item["text"] for item in status["attention"]]
    assert any(f"1 event is encrypted under key {old}" in text for text in told), told
    assert [key["at_hand"] for key in status["keys"]] == [True, False]
    assert old in project.run("doctor").stdout
    refused = project.run("show", "evt_1", "--reveal")
    assert (refused.returncode, f"encrypted under key {old}" in refused.stderr) == (1, True)
    left = project.run("rekey")
    assert (left.returncode, f"key {old} is not among `keys`" in left.stderr) == (1, True)
    project.write("config/routes.yaml", ROUTES)
    assert (await ledger.delivery())["attempts"] == 0
    rekeyed = project.run("rekey", "--json")
    assert rekeyed.returncode == 0, rekeyed.stderr
    project.write("config/routes.yaml", ROUTES.replace(", env:OLD_KEY", ""))
    await ledger.run("update gateway.deliveries set due_at = now()")
    with project.process("worker") as worker:
        await until(lambda: ledger.value("select status = 'dead' from gateway.deliveries"))
    assert "ValueError in take" in worker.output


def test_no_process_starts_without_its_keys(project: Project) -> None:
    encrypt(project)
    del project.environ["OLD_KEY"]
    for command in ("worker", "serve", "check"):
        refused = project.run(command)
        assert refused.returncode == 2
        assert "keys[1]: found env:OLD_KEY, which is not set" in refused.stderr
    project.environ["OLD_KEY"] = f"{MARK}-and-more"
    refused = project.run("check")
    assert (refused.returncode, MARK in refused.stderr) == (2, False)
