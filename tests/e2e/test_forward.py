"""Forwards with real processes: killed in the middle, nothing is lost, and the ids tell twins."""

import asyncio
import base64
import re
import signal
import sys
import time
from collections import defaultdict
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest
from standardwebhooks import Webhook

from gateway.base.errors import PushFailed, Reject
from gateway.base.model import Event
from gateway.http.outbound import Destination, OutboundClient, OutboundResponse
from gateway.providers.standard_webhooks import parse_key
from gateway.worker.forward import judge, make_headers
from tests.support.forked import Death
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.needs import program
from tests.support.ports import free_port
from tests.support.processes import Project, stripe_request
from tests.support.receiver import Received, Receiver, answer, receiving
from tests.support.waiting import until

KEY: Final = "whsec_" + base64.b64encode(b"k" * 32).decode()
EVENTS: Final = 6
ROUTES: Final = """
defaults:
  timeout: 20s
  retry: {attempts: 3, backoff: fixed, base: 100ms, cap: 1s}
routes:
  stripe:
    provider: stripe
    secrets: [env:STRIPE_WEBHOOK_SECRET]
    forward:
      - {name: orders, url: env:ORDERS_URL, sign: env:ORDERS_KEY}
"""


@pytest.fixture
def project(project: Project) -> Project:
    project.write("config/routes.yaml", ROUTES)
    project.environ["ORDERS_KEY"] = KEY
    return project


async def claim(project: Project) -> set[str]:
    claims = [make_claim(f"evt_{uuid4().hex}", handlers=["forward.orders"]) for _ in range(EVENTS)]
    await claim_all(project.environ["GATEWAY_DATABASE_URL"], claims)
    return {item.envelope.id for item in claims}


def ids_by_event(receiver: Receiver) -> dict[str, list[str]]:
    """Each event with the ids under which it came, all of them rightly signed."""
    found: dict[str, list[str]] = defaultdict(list)
    for request in receiver.requests:
        event = Webhook(KEY).verify(request.body, dict(request.headers))
        found[event["id"]].append(request.id)
    return found


async def all_done(ledger: Reader) -> bool:
    return await ledger.statuses() == {"done": EVENTS}


@pytest.mark.parametrize("step", ["handler.starting", "handler.returned", "settle.settled"])
async def test_a_worker_dies_and_each_event_arrives_under_one_id(
    step: str, project: Project, ledger: Reader
) -> None:
    event_ids = await claim(project)
    async with receiving() as receiver:
        project.environ["ORDERS_URL"] = receiver.url
        with project.doomed(Death(step), "worker") as doomed:
            await until(lambda: doomed.process.poll() is not None)
            assert doomed.process.poll() == -signal.SIGKILL, doomed.output
        with project.process("worker"):
            await until(lambda: all_done(ledger))
    arrived = ids_by_event(receiver)
    assert arrived.keys() == event_ids
    assert all(len(set(ids)) == 1 for ids in arrived.values())
    assert len({ids[0] for ids in arrived.values()}) == EVENTS
    if step == "handler.returned":  # acknowledged, and nobody knew: sent again, as the docs say
        assert len(receiver.requests) > EVENTS
    assert set(await ledger.outcomes()) <= {"done", "lost"}


async def test_kill_9_while_a_slow_service_thinks_loses_nothing(
    project: Project, ledger: Reader
) -> None:
    event_ids = await claim(project)
    killed = asyncio.Event()

    async def think(_: Received, writer: asyncio.StreamWriter) -> None:
        await killed.wait()
        writer.write(answer(200, connection="close"))

    async with receiving(think) as receiver:
        project.environ["ORDERS_URL"] = receiver.url
        with project.process("worker") as first:
            await until(lambda: len(receiver.requests) >= EVENTS)
            first.kill()
        killed.set()
        with project.process("worker"):
            await until(lambda: all_done(ledger))
    arrived = ids_by_event(receiver)
    assert {event: len(set(ids)) for event, ids in arrived.items()} == dict.fromkeys(event_ids, 1)
    assert len(receiver.requests) == 2 * EVENTS


