"""Processes that are replaced one by one, under a load whose senders never retry."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from uuid import uuid4

import httpx

from tests.support.pgbouncer import pgbouncer
from tests.support.processes import Project, Running, Serving, stripe_request
from tests.support.sentinel import Watched, watched
from tests.support.waiting import PATIENCE_S, until

SENDERS: Final = 8
PAUSE_S: Final = 0.05
LINGER: Final = "3s"
"""Six times what the proxy's check takes to notice."""


@dataclass
class Answers:
    """What senders were told."""

    accepted: set[str] = field(default_factory=set)
    others: list[str] = field(default_factory=list)

    async def grow(self) -> None:
        """Lets some load pass."""
        enough = len(self.accepted) + 50
        await until(lambda: len(self.accepted) >= enough)


@asynccontextmanager
async def steady_load(url: str, senders: int = SENDERS) -> AsyncIterator[Answers]:
    """Senders on connections that they keep, without any retry."""
    answers, numbers, stop = Answers(), count(), asyncio.Event()

    async def send(client: httpx.AsyncClient) -> None:
        while not stop.is_set():
            event_id = f"evt_{next(numbers)}"
            body, headers = stripe_request(event_id)
            try:
                answer = await client.post(f"{url}/webhooks/stripe", content=body, headers=headers)
            except httpx.TransportError as error:
                answers.others.append(repr(error))
            else:
                if answer.status_code == 200:
                    answers.accepted.add(event_id)
                else:
                    answers.others.append(f"{answer.status_code} {answer.text}")
            await asyncio.sleep(PAUSE_S)

    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        sending = [asyncio.create_task(send(client)) for _ in range(senders)]
        try:
            yield answers
        finally:
            stop.set()
            await asyncio.gather(*sending)


class Fleet:
    """Processes of this code, or of that in a directory."""

    def __init__(self, project: Project, stack: ExitStack, code: Path | None = None) -> None:
        self._project = project
        self._stack = stack
        self._code = code

    def serve(self, port: int) -> Serving:
        running = self._start("serve", GATEWAY_PORT=str(port), GATEWAY_LINGER=LINGER)
        return Serving(running, f"http://127.0.0.1:{port}")

    def worker(self) -> Running:
        return self._start("worker")

    def _start(self, role: str, **environ: str) -> Running:
        if self._code is None:
            return self._stack.enter_context(self._project.process(role, **environ))
        command = [sys.executable, "-m", "gateway", role]
        started = self._project.started(command, PYTHONPATH=str(self._code), **environ)
        return self._stack.enter_context(started)


def put_poolers_between(project: Project, stack: ExitStack, directory: Path) -> Watched:
    """From now on its processes reach Postgres through PgBouncer and Redis through Sentinel."""
    url = project.environ["GATEWAY_DATABASE_URL"]
    bouncer = stack.enter_context(pgbouncer(directory / f"pgbouncer-{uuid4().hex}", url))
    redis = stack.enter_context(watched(project.directory / "sentinel"))
    project.environ |= {
        "GATEWAY_DATABASE_URL": bouncer.url(urlsplit(url).path.removeprefix("/")),
        "GATEWAY_REDIS_URL": redis.url,
    }
    return redis


async def migrate(project: Project, code: Path, **environ: str) -> None:
    """Run `gateway migrate` of the code in that directory to its end."""
    command = [sys.executable, "-m", "gateway", "migrate"]
    with project.started(command, PYTHONPATH=str(code), **environ) as running:
        assert await asyncio.to_thread(running.process.wait, 60) == 0, running.output


async def end(running: Running) -> None:
    running.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(running.process.wait, 30) == 0, running.output
