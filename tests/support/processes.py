"""Real `gateway` processes of a user's own project."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from textwrap import dedent
from typing import Final

import asyncpg
import httpx
import orjson

from gateway.providers import PROVIDERS
from tests.support.forked import Death, Forked
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, until

STRIPE_SECRET: Final = "whsec_stripe_of_the_suite"
GITHUB_SECRET: Final = "github secret of the suite"

ROUTES: Final = """
schema: [handlers/schema.sql]
defaults:
  timeout: 20s
  retry: {attempts: 3, backoff: fixed, base: 100ms, cap: 1s}
routes:
  stripe:
    provider: stripe
    secrets: [env:STRIPE_WEBHOOK_SECRET]
    handlers: [handlers.effects]
  github:
    provider: github
    secrets: [env:GITHUB_WEBHOOK_SECRET]
    handlers: [handlers.effects]
"""

SCHEMA: Final = """
create table if not exists effects (
    n bigint generated always as identity, event_id text, handler text, note text
);
"""

HANDLERS: Final = '''
"""Handlers without any idempotency of their own: a second application shows."""

import asyncio
import pathlib

from gateway import Context, Event, handler


@handler("*")
async def count(event: Event, ctx: Context) -> None:
    await ctx.db.execute(
        "insert into effects (event_id, handler) values ($1, 'count')", event.id
    )


@handler("slow.*")
async def slow(event: Event, ctx: Context) -> None:
    await ctx.db.execute("insert into effects (event_id, handler) values ($1, 'slow')", event.id)
    await asyncio.sleep(0.5)
    while pathlib.Path("hold").exists():
        await asyncio.sleep(0.02)
'''


class Project:
    """A directory with routes and handlers, and the environment to run them in."""

    def __init__(self, directory: Path, database_url: str, redis_url: str) -> None:
        self.directory = directory
        self._logs = count()
        self.environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith("GATEWAY_")},
            "GATEWAY_DATABASE_URL": database_url,
            "GATEWAY_REDIS_URL": redis_url,
            "GATEWAY_LEASE": "2s",
            "GATEWAY_SWEEP": "300ms",
            "GATEWAY_GRACE": "5s",
            "GATEWAY_PORT": "0",
            "STRIPE_WEBHOOK_SECRET": STRIPE_SECRET,
            "GITHUB_WEBHOOK_SECRET": GITHUB_SECRET,
        }
        self.write("config/routes.yaml", ROUTES)
        self.write("handlers/__init__.py", "")
        self.write("handlers/effects.py", HANDLERS)
        self.write("handlers/schema.sql", SCHEMA)

    def write(self, name: str, text: str) -> None:
        """Writes a file of the project."""
        file = self.directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text), encoding="utf-8")

    def hold(self) -> None:
        """Let no `slow` handler end from now on."""
        self.write("hold", "")

    def let_go(self) -> None:
        """Let the `slow` handlers end."""
        (self.directory / "hold").unlink()

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        output, errors = self._next_log(), self._next_log()
        process = Forked(
            arguments,
            directory=self.directory,
            environ={**self.environ, **environ},
            output=output,
            errors=errors,
        )
        try:
            code = process.wait(PATIENCE_S)
        finally:
            process.kill()
        texts = [file.read_text(encoding="utf-8") for file in (output, errors)]
        return subprocess.CompletedProcess(arguments, code, *texts)

    @contextmanager
    def process(self, *arguments: str, **environ: str) -> Iterator["Running"]:
        """Starts a command that stays, and ends it."""
        with self.doomed(None, *arguments, **environ) as running:
            yield running

    @contextmanager
    def doomed(self, death: Death | None, *arguments: str, **environ: str) -> Iterator["Running"]:
        """Starts a command that dies at a step, if it is to."""
        log = self._next_log()
        process = Forked(
            arguments,
            directory=self.directory,
            environ={**self.environ, **environ},
            output=log,
            errors=log,
            death=death,
        )
        running = Running(process, log)
        try:
            yield running
        finally:
            running.end()

    def _next_log(self) -> Path:
        log = self.directory / f"{next(self._logs)}.log"
        log.touch()
        return log

    @contextmanager
    def started(self, command: Sequence[str], **environ: str) -> Iterator["Running"]:
        """Starts any program in the project's directory, and ends it."""
        log = self._next_log()
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                env={**self.environ, **environ},
                stdout=sink,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        running = Running(process, log)
        try:
            yield running
        finally:
            running.end()

    @contextmanager
    def serve(self, **environ: str) -> Iterator["Serving"]:
        """A `serve` process on a free port, still starting."""
        with self.doomed_serve(None, **environ) as serving:
            yield serving

    @contextmanager
    def doomed_serve(self, death: Death | None, **environ: str) -> Iterator["Serving"]:
        """One that dies at a step, if it is to."""
        port = free_port()
        with self.doomed(death, "serve", GATEWAY_PORT=str(port), **environ) as running:
            yield Serving(running, f"http://127.0.0.1:{port}")


