"""A gateway that was down for an hour: everything missed is recovered, and takes effect once."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.support.ledger import Reader
from tests.support.processes import Project, Serving
from tests.support.provider_apis import (
    HOOK,
    FakeGithub,
    FakeStripe,
    Sent,
    deliveries,
    on_port,
    stripe_event,
)
from tests.support.waiting import PATIENCE_S, until

MISSED = 300
HOUR = timedelta(hours=1)
TOKEN = "an-admin-token-of-the-suite"

ROUTES = """
defaults:
  retry: {{attempts: 3, backoff: fixed, base: 100ms, cap: 1s}}
routes:
  stripe:
    provider: stripe
    secrets: [env:STRIPE_WEBHOOK_SECRET]
    api_key: env:STRIPE_API_KEY
    handlers: [handlers.effects]
    reconcile: {{api_url: "{stripe}"}}
  github:
    provider: github
    secrets: [env:GITHUB_WEBHOOK_SECRET]
    handlers: [handlers.effects]
    reconcile:
      hook: {hook}
      token: env:GITHUB_TOKEN
      api_url: {github}
      rate: 1000/s
      wait: 30s
"""


class World:
    """Both providers on ports of their own, and a gateway that they send to."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.stripe = FakeStripe()
        self.github = FakeGithub()
        now = datetime.now(UTC)
        apart = HOUR / (MISSED + 20)
        self.stripe.events = [
            stripe_event(n, now - timedelta(minutes=2) - n * apart) for n in range(MISSED)
        ]
        self.github.sent = deliveries(MISSED, before=now - timedelta(minutes=2), apart=apart)

    async def reconcile(self, *arguments: str) -> list[dict[str, Any]]:
        result = await asyncio.to_thread(
            self.project.run, "reconcile", *arguments, "--json", GATEWAY_ADMIN_TOKEN=TOKEN
        )
        assert result.returncode == 0, (result.stdout, result.stderr)
        reports: list[dict[str, Any]] = json.loads(result.stdout)
        return reports


@asynccontextmanager
async def world(project: Project) -> AsyncIterator[World]:
    made = World(project)
    async with on_port(made.stripe) as stripe, on_port(made.github) as github:
        project.write("config/routes.yaml", ROUTES.format(stripe=stripe, github=github, hook=HOOK))
        project.environ |= {
            "STRIPE_API_KEY": made.stripe.key,
            "GITHUB_TOKEN": made.github.token,
            "GATEWAY_ADMIN_TOKEN": TOKEN,
        }
        yield made
        await asyncio.gather(*made.github.tasks)


