"""What a worker process holds in memory while large bodies wait for it."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.support.ledger import Reader, claiming, make_claim
from tests.support.processes import Project, Running
from tests.support.waiting import until

MIB: Final = 1024**2
BODIES: Final = 12
BODY: Final = b'{"text":"' + b"x" * (20 * MIB) + b'"}'
"""Postgres stores it compressed, in 240 KB: its size is the one that it has in the worker."""

LIMIT_MIB: Final = 32
MOST_GROWTH_MIB: Final = 4 * LIMIT_MIB
"""Two bodies within the limit, one that is being received and copied, and what malloc retains."""

HANDLERS: Final = """
import asyncio

from gateway import Context, Event, handler


@handler("none")
async def hold(event: Event, ctx: Context) -> None:
    await asyncio.sleep(0.2)
    await ctx.db.execute(
        "insert into effects (event_id, handler, note) values ($1, 'hold', $2)",
        event.id,
        str(len(event.body)),
    )


@handler("none", concurrency=12)
async def hold_limited(event: Event, ctx: Context) -> None:
    await hold(event, ctx)


@handler("none", attempts=2)
async def fail(event: Event, ctx: Context) -> None:
    body = event.body
    await asyncio.sleep(0.1)
    if ctx.attempt == 1:
        raise RuntimeError("the first attempt fails")
    await hold(event, ctx)
"""


MOST_AT_ONCE: Final = """
select max((
    select count(*) from gateway.attempts b
    where b.started_at <= a.started_at and b.finished_at > a.started_at
))
from gateway.attempts a
"""
"""How many deliveries were leased at the same time."""


def peak_mib(worker: Running) -> int:
    """The most memory that a process has had at once (Linux: VmHWM)."""
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None, status
    return int(found[1]) // 1024


async def claim_paused(url: str, ledger: Reader, handler: str) -> None:
    """Claims deliveries that no worker may lease before the pause ends."""
    await ledger.run(
        "insert into gateway.pauses (route, handler, actor) values ('stripe', '', 'me')"
    )
    async with claiming(url) as claimer:
        for n in range(BODIES):
            name = f"handlers.effects.{handler}"
            await claimer.claim(make_claim(f"evt_{n}", handlers=[name], body=BODY))


async def all_done(ledger: Reader) -> bool:
    return await ledger.statuses() == {"done": BODIES}


async def test_a_body_larger_than_the_limit_still_runs(project: Project, ledger: Reader) -> None:
    project.write("handlers/effects.py", HANDLERS)
    await claim_paused(project.environ["GATEWAY_DATABASE_URL"], ledger, "hold")
    await ledger.run("delete from gateway.pauses")
    with project.process("worker", GATEWAY_MAX_LEASED="1MiB"):
        await until(lambda: all_done(ledger))
    assert await ledger.value(MOST_AT_ONCE) == 1


@pytest.mark.parametrize("handler", ["hold", "hold_limited", "fail"])
async def test_leased_bytes_bound_the_memory_of_a_worker(
    handler: str, project: Project, ledger: Reader
) -> None:
    project.write("handlers/effects.py", HANDLERS)
    await claim_paused(project.environ["GATEWAY_DATABASE_URL"], ledger, handler)
    with project.process("worker") as worker:
        await worker.says("worker_started")
        idle_mib = peak_mib(worker)
        await ledger.run("delete from gateway.pauses")
        await until(lambda: all_done(ledger))
        growth_mib = peak_mib(worker) - idle_mib
    assert growth_mib < MOST_GROWTH_MIB
    notes = await ledger.rows("select note from public.effects")
    assert notes == [{"note": str(len(BODY))}] * BODIES
