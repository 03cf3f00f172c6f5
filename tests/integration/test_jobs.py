"""Jobs in the ledger: delayed, ordered, kept while they wait, and told in one word."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import permutations

import asyncpg
import pytest

from gateway import Context, Event
from gateway.base.model import Retention, Status
from gateway.config.registry.key_path import KeyPath
from gateway.ledger.claims import Claim
from gateway.ledger.connection import open_pool
from gateway.ledger.jobs import JobRow, JobStatus, find_job, overall
from gateway.ledger.retention import Pruner
from gateway.providers import PROVIDERS
from gateway.providers.publish import read_job
from tests.support.ledger import Reader, claim_all, claiming, make_claim
from tests.support.waiting import until
from tests.support.workers import count, make_config, make_route, subscribe, working

DAY = timedelta(days=1)
SOON = timedelta(milliseconds=300)
HANDLER = "handlers.count"
LATE = "from gateway.deliveries where event_id = 'late'"


def delayed(id: str, delay: timedelta, *, order_key: str | None = None) -> Claim:
    claim = make_claim(id, order_keys={} if order_key is None else {HANDLER: order_key})
    return claim._replace(delay=delay)


async def _statuses_are(ledger: Reader, **expected: int) -> bool:
    return await ledger.statuses() == expected


async def test_a_delayed_job_runs_when_it_is_due_and_not_sooner(
    database_url: str, ledger: Reader
) -> None:
    woken: list[int] = []
    async with claiming(database_url, woken) as claimer:
        await claimer.claim(delayed("soon", SOON))
        await claimer.claim(delayed("late", DAY))
        now = await claimer.claim(make_claim("now"))
    assert woken == list(now.delivery_ids)  # nobody is told of what is not due
    async with working(database_url, subscribe(count)):
        await until(lambda: _statuses_are(ledger, done=2, pending=1))
    started = await ledger.rows(
        "select d.event_id, a.started_at >= d.not_before as in_time from gateway.attempts a"
        " join gateway.deliveries d on d.id = a.delivery_id where d.not_before is not null"
    )
    assert started == [{"event_id": "soon", "in_time": True}]


@pytest.mark.parametrize("wrong_by", [-2 * DAY, 2 * DAY])
async def test_a_delay_is_as_long_as_it_says_whatever_the_clock_of_the_gateway(
    database_url: str, ledger: Reader, wrong_by: timedelta
) -> None:
    claim = delayed("late", DAY)._replace(received_at=datetime.now(UTC) + wrong_by)
    async with claiming(database_url) as claimer:
        await claimer.claim(claim)
    waits = await ledger.value(f"select due_at - now() {LATE}")
    assert DAY - timedelta(minutes=5) < waits <= DAY


async def test_a_delay_holds_also_for_a_job_that_has_its_turn(
    database_url: str, ledger: Reader
) -> None:
    ran: list[str] = []

    async def handler(event: Event, _: Context) -> None:
        ran.append(event.id)

    async with claiming(database_url) as claimer:
        for claim in (delayed("first", SOON, order_key="a"), delayed("late", DAY, order_key="b")):
            await claimer.claim(claim)
        await claimer.claim(make_claim("second", order_keys={HANDLER: "a"}))
    order = subscribe(handler, order_by=KeyPath.parse("key"))
    async with working(database_url, order):
        await until(lambda: _statuses_are(ledger, done=2, pending=1))
        await until(lambda: ledger.value(f"select due_at = not_before {LATE}"))
    assert ran == ["first", "second"]


async def test_a_replay_does_not_wait_for_the_delay(database_url: str, ledger: Reader) -> None:
    [claimed] = await claim_all(database_url, [delayed("late", DAY)])
    await ledger.replay(claimed.delivery_ids[0])
    async with working(database_url, subscribe(count)):
        await until(lambda: _statuses_are(ledger, done=1))


async def test_retention_spares_a_job_that_waits_for_its_time(
    database_url: str, ledger: Reader
) -> None:
    old = datetime.now(UTC) - 20 * DAY
    await claim_all(database_url, [delayed("late", 10 * DAY)._replace(received_at=old)])
    pruner = Pruner({"stripe": Retention(key=DAY, payload=timedelta(0), dead=DAY)})
    pool = await open_pool(database_url, name="test", size=1, command_timeout_s=10)
    async with pool.acquire() as connection:
        pruned = await pruner.step(connection)
    await pool.close()
    assert (pruned.looked_at, pruned.keys, pruned.payloads) == (1, 0, 0)
    assert await ledger.value("select body is not null from gateway.events")


async def test_a_handler_and_http_share_the_key_of_a_job(database_url: str, ledger: Reader) -> None:
    """Both ways in write the same digest, so that neither is taken for another payload."""
    new: list[bool] = []

    async def publisher(_: Event, ctx: Context) -> None:
        new.append(await ctx.publish("tasks", {"a": 1.0, "b": [None, "é"]}, key="shared"))

    config = make_config(make_route(), make_route("tasks", provider=PROVIDERS["publish"]))
    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(publisher), config=config):
        await until(lambda: _statuses_are(ledger, done=1))
    body = '{"payload": {"b": [null, "\\u00e9"], "a": 1}, "idempotencyKey": "%s"}'
    for key, other, conflict in (("shared", "", False), ("shared", "1", True)):
        job = read_job("tasks", {}, (body % key).replace('"a": 1', f'"a": 1{other}').encode())
        claim = make_claim(job.id, route="tasks", body=job.body)._replace(digest=job.digest)
        [claimed] = await claim_all(database_url, [claim])
        assert (claimed.verdict, claimed.conflict) == ("duplicate", conflict)
    assert new == [True]


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        ([], "pending"),
        (["done"], "done"),
        (["done", "done"], "done"),
        (["done", "discarded"], "done"),
        (["discarded"], "discarded"),
        (["done", "dead"], "dead"),
        (["dead", "discarded"], "dead"),
        (["dead", "pending"], "pending"),
        (["done", "pending"], "pending"),
        (["pending", "running", "dead"], "running"),
    ],
)
def test_a_job_is_over_when_all_of_it_is(statuses: Sequence[JobStatus], status: JobStatus) -> None:
    assert {overall(order) for order in permutations(statuses)} == {status}


def test_a_job_has_the_states_of_a_delivery() -> None:
    assert {overall([status.value]) for status in Status} == {status.value for status in Status}


async def look(url: str, id: str, queue: str = "stripe") -> JobRow | None:
    connection = await asyncpg.connect(url)
    try:
        return await find_job(connection, queue, id)
    finally:
        await connection.close()


async def test_what_is_told_of_a_job_is_that_of_its_deliveries(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("job", handlers=["h1", "h2", "h3"])])
    await ledger.run(
        "update gateway.deliveries set status = 'dead', attempts = 3, error = 'E: no',"
        " finished_at = now() where handler = 'h2'"
    )
    await ledger.run(
        "update gateway.deliveries set attempts = 1, error = 'E: again',"
        " due_at = '2030-01-01T00:00Z' where handler = 'h3'"
    )
    await ledger.run("update gateway.deliveries set status = 'done' where handler = 'h1'")
    job = await look(database_url, "job")
    assert job is not None
    assert (job["status"], job["attempts"], job["error"]) == ("pending", 3, "E: again")
    assert job["due_at"] == datetime(2030, 1, 1, tzinfo=UTC)
    assert [(d["handler"], d["status"], d["due_at"] is None) for d in job["deliveries"]] == [
        ("h1", "done", True),
        ("h2", "dead", True),
        ("h3", "pending", False),
    ]


async def test_one_that_waits_for_its_turn_is_due_nobody_knows_when(database_url: str) -> None:
    turns = {HANDLER: "a"}
    async with claiming(database_url) as claimer:
        for id in ("first", "second"):
            await claimer.claim(make_claim(id, order_keys=turns))
    second = await look(database_url, "second")
    assert second is not None
    assert (second["status"], second["due_at"]) == ("pending", None)


async def test_a_job_without_a_handler_waits_for_one(database_url: str) -> None:
    await claim_all(database_url, [make_claim("job", handlers=[])])
    job = await look(database_url, "job")
    assert job is not None
    assert (job["status"], job["due_at"], job["deliveries"]) == ("pending", None, [])
    assert await look(database_url, "other") is None
    assert await look(database_url, "job", queue="github") is None