async def test_an_event_goes_all_the_way_and_the_commands_show_it(
    project: Project, ledger: Reader
) -> None:
    async with receiving(answer(410, b"closed"), answer(200)) as receiver:
        project.environ["ORDERS_URL"] = f"{receiver.url}/token-of-ours"
        assert "1 route, 0 handlers, 1 forward, all in order" in project.run("check").stdout
        assert "forward.orders (*) to env:ORDERS_URL" in project.run("routes").stdout
        with project.serve() as serving, project.process("worker"):
            await serving.ready()
            assert (await serving.post(*stripe_request("evt_1"))).status_code == 200
            await until(lambda: _is(ledger, "dead"))
            dead = project.run("dead").stdout
            assert "REJECTED: HTTP 410 Gone: closed" in dead
            delivery_id = str((await ledger.delivery())["id"])
            assert project.run("replay", delivery_id).returncode == 0
            await until(lambda: _is(ledger, "done"))
            shown = project.run("show", "evt_1").stdout
    assert "forward.orders" in shown
    assert "token-of-ours" not in dead + shown
    assert [request.path for request in receiver.requests] == ["/token-of-ours"] * 2
    assert len({request.id for request in receiver.requests}) == 1


async def _is(ledger: Reader, status: str) -> bool:
    return (await ledger.statuses()) == {status: 1}


def test_serve_needs_none_of_a_forwards_references_and_a_worker_all(project: Project) -> None:
    del project.environ["ORDERS_KEY"]
    refused = project.run("worker")
    assert refused.returncode == 2
    for part in ("forward[0].url: found env:ORDERS_URL, which is not set", "forward[0].sign[0]"):
        assert part in refused.stderr
    assert project.run("routes").returncode == 0
    with project.serve() as serving:
        asyncio.run(serving.ready())


def test_a_rehearsal_leaves_forwards_out_with_a_word(project: Project) -> None:
    told = project.run("rehearse")
    assert told.returncode == 0, told.stderr
    assert "0 handlers: nothing to rehearse" in told.stdout
    assert "1 forward is left out: no code of yours runs here" in told.stdout
    named = project.run("rehearse", "forward.orders")
    assert named.returncode == 1
    assert "forward.orders is a forward: no code of yours runs here" in named.stderr


GUIDE: Final = Path(__file__).parents[2] / "docs" / "forward.md"


@pytest.mark.parametrize("language", ["python", "js"])
async def test_the_receivers_of_the_guide_take_what_is_genuine_and_nothing_else(
    language: str, project: Project
) -> None:
    interpreter = sys.executable if language == "python" else program("node")
    [source] = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)
    project.write(f"receiver.{language}", source)
    port = free_port()
    to = Destination(url=f"http://127.0.0.1:{port}/", keys=(b"o" * 24, parse_key(KEY)))
    command = [interpreter, f"receiver.{language}"]
    with project.started(command, PORT=str(port)) as running:
        async with OutboundClient(most_connections=1) as client:

            async def push(body: bytes, **changes: str) -> OutboundResponse:
                event = an_event(body)
                now = datetime.now(UTC)
                headers = make_headers(to, event, id="gw_1", attempt=1, now=now)
                return await client.post(to.url, headers | changes, body)

            async def listens() -> bool:
                assert running.process.poll() is None, running.output
                with suppress(PushFailed):
                    return (await push(b"{}", **{"webhook-id": ""})).status == 401
                return False

            await until(listens)
            other = await push(b'{"type": "invoice.voided"}')
            with pytest.raises(Reject, match="not for us"):
                judge(other, now=datetime.now(UTC), cap=timedelta(hours=1), hide=str)
            paid = b'{"type": "invoice.paid"}'
            assert [(await push(paid)).status for _ in range(2)] == [200, 200]
            old = str(int(time.time()) - 301)
            for forged in (
                {"webhook-signature": "v1,AAAA"},
                {"webhook-id": "gw_2"},
                {"webhook-timestamp": old},
                {"webhook-timestamp": "x"},
            ):
                assert (await push(paid, **forged)).status == 401


def an_event(body: bytes) -> Event:
    return Event(
        id="evt_1",
        type="invoice.paid",
        route="stripe",
        provider="stripe",
        account=None,
        livemode=None,
        occurred_at=None,
        received_at=datetime.now(UTC),
        headers={},
        body=body,
    )
