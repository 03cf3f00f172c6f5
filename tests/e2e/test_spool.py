"""Postgres is away: GitHub is acknowledged from the spool, and nothing is lost or applied twice."""

import asyncio
import hashlib
import hmac
import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import httpx
import pytest

from gateway.dev.embedded import Postgres
from tests.support.ledger import Reader
from tests.support.ports import free_port
from tests.support.processes import (
    Project,
    Serving,
    github_request,
    stripe_request,
)
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture
async def engine(engine_dir: Path) -> AsyncIterator[Postgres]:
    """A Postgres of this test's own, to be stopped."""
    engine = Postgres(engine_dir / "postgres-that-goes", durable=False)
    engine.start()
    yield engine
    engine.remove()


@pytest.fixture
async def project(tmp_path: Path, engine: Postgres, redis_url: str) -> Project:
    project = Project(tmp_path, engine.url, redis_url)
    assert project.run("migrate").returncode == 0
    return project


async def push(serving: Serving, guid: str, body: bytes | None = None) -> httpx.Response:
    body = body or b'{"ref":"%s"}' % guid.encode()
    return await serving.post(*github_request(guid, body=body), path="/webhooks/github")


async def settled(url: str, n: int) -> None:
    """All of them took effect, once."""
    connection = await asyncpg.connect(url)
    ledger = Reader(connection)

    async def done() -> bool:
        return await ledger.statuses() == {"done": n}

    await until(done)
    rows = await ledger.rows("select event_id, count(*) as n from public.effects group by 1")
    assert {row["n"] for row in rows} == {1}
    assert len(rows) == n
    await connection.close()


async def test_events_that_would_never_come_again_are_kept_until_postgres_is_back(
    project: Project, engine: Postgres
) -> None:
    with project.process("worker") as worker:
        await worker.says("worker_started")  # it does not start while Postgres is away
        with project.serve() as serving:
            await serving.ready()
            assert (await push(serving, "before")).json()["status"] == "accepted"
            await asyncio.to_thread(engine.stop)
            refused = await serving.post(*stripe_request("evt_1"))
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
            for n in range(3):
                answer = await push(serving, f"during_{n}")
                assert (answer.status_code, answer.json()["status"]) == (200, "accepted")
            await _is_shown(project, serving, events=3)
        with project.serve() as heir:  # restarted while Postgres is still away
            await heir.ready()
            await heir.running.says("started_without_ledger")
            assert (await push(heir, "during_3")).status_code == 200
            await _is_shown(project, heir, events=4)
            await asyncio.to_thread(engine.start)
            await settled(engine.url, 5)
            assert (await push(heir, "after")).json()["status"] == "accepted"
            assert (await push(heir, "during_0")).json()["status"] == "duplicate"
            await settled(engine.url, 6)
            assert re.search("^Spool +empty", project.run("status").stdout, re.MULTILINE)
    notes = {
        row["event_id"]: row["note"] for row in json.loads(project.run("events", "--json").stdout)
    }
    assert {id for id, note in notes.items() if note == "came through the spool"} == {
        f"during_{n}" for n in range(4)
    }
    assert "acknowledged while Postgres was away" in project.run("show", "during_0").stdout


async def _is_shown(project: Project, serving: Serving, *, events: int) -> None:
    """To a person, to a script, to Prometheus, and to the balancer."""
    status = project.run("status")
    assert status.returncode == 1
    assert "Postgres cannot be reached" in status.stdout
    assert re.search(rf"^Spool +{events} events", status.stdout, re.MULTILINE)
    [report] = json.loads(project.run("status", "--json").stdout)
    assert (report["postgres"]["reachable"], report["spool"]["events"]) == (False, events)
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        metrics = (await client.get(f"{serving.url}/metrics")).text
        ready = await client.get(f"{serving.url}/readyz")
    assert f"gateway_spool_events {float(events)}" in metrics
    assert "gateway_spool_oldest_seconds 0.0" not in metrics
    assert (ready.status_code, ready.json()["status"]) == (200, "spooling")