async def send(world: World, serving: Serving) -> None:
    """Half of it live, in any order, while reconcile is at it: the senders retry, too."""
    stripe = [world.stripe.live(event) for event in random.sample(world.stripe.events, MISSED // 2)]
    github = [world.github.request(s) for s in random.sample(world.github.sent, MISSED // 2)]
    for start in range(0, MISSED // 2, 25):
        answers = await serving.post_all(stripe[start : start + 25])
        answers += await serving.post_all(github[start : start + 25], path="/webhooks/github")
        assert {answer.status_code for answer in answers} == {200}


def figures(report: dict[str, Any]) -> tuple[str, int, int, int]:
    return report["status"], report["listed"], report["outstanding"], report["unrecoverable"]


async def test_an_hour_that_was_missed_is_recovered_once_while_live_deliveries_race_with_it(
    project: Project, ledger: Reader
) -> None:
    async with world(project) as made:
        with project.serve() as serving, project.process("worker"):
            await serving.ready()
            async with httpx.AsyncClient(timeout=PATIENCE_S) as client:

                async def deliver(sent: Sent) -> int:
                    body, headers = made.github.request(sent)
                    url = f"{serving.url}/webhooks/github"
                    return (await client.post(url, content=body, headers=headers)).status_code

                made.github.deliver = deliver
                [stripe], [github], _ = await asyncio.gather(
                    made.reconcile("stripe", "--since", "2h"),
                    made.reconcile("github", "--since", "2h"),
                    send(made, serving),
                )
                await asyncio.gather(*made.github.tasks)
            assert figures(stripe) == ("done", MISSED, 0, 0)
            assert figures(github) == ("done", MISSED, 0, 0)
            assert stripe["recovered"] == stripe["missing"] >= MISSED // 2
            assert github["recovered"] == github["missing"] >= MISSED // 2
            assert len(set(made.github.asked)) == len(made.github.asked) <= MISSED

            async def are_done() -> bool:
                return await ledger.statuses() == {"done": 2 * MISSED}

            await until(are_done)
    effects = await ledger.rows(
        "select event_id, count(*) as n from public.effects group by event_id"
    )
    assert {row["n"] for row in effects} == {1}
    expected = {e["id"] for e in made.stripe.events} | {s.guid for s in made.github.sent}
    assert {row["event_id"] for row in effects} == expected
    marked = await ledger.value("select count(*) from gateway.processed_events where reconciled")
    assert MISSED // 2 <= marked <= stripe["recovered"]


async def test_a_run_that_was_killed_is_gone_on_with_and_asked_for_over_the_api(
    project: Project, ledger: Reader
) -> None:
    async with world(project) as made:
        held, release = asyncio.Event(), asyncio.Event()
        answer = made.stripe.answer

        async def hold(request: httpx.Request) -> httpx.Response:
            if len(made.stripe.requests) == 5 and not release.is_set():
                held.set()
                await release.wait()
            return await answer(request)

        async with on_port(Gate(hold)) as url:
            project.write(
                "config/routes.yaml",
                ROUTES.format(stripe=url, github="http://localhost:1", hook=HOOK),
            )
            with project.process("reconcile", "stripe", "--since", "2h") as running:
                await held.wait()
                running.kill()
            release.set()
            left = await ledger.row("select * from gateway.reconciliations")
            assert (left["status"], left["taken"]) == ("running", True)
            assert 0 < left["listed"] < MISSED
            [report] = await made.reconcile("stripe", "--resume")
            assert figures(report) == ("done", MISSED, 0, 0)
            assert report["id"] == left["id"]
            assert report["recovered"] == report["missing"] == MISSED
            assert await ledger.value("select count(*) from gateway.processed_events") == MISSED
            with project.serve() as serving:
                await serving.ready()
                [far] = await made.reconcile("stripe", "--since", "2h", "--url", serving.url)
            assert figures(far) == ("done", MISSED, 0, 0)
            assert (far["missing"], far["actor"][-5:]) == (0, "(api)")


class Gate:
    """A provider whose answers can be held back."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer


@pytest.mark.parametrize("encrypt", [False, True])
async def test_a_delivery_that_serve_refused_as_replayed_is_not_asked_for(
    project: Project, ledger: Reader, encrypt: bool
) -> None:
    """Unless repeats of its type are flagged by now; also if the digests of the route are keyed."""
    async with world(project) as made:
        if encrypt:
            project.environ["TEST_KEY"] = "5f" + "0123456789abcdef" * 3 + "00112233445566"
            routes = (project.directory / "config/routes.yaml").read_text()
            routes = routes.replace("provider: github", "provider: github\n    encrypt: true")
            project.write("config/routes.yaml", f"keys: [env:TEST_KEY]\n{routes}")
        [first] = made.github.sent = made.github.sent[:1]
        copy = replace(first, id=2000, guid="guid-fresh")
        made.github.sent = [first, copy]
        with project.serve() as serving:
            await serving.ready()
            body, headers = made.github.request(first)
            assert (await serving.post(body, headers, path="/webhooks/github")).status_code == 200
            replayed = headers | {"x-github-delivery": copy.guid}
            answer = await serving.post(body, replayed, path="/webhooks/github")
            assert answer.json() == {"error": "REPEATED_BODY"}

            async def is_noted() -> bool:
                rows = await ledger.rows("select route, event_id from gateway.refusals")
                return [tuple(row.values()) for row in rows] == [("github", "guid-fresh")]

            await until(is_noted)
            [report] = await made.reconcile("github", "--since", "2h")
        assert (report["listed"], report["missing"], made.github.asked) == (2, 0, [])
        await ledger.run("update gateway.processed_events set type = 'membership.added'")
        [report] = await made.reconcile("github", "--since", "2h", "--dry-run")
        assert (report["listed"], report["missing"]) == (2, 1)


async def test_a_worker_reconciles_by_the_schedule_of_its_route(
    project: Project, ledger: Reader
) -> None:
    async with world(project) as made:
        routes = (project.directory / "config/routes.yaml").read_text()
        project.write("config/routes.yaml", routes.replace("{api_url", "{every: 1m, api_url"))
        with project.process("worker"):

            async def has_run() -> bool:
                rows = await ledger.rows("select route, actor, status from gateway.reconciliations")
                return [tuple(row.values()) for row in rows] == [("stripe", "schedule", "done")]

            await until(has_run)
        assert made.stripe.requests
        assert await ledger.value("select count(*) from gateway.processed_events") == 0


async def test_a_route_that_is_refused_holds_up_no_other(project: Project, ledger: Reader) -> None:
    """Such as one that a worker reconciles at this moment."""
    async with world(project) as made:
        project.environ.pop("STRIPE_API_KEY")
        made.github.sent = []
        result = await asyncio.to_thread(project.run, "reconcile", "--since", "2h")
    assert result.returncode == 1
    assert "env:STRIPE_API_KEY, which is not set" in result.stderr
    assert result.stdout.startswith("github since ")
