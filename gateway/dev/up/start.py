"""Start `up`: lock the data directory, make secrets, start the engines and open the port."""

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from gateway.base.errors import CommandFailed
from gateway.base.hangup import Hangup
from gateway.config.development import read_up
from gateway.config.project import load_project
from gateway.config.routes import load_config
from gateway.config.settings import Settings, load_settings
from gateway.console.front import console_access
from gateway.console.request import PREFIX
from gateway.dev.embedded import Postgres, Redis
from gateway.dev.up.reports import Reload, Started
from gateway.dev.up.secrets import make_up_secrets
from gateway.dev.up.supervisor import Supervisor
from gateway.http.listening import listen

PRIVATE: Final = 0o600
"""Any process that can open a lock file can hold the lock."""


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
        started = Started(
            url=url,
            engines=tuple(engine.description for engine in engines),
            made_up=made_up,
            config=config,
            reloads=tell_reload is not None,
            console_url=None if console_access(settings).is_off else f"{url}{PREFIX}/",
            console_tokens=tuple(_set_tokens(settings)),
        )
        supervisor = Supervisor(
            variables, started, engines=engines, listener=listener, hangup=hangup
        )
        asyncio.run(supervisor.run(tell, tell_reload))


def _set_tokens(settings: Settings) -> Iterator[str]:
    if settings.admin_token is not None:
        yield "GATEWAY_ADMIN_TOKEN"
    if settings.read_token is not None:
        yield "GATEWAY_READ_TOKEN"


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