async def test_a_ledger_that_does_not_answer_is_as_good_as_away(
    project: Project, engine: Postgres
) -> None:
    blocker = await asyncpg.connect(engine.url)
    with project.serve() as serving, project.process("worker") as worker:
        await serving.ready()
        await worker.says("worker_started")
        async with blocker.transaction():
            await blocker.execute("lock table gateway.processed_events in access exclusive mode")
            answers = await asyncio.gather(*(push(serving, f"guid_{n}") for n in range(20)))
            assert {answer.status_code for answer in answers} == {200}
            await serving.running.says("event_spooled")
        await settled(engine.url, 20)
    await blocker.close()


async def test_a_replay_that_was_acknowledged_is_flagged_and_not_refused(
    project: Project, engine: Postgres
) -> None:
    body = b'{"ref":"refs/heads/main"}'
    with project.serve() as serving, project.process("worker") as worker:
        await serving.ready()
        await worker.says("worker_started")
        assert (await push(serving, "guid_1", body)).status_code == 200
        assert (await push(serving, "guid_2", body)).status_code == 403
        await asyncio.to_thread(engine.stop)
        assert (await push(serving, "guid_3", body)).status_code == 200
        await asyncio.to_thread(engine.start)
        await settled(engine.url, 2)
        assert (await push(serving, "guid_4", body)).status_code == 403
        await serving.running.says("event_flagged")


LEMON = """\
keys: [env:KEY]
digest_key: env:DIGEST_KEY
routes:
  lemon: {provider: lemon-squeezy, secrets: [env:LEMON_SECRET], spool: always, encrypt: %s}
"""


@pytest.mark.parametrize("encrypt", ["false", "true"])
async def test_a_body_that_was_spooled_twice_is_one_event_and_one_to_release(
    encrypt: str, project: Project, engine: Postgres
) -> None:
    """Of a sender without event ids: both were acknowledged, so neither may be lost unseen."""
    project.environ |= {"KEY": os.urandom(32).hex(), "DIGEST_KEY": os.urandom(32).hex()}
    project.environ["LEMON_SECRET"] = "lemon"
    project.write("config/routes.yaml", LEMON % encrypt)
    body = b'{"meta":{"event_name":"subscription_paused"}}'
    headers = {"x-signature": hmac.new(b"lemon", body, hashlib.sha256).hexdigest()}
    with project.serve() as serving:
        await serving.ready()
        await asyncio.to_thread(engine.stop)
        for _ in range(2):
            answer = await serving.post(body, headers, path="/webhooks/lemon")
            assert answer.json()["status"] == "accepted"
        await asyncio.to_thread(engine.start)
        connection = await asyncpg.connect(engine.url)
        ledger = Reader(connection)
        await until(
            lambda: ledger.value("select id from gateway.rejected where code = 'DUPLICATE'")
        )
        assert await ledger.value("select count(*) from gateway.processed_events") == 1
        id = await ledger.value("select id from gateway.rejected")
        released = await asyncio.to_thread(project.run, "rejected", "release", str(id), "--yes")
        assert released.returncode == 0, released.stdout + released.stderr
        assert await ledger.value("select count(*) from gateway.processed_events") == 2
        await connection.close()


@pytest.mark.parametrize(
    "environ", [{"GATEWAY_SPOOL_SIZE": "300"}, {"GATEWAY_DATA_DIR": "/dev/null"}]
)
async def test_a_spool_that_is_full_or_cannot_be_written_is_a_503(
    environ: dict[str, str], project: Project, engine: Postgres
) -> None:
    with project.serve(**environ) as serving:
        await serving.ready()
        await asyncio.to_thread(engine.stop)
        answer = await push(serving, "guid_1")
        assert (answer.status_code, answer.json()) == (503, {"error": "UNAVAILABLE"})
        assert answer.headers["retry-after"] == "10"
        await serving.running.says("spool_failing")
        await asyncio.to_thread(engine.start)
        await until(lambda: _accepted(serving))


async def _accepted(serving: Serving) -> bool:
    return (await push(serving, "guid_2")).status_code == 200


def test_without_a_spool_serve_does_not_start_without_postgres(project: Project) -> None:
    away = f"postgresql://gateway@127.0.0.1:{free_port()}/nowhere"
    ended = project.run("serve", GATEWAY_DATABASE_URL=away, GATEWAY_SPOOL_SIZE="0B")
    assert ended.returncode == 1
    assert "Postgres cannot be reached" in ended.stderr
