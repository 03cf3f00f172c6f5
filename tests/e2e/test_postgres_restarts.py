"""Postgres goes and comes under load: nothing acknowledged is lost, applied twice or dead."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import asyncpg
import httpx
import pytest

from gateway.dev.embedded import Postgres
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.processes import Project, Serving, stripe_request
from tests.support.waiting import PATIENCE_S, until

FEW_ATTEMPTS = """
schema: [handlers/schema.sql]
defaults: {timeout: 20s, retry: {attempts: 1, backoff: fixed, base: 100ms, cap: 1s}}
routes:
  stripe:
    provider: stripe
    secrets: [env:STRIPE_WEBHOOK_SECRET]
    handlers: [handlers.effects]
"""

LINGERING = """
import asyncio
import pathlib

from gateway import Context, Event, handler


@handler("*")
async def linger(event: Event, ctx: Context) -> None:
    await ctx.db.execute("insert into effects (event_id, handler) values ($1, 'linger')", event.id)
    while pathlib.Path("hold").exists():
        await asyncio.sleep(0.02)
"""


@pytest.fixture
async def breakable(engine_dir: Path, tmp_path: Path, redis_url: str) -> AsyncIterator[Project]:
    """A project on a Postgres of its own."""
    engine = Postgres(engine_dir / "postgres-to-break", durable=False)
    engine.start()
    project = Project(tmp_path, engine.url, redis_url)
    project.write("config/routes.yaml", FEW_ATTEMPTS)
    project.write("handlers/effects.py", LINGERING)
    assert project.run("migrate").returncode == 0
    project.engine = engine  # type: ignore[attr-defined]
    yield project
    engine.remove()


async def send_until(stop: asyncio.Event, serving: Serving, accepted: set[str]) -> None:
    """A sender that retries what is not acknowledged, as Stripe does."""
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        for n in count():
            if stop.is_set():
                return
            event_id = f"evt_{n}"
            while event_id not in accepted:
                body, headers = stripe_request(event_id)
                answer = await client.post(
                    f"{serving.url}/webhooks/stripe", content=body, headers=headers
                )
                assert answer.status_code in {200, 503}
                if answer.status_code == 200:
                    accepted.add(event_id)
            await asyncio.sleep(0.02)


async def is_running(url: str) -> bool:
    """Whether a handler is in the middle of its transaction."""
    connection = await asyncpg.connect(url)
    try:
        found: bool = await connection.fetchval(
            "select exists (select from pg_stat_activity where state = 'idle in transaction'"
            " and query like 'insert into effects%')"
        )
    finally:
        await connection.close()
    return found


async def test_ten_restarts_under_a_handler_with_one_attempt(breakable: Project) -> None:
    engine: Postgres = breakable.engine  # type: ignore[attr-defined]
    accepted: set[str] = set()
    stop = asyncio.Event()
    with breakable.serve() as serving, breakable.process("worker") as worker:
        await serving.ready()
        await worker.says("worker_started")
        sender = asyncio.create_task(send_until(stop, serving, accepted))
        for n in range(10):
            mode = ("fast", "immediate", "kill")[n % 3]
            enough = len(accepted) + 10
            await until(lambda enough=enough: len(accepted) >= enough)
            breakable.hold()
            await until(lambda: is_running(engine.url))
            await asyncio.to_thread(engine.restart, mode)
            breakable.let_go()
        stop.set()
        await sender
        connection = await asyncpg.connect(engine.url)
        ledger = Reader(connection)
        await until(lambda: _settled(ledger))
        assert worker.process.poll() is None
        assert serving.running.process.poll() is None
    assert await ledger.statuses() == {"done": len(accepted)}
    assert await ledger.effects() == len(accepted)
    assert await ledger.value("select count(distinct event_id) from public.effects") == len(
        accepted
    )
    outcomes = set(await ledger.outcomes())
    assert outcomes <= {"done", "released", "lost"}
    assert outcomes & {"released", "lost"}, "no restart hit a running handler"
    assert await ledger.value("select max(attempts) from gateway.deliveries") == 1
    await connection.close()


async def _settled(ledger: Reader) -> bool:
    return set(await ledger.statuses()) == {"done"}


CRASHING = """
import asyncio
import os
import pathlib
import signal

from gateway import Context, Event, handler


@handler("*")
async def crash(event: Event, ctx: Context) -> None:
    await ctx.db.execute("insert into effects (event_id, handler) values ($1, 'crash')", event.id)
    pid = await ctx.db.fetchval("select pg_backend_pid()")
    hold = pathlib.Path("hold " + event.id)
    while hold.exists():
        await asyncio.sleep(0.02)
    if event.id == "evt_poison":
        os.kill(pid, signal.SIGKILL)
        await ctx.db.fetchval("select 1")
"""
IN_TRANSACTION = """
select count(*) from pg_stat_activity
where state = 'idle in transaction' and query = 'select pg_backend_pid()'
"""


async def test_a_delivery_that_crashes_postgres_dies_alone(breakable: Project) -> None:
    """All connections are lost with it. One more loss would make any of these deliveries dead."""
    events = ["evt_poison", *(f"evt_{n}" for n in range(5))]
    breakable.write("handlers/effects.py", CRASHING)
    url = breakable.environ["GATEWAY_DATABASE_URL"]
    for event_id in events:
        breakable.write(f"hold {event_id}", "")
        claim = make_claim(event_id, handlers=["handlers.effects.crash"])
        await claim_all(url, [claim])
    async with reading(url) as ledger:
        await ledger.run("update gateway.deliveries set losses = 9")
        with breakable.process("worker"):
            await until(lambda: _is(ledger, IN_TRANSACTION, len(events)))
            (breakable.directory / "hold evt_poison").unlink()
            await until(lambda: _have_ended(url, dead=1))
            for event_id in events[1:]:
                (breakable.directory / f"hold {event_id}").unlink()
            await until(lambda: _have_ended(url, dead=1, done=5))
    async with reading(url) as ledger:
        dead = await ledger.row("select * from gateway.deliveries where status = 'dead'")
        assert dead["event_id"] == "evt_poison"
        assert dead["error"].startswith("WORKER_LOST: ")
        assert await ledger.effects() == 5


async def _is(ledger: Reader, query: str, expected: int) -> bool:
    found: int = await ledger.value(query)
    return found == expected


async def _have_ended(url: str, **expected: int) -> bool:
    """Whether as many deliveries are done and dead, on a new connection: Postgres may be away."""
    try:
        async with reading(url) as ledger:
            statuses = await ledger.statuses()
    except (OSError, asyncpg.PostgresError):
        return False
    return {state: n for state, n in statuses.items() if state in {"done", "dead"}} == expected


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[Reader]:
    connection = await asyncpg.connect(url)
    yield Reader(connection)
    await connection.close()
