"""What real processes tell Prometheus: the truth, together, and nothing that a stranger chose."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import asyncpg
import httpx
import pytest

from tests.support.away import nobody_gets_in
from tests.support.ledger import Reader
from tests.support.ports import free_port
from tests.support.processes import Project, Serving, github_request, stripe_request
from tests.support.prometheus import SUFFIX, ask, metrics_in, promtool, queries, rules, scraping
from tests.support.scraping import Scraped, scrape
from tests.support.waiting import PATIENCE_S, until

MARK: Final = "chosen_by_a_stranger"
HANDLERS: Final = '''
"""Handlers that do well, and one that does not."""

from gateway import Context, Event, Reject, handler


@handler("invoice.*")
async def good(event: Event, ctx: Context) -> None:
    await ctx.db.execute("insert into effects (event_id, handler) values ($1, 'good')", event.id)


@handler("charge.*")
async def bad(event: Event, ctx: Context) -> None:
    raise Reject("no")
'''
SEEN: Final = (
    "rate(gateway_requests_total[1m]) > 0",
    "rate(gateway_handler_seconds_count[1m]) > 0",
)
"""When Prometheus has seen an event come, and run."""
SILENT: Final = {
    "Paused, and without a worker",
    "Events that never came",
    "Jobs published by handlers",
    "Forgotten by retention",
}
"""Panels that are empty where nothing of the kind has happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trio:
    """Two `serve` and a worker, with the URLs at which they are scraped."""

    project: Project
    one: Serving
    two: Serving
    worker: str

    @property
    def urls(self) -> tuple[str, str, str]:
        return self.one.url, self.two.url, self.worker

    @property
    def database_url(self) -> str:
        return self.project.environ["GATEWAY_DATABASE_URL"]


@pytest.fixture(scope="module")
def trio(module_project: Project) -> Iterator[Trio]:
    module_project.write("handlers/effects.py", HANDLERS)
    port = free_port()
    with ExitStack() as stack:
        one = stack.enter_context(module_project.serve())
        two = stack.enter_context(module_project.serve())
        worker = stack.enter_context(
            module_project.process("worker", GATEWAY_WORKER_PORT=str(port))
        )

        async def ready() -> None:
            await asyncio.gather(one.ready(), two.ready(), worker.says("worker_started"))

        asyncio.run(ready())
        url = f"http://127.0.0.1:{port}"
        yield Trio(project=module_project, one=one, two=two, worker=url)


@pytest.fixture
async def ledger(trio: Trio) -> AsyncIterator[Reader]:
    connection = await asyncpg.connect(trio.database_url)
    yield Reader(connection)
    await connection.close()


async def test_what_several_processes_counted_adds_up_to_the_truth(
    trio: Trio, ledger: Reader
) -> None:
    good = [stripe_request(f"evt_{n}") for n in range(40)]
    dying = [stripe_request(f"ch_{n}", "charge.failed") for n in range(3)]
    forged = [stripe_request("evt_x", secret="whsec_of_somebody_else")] * 5
    answers = await asyncio.gather(
        trio.one.post_all(good + dying + forged), trio.two.post_all(good[:25] + forged)
    )
    seen = Counter(a.json().get("status", a.status_code) for some in answers for a in some)
    assert seen == {"accepted": 43, "duplicate": 25, 403: 10}

    async def is_told() -> Scraped | None:
        """A run is counted after the commit that settles it, and the ledger is asked seldom."""
        found = await scrape(*trio.urls)
        is_all = (
            found.sum("gateway_settle_seconds_count") == 43
            and found.sum("gateway_attempts_total") == 43
            and found.values("gateway_dead_deliveries", handler="handlers.effects.bad") == [3] * 3
            and found.values("gateway_workers") == [1] * 3
        )
        return found if is_all else None

    told = await until(is_told)
    requests = {
        outcome: told.sum("gateway_requests_total", route="stripe", outcome=outcome)
        for outcome in ("accepted", "duplicate", "BAD_SIGNATURE", "UNAVAILABLE")
    }
    assert requests == {"accepted": 43, "duplicate": 25, "BAD_SIGNATURE": 10, "UNAVAILABLE": 0}
    assert told.sum("gateway_acknowledge_seconds_count", route="stripe") == 68
    assert told.sum("gateway_secret_used_total", secret="env:STRIPE_WEBHOOK_SECRET") == 68
    assert 43 <= told.sum("gateway_claim_batch_events_sum") <= 68
    batches = told.sum("gateway_claim_batch_events_count")
    assert 0 < batches == told.sum("gateway_claim_seconds_count")
    assert told.sum("gateway_handoffs_total", outcome="sent") > 0
    _check_runs(told)
    # Of the ledger each process tells the same: `max`, and never `sum`.
    dead = told.values("gateway_dead_deliveries", handler="handlers.effects.bad")
    assert dead == [3, 3, 3]
    assert told.values("gateway_workers") == [1, 1, 1]


