"""Overload: senders that retry are shed first, and every shed request is counted by route."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import asyncpg
import httpx

from tests.load.hostile import HALF_A_BODY, silent
from tests.load.senders import HOST, port_of, read_status, request_bytes
from tests.support.console import READER, TOKENS, logged_in
from tests.support.ledger import Reader
from tests.support.processes import Project, Serving, github_request
from tests.support.scraping import scrape
from tests.support.waiting import until

IN_FLIGHT = 8
RESERVED = IN_FLIGHT // 2
FLOOD = 40
GITHUB_EVENTS = 12
HALF_A_GITHUB_BODY = HALF_A_BODY.replace(b"/webhooks/stripe", b"/webhooks/github")


@asynccontextmanager
async def locked_ledger(project: Project) -> AsyncIterator[None]:
    """No claim commits in here: requests stay in flight until their time is up."""
    blocker = await asyncpg.connect(project.environ["GATEWAY_DATABASE_URL"])
    try:
        async with blocker.transaction():
            await blocker.execute("lock table gateway.processed_events in exclusive mode")
            yield
    finally:
        await blocker.close()


def configure(project: Project, route: str, line: str) -> None:
    routes = (project.directory / "config/routes.yaml").read_text()
    provider = f"provider: {route}"
    project.write("config/routes.yaml", routes.replace(provider, f"{provider}\n    {line}", 1))


async def post_stripe(serving: Serving) -> str:
    """Send a whole request in one write, so that it is never among the bodies that arrive."""
    reader, writer = await asyncio.open_connection(HOST, port_of(serving))
    with contextlib.closing(writer):
        writer.write(request_bytes(f"evt_{uuid4().hex}"))
        return await read_status(reader)


async def post_github(serving: Serving, guid: str) -> httpx.Response:
    body = json.dumps({"ref": guid}).encode()
    return await serving.post(*github_request(guid, body=body), path="/webhooks/github")


async def shed(serving: Serving, route: str) -> float:
    scraped = await scrape(serving.url)
    return scraped.sum("gateway_requests_total", route=route, outcome="SHED")


async def until_shed(serving: Serving, route: str, requests: int) -> None:
    async def is_shed() -> bool:
        return await shed(serving, route) >= requests

    await until(is_shed)


async def until_done_once(ledger: Reader, event_ids: list[str]) -> None:
    async def are_done() -> bool:
        query = "select event_id, count(*) as n from public.effects group by event_id"
        effects = {row["event_id"]: row["n"] for row in await ledger.rows(query)}
        return all(effects.get(event_id) == 1 for event_id in event_ids)

    await until(are_done)


def routes_page(serving: Serving) -> str:
    with logged_in(serving.url, READER) as reader:
        return reader.get("/console/routes").text


def status_of(project: Project, route: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the state of a route, and what the status says about shed requests."""
    [status] = json.loads(project.run("status", "--json").stdout)
    [state] = [state for state in status["routes"] if state["route"] == route]
    return state, [found for found in status["attention"] if "shed" in found["text"]]


async def test_github_events_beside_a_flood_of_stripe_are_acknowledged_and_take_effect(
    project: Project, ledger: Reader
) -> None:
    configure(project, "stripe", "ack_within: 1m")
    guids = [str(uuid4()) for _ in range(GITHUB_EVENTS)]
    with project.serve(GATEWAY_MAX_IN_FLIGHT=str(IN_FLIGHT)) as serving:
        await serving.ready()
        async with locked_ledger(project):
            flood = [asyncio.create_task(post_stripe(serving)) for _ in range(FLOOD)]
            await until_shed(serving, "stripe", FLOOD - RESERVED)
            for guid in guids:
                answer = await post_github(serving, guid)
                assert (answer.status_code, answer.json()["status"]) == (200, "accepted")
        answers = sorted(await asyncio.gather(*flood))
        assert answers == ["200"] * RESERVED + ["503"] * (FLOOD - RESERVED)
        assert await shed(serving, "github") == 0
        with project.process("worker"):
            await until_done_once(ledger, guids)
    stripe, [told] = status_of(project, "stripe")
    assert (stripe["shed"], stripe["retries"]) == (FLOOD - RESERVED, True)
    assert told["level"] == "warning"
    assert told["text"].startswith(f"stripe: {FLOOD - RESERVED} requests were shed (503)")
    with project.serve(**TOKENS) as console:
        await console.ready()
        assert f"{FLOOD - RESERVED} of them shed (503, overload)" in routes_page(console)


