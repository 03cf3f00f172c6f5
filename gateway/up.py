"""Everything in one go: engines, migration, `serve` and `worker`, watched until a signal."""

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import structlog

from gateway.development import (
    SECRETS_FILE,
    RunningUp,
    clear_up,
    development_secrets,
    read_up,
    write_up,
)
from gateway.embedded import Postgres, Redis
from gateway.errors import CommandFailed, EngineFailed
from gateway.ledger.connection import connect
from gateway.ledger.migrate import migrate, read_schema
from gateway.project import database_url, load_project, redis_url
from gateway.receive.listening import listen
from gateway.routes import Config, load_config
from gateway.settings import Settings, load_settings

CHILDREN: Final = ("serve", "worker")
RESTART_S: Final = (0.5, 10.0)
READY_WITHIN_S: Final = 30.0
LOOK_EVERY_S: Final = 0.1
ENGINES_EVERY_S: Final = 1.0
STOP_MARGIN_S: Final = 10.0

log = structlog.get_logger("gateway.up")


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What `up` tells people once everything runs."""

    url: str
    engines: tuple[str, ...]
    made_up: tuple[str, ...]
    """Secret references that lead nowhere and got a development secret."""
    config: Config


def run_up(environ: Mapping[str, str], tell: Callable[[Started], None]) -> None:
    """Starts everything, tells what runs where, and stays until a signal."""
    settings = load_settings(environ)
    config = load_config(settings.config)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_sigterm_unwinds())
        stack.enter_context(_only_one(settings.data_dir))
        variables = dict(environ) | _fixed_port(settings)
        made_up = _development_secrets(settings, config, variables)
        engines = _start_engines(settings, variables, stack)
        settings = load_settings(variables)
        load_project(settings, environ=variables, with_secrets=True)
        started = Started(
            url=f"http://{settings.host}:{settings.port}",
            engines=tuple(engine.description for engine in engines),
            made_up=made_up,
            config=config,
        )
        asyncio.run(_Up(settings, variables, started, tell, engines).run())


@contextlib.contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """Until the loop has its own handlers, SIGTERM must stop the engines like Ctrl-C does."""
    signals = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(signum, lambda n, _: sys.exit(128 + n)) for signum in signals]
    try:
        yield
    finally:
        for signum, handler in zip(signals, before, strict=True):
            signal.signal(signum, handler)


@contextlib.contextmanager
def _only_one(data_dir: Path) -> Iterator[None]:
    """Holds the data directory for one `up`; the lock ends with the process, however it ends."""
    try:  # others may pass through, but not look around: engines may run as another user
        data_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
        lock = (data_dir / "up.lock").open("w")
    except OSError as error:
        raise CommandFailed(f"{data_dir} cannot be used: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = read_up(data_dir)
            who = f" (process {other.pid}, {other.url})" if other else ""
            raise CommandFailed(
                f"a `gateway up` already runs on {data_dir}{who}: "
                "stop it first, or set GATEWAY_DATA_DIR"
            ) from None
        yield


def _fixed_port(settings: Settings) -> dict[str, str]:
    """A port that is free now, chosen before anything is started."""
    with listen(settings.host, settings.port) as probe:
        return {"GATEWAY_PORT": str(probe.getsockname()[1])}


def _development_secrets(
    settings: Settings, config: Config, variables: dict[str, str]
) -> tuple[str, ...]:
    references = [str(ref) for route in config.routes for ref in route.secrets]
    made_up = development_secrets(settings.data_dir, references, variables)
    if made_up:
        variables["GATEWAY_DEV_SECRETS"] = str((settings.data_dir / SECRETS_FILE).absolute())
    return tuple(made_up)


def _start_engines(
    settings: Settings, variables: dict[str, str], stack: contextlib.ExitStack
) -> tuple[Postgres | Redis, ...]:
    """Starts the engines for which no URL is set; they stop with the stack."""
    engines: list[Postgres | Redis] = []
    if settings.database_url is None:
        postgres = Postgres(settings.data_dir / "postgres", source=settings.engines)
        stack.callback(postgres.stop)
        postgres.start()
        variables["GATEWAY_DATABASE_URL"] = postgres.url
        engines.append(postgres)
    if settings.redis_url is None:
        redis = Redis(settings.data_dir / "redis", source=settings.engines)
        stack.callback(redis.stop)
        redis.start()
        variables["GATEWAY_REDIS_URL"] = redis.url
        engines.append(redis)
    return tuple(engines)


class _Up:
    """The children, while they run."""

    def __init__(
        self,
        settings: Settings,
        variables: Mapping[str, str],
        started: Started,
        tell: Callable[[Started], None],
        engines: Sequence[Postgres | Redis],
    ) -> None:
        self._engines = engines
        self._settings = settings
        self._variables = variables
        self._started = started
        self._tell = tell
        self._processes: dict[str, Process] = {}
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(signum, self._stop)
        await self._unless_stopped(self._migrate())
        if self._stopping.is_set():
            return
        watchers = [asyncio.create_task(self._watch(name)) for name in CHILDREN]
        watchers.append(asyncio.create_task(self._watch_engines()))
        try:
            await self._ready()
            self._record()
            if not self._stopping.is_set():
                self._tell(self._started)
            await asyncio.wait(
                [*watchers, asyncio.create_task(self._stopping.wait())],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            clear_up(self._settings.data_dir)
            if not self._stopping.is_set():
                self._stop()
            await asyncio.gather(*watchers)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs it to its end, or drops it at a signal."""
        working = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if working.done():
            working.result()
        else:
            working.cancel()
            await asyncio.wait({working}, timeout=1)

    async def _migrate(self) -> None:
        connection = await connect(database_url(self._settings), name="gateway up")
        try:
            await migrate(connection, read_schema(self._started.config.schema))
        finally:
            await connection.close()

    async def _watch(self, name: str) -> None:
        """Runs a child, and runs it again should it end before it was told to."""
        delay_s = RESTART_S[0]
        while not self._stopping.is_set():
            process = await self._spawn(name)
            self._processes[name] = process
            code = await self._ended(process)
            if self._stopping.is_set():
                return
            log.error("process_ended", process=name, code=code, again_in_s=delay_s)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, RESTART_S[1])

    async def _watch_engines(self) -> None:
        """Starts an engine that has ended again: both survive that with their data."""
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

    async def _spawn(self, name: str) -> Process:
        # A group of its own: Ctrl-C reaches only `up`, which stops its children in order. The pipe
        # to its standard input ends with us, however we end, and the child ends with the pipe.
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gateway",
            name,
            "--with-parent",
            stdin=PIPE,
            env=self._variables,
            start_new_session=True,
        )

    async def _ended(self, process: Process) -> int:
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not ended.done():
            allowed = self._settings.linger + self._settings.grace
            await asyncio.wait({ended}, timeout=allowed.total_seconds() + STOP_MARGIN_S)
        if not ended.done():
            process.kill()
        return await ended

    async def _ready(self) -> None:
        """Waits until `serve` says that it is ready, or it turns out that it never will be."""
        deadline = asyncio.get_running_loop().time() + READY_WITHIN_S
        async with httpx.AsyncClient(timeout=2, trust_env=False) as client:
            while not self._stopping.is_set():
                serving = self._processes.get("serve")
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
        """Passes the signal on: the first one drains, a second one ends the grace time."""
        self._stopping.set()
        for process in self._processes.values():
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
