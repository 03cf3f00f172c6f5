"""Every process is replaced under load: no request fails, nothing is lost, no attempt is burned."""

import asyncio
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import uvicorn
from starlette.types import Receive, Scope, Send

from gateway.http.listening import Server, listen
from gateway.http.protocol import BoundedHttpProtocol, State
from gateway.receive.answers import Answer
from tests.support.ledger import Reader
from tests.support.ports import free_port
from tests.support.processes import Project, Serving, stripe_request
from tests.support.proxy import haproxy
from tests.support.rolling import Fleet, end, put_poolers_between, steady_load
from tests.support.waiting import PATIENCE_S, until


async def test_every_process_is_replaced_under_load_and_nobody_notices(
    project: Project, ledger: Reader, engine_dir: Path
) -> None:
    """Through PgBouncer and Sentinels: the short form of what `make cluster` does."""
    ports = [free_port(), free_port()]
    with ExitStack() as stack:
        put_poolers_between(project, stack, engine_dir)
        fleet = Fleet(project, stack)
        serving, workers = [fleet.serve(p) for p in ports], [fleet.worker(), fleet.worker()]
        await asyncio.gather(*(each.ready() for each in serving))
        proxy, url = stack.enter_context(haproxy(project, ports))
        await Serving(proxy, url).ready()
        async with steady_load(url) as answers:
            for port, old in zip(ports, serving, strict=True):
                await answers.grow()
                await end(old.running)
                await fleet.serve(port).ready()
            for worker in workers:
                await answers.grow()
                await end(worker)
                await fleet.worker().says("worker_started")
            await answers.grow()
        assert answers.others == []
        await until(lambda: _all_done(ledger, len(answers.accepted)))
    effects = await ledger.rows("select event_id from public.effects")
    assert sorted(row["event_id"] for row in effects) == sorted(answers.accepted)
    assert await ledger.value("select max(attempts) from gateway.deliveries") == 1
    assert set(await ledger.outcomes()) <= {"done", "released"}
    assert all("lingering" in old.running.output for old in serving)


async def _all_done(ledger: Reader, n: int) -> bool:
    return await ledger.statuses() == {"done": n}


async def test_while_it_lingers_it_answers_and_says_that_it_stops(project: Project) -> None:
    with project.serve(GATEWAY_LINGER="5m") as serving:
        await serving.ready()
        async with httpx.AsyncClient(base_url=serving.url, timeout=PATIENCE_S) as client:
            assert "connection" not in (await client.get("/healthz")).headers
            serving.running.process.send_signal(signal.SIGTERM)
            await serving.running.says("lingering")
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()) == (
                503,
                {"status": "not ready", "reason": "STOPPING"},
            )
            body, headers = stripe_request("evt_1")
            accepted = await client.post("/webhooks/stripe", content=body, headers=headers)
            assert accepted.json() == {"status": "accepted", "event_id": "evt_1"}
            for answer in (ready, accepted, await client.get("/nowhere")):
                assert answer.headers["connection"] == "close"
        serving.running.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(serving.running.process.wait, 20) == 0


async def test_when_its_time_is_up_it_closes_idle_connections_and_ends(project: Project) -> None:
    with project.serve(GATEWAY_LINGER="500ms") as serving:
        await serving.ready()
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(serving.url).port)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"alive")
        await end(serving.running)
        assert b"HTTP/1.1" not in await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()


OK = Answer(200, b"ok", ())


async def _say_ok(scope: Scope, _: Receive, send: Send) -> None:
    await OK.send(scope, send)


async def test_what_has_arrived_when_the_port_closes_is_answered() -> None:
    """On a kept connection, and on new ones that nobody has accepted yet."""
    listener = listen("127.0.0.1", 0)
    address = listener.getsockname()
    config = uvicorn.Config(_say_ok, http=BoundedHttpProtocol, lifespan="off", log_config=None)
    config.load()
    state = State(max_connections=100, max_requests=100, max_bytes=1024)
    server = Server(config, state=state, linger_s=0)
    server.lifespan = config.lifespan_class(config)
    await server.startup([listener])
    request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    await reader.readuntil(b"ok")
    writer.write(request)
    with ExitStack() as stack:  # from here on the event loop gets no turn before the end
        others = [stack.enter_context(socket.create_connection(address)) for _ in range(50)]
        for other in others:
            other.sendall(request)
        await server.shutdown()
        answers = [await reader.read(), *(other.recv(1000) for other in others)]
    writer.close()
    assert [answer[:15] for answer in answers] == [b"HTTP/1.1 200 OK"] * 51
    assert all(b"connection: close" in answer for answer in answers)
