"""`gateway up`: start the engines, migrate, and supervise `serve` and `worker` until a signal."""

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Final

import structlog

from gateway.base.errors import CommandFailed, EngineFailed
from gateway.base.hangup import Hangup
from gateway.config.development import (
    SECRETS_FILE,
    RunningUp,
    clear_up,
    development_secrets,
    read_up,
    write_up,
)
from gateway.config.project import database_url, load_project, redis_url
from gateway.config.routes import Config, load_config, valid_references
from gateway.config.settings import Settings, load_settings
from gateway.console.front import console_access
from gateway.console.request import PREFIX
from gateway.dev.child import Child, unless
from gateway.dev.embedded import Postgres, Redis
from gateway.dev.reloading import DevReloader, Reload
from gateway.http.listening import listen
from gateway.ledger.connection import connect
from gateway.ledger.migrate import migrate, read_schema
from gateway.ledger.names import prepare_routes
from gateway.privacy.encryption import KEY_BYTES
from gateway.providers.provider import make_secret

ENGINES_EVERY_S: Final = 1.0
STOP_MARGIN_S: Final = 10.0
URLS: Final = {"Postgres": "GATEWAY_DATABASE_URL", "Redis": "GATEWAY_REDIS_URL"}
"""The settings that say where the engines are."""

log = structlog.get_logger("gateway.up")

PRIVATE: Final = 0o600
"""Any process that can open a lock file can hold the lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Everything is running."""

    url: str
    engines: tuple[str, ...]
    made_up: tuple[str, ...]
    """Secret references that could not be resolved and got a development secret."""
    config: Config
    reloads: bool
    console_url: str | None
    """None if the console is off: no token is set and the host is not a loopback address."""
    console_tokens: tuple[str, ...]
    """The variables with the tokens that the console accepts. Empty if the console is open."""


def run_up(
    environ: Mapping[str, str],
    tell: Callable[[Started], None],
    tell_reload: Callable[[Reload], None] | None = None,
) -> None:
    """Start everything, call `tell` when it runs, and block until a signal.

    With `tell_reload`, also watch the project's files and report each reload.
    """
    hangup = Hangup()
    hangup.listen()
    settings = load_settings(environ)
    config = load_config(settings.config)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_sigterm_unwinds())
        stack.enter_context(_only_one(settings.data_dir))
        listener = stack.enter_context(listen(settings.host, settings.port))
        variables = dict(environ) | {"GATEWAY_PORT": str(listener.getsockname()[1])}
        if tell_reload:
            # Bytecode caches detect changes by file size and second, and miss two
            # saves within one second.
            variables["PYTHONDONTWRITEBYTECODE"] = "1"
        made_up = make_up_secrets(settings, config, variables)
        engines = _start_engines(settings, variables, stack)
        settings = load_settings(variables)
        load_project(settings, environ=variables, with_secrets=True, with_api_keys=True)
        url = f"http://{settings.host}:{settings.port}"
        tokens = {
            "GATEWAY_ADMIN_TOKEN": settings.admin_token,
            "GATEWAY_READ_TOKEN": settings.read_token,
        }
        started = Started(
            url=url,
            engines=tuple(engine.description for engine in engines),
            made_up=made_up,
            config=config,
            reloads=tell_reload is not None,
            console_url=None if console_access(settings).is_off else f"{url}{PREFIX}/",
            console_tokens=tuple(name for name, token in tokens.items() if token is not None),
        )
        supervisor = Supervisor(
            variables, started, engines=engines, listener=listener, hangup=hangup
        )
        asyncio.run(supervisor.run(tell, tell_reload))


@contextlib.contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """Exit on SIGTERM, so that the engines stop as on Ctrl-C. The event loop
    later sets its own handlers.
    """
    before = signal.signal(signal.SIGTERM, lambda n, _: sys.exit(128 + n))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _only_one(data_dir: Path) -> Iterator[None]:
    """Lock the data directory for one `up`. The kernel releases the lock when the process ends."""
    try:  # others may pass but not list it: engines may run as another user
        data_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
        lock = os.open(data_dir / "up.lock", os.O_WRONLY | os.O_CREAT, PRIVATE)
    except OSError as error:
        raise CommandFailed(f"{data_dir} cannot be used: {error.strerror}") from error
    with open(lock, "wb"):
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


def _start_engines(
    settings: Settings, variables: dict[str, str], stack: contextlib.ExitStack
) -> tuple[Postgres | Redis, ...]:
    """Start the engines for which no URL is set. They stop with the stack."""
    engines: list[Postgres | Redis] = []
    if settings.database_url is None:
        engines.append(Postgres(settings.data_dir / "postgres", source=settings.engines))
    if settings.redis_url is None:
        engines.append(Redis(settings.data_dir / "redis", source=settings.engines))
    for engine in engines:
        stack.callback(engine.stop)
        engine.start()
        variables[URLS[engine.name]] = engine.url
    return tuple(engines)


def make_up_secrets(
    settings: Settings, config: Config, variables: dict[str, str]
) -> tuple[str, ...]:
    """Make a secret for every reference that cannot be resolved, and set the
    variables that locate them.
    """
    made_up: dict[str, str] = {}
    for route in config.routes:
        references = valid_references([route], datetime.now(UTC))
        made_up |= development_secrets(
            settings.data_dir, references, variables, make=route.provider.make_secret
        )
        tokens = [] if route.verify_token is None else [str(route.verify_token)]
        made_up |= development_secrets(settings.data_dir, tokens, variables, make=make_secret)
    keys = [str(ref) for ref in (*config.keys, config.digest_key) if ref is not None]
    made_up |= development_secrets(
        settings.data_dir, keys, variables, make=lambda: token_hex(KEY_BYTES)
    )
    # Set it even if no secret was made: the child processes recognise development by it.
    variables["GATEWAY_DEV_SECRETS"] = str((settings.data_dir / SECRETS_FILE).absolute())
    return tuple(made_up)


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
        works = [self._worker.keep_running(), self._watch_engines()]
        parts = [asyncio.create_task(work) for work in works]
        try:
            await unless(self._stopping, self._start_serve())
            parts.append(asyncio.create_task(self._serve.keep_running()))
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
            await asyncio.gather(self._serve.ended(), self._worker.ended())

    async def _start_serve(self) -> None:
        await self._serve.hand_over(await self._serve.start())

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
            *(child.start() for child in children), return_exceptions=True
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
