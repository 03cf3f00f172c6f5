"""Puts `serve` together from the settings and runs it under uvicorn."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Final

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.types import Lifespan

from gateway.errors import CommandFailed, StorageUnavailable
from gateway.ledger.claims import Claimer
from gateway.ledger.connection import COMMAND_TIMEOUT_S, connect
from gateway.ledger.migrate import check_version
from gateway.project import Project, database_url, redis_url
from gateway.queue.handoff import HandOff, connect_redis
from gateway.receive.admission import Admission
from gateway.receive.app import App, Readiness
from gateway.receive.deadlines import Deadlines
from gateway.receive.endpoint import Endpoint
from gateway.receive.metrics import Metrics
from gateway.receive.protocol import BoundedHttpProtocol

BACKLOG: Final = 2048
KEEP_ALIVE_S: Final = 75

log = structlog.get_logger("gateway.serve")


def build_app(project: Project) -> App:
    """The ASGI application, with everything behind it, wired by hand."""
    settings, url = project.settings, database_url(project.settings)
    hand_off = HandOff(connect_redis(redis_url(settings)), max_depth=settings.queue_depth)
    longest_s = max((r.ack_within.total_seconds() for r in project.config.routes), default=0)
    claimer = Claimer(url, on_accepted=hand_off.offer, patience_s=max(COMMAND_TIMEOUT_S, longest_s))
    admission = Admission(max_requests=settings.max_in_flight, max_bytes=settings.max_buffered)
    deadlines, metrics = Deadlines(), Metrics()
    endpoints = {
        route.path: Endpoint(
            route,
            secrets=[secret.reveal() for secret in project.secrets[route.name]],
            match=project.registry.for_event,
            claimer=claimer,
            admission=admission,
            deadlines=deadlines,
            metrics=metrics,
        )
        for route in project.config.routes
    }

    async def check() -> None:
        if not claimer.working:
            raise StorageUnavailable("a claim flusher has ended")
        await check_ledger(url)

    return App(
        endpoints,
        readiness=Readiness(check),
        metrics=metrics,
        lifespan=_lifespan(claimer, hand_off),
    )


def _lifespan(claimer: Claimer, hand_off: HandOff) -> Lifespan[Starlette]:
    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await hand_off.start()
        await claimer.start()
        try:
            yield
        finally:
            await claimer.stop()
            await hand_off.stop()

    return lifespan


async def check_ledger(url: str) -> None:
    """Raises StorageUnavailable or SchemaMismatch where events could not be claimed."""
    connection = await connect(url, name="gateway check")
    try:
        await check_version(connection)
    finally:
        await connection.close()


async def serve(project: Project) -> None:
    """Serves until a signal. Refuses to start on a ledger that is absent or does not fit."""
    settings, app = project.settings, build_app(project)
    await check_ledger(database_url(settings))
    listener = listen(settings.host, settings.port)
    host, port = listener.getsockname()[:2]
    server = _Server(
        uvicorn.Config(
            app,
            http=BoundedHttpProtocol,
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(settings.grace.total_seconds()),
        )
    )
    log.info("serving", url=f"http://{host}:{port}", routes=[r.path for r in project.config.routes])
    await server.serve(sockets=[listener])


class _Server(uvicorn.Server):
    """uvicorn's, but a signal that was obeyed is not raised again: the exit code is 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, self.handle_exit, signum, None)
        yield


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, so that a port in use is one clear line."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise CommandFailed(
            f"cannot listen on {host}:{port}: {reason} (set GATEWAY_HOST or GATEWAY_PORT)"
        ) from error
    listener.listen(BACKLOG)
    return listener
