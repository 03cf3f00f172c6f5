"""A delivery that kills its worker does not take its neighbours with it."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from gateway.dev.embedded.process import command_line
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.processes import Project
from tests.support.waiting import until

SLOTS: Final = 16
INNOCENT: Final = 10
STOPS: Final = 12
"""More than the losses after which a delivery is dead."""

HANDLERS: Final = """
import asyncio
import os
import signal
from pathlib import Path

from gateway import Context, Event, handler


async def note(event: Event, ctx: Context) -> None:
    await ctx.db.execute(
        "insert into effects (event_id, handler, note) values ($1, 'run', $2)",
        event.id,
        f"{os.getpid()} {Path('/proc/self/oom_score_adj').read_text().strip()}",
    )


@handler("none")
async def run(event: Event, ctx: Context) -> None:
    await asyncio.sleep(0.2)
    if event.id == "evt_poison":
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory is short
    await asyncio.sleep(0.3)
    await note(event, ctx)


@handler("none")
async def hold(event: Event, ctx: Context) -> None:
    while not Path("let_go").exists():
        await asyncio.sleep(0.02)
    await note(event, ctx)
"""

BACKLOG: Final = """
import asyncio
from pathlib import Path

from gateway import Context, Event, handler


@handler("none")
async def run(event: Event, ctx: Context) -> None:
    while not Path("let_go").exists():
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.02)
    await ctx.db.execute("insert into effects (event_id, handler) values ($1, 'run')", event.id)
"""

BLOCKING: Final = """
import time

from gateway import Context, Event, handler


@handler("none")
async def run(event: Event, ctx: Context) -> None:
    if event.id == "evt_poison":
        while True:
            time.sleep(3600)  # as a call without a timeout does
    await ctx.db.execute("insert into effects (event_id, handler) values ($1, 'run')", event.id)
