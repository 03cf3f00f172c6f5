"""Every step, not only random ones: a process is killed between each two, and nothing is lost."""

import asyncio
import signal
from collections.abc import Sequence
from typing import Final
from uuid import uuid4

import httpx
import pytest

from gateway.base.failpoints import STEPS
from tests.support.forked import Death
from tests.support.ledger import Reader
from tests.support.partitions import let_pass
from tests.support.ports import free_port
from tests.support.processes import Project, Running, Serving, stripe_request
from tests.support.waiting import until

ROUTES: Final = """
schema: [handlers/schema.sql]
defaults:
  timeout: 5s
  retry: {attempts: 3, backoff: fixed, base: 100ms, cap: 1s}
routes:
  stripe:
    provider: stripe
    secrets: [env:STRIPE_WEBHOOK_SECRET]
    handlers: [handlers.effects]
    spool: always
    ack_within: 1s
"""

HANDLERS: Final = '''
"""Without any idempotency of its own; the first attempt at an event of type flaky.* fails."""

from gateway import Context, Event, handler


@handler("*")
async def count(event: Event, ctx: Context) -> None:
    await ctx.db.execute("insert into effects (event_id, handler) values ($1, 'count')", event.id)
    if event.type.startswith("flaky.") and ctx.attempt == 1:
        raise RuntimeError("the first attempt fails")
'''

SERVING: Final = ["claim.verified", "claim.committed", "claim.answering"]
ENQUEUEING: Final = ["enqueue.sending", "enqueue.sent"]
WORKING: Final = ["lease.taken", "handler.starting", "handler.returned", "settle.committed"]
FAILING: Final = ["settle.apart", "settle.settled"]
SWEEPING: Final = ["sweep.alive", "sweep.renewed", "sweep.reaped"]
PRUNING: Final = ["prune.held", "prune.forgotten", "prune.committed"]
TENDING: Final = [
    *("partition.step", "partition.refiled", "partition.detached", "partition.dropped"),
]
KEEPING: Final = ["spool.written", "spool.synced"]
DRAINING: Final = ["spool.adopted", "spool.claimed", "spool.removed"]
REPLAYING: Final = ["replay.marked"]
ORDERING: Final = ["bulk.marked", "bulk.stepped"]
"""These are tried in test_bulk.py."""
ERASING: Final = ["erase.held", "erase.taken", "erase.committed"]
"""These are tried in test_forget.py."""
REKEYING: Final = ["rekey.sealed", "rekey.written", "rekey.past"]
"""And these in test_privacy.py."""
TURNING: Final = ["turn.giving"]
CALLING: Final = ["effect.begun", "effect.called", "effect.kept"]
"""These and the one before are tried in test_failpoints_of_the_kit.py."""
ALERTING: Final = ["alert.decided", "alert.taken", "alert.sent"]
"""And these in test_alerts.py."""


@pytest.fixture
def project(project: Project) -> Project:
    project.write("config/routes.yaml", ROUTES)
    project.write("handlers/effects.py", HANDLERS)
    return project


def test_every_step_is_tried() -> None:
    tried = [
        *SERVING,
        *ENQUEUEING,
        *WORKING,
        *FAILING,
        *SWEEPING,
        *PRUNING,
        *TENDING,
        *KEEPING,
        *DRAINING,
        *REPLAYING,
        *ORDERING,
        *ERASING,
        *REKEYING,
        *TURNING,
        *CALLING,
        *ALERTING,
    ]
    assert sorted(tried) == sorted(STEPS)


async def send_all(servings: Sequence[Serving], type: str = "invoice.paid", n: int = 6) -> set[str]:
    """Acknowledged by one of them, as a sender that retries would have it."""
    event_ids = {f"evt_{uuid4().hex}" for _ in range(n)}
    await asyncio.gather(*(_send(servings, event_id, type) for event_id in sorted(event_ids)))
    return event_ids


async def _send(servings: Sequence[Serving], event_id: str, type: str) -> None:
    for n in range(200):
        try:
            answer = await servings[n % len(servings)].post(*stripe_request(event_id, type))
            if answer.status_code == 200:
                return
        except httpx.TransportError:
            await asyncio.sleep(0.05)
    raise AssertionError(f"{event_id} was never acknowledged")


async def killed(running: Running) -> None:
    """It came to the step, and died there."""
    await until(lambda: running.process.poll() is not None)
    assert running.process.poll() == -signal.SIGKILL, running.output


async def assert_each_took_effect_once(ledger: Reader, event_ids: set[str]) -> None:
    async def all_done() -> bool:
        return await ledger.statuses() == {"done": len(event_ids)}

    await until(all_done)
    effects = await ledger.rows("select event_id, count(*) as n from public.effects group by 1")
    assert {row["event_id"]: row["n"] for row in effects} == dict.fromkeys(event_ids, 1)


@pytest.mark.parametrize("step", SERVING + ENQUEUEING)
async def test_serve_dies(step: str, project: Project, ledger: Reader) -> None:
    with project.doomed_serve(Death(step)) as doomed, project.serve() as heir:
        await asyncio.gather(doomed.ready(), heir.ready())
        event_ids = await send_all([doomed, heir])
        await killed(doomed.running)
        with project.process("worker"):
            await assert_each_took_effect_once(ledger, event_ids)


