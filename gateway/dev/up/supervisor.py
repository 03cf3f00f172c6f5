"""Supervise the child processes and engines of a running `up`."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import httpx
import structlog

from gateway.base.errors import CommandFailed, EngineFailed
from gateway.base.hangup import Hangup
from gateway.config.development import RunningUp, clear_up, write_up
from gateway.config.project import database_url, redis_url
from gateway.config.routes import Config
from gateway.config.settings import load_settings
from gateway.dev.embedded import Postgres, Redis
from gateway.dev.up.child import READY_WITHIN_S, Child, unless
from gateway.dev.up.reloading import DevReloader
from gateway.dev.up.reports import Reload, Started
from gateway.dev.up.secrets import make_up_secrets
from gateway.ledger.connection import connect
from gateway.ledger.migrate import migrate, read_schema
from gateway.ledger.names import prepare_routes

LOOK_EVERY_S: Final = 0.1
ENGINES_EVERY_S: Final = 1.0
STOP_MARGIN_S: Final = 10.0

log = structlog.get_logger("gateway.up")


class Supervisor:
    """Keeps all processes and engines running until a signal."""

    def __init__(
        self,
        variables: dict[str, str],
        started: Started,
        *,
        engines: Sequence[Postgres | Redis],
        listener: socket.socket,
        hangup: Hangup,
    ) -> None:
        self._variables = variables
        self._settings = load_settings(variables)
        self._started = started
        self._engines = engines
        self._listener = listener
        self._hangup = hangup
        self._stopping = asyncio.Event()
        self._serve = self._child(
            "serve", "--listener-fd", str(listener.fileno()), inherits=[listener.fileno()]
        )
        self._worker = self._child("worker")

    def _child(self, name: str, *options: str, inherits: Sequence[int] = ()) -> Child:
        allowed = self._settings.linger + self._settings.grace
        return Child(
            name,
            variables=self._variables,
            stopping=self._stopping,
            stop_within_s=allowed.total_seconds() + STOP_MARGIN_S,
            options=options,
            inherits=inherits,
        )

    async def run(
        self, tell: Callable[[Started], None], tell_reload: Callable[[Reload], None] | None
    ) -> None:
        """Run until a signal, or until one of the parts fails with an unexpected error."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, self._stop)
        reloader = self._reloader() if tell_reload else None
        await unless(self._stopping, self._migrate(self._started.config))
        if self._stopping.is_set():
            return
        works = [self._serve.keep_running(), self._worker.keep_running(), self._watch_engines()]
        parts = [asyncio.create_task(work) for work in works]
        try:
            await self._ready()
            self._record()
            if not self._stopping.is_set():
                tell(self._started)
            if reloader and tell_reload:
                parts.append(asyncio.create_task(reloader.reload_forever(tell_reload)))
            signalled = asyncio.create_task(self._stopping.wait())
            with self._hangup.obeyed_by(self._serve.hang_up):
                await asyncio.wait([*parts, signalled], return_when=asyncio.FIRST_COMPLETED)
        finally:
            clear_up(self._settings.data_dir)
            if not self._stopping.is_set():
                self._stop()
            await asyncio.gather(*parts)

    def _reloader(self) -> DevReloader:
        return DevReloader(
            self._started.config,
            stopping=self._stopping,
            prepare=self._prepare,
            take_over=self._take_over,
        )

    def _prepare(self, config: Config) -> Mapping[str, str]:
        """Return the environment for this configuration, with development
        secrets for new routes.
        """
        make_up_secrets(self._settings, config, self._variables)
        return self._variables

    async def _take_over(self, config: Config, with_schema: bool) -> None:
        """Replace both child processes, or neither: stop the old ones when
        both new ones are ready.
        """
        if with_schema:
            await self._migrate(config)
        children = (self._serve, self._worker)
        started = await asyncio.gather(
            *(child.start_another() for child in children), return_exceptions=True
        )
        failed = [result for result in started if isinstance(result, BaseException)]
        working = [
            (child, process)
            for child, process in zip(children, started, strict=True)
            if not isinstance(process, BaseException)
        ]
        if failed:
            for child, process in working:
                child.dismiss(process)
            raise failed[0]
        await asyncio.gather(*(child.hand_over(process) for child, process in working))
        self._settings = load_settings(self._variables)
        self._record()

    async def _migrate(self, config: Config) -> None:
        connection = await connect(database_url(self._settings), name="gateway up")
        try:
            await migrate(connection, read_schema(config.schema))
            await prepare_routes(connection, config)
        finally:
            await connection.close()

    async def _watch_engines(self) -> None:
        """Restart an engine that has ended. Both engines keep their data."""
        while not self._stopping.is_set():
            for engine in self._engines:
                if not engine.running():
                    log.error("engine_ended", engine=engine.description)
                    await asyncio.to_thread(self._restart, engine)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), ENGINES_EVERY_S)

    def _restart(self, engine: Postgres | Redis) -> None:
        try:
            engine.start()
        except EngineFailed as error:
            log.error("engine_does_not_start", error=str(error))

    async def _ready(self) -> None:
        """Wait until `serve` is ready. Raises CommandFailed if it ends or takes too long."""
        deadline = asyncio.get_running_loop().time() + READY_WITHIN_S
        async with httpx.AsyncClient(timeout=2, trust_env=False) as client:
            while not self._stopping.is_set():
                serving = self._serve.process
                if serving is not None and serving.returncode is not None:
                    raise CommandFailed(f"`gateway serve` ended with code {serving.returncode}")
                with contextlib.suppress(httpx.TransportError):
                    answer = await client.get(f"{self._started.url}/readyz")
                    if answer.status_code == httpx.codes.OK:
                        return
                if asyncio.get_running_loop().time() > deadline:
                    raise CommandFailed(f"`gateway serve` is not ready on {self._started.url}")
                await asyncio.sleep(LOOK_EVERY_S)

    def _record(self) -> None:
        secrets = self._settings.dev_secrets
        write_up(
            self._settings.data_dir,
            RunningUp(
                pid=os.getpid(),
                url=self._started.url,
                database_url=database_url(self._settings),
                redis_url=redis_url(self._settings),
                dev_secrets=None if secrets is None else str(secrets),
            ),
        )

    def _stop(self) -> None:
        """Forward the signal. The first one drains, a second one ends the grace period."""
        self._stopping.set()
        self._listener.close()
        for child in (self._serve, self._worker):
            child.stop()