def _check_runs(told: Scraped) -> None:
    assert told.sum("gateway_leased_deliveries_total") == 43
    assert told.sum("gateway_lease_batch_deliveries_sum") == 43
    attempts = {
        outcome: told.sum("gateway_attempts_total", outcome=outcome)
        for outcome in ("done", "dead", "retry", "lost")
    }
    assert attempts == {"done": 40, "dead": 3, "retry": 0, "lost": 0}
    assert told.sum("gateway_handler_seconds_count") == 43
    assert told.sum("gateway_settle_seconds_count") == 43
    assert told.sum("gateway_dead_letters_total", handler="handlers.effects.bad") == 3
    assert told.values("gateway_redis_up") == [1, 1, 1]
    assert told.sum("gateway_repairs_total") == 0


async def test_the_real_prometheus_reads_it_and_answers_every_panel_and_every_rule(
    trio: Trio,
) -> None:
    with scraping(trio.project, *trio.urls) as (url, prometheus):
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:

            async def has_scraped_twice() -> bool:
                assert prometheus.process.poll() is None, prometheus.output
                try:
                    if (await client.get("/-/ready")).status_code != httpx.codes.OK:
                        return False
                except httpx.TransportError:
                    return False
                found = await ask(client, "count_over_time(gateway_build_info[1m]) >= 3")
                return len(found) == len(trio.urls)

            await until(has_scraped_twice)
            await trio.one.post(*stripe_request("evt_seen"))

            async def is_all_answered() -> bool:
                if not all([await ask(client, expr) for expr in SEEN]):
                    return False
                return {title for title, expr in queries() if not await ask(client, expr)} <= SILENT

            await until(is_all_answered)
            for rule in rules():
                await ask(client, rule["expr"])
                for name in metrics_in(rule["expr"]):
                    await _is_told(client, name)
            answer = (await client.get("/api/v1/rules")).json()["data"]["groups"]
            assert {r["health"] for group in answer for r in group["rules"]} == {"ok"}
            alerts = (await client.get("/api/v1/alerts")).json()["data"]["alerts"]
            told = {alert["labels"]["alertname"]: alert["annotations"] for alert in alerts}
            assert told["GatewayDeadLetters"]["summary"] == (
                "3 dead letters of handlers.effects.bad (stripe) wait for somebody"
            )


async def _is_told(client: httpx.AsyncClient, name: str) -> None:
    """With a sample, or at least by its name: of some there are none while all is well."""
    if await ask(client, name):
        return
    plain = SUFFIX.sub("", name)
    answer = await client.get("/api/v1/metadata", params={"metric": plain})
    known = (
        answer.json()["data"]
        or (
            await client.get("/api/v1/metadata", params={"metric": plain.removesuffix("_total")})
        ).json()["data"]
    )
    assert known, name


async def test_promtool_finds_nothing_wrong_with_what_is_told(trio: Trio) -> None:
    """Names, units, kinds and help, of every process."""
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        for url in trio.urls:
            text = (await client.get(f"{url}/metrics")).text
            checked = promtool("check", "metrics", input=text)
            assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


async def test_nothing_that_a_stranger_chose_is_a_label(trio: Trio, ledger: Reader) -> None:
    serving = trio.one
    before = await scrape(serving.url)
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        for n in range(6):
            path = f"{serving.url}/webhooks/{MARK}_{n}"
            await client.post(path, content=b"{}", headers={f"x-{MARK}": MARK})
            await client.request(MARK.upper(), f"{serving.url}/webhooks/stripe")
    for n in range(6):
        sent = [
            stripe_request(f"{MARK}_{n}", f"{MARK}.type_{n}"),
            stripe_request(f"{MARK}_{n}", secret=MARK),
            (b"{" + MARK.encode(), {"stripe-signature": f"t={MARK},v1={MARK}"}),
        ]
        await serving.post_all(sent)
        guid, body = f"{MARK}-{n}", b'{"n":%d}' % n
        await serving.post(*github_request(guid, MARK, body=body), path="/webhooks/github")
    after = await scrape(serving.url)
    kept = await ledger.value(
        "select count(*) from gateway.processed_events where starts_with(event_id, $1)", MARK
    )
    assert kept == 12
    assert [label for label in after.labels() if MARK in label.lower()] == []
    assert _series(after) - _series(before) == set()


def _series(told: Scraped) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    return {(sample.name, frozenset(sample.labels.items())) for sample in told.samples}


async def test_a_scrape_does_not_wait_for_a_ledger_that_is_away(trio: Trio) -> None:
    async with nobody_gets_in(trio.database_url):

        async def is_told() -> bool:
            began_at = time.monotonic()
            told = await scrape(*trio.urls)
            assert time.monotonic() - began_at < 3 * 10  # Prometheus waits 10 s for each
            assert told.values("gateway_worker_slots") == [16]
            return told.values("gateway_ledger_up") == [0, 0, 0]

        await until(is_told)