async def test_a_shed_request_of_a_sender_that_never_retries_leaves_its_head(
    project: Project, ledger: Reader
) -> None:
    configure(project, "github", "spool: never\n    ack_within: 1m")
    guid = str(uuid4())
    with project.serve(GATEWAY_MAX_IN_FLIGHT="1") as serving:
        await serving.ready()
        async with locked_ledger(project):
            held = asyncio.create_task(post_github(serving, str(uuid4())))
            await until(lambda: is_in_flight(serving))
            answer = await post_github(serving, guid)
            assert (answer.status_code, answer.json()) == (503, {"error": "UNAVAILABLE"})
            assert int(answer.headers["retry-after"]) > 0
        assert (await held).status_code == 200

        async def is_kept() -> bool:
            return bool(await ledger.value("select count(*) from gateway.rejected"))

        await until(is_kept)
    kept = await ledger.row("select code, cause, detail, headers, body from gateway.rejected")
    assert (kept["code"], kept["cause"], kept["body"]) == ("SHED", "overload", None)
    assert json.loads(kept["headers"])["x-github-delivery"] == guid
    github, [told] = status_of(project, "github")
    assert (github["shed"], github["retries"]) == (1, False)
    assert told["level"] == "problem"
    assert "1 event may be lost" in told["text"]


async def is_in_flight(serving: Serving) -> bool:
    return (await scrape(serving.url)).sum("gateway_in_flight_requests") > 0


async def test_slow_bodies_for_stripe_do_not_evict_those_of_github(project: Project) -> None:
    with project.serve(GATEWAY_MAX_IN_FLIGHT=str(IN_FLIGHT)) as serving:
        await serving.ready()
        guid = str(uuid4())
        body, headers = github_request(guid)
        arriving = asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            yield body[:1]
            await arriving.wait()
            yield body[1:]

        github = asyncio.create_task(serving.post(slowly(), headers, path="/webhooks/github"))
        await until(lambda: is_in_flight(serving))
        async with silent(port_of(serving), FLOOD, HALF_A_BODY):
            # Two of Stripe's four places may be slow bodies.
            await until_shed(serving, "stripe", FLOOD - RESERVED // 2)
            arriving.set()
            answer = await github
    assert (answer.status_code, answer.json()["event_id"]) == (200, guid)


async def test_slow_bodies_of_strangers_leave_room_for_github_and_for_stripe(
    project: Project,
) -> None:
    with project.serve(GATEWAY_MAX_IN_FLIGHT=str(IN_FLIGHT)) as serving:
        await serving.ready()
        port = port_of(serving)
        async with silent(port, FLOOD, HALF_A_GITHUB_BODY), silent(port, FLOOD, HALF_A_BODY):
            await until_shed(serving, "github", FLOOD - RESERVED // 2)
            await until_shed(serving, "stripe", FLOOD - RESERVED // 2)
            for _ in range(GITHUB_EVENTS):
                assert (await post_github(serving, str(uuid4()))).status_code == 200
                assert await post_stripe(serving) == "200"


async def test_requests_that_wait_in_a_pipeline_count_as_in_flight(project: Project) -> None:
    """And they are the first to give way."""
    configure(project, "stripe", "ack_within: 1m")
    routes = (project.directory / "config/routes.yaml").read_text()
    project.write("config/routes.yaml", routes.partition("  github:")[0])  # so nothing is reserved
    with project.serve(GATEWAY_MAX_IN_FLIGHT="2") as serving:
        await serving.ready()

        async def are_in_flight(requests: int) -> bool:
            scraped = await scrape(serving.url)
            return scraped.sum("gateway_in_flight_requests") == requests

        async with locked_ledger(project):
            reader, writer = await asyncio.open_connection(HOST, port_of(serving))
            writer.write(request_bytes(f"evt_{uuid4().hex}") * 2)
            await until(lambda: are_in_flight(2))
            other = asyncio.create_task(post_stripe(serving))
            await until(lambda: "pipelined request" in serving.running.output)
            assert await are_in_flight(2)
            assert await post_stripe(serving) == "503"
        assert await other == "200"
        with contextlib.closing(writer):
            assert (await reader.read()).count(b"HTTP/1.1 200") == 1
