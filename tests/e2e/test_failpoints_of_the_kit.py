"""A process is killed at each step of what handlers ask for: once, publish, an order."""

from collections import Counter
from pathlib import Path
from typing import Final

import orjson
import pytest

from tests.e2e.test_failpoints import (
    CALLING,
    TURNING,
    assert_each_took_effect_once,
    killed,
    send_all,
)
from tests.support.forked import Death
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.processes import Project
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
    handlers: [handlers.kit]
  jobs:
    provider: publish
    handlers: [handlers.jobs]
"""

KIT: Final = '''
"""The only thing outside the database is a file."""

from pathlib import Path

from gateway import Context, Event, handler

EFFECT = "insert into effects (event_id, handler) values ($1, $2)"


def call(line: str) -> str:
    with Path("calls").open("a") as calls:
        calls.write(f"{line}\\n")
    return line


@handler("call.*")
async def called(event: Event, ctx: Context) -> None:
    line = f"{event.id} {ctx.idempotency_key('call')}"
    result = await ctx.once("call", call, line, unknown=event.type.removeprefix("call."))
    assert result in {line, None}
    await ctx.db.execute(EFFECT, event.id, "called")


@handler("thing.*")
async def thing(event: Event, ctx: Context) -> None:
    id = event.payload["data"]["object"]["id"]
    line = f"{id} {ctx.idempotency_key('call', per=id)}"
    unknown = event.type.removeprefix("thing.")
    result = await ctx.once("call", call, line, unknown=unknown, per=id)
    assert result in {line, None}
    await ctx.db.execute(EFFECT, event.id, "thing")


@handler("own.turn", order_by="data.object.id")
async def ordered(event: Event, ctx: Context) -> None:
    await ctx.db.execute(EFFECT, event.id, "ordered")


@handler("invoice.paid", order_by="data.object.id")
async def chained(event: Event, ctx: Context) -> None:
    await ctx.db.execute(EFFECT, event.id, "chained")
    await ctx.publish("jobs", {"of": event.id})
    await ctx.publish("jobs", {"of": event.id}, type="ordered")
'''

JOBS: Final = '''
"""One takes what comes, the other in turn."""

from gateway import Context, Event, handler

EFFECT = "insert into effects (event_id, handler) values ($1, $2)"


@handler("jobs")
async def plain(event: Event, ctx: Context) -> None:
    await ctx.db.execute(EFFECT, event.payload["of"], "plain job")


@handler("ordered", order_by="of")
async def ordered(event: Event, ctx: Context) -> None:
    await ctx.db.execute(EFFECT, event.payload["of"], "ordered job")
'''


@pytest.fixture
def project(project: Project) -> Project:
    project.write("config/routes.yaml", ROUTES)
    project.write("handlers/kit.py", KIT)
    project.write("handlers/jobs.py", JOBS)
    project.environ["GATEWAY_LEASE"] = "1s"
    return project


async def effects_of(ledger: Reader, handler: str) -> list[str]:
    """The events, in the order of their effects."""
    query = "select event_id from public.effects where handler = $1 order by n"
    return [row["event_id"] for row in await ledger.rows(query, handler)]


@pytest.mark.parametrize("step", TURNING)
async def test_serve_dies_before_it_gives_the_turn(
    step: str, project: Project, ledger: Reader
) -> None:
    """Nobody else comes for these keys: only the sweep can."""
    with project.doomed_serve(Death(step)) as doomed, project.serve() as heir:
        await doomed.ready()
        await heir.ready()
        event_ids = await send_all([doomed, heir], "own.turn")
        await killed(doomed.running)
    assert await ledger.value("select count(*) from gateway.deliveries where due_at = 'infinity'")
    with project.process("worker"):
        await assert_each_took_effect_once(ledger, event_ids)


CALLS: Final = {
    ("effect.begun", "skip"): 0,
    ("effect.called", "skip"): 1,
    ("effect.kept", "skip"): 1,
    ("effect.begun", "retry"): 1,
    ("effect.called", "retry"): 2,
    ("effect.kept", "retry"): 1,
}
"""How often the world outside is called where a worker dies at this step."""


@pytest.mark.parametrize("unknown", ["skip", "retry"])
@pytest.mark.parametrize("step", CALLING)
async def test_a_worker_dies_around_a_call(
    step: str, unknown: str, project: Project, database_url: str, ledger: Reader
) -> None:
    claim = make_claim("evt_1", type=f"call.{unknown}", handlers=["handlers.kit.called"])
    await claim_all(database_url, [claim])
    with project.doomed(Death(step), "worker") as doomed:
        await killed(doomed)
    with project.process("worker"):
        await assert_each_took_effect_once(ledger, {"evt_1"})
    assert await ledger.outcomes() == ["lost", "done"]
    calls = _calls(project.directory)
    assert len(calls) <= 1, "one key for all of them"
    assert calls.total() == CALLS[step, unknown]


@pytest.mark.parametrize("unknown", ["skip", "retry"])
@pytest.mark.parametrize("step", CALLING)
async def test_a_worker_dies_around_a_call_that_two_events_want(
    step: str, unknown: str, project: Project, database_url: str, ledger: Reader
) -> None:
    """As if one delivery had died: no call is repeated under another key, none is lost unseen."""
    thing = orjson.dumps({"data": {"object": {"id": "cs_1"}}})
    claims = [
        make_claim(id, type=f"thing.{unknown}", body=thing, handlers=["handlers.kit.thing"])
        for id in ("evt_1", "evt_2")
    ]
    await claim_all(database_url, claims)
    with project.doomed(Death(step), "worker") as doomed:
        await killed(doomed)
    with project.process("worker"):
        await assert_each_took_effect_once(ledger, {"evt_1", "evt_2"})
    calls = _calls(project.directory)
    assert len(calls) <= 1, "one key for all of them"
    assert calls.total() == CALLS[step, unknown]
    listed = await ledger.value("select count(*) from gateway.effects where status = 'unknown'")
    assert listed == (unknown == "skip" and step != "effect.kept")
    attempts = await ledger.rows("select attempts from gateway.deliveries")
    assert [row["attempts"] for row in attempts] == [1, 1]


def _calls(directory: Path) -> Counter[str]:
    file = directory / "calls"
    return Counter(file.read_text(encoding="utf-8").splitlines() if file.exists() else [])


async def test_a_worker_dies_when_jobs_and_a_successor_were_committed(
    project: Project, database_url: str, ledger: Reader
) -> None:
    """Before it could start the one, and give the jobs' turn: both happen once, and in order."""
    event_ids = [f"evt_{n}" for n in range(3)]
    chained = "handlers.kit.chained"
    for event_id in event_ids:
        claim = make_claim(event_id, handlers=[chained], order_keys={chained: "one key"})
        await claim_all(database_url, [claim])
    with project.doomed(Death("settle.committed"), "worker") as doomed:
        await killed(doomed)
    assert await ledger.statuses() == {"done": 1, "pending": 4}
    with project.process("worker"):
        await until(lambda: _all_done(ledger, 9))
    assert await effects_of(ledger, "chained") == event_ids
    assert sorted(await effects_of(ledger, "plain job")) == event_ids
    assert sorted(await effects_of(ledger, "ordered job")) == event_ids
    assert set(await ledger.outcomes()) == {"done"}


async def _all_done(ledger: Reader, n: int) -> bool:
    return await ledger.statuses() == {"done": n}