"""

IS_FULL: Final = """
select count(*) = $1 from gateway.deliveries where status = 'running' and leased_at > $2
"""
"""Whether a worker that was started after $2 has so many leases."""

LOST_OFTEN: Final = """
select count(*) from (
    select from gateway.attempts where outcome = 'lost' group by delivery_id having count(*) >= 2
) often
"""

MOST_AT_ONCE: Final = """
select max((
    select count(*) from gateway.attempts b
    where b.started_at <= a.started_at and b.finished_at > a.started_at
))
from gateway.attempts a
where a.outcome = 'done'
"""


async def claim(project: Project, *event_ids: str, handler: str = "run") -> None:
    claims = [make_claim(id, handlers=[f"handlers.effects.{handler}"]) for id in event_ids]
    await claim_all(project.environ["GATEWAY_DATABASE_URL"], claims)


@asynccontextmanager
async def supervised(project: Project) -> AsyncIterator[None]:
    """A worker that is started again whenever it has ended."""

    async def restart_forever() -> None:
        while True:
            with project.process("worker") as worker:
                await until(lambda: worker.process.poll() is not None, within_s=600)

    supervisor = asyncio.create_task(restart_forever())
    try:
        yield
    finally:
        supervisor.cancel()
        await asyncio.gather(supervisor, return_exceptions=True)


async def is_any(ledger: Reader, status: str) -> bool:
    return status in await ledger.statuses()


async def is_full(ledger: Reader) -> None:
    """Wait until a worker that has just been started runs as many deliveries as it has slots."""
    since = await ledger.value("select clock_timestamp()")
    await until(lambda: ledger.value(IS_FULL, SLOTS, since))


async def all_done(ledger: Reader, count: int) -> bool:
    return await ledger.statuses() == {"done": count}


async def test_a_poisoned_delivery_dies_alone(project: Project, ledger: Reader) -> None:
    project.write("handlers/effects.py", HANDLERS)
    innocent = [f"evt_{n}" for n in range(INNOCENT)]
    await claim(project, "evt_poison", *innocent)

    async with supervised(project):
        await until(lambda: ledger.value("select count(*) = $1 from public.effects", INNOCENT))
        await ledger.run("update gateway.deliveries set losses = losses + 7 where status <> 'done'")
        await until(lambda: is_any(ledger, "dead"))
    assert await ledger.statuses() == {"done": INNOCENT, "dead": 1}
    applied = await ledger.rows("select event_id from public.effects order by n")
    assert sorted(row["event_id"] for row in applied) == sorted(innocent)
    error = await ledger.value("select error from gateway.deliveries where status = 'dead'")
    assert error.startswith("WORKER_LOST: ")
    assert "alone" in error


async def test_graceful_stops_never_count(project: Project, ledger: Reader) -> None:
    project.write("handlers/effects.py", HANDLERS)
    await claim(project, "evt_1", handler="hold")
    for _ in range(STOPS):
        with project.process("worker", GATEWAY_GRACE="0s"):
            await until(lambda: is_any(ledger, "running"))
    assert await ledger.outcomes() == ["released"] * STOPS
    assert (await ledger.delivery())["workers_lost"] == 0
    project.write("let_go", "")
    with project.process("worker"):
        await until(lambda: ledger.effects())


async def test_two_lost_workers_do_not_serialise_the_backlog(
    project: Project, ledger: Reader
) -> None:
    project.write("handlers/effects.py", BACKLOG)
    events = 300
    await claim(project, *(f"evt_{n}" for n in range(events)))
    for _ in range(2):
        with project.process("worker") as worker:
            await is_full(ledger)
            worker.kill()
    project.write("let_go", "")
    with project.process("worker"):
        await until(lambda: all_done(ledger, events))
    assert await ledger.effects() == events
    lost_runs = await ledger.value("select count(*) from gateway.attempts where outcome = 'lost'")
    assert lost_runs == 2 * SLOTS
    assert await ledger.value(LOST_OFTEN) <= SLOTS
    assert await ledger.value(MOST_AT_ONCE) > SLOTS // 2


async def become_suspect(project: Project, ledger: Reader) -> None:
    """A delivery whose handler waits, and whose worker was lost twice."""
    project.write("handlers/effects.py", HANDLERS)
    await claim(project, "evt_1", handler="hold")
    await ledger.run("update gateway.deliveries set workers_lost = 2")


async def test_a_suspect_runs_in_a_process_of_its_own(project: Project, ledger: Reader) -> None:
    await become_suspect(project, ledger)
    project.write("let_go", "")
    with project.process("worker") as worker:
        await until(lambda: ledger.effects())
        note: str = await ledger.value("select note from public.effects")
        pid, oom_score = map(int, note.split())
        assert pid != worker.process.pid
        assert oom_score == 1000  # the first to be killed when memory is short
        await worker.says("isolated_worker_ended")  # by itself: there is nothing more for it
    delivery = await ledger.delivery()
    assert (delivery["status"], delivery["workers_lost"]) == ("done", 0)


async def test_a_suspect_that_blocks_its_process_dies_alone(
    project: Project, ledger: Reader
) -> None:
    """The others that were in the blocked worker wait behind it for the same process."""
    project.write("handlers/effects.py", BLOCKING)
    await claim(project, "evt_poison")
    await claim(project, "evt_1")
    await ledger.run("update gateway.deliveries set workers_lost = 2")
    await ledger.run("update gateway.deliveries set losses = 9 where event_id = 'evt_poison'")
    with project.process("worker"):
        await until(lambda: ledger.effects())
        await until(lambda: is_any(ledger, "dead"))
    assert await ledger.statuses() == {"done": 1, "dead": 1}
    error = await ledger.value("select error from gateway.deliveries where status = 'dead'")
    assert error.startswith("WORKER_LOST: ")
    assert "alone" in error


async def test_a_process_that_a_suspect_blocks_ends_also_if_its_worker_is_gone(
    project: Project, ledger: Reader
) -> None:
    project.write("handlers/effects.py", BLOCKING)
    await claim(project, "evt_poison")
    await ledger.run("update gateway.deliveries set workers_lost = 2")
    with project.process("worker") as worker:
        await until(lambda: is_any(ledger, "running"))
        worker.kill()
        [pid] = re.findall(r'"child_pid": ?(\d+)', worker.output)
    await until(lambda: not command_line(int(pid)))


async def test_a_suspect_is_handed_back_when_the_worker_is_stopped(
    project: Project, ledger: Reader
) -> None:
    await become_suspect(project, ledger)
    with project.process("worker", GATEWAY_GRACE="0s"):
        await until(lambda: is_any(ledger, "running"))
    assert await ledger.outcomes() == ["released"]
    delivery = await ledger.delivery()
    assert (delivery["status"], delivery["workers_lost"], delivery["losses"]) == ("pending", 2, 0)
    assert await ledger.value("select count(*) from gateway.workers") == 0
    assert "runs alone" in project.run("show", "evt_1").stdout


async def test_a_suspect_survives_the_death_of_the_worker_beside_it(
    project: Project, ledger: Reader
) -> None:
    await become_suspect(project, ledger)
    with project.process("worker") as worker:
        await until(lambda: is_any(ledger, "running"))
        worker.kill()
    project.write("let_go", "")
    await until(lambda: ledger.effects())
    assert await ledger.outcomes() == ["done"]


async def test_a_suspect_waits_while_its_handler_is_paused(
    project: Project, ledger: Reader
) -> None:
    await become_suspect(project, ledger)
    project.write("let_go", "")
    await ledger.run(
        "insert into gateway.pauses (route, handler, actor) values ('stripe', '', 'me')"
    )
    await claim(project, "evt_2", handler="run")
    with project.process("worker") as worker:
        await worker.says("worker_started")
        swept = await ledger.value("select now()")
        await until(lambda: ledger.value("select min(seen_at) > $1 from gateway.workers", swept))
        assert "isolated_worker_started" not in worker.output
        await ledger.run("delete from gateway.pauses")
        await until(lambda: ledger.value("select count(*) = 2 from public.effects"))
