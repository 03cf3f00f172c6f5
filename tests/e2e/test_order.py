"""`order_by` on real processes: each key's effects are in order, whoever is killed meanwhile."""

import asyncio
import random
from contextlib import ExitStack
from itertools import groupby

import orjson
import pytest

from gateway.ledger.claims import Claim
from tests.support.ledger import Reader, claiming, make_claim
from tests.support.processes import Project, Running, stripe_request
from tests.support.waiting import until

EVENTS, KEYS, WORKERS = 10_000, 500, 4
ROUTES = """
schema: [handlers/schema.sql]
routes:
  stripe:
    provider: stripe
    secrets: [env:STRIPE_WEBHOOK_SECRET]
    handlers: [handlers.ordered]
"""
HANDLERS = '''
from gateway import Context, Event, handler


@handler("*", order_by="data.object.id", attempts=20, base="20ms", cap="20ms")
async def follow(event: Event, ctx: Context) -> None:
    """Fails now and then, and holds its key until it is done."""
    changed = event.payload["data"]["object"]
    await ctx.db.execute(
        "insert into effects (event_id, handler, note) values ($1, $2, $3)",
        event.id, changed["id"], changed["extra"],
    )
    if ctx.attempt == 1 and int(changed["extra"]) % 50 == 7:
        raise RuntimeError("the first time it does not work")
'''


def ordered_claim(key: int, n: int) -> Claim:
    body = orjson.dumps({"data": {"object": {"id": f"sub_{key}", "extra": str(n)}}})
    return make_claim(
        f"evt_{key}_{n}",
        body=body,
        handlers=["handlers.ordered.follow"],
        order_keys={"handlers.ordered.follow": f"sub_{key}"},
    )


async def claim_waves(url: str) -> None:
    """Of each key one event after the other is acknowledged, of all keys at once."""
    async with claiming(url) as claimer:
        for n in range(EVENTS // KEYS):
            await asyncio.gather(*(claimer.claim(ordered_claim(key, n)) for key in range(KEYS)))


async def kill_at_random(project: Project, stack: ExitStack, chance: random.Random) -> None:
    """Always so many workers, and always one of them about to be killed."""

    def start() -> Running:
        return stack.enter_context(project.process("worker", GATEWAY_LEASE="1s"))

    workers = [start() for _ in range(WORKERS)]
    while True:
        await asyncio.sleep(chance.uniform(0.3, 1.2))
        victim = workers.pop(chance.randrange(len(workers)))
        await asyncio.to_thread(victim.kill)
        workers.append(start())


async def ran(ledger: Reader) -> dict[str, list[int]]:
    """What each key's effects say, in the order in which they were written."""
    rows = await ledger.rows("select handler as key, note from public.effects order by handler, n")
    return {
        key: [int(row["note"]) for row in of_key]
        for key, of_key in groupby(rows, key=lambda row: row["key"])
    }


async def test_events_that_are_posted_one_after_the_other_run_in_that_order(
    project: Project, ledger: Reader
) -> None:
    """From the HTTP request on: `serve` reads the key, the queue is no part of the order."""
    project.write("config/routes.yaml", ROUTES)
    project.write("handlers/ordered.py", HANDLERS)

    async def done() -> bool:
        return await ledger.statuses() == {"done": 30}

    with project.process("worker"), project.process("worker"), project.serve() as serving:
        await serving.ready()
        for n in range(10):
            requests = [
                stripe_request(f"evt_{9 - n}_{key}", object_id=key, extra=str(n)) for key in "abc"
            ]
            answers = await serving.post_all(requests)
            assert {answer.status_code for answer in answers} == {200}
        await until(done)
    assert await ran(ledger) == {key: list(range(10)) for key in "abc"}


@pytest.mark.timeout(300)
async def test_ten_thousand_deliveries_of_five_hundred_keys_stay_in_order_through_kills(
    project: Project, database_url: str, ledger: Reader
) -> None:
    project.write("config/routes.yaml", ROUTES)
    project.write("handlers/ordered.py", HANDLERS)

    async def done() -> bool:
        return await ledger.statuses() == {"done": EVENTS}

    with ExitStack() as stack:
        killing = asyncio.create_task(kill_at_random(project, stack, random.Random(5)))  # noqa: S311 (whom to kill)
        await claim_waves(database_url)
        await until(done, within_s=250)
        killing.cancel()
    assert await ran(ledger) == {f"sub_{key}": list(range(EVENTS // KEYS)) for key in range(KEYS)}
    assert await ledger.value("select count(*) > 0 from gateway.attempts where outcome = 'lost'")