class Running:
    """A process of ours."""

    def __init__(self, process: subprocess.Popen[bytes] | Forked, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """kill -9, and waits until it is gone."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def end(self) -> None:
        """Ends it the polite way, then the other."""
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
        except BaseException:  # the test is out of time: pytest would wait for the process
            self.process.kill()
            raise

    async def says(self, text: str) -> None:
        """Waits until the process has logged this."""

        def said() -> bool:
            assert self.process.poll() is None or text in self.output, self.output
            return text in self.output

        await until(said)


class Serving:
    """A `serve` process and how to talk to it."""

    def __init__(self, running: Running, url: str) -> None:
        self.running = running
        self.url = url

    async def ready(self) -> None:
        """Waits until it says that it is."""
        async with httpx.AsyncClient() as client:

            async def answers() -> bool:
                assert self.running.process.poll() is None, self.running.output
                try:
                    return (await client.get(f"{self.url}/readyz")).status_code == 200
                except httpx.TransportError:
                    return False

            await until(answers)

    async def post(
        self,
        body: bytes | AsyncIterable[bytes],
        headers: Mapping[str, str],
        *,
        path: str = "/webhooks/stripe",
    ) -> httpx.Response:
        """One request on a connection of its own."""
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            return await client.post(self.url + path, content=body, headers=dict(headers))

    async def post_all(
        self, requests: Sequence[tuple[bytes, Mapping[str, str]]], *, path: str = "/webhooks/stripe"
    ) -> list[httpx.Response]:
        """Many requests at once."""
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(timeout=PATIENCE_S, limits=limits) as client:
            return await asyncio.gather(
                *(client.post(self.url + path, content=b, headers=dict(h)) for b, h in requests)
            )


def stripe_request(
    event_id: str,
    type: str = "invoice.paid",
    *,
    secret: str = STRIPE_SECRET,
    object_id: str = "",
    extra: str = "",
    ago: timedelta = timedelta(0),
) -> tuple[bytes, dict[str, str]]:
    """A signed Stripe event."""
    now = datetime.now(UTC) - ago
    body = orjson.dumps(
        {
            "id": event_id,
            "object": "event",
            "type": type,
            "created": int(now.timestamp()),
            "livemode": False,
            "data": {"object": {"id": object_id or f"in_{event_id}", "extra": extra}},
        }
    )
    sent = PROVIDERS["stripe"].sign(body, secret=secret.encode(), id=event_id, type=type, now=now)
    return sent.body, sent.headers


def github_request(
    guid: str, event: str = "push", *, body: bytes = b'{"ref":"refs/heads/main"}'
) -> tuple[bytes, dict[str, str]]:
    """A signed GitHub delivery."""
    sent = PROVIDERS["github"].sign(
        body, secret=GITHUB_SECRET.encode(), id=guid, type=event, now=datetime.now(UTC)
    )
    return sent.body, sent.headers


@asynccontextmanager
async def locked(project: Project, table: str) -> AsyncIterator[None]:
    """Hold a lock on a table of the ledger, so that nothing is written to it meanwhile."""
    blocker = await asyncpg.connect(project.environ["GATEWAY_DATABASE_URL"])
    try:
        async with blocker.transaction():
            await blocker.execute(f"lock table gateway.{table} in exclusive mode")
            yield
    finally:
        await blocker.close()
