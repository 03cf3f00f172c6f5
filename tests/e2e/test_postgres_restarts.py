"""Postgres goes and comes under load: nothing acknowledged is lost, applied twice or dead."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import asyncpg
import httpx
import pytest

from gateway.dev.embedded import Postgres
from tests.support.ledger import Reader
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