@pytest.mark.parametrize("step", WORKING + FAILING)
async def test_a_worker_dies(step: str, project: Project, ledger: Reader) -> None:
    with project.serve() as serving:
        await serving.ready()
        event_ids = await send_all([serving], "flaky.event" if step in FAILING else "invoice.paid")
    with project.doomed(Death(step), "worker") as doomed:
        await killed(doomed)
    with project.process("worker"):
        await assert_each_took_effect_once(ledger, event_ids)
    assert set(await ledger.outcomes()) <= {"done", "lost", "retry"}
    retries = await ledger.value("select count(*) from gateway.attempts where outcome = 'retry'")
    assert retries == (len(event_ids) if step in FAILING else 0)


@pytest.mark.parametrize("step", SWEEPING)
async def test_a_worker_dies_while_it_sweeps(step: str, project: Project, ledger: Reader) -> None:
    with project.serve() as serving:
        await serving.ready()
        event_ids = await send_all([serving])
    await ledger.run(
        "update gateway.deliveries set status = 'running', runs = 1,"
        " lease_token = gen_random_uuid(), leased_at = now() - interval '1 h',"
        " leased_until = now() - interval '1 h'"
    )
    with project.doomed(Death(step), "worker") as doomed:
        await killed(doomed)
    with project.process("worker"):
        await assert_each_took_effect_once(ledger, event_ids)


@pytest.mark.parametrize("step", PRUNING)
async def test_a_worker_dies_while_it_prunes(step: str, project: Project, ledger: Reader) -> None:
    with project.serve() as serving, project.process("worker"):
        await serving.ready()
        event_ids = await send_all([serving])
        await assert_each_took_effect_once(ledger, event_ids)
    await ledger.run(
        "update gateway.processed_events set received_at = now() - interval '40 d';"
        "update gateway.deliveries set finished_at = now() - interval '40 d';"
    )
    waiting = sorted(event_ids)[0]
    await ledger.run(
        "update gateway.deliveries set handler = 'handlers.of_another_worker', status = 'pending'"
        " where event_id = $1",
        waiting,
    )
    with project.doomed(Death(step), "worker") as doomed:
        await killed(doomed)
    with project.process("worker"):
        await until(lambda: _only_left(ledger, waiting))
    assert await ledger.value("select body is not null from gateway.events")
    assert await ledger.statuses() == {"pending": 1}
    assert await ledger.value(
        "select count(*) > 0 from gateway.attempts join gateway.deliveries d on d.id = delivery_id"
    )


NONE_DUE: Final = (
    "select count(*) = 0 from gateway.partitions where day <= (now() at time zone 'UTC')::date"
)


@pytest.mark.parametrize("step", TENDING)
async def test_a_worker_dies_while_it_drops_a_day(
    step: str, project: Project, ledger: Reader
) -> None:
    with project.serve() as serving, project.process("worker"):
        await serving.ready()
        event_ids = await send_all([serving])
        await assert_each_took_effect_once(ledger, event_ids)
    dead = sorted(event_ids)[0]
    await ledger.run("update gateway.deliveries set status = 'dead' where event_id = $1", dead)
    await let_pass(ledger, 16)
    with project.doomed(Death(step), "worker") as doomed:
        await killed(doomed)
    with project.process("worker"):
        await until(lambda: ledger.value(NONE_DUE))
    rows = await ledger.rows("select event_id from gateway.events where body is not null")
    assert [row["event_id"] for row in rows] == [dead]
    assert await ledger.value("select count(*) from gateway.processed_events") == len(event_ids)


async def _only_left(ledger: Reader, event_id: str) -> bool:
    rows = await ledger.rows("select event_id from gateway.processed_events")
    return [row["event_id"] for row in rows] == [event_id]


@pytest.mark.parametrize("step", KEEPING)
async def test_serve_dies_while_it_spools(step: str, project: Project, ledger: Reader) -> None:
    away = f"postgresql://gateway@127.0.0.1:{free_port()}/nowhere"
    with (
        project.doomed_serve(Death(step, 3), GATEWAY_DATABASE_URL=away) as doomed,
        project.serve(GATEWAY_DATABASE_URL=away) as other,
    ):
        await asyncio.gather(doomed.ready(), other.ready())
        event_ids = set().union(*[await send_all([doomed, other]) for _ in range(4)])
        await killed(doomed.running)
    with project.serve() as heir, project.process("worker"):
        await heir.ready()
        await assert_each_took_effect_once(ledger, event_ids)
        spool = project.directory / ".gateway" / "spool"
        await until(lambda: not list(spool.glob("*.spool")))


@pytest.mark.parametrize("step", DRAINING)
async def test_serve_dies_while_it_drains_the_spool(
    step: str, project: Project, ledger: Reader
) -> None:
    away = f"postgresql://gateway@127.0.0.1:{free_port()}/nowhere"
    with project.serve(GATEWAY_DATABASE_URL=away) as serving:
        await serving.ready()
        event_ids = await send_all([serving])
    with project.doomed_serve(Death(step)) as doomed:
        await killed(doomed.running)
    with project.serve() as heir, project.process("worker"):
        await heir.ready()
        await assert_each_took_effect_once(ledger, event_ids)
    assert await ledger.value("select bool_and(spooled) from gateway.processed_events")


@pytest.mark.parametrize("step", REPLAYING)
async def test_a_replay_dies_after_it_was_marked(
    step: str, project: Project, ledger: Reader
) -> None:
    with project.serve() as serving:
        await serving.ready()
        event_ids = await send_all([serving], n=1)
    await ledger.run("update gateway.deliveries set status = 'dead', finished_at = now()")
    delivery_id = (await ledger.delivery())["id"]
    with project.doomed(Death(step), "replay", str(delivery_id)) as doomed:
        await killed(doomed)
    with project.process("worker"):
        await assert_each_took_effect_once(ledger, event_ids)
    assert await ledger.value("select count(*) from gateway.audit where action = 'replay'") == 1
