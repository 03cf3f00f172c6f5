"""Puts `serve` together from the settings and runs it under uvicorn."""

import asyncio
import contextlib
import resource
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import FrameType
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
from gateway.receive.acceptor import Acceptor
from gateway.receive.admission import Admission
from gateway.receive.app import App, Readiness
from gateway.receive.deadlines import Deadlines
from gateway.receive.endpoint import Endpoint
from gateway.receive.metrics import Metrics
from gateway.receive.protocol import BoundedHttpProtocol, State
from gateway.spool.spool import SPOOL_DIRECTORY, Spool

BACKLOG: Final = 2048
KEEP_ALIVE_S: Final = 75
OTHER_FILES: Final = 128
"""Descriptors that are not a sender's connection: the ledger, Redis, the spool, modules."""

LAST_TURNS: Final = 5
"""Turns of the event loop before idle connections are closed: what has arrived on them is read."""

log = structlog.get_logger("gateway.serve")


def build_app(project: Project, state: State) -> App:
    """The ASGI application, with everything behind it, wired by hand."""
    settings, url = project.settings, database_url(project.settings)
    hand_off = HandOff(connect_redis(redis_url(settings)), max_depth=settings.queue_depth)
    longest_s = max((r.ack_within.total_seconds() for r in project.config.routes), default=0)
    claimer = Claimer(url, on_accepted=hand_off.offer, patience_s=max(COMMAND_TIMEOUT_S, longest_s))
    admission = Admission(max_requests=settings.max_in_flight, max_bytes=settings.max_buffered)
    deadlines, metrics = Deadlines(), Metrics()
    spool = _spool(project, claimer)
    if spool is not None:
        metrics.watch(spool)
    endpoints = {
        route.path: Endpoint(
            route,
            secrets=[secret.reveal() for secret in project.secrets[route.name]],
            match=project.registry.for_event,
            claimer=claimer,
            spool=spool if route.spools else None,
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
        readiness=_Readiness(check, spools=_spools(project), state=state),
        metrics=metrics,
        lifespan=_lifespan(claimer, hand_off, spool),
    )


def _spool(project: Project, claimer: Claimer) -> Spool | None:
    """Also where no route spools any more: files may be left from when one did."""
    settings = project.settings
    if not settings.spool_size:
        return None
    directory = settings.data_dir / SPOOL_DIRECTORY
    return Spool(directory, max_bytes=settings.spool_size, claim=claimer.claim)


def _spools(project: Project) -> bool:
    """Whether some route's events are kept while the ledger is away."""
    return project.settings.spool_size > 0 and any(r.spools for r in project.config.routes)


def _lifespan(claimer: Claimer, hand_off: HandOff, spool: Spool | None) -> Lifespan[Starlette]:
    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await hand_off.start()
        await claimer.start()
        if spool is not None:
            await spool.start()
        try:
            yield
        finally:
            if spool is not None:
                await spool.stop()
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
    """Serves until a signal. Refuses to start on a ledger that does not fit, or is away: unless a
    route spools, since its senders will not come back."""
    settings = project.settings
    state = State(
        max_connections=_descriptors_for(settings.max_connections),
        max_requests=settings.max_in_flight,
        max_bytes=settings.max_buffered,
    )
    app = build_app(project, state)
    try:
        await check_ledger(database_url(settings))
    except StorageUnavailable as error:
        if not _spools(project):
            raise
        log.warning("started_without_ledger", reason=str(error))
    listener = listen(settings.host, settings.port)
    host, port = listener.getsockname()[:2]
    server = Server(
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
        ),
        state=state,
        linger_s=settings.linger.total_seconds(),
    )
    log.info("serving", url=f"http://{host}:{port}", routes=[r.path for r in project.config.routes])
    await server.serve(sockets=[listener])


class _Readiness(Readiness):
    """Says no from the signal on, whatever the ledger says: a balancer shall look elsewhere."""

    def __init__(self, check: Callable[[], Awaitable[None]], *, spools: bool, state: State) -> None:
        super().__init__(check, spools=spools)
        self._state = state

    async def problem(self) -> str | None:
        return "STOPPING" if self._state.stopping else await super().problem()


class Server(uvicorn.Server):
    """uvicorn's, but it may linger, and a signal that was obeyed is not raised again: exit code 0.

    While it lingers it answers as before, except that it is not ready and that every answer is the
    last one on its connection: a balancer goes elsewhere before anything here is closed.
    """

    def __init__(self, config: uvicorn.Config, *, state: State, linger_s: float) -> None:
        super().__init__(config)
        self.server_state = self._state = state
        self._linger_s = linger_s

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, self.handle_exit, signum, None)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.started and self._linger_s and not self._state.stopping:
            log.info("lingering", seconds=self._linger_s)
            self._state.stop()
            asyncio.get_running_loop().call_later(self._linger_s, self._stop_lingering)
        else:
            super().handle_exit(sig, frame)

    def _stop_lingering(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self._acceptors = [Acceptor(listener, self._make_protocol) for listener in sockets or []]
        for acceptor in self._acceptors:
            acceptor.start()

    def _make_protocol(self) -> BoundedHttpProtocol:
        return BoundedHttpProtocol(
            config=self.config, server_state=self._state, app_state=self.lifespan.state
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.stop()
        for acceptor in self._acceptors:
            acceptor.stop()
        for _ in range(LAST_TURNS):
            await asyncio.sleep(0)
        await super().shutdown(sockets=[])


def _descriptors_for(connections: int) -> int:
    """Raises the limit of this process as far as needed. Returns how many connections that allows.

    Without any descriptor left, neither the ledger nor the spool could be opened again.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return connections
    limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    allowed = max(limit - OTHER_FILES, limit // 2)
    if allowed < connections:
        log.warning("few_descriptors", limit=limit, connections=allowed, wanted=connections)
    return min(allowed, connections)


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
