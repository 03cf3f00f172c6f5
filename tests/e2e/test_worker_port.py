"""The port of a worker: who lives, who leases, and who may read its metrics."""

import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import httpx

from tests.support.away import nobody_gets_in
from tests.support.ledger import Reader
from tests.support.ports import free_port
from tests.support.processes import Project, Running, stripe_request
from tests.support.waiting import PATIENCE_S, until

HANDLERS: Final = '''
"""Handlers that keep a worker busy, in the two ways there are."""

import asyncio
import pathlib
import time

from gateway import Context, Event, handler


@handler("block.*")
async def block(event: Event, ctx: Context) -> None:
    while not pathlib.Path("enough").exists():
        time.sleep(0.05)


@handler("slow.*")
async def slow(event: Event, ctx: Context) -> None:
    while not pathlib.Path("enough").exists():
        await asyncio.sleep(0.05)
'''
TOKEN: Final = "0123456789abcdef-metrics"
ALIVE: Final = (200, '{"status":"alive"}')
READY: Final = (200, '{"status":"ready"}')


async def ask(port: int, path: str, method: str = "GET", token: str = "") -> tuple[int, str]:
    """What the port answers; 0 where nobody listens."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        try:
            answer = await client.request(method, f"http://127.0.0.1:{port}{path}", headers=headers)
        except httpx.TransportError:
            return 0, ""
        return answer.status_code, answer.text


async def told(port: int, path: str, expected: tuple[int, str]) -> None:
    async def is_so() -> bool:
        return await ask(port, path) == expected

    await until(is_so)


@contextmanager
def worker_of(project: Project, port: int, **environ: str) -> Iterator[Running]:
    with project.process("worker", GATEWAY_WORKER_PORT=str(port), **environ) as running:
        yield running


async def running(ledger: Reader) -> bool:
    return await ledger.statuses() == {"running": 1}


def not_ready(reason: str) -> tuple[int, str]:
    return 503, f'{{"status":"not ready","reason":"{reason}"}}'


async def test_a_worker_tells_that_it_lives_and_leases_and_what_it_counts(
    project: Project,
) -> None:
    port = free_port()
    with worker_of(project, port):
        await told(port, "/readyz", READY)
        assert await ask(port, "/healthz") == ALIVE
        status, text = await ask(port, "/metrics")
        assert status == 200
        assert "# TYPE gateway_admin_refused_total counter" in text
        assert await ask(port, "/healthz", "HEAD") == (200, "")
        assert (await ask(port, "/healthz", "POST"))[0] == 405
        assert (await ask(port, "/webhooks/stripe"))[0] == 404


async def test_a_port_full_of_strangers_still_answers(project: Project) -> None:
    port = free_port()
    with worker_of(project, port):
        await told(port, "/readyz", READY)
        strangers = []
        for n in range(200):
            stranger = socket.create_connection(("127.0.0.1", port))
            stranger.sendall((b"GET /healthz HTTP/1.1\r\n", b"x" * 70_000, b"")[n % 3])
            strangers.append(stranger)
        assert await ask(port, "/healthz") == ALIVE
        assert (await ask(port, "/metrics"))[0] == 200
        for stranger in strangers:
            stranger.close()


async def test_so_does_one_under_the_plain_arq_command(project: Project) -> None:
    port = free_port()
    command = [sys.executable, "-m", "arq", "gateway.queue.WorkerSettings"]
    with project.started(command, GATEWAY_WORKER_PORT=str(port)) as arq:
        await told(port, "/readyz", READY)
        assert await ask(port, "/healthz") == ALIVE
        arq.process.terminate()
        assert arq.process.wait(PATIENCE_S) == 0


async def test_without_the_setting_a_worker_opens_no_port(project: Project) -> None:
    with project.process("worker") as worker:
        await worker.says("worker_started")
        assert "worker_port" not in worker.output


async def test_a_worker_whose_event_loop_is_blocked_is_told_from_one_that_is_busy(
    project: Project, ledger: Reader
) -> None:
    project.write("handlers/effects.py", HANDLERS)
    port = free_port()
    with project.serve() as serving, worker_of(project, port):
        await serving.ready()
        await told(port, "/readyz", READY)
        await serving.post(*stripe_request("evt_1", "slow.down"))
        await until(lambda: running(ledger))
        assert await ask(port, "/healthz") == ALIVE
        await serving.post(*stripe_request("evt_2", "block.all"))
        await told(port, "/healthz", (503, '{"status":"stuck","reason":"EVENT_LOOP_STUCK"}'))
        assert await ask(port, "/readyz") == not_ready("EVENT_LOOP_STUCK")
        assert (await ask(port, "/metrics"))[0] == 200
        project.write("enough", "")
        await told(port, "/healthz", ALIVE)
        await told(port, "/readyz", READY)


async def test_a_worker_without_postgres_lives_and_is_not_ready(
    project: Project, database_url: str
) -> None:
    port = free_port()
    with worker_of(project, port):
        await told(port, "/readyz", READY)
        async with nobody_gets_in(database_url):
            await told(port, "/readyz", not_ready("LEDGER_UNREACHABLE"))
            assert await ask(port, "/healthz") == ALIVE
            assert (await ask(port, "/metrics"))[0] == 200
        await told(port, "/readyz", READY)


async def test_a_worker_that_drains_says_so_until_it_ends(project: Project, ledger: Reader) -> None:
    project.write("handlers/effects.py", HANDLERS)
    port = free_port()
    with (
        project.serve() as serving,
        worker_of(project, port, GATEWAY_GRACE="30s", GATEWAY_CONCURRENCY="1") as worker,
    ):
        await serving.ready()
        await serving.post(*stripe_request("evt_1", "slow.down"))
        await until(lambda: running(ledger))
        await told(port, "/readyz", READY)  # with its only slot taken, too
        worker.process.send_signal(signal.SIGTERM)
        await told(port, "/readyz", not_ready("STOPPING"))
        assert await ask(port, "/healthz") == ALIVE
        project.write("enough", "")
        assert worker.process.wait(PATIENCE_S) == 0
        assert await ask(port, "/healthz") == (0, "")


async def test_whoever_has_no_token_does_not_read_the_metrics_of_a_worker(
    project: Project,
) -> None:
    port = free_port()
    tokens = {f"GATEWAY_{name}_TOKEN": f"{TOKEN}-{name}" for name in ("METRICS", "READ", "ADMIN")}
    with worker_of(project, port, **tokens):
        await told(port, "/readyz", READY)
        assert (await ask(port, "/metrics"))[0] == 401
        assert (await ask(port, "/metrics", token=TOKEN))[0] == 401
        for token in tokens.values():
            status, text = await ask(port, "/metrics", token=token)
            assert status == 200
        assert 'gateway_admin_refused_total{outcome="NO_TOKEN"} 1.0' in text
        assert 'gateway_admin_refused_total{outcome="UNAUTHORIZED"} 1.0' in text
        assert await ask(port, "/healthz") == ALIVE


async def test_deliveries_do_not_wait_for_a_port_that_another_has(project: Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with worker_of(project, port) as worker:
            await worker.says("worker_port_in_use")
            await worker.says("worker_started")
            other.close()
            await told(port, "/readyz", READY)


def test_an_address_that_is_not_ours_is_one_clear_line(project: Project) -> None:
    port = str(free_port())
    ended = project.run("worker", GATEWAY_WORKER_PORT=port, GATEWAY_HOST="192.0.2.1")
    assert ended.returncode == 1
    assert f"cannot listen on 192.0.2.1:{port}" in ended.stderr
    assert "GATEWAY_WORKER_PORT" in ended.stderr
    assert "Traceback" not in ended.stderr
