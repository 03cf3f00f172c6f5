"""Builds the `serve` process from the settings and runs it under uvicorn."""

import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.types import Lifespan

from gateway.api.admin_api import AdminApi
from gateway.base.errors import ConfigInvalid, StorageUnavailable
from gateway.base.hangup import Hangup
from gateway.base.names import guess_names
from gateway.config.project import Project, database_url, missing_public_url, redis_url
from gateway.config.routes import AlertDestinations, Route, check_alerts, queue_path
from gateway.console.front import console_access, console_routes
from gateway.http.admission import Admission
from gateway.http.body import Deadlines
from gateway.http.client_address import Addresses
from gateway.http.limits import Limiters
from gateway.http.listening import Server, descriptors_for, listen
from gateway.http.protocol import BoundedHttpProtocol, State
from gateway.ledger.budget import SERVE_CONNECTIONS, warn_of_shortage
from gateway.ledger.claims import Claimer
from gateway.ledger.connection import (
    COMMAND_TIMEOUT_S,
    LOST,
    PREPARED_ONCE,
    Connection,
    Opener,
    close_quietly,
    describe,
)
from gateway.ledger.encryption import ClaimCodec, ResolvingCodec, vault_of
from gateway.ledger.migrate import check_version
from gateway.ledger.names import settle_names
from gateway.ledger.partitions import DaysAhead
from gateway.ledger.rejected import Bounds
from gateway.ledger.reloads import SecretUses
from gateway.ledger.statistics import MinuteStats, keeping
from gateway.operations.alerts.sender import telling
from gateway.privacy.redaction import RedactAt
from gateway.queue.connection import connect_redis
from gateway.queue.wake_ups import WakeUpSender
from gateway.receive.access import AccessPolicy
from gateway.receive.app import App, Readiness
from gateway.receive.endpoint import OnRejected, RequestKind, RouteEndpoint
from gateway.receive.guard import TokenGuard, metrics_guard
from gateway.receive.jobs import JobRequests, Queues
from gateway.receive.keyring import Keyring, tell_expired
from gateway.receive.metrics import Metrics, pulsing
from gateway.receive.reading import Reading
from gateway.receive.rejected.causes import CauseFinder
from gateway.receive.rejected.recorder import Recorder, Scrubber
from gateway.receive.rejected.sources import SpooledDuplicates, UnknownPaths
from gateway.receive.rejected.writer import RejectedRequests
from gateway.receive.reloading import SecretReloader
from gateway.receive.spool.spool import SPOOL_DIRECTORY, Spool
from gateway.receive.telemetry import RouteTelemetry, traced
from gateway.receive.webhooks import WebhookRequests
from gateway.telemetry.logs import show_names
from gateway.telemetry.traces import open_traces
from gateway.worker.sweeper import MISSED_ROUNDS

if TYPE_CHECKING:  # opentelemetry, which is an extra
    from gateway.telemetry.spans import Traces

KEEP_ALIVE_S: Final = 75
CHECK: Final = "gateway check"
BESIDE_HANDLERS: Final = {**PREPARED_ONCE, "lock_timeout": "1s"}
"""A handler that publishes holds the job's key until its transaction ends. A request that publishes
the same key over HTTP waits for it, with the other jobs of its batch. The wait is short, and
webhooks are never in the same batch."""

log = structlog.get_logger("gateway.serve")


def build_app(project: Project, codec: ClaimCodec, state: State, hangup: Hangup) -> App:
    """Build the ASGI application with all its dependencies."""
    settings, url = project.settings, database_url(project.settings)
    hand_off = WakeUpSender(connect_redis(redis_url(settings)), max_depth=settings.queue_depth)
    longest_s = max((r.ack_within.total_seconds() for r in project.config.routes), default=0)
    patience_s = max(COMMAND_TIMEOUT_S, longest_s)
    metrics, stats, uses = Metrics(), MinuteStats(), SecretUses()
    metrics.names = project.names
    claimer = Claimer(
        url, on_accepted=hand_off.offer, patience_s=patience_s, watcher=metrics, codec=codec
    )
    jobs_claimer = Claimer(
        url,
        on_accepted=hand_off.offer,
        patience_s=patience_s,
        settings=BESIDE_HANDLERS,
        watcher=metrics,
        codec=codec,
    )
    metrics.watch_secrets(uses)
    metrics.watch_claims(claimer, jobs_claimer)
    metrics.watch_handoffs(hand_off.counts)
    metrics.watch_redis(lambda: hand_off.is_reachable, hand_off.ask)
    metrics.watch_ledger(url, lately=settings.sweep * MISSED_ROUNDS)
    spool = _spool(project, claimer)
    if spool is not None:
        metrics.watch(spool)
    addresses = Addresses(settings.trusted_proxies)
    limiters = Limiters(addresses, settings.refused_rate)
    metrics.count_refused(limiters)
    traces = open_traces(on=settings.traces == "on", process="serve")
    metrics.watch_requests(
        requests=lambda: state.admission.requests,
        size=lambda: state.admission.bytes,
        connections=state.connections,
    )
    rejected = _rejected_requests(project, metrics)
    if spool is not None:
        spool.on_duplicate = SpooledDuplicates(
            routes=project.config.doors, codec=codec, rejected=rejected
        ).keep
    keyrings = _keyrings(project, uses)
    deadlines = Deadlines()
    policies = {
        route.name: AccessPolicy(route, addresses, limiters, keyrings[route.name])
        for route in (*project.config.doors, *project.config.open_queues)
    }
    queues = {
        name: policies[route.name]
        for route in project.config.open_queues
        for name in (*route.formerly, route.label)
    }
    job_status = Queues(url, queues, admission=state.admission, deadlines=deadlines)
    guard = TokenGuard(limiters, metrics.admin_refused)
    access = console_access(settings)
    front = AdminApi(project, wake=hand_off.send, guard=guard, has_console=not access.is_off)

    def take(reloaded: Project) -> None:
        front.take(reloaded)
        rejected.recorder = make_recorder(reloaded)

    reloader = SecretReloader(project, keyrings, metrics=metrics, on_done=take)

    checking = Opener(url, name=CHECK)

    async def check() -> None:
        if not (claimer.working and jobs_claimer.working):
            raise StorageUnavailable("a claim flusher has ended")
        if spool is not None and not spool.working:
            raise StorageUnavailable("a part of the spool has ended")
        await check_ledger(checking)

    def can_spool() -> bool:
        return _spools(project) and spool is not None and spool.working and claimer.working

    return App(
        _endpoints(
            project,
            keyrings,
            policies,
            claimers=(claimer, jobs_claimer),
            spool=spool,
            rejected=rejected,
            admission=state.admission,
            deadlines=deadlines,
            telemetry=lambda route: RouteTelemetry(route, metrics, stats),
            traces=traces,
        ),
        job_status,
        unknown=UnknownPaths(
            rejected,
            state.admission,
            addresses,
            keeps_bodies=not any(_is_cut(route) for route in project.config.routes),
        ),
        readiness=Readiness(check, can_spool=can_spool, is_stopping=lambda: state.stopping),
        metrics=metrics,
        routes=[*front.routes, *console_routes(settings, access, front, addresses)],
        guard_metrics=metrics_guard(settings, guard),
        lifespan=_lifespan(
            (claimer, jobs_claimer),
            hand_off,
            spool,
            job_status,
            front,
            rejected,
            keeping(stats, uses, DaysAhead(), url=url, every=settings.sweep),
            telling(
                url,
                alerts=project.config.alerts,
                destinations=_whom_to_tell(project),
                every=settings.sweep,
            ),
            reloader.obeying(hangup),
            pulsing(metrics),
            *([] if traces is None else [traces.closing()]),
        ),
    )


def _keyrings(project: Project, uses: SecretUses) -> dict[str, Keyring]:
    tell_expired(project.config.routes, datetime.now(UTC))
    return {
        route.name: Keyring(route, project.secrets[route.name], uses)
        for route in (*project.config.doors, *project.config.open_queues)
    }


def _endpoints(
    project: Project,
    keyrings: Mapping[str, Keyring],
    policies: Mapping[str, AccessPolicy],
    *,
    claimers: tuple[Claimer, Claimer],
    spool: Spool | None,
    rejected: RejectedRequests,
    admission: Admission,
    deadlines: Deadlines,
    telemetry: Callable[[Route], RouteTelemetry],
    traces: "Traces | None",
) -> dict[str, RouteEndpoint]:
    """Return the endpoints by their paths. The claimers are that of webhooks and that of jobs."""

    def endpoint(route: Route, kind: RequestKind, on_rejected: OnRejected) -> RouteEndpoint:
        claim = kind.make_durable
        return RouteEndpoint(
            route,
            kind,
            claim if traces is None else traced(claim, traces, route.label),
            access=policies[route.name],
            admission=admission,
            deadlines=deadlines,
            on_rejected=on_rejected,
        )

    def webhooks(route: Route) -> RouteEndpoint:
        kind = WebhookRequests(
            route,
            Reading(route, project.registry, keyrings[route.name]),
            claimer=claimers[0],
            spool=spool if route.spools else None,
            rejected=rejected,
            access=policies[route.name],
            deadlines=deadlines,
            telemetry=telemetry(route),
            public_url=public_url(project),
            verify_token=project.verify_tokens.get(route.name),
            accepts_unverified=_accepts_unverified(project, route),
        )
        return endpoint(route, kind, kind.keep)

    def jobs(route: Route) -> RouteEndpoint:
        kind = JobRequests(route, project.registry, claimer=claimers[1], telemetry=telemetry(route))
        return endpoint(route, kind, lambda *_: None)  # its answer gives the reason

    endpoints = {route.path: webhooks(route) for route in project.config.doors}
    for route in project.config.open_queues:
        shared = jobs(route)
        # The path of a queue contains its name, and publishers may still use a former one.
        endpoints |= {queue_path(name): shared for name in (*route.formerly, route.label)}
    return endpoints


def _rejected_requests(project: Project, metrics: Metrics) -> RejectedRequests:
    settings = project.settings
    return RejectedRequests(
        database_url(settings),
        recorder=make_recorder(project),
        bounds=Bounds(settings.rejected_rows, settings.rejected_size),
        largest_body=settings.rejected_body,
        counted=metrics.rejected,
    )


def make_recorder(project: Project) -> Recorder:
    """Return the recorder that finds the causes of rejections, with the current secrets."""
    secrets = [secret.reveal() for own in project.secrets.values() for secret in own]
    settings = project.settings
    tokens = (settings.admin_token, settings.metrics_token, settings.read_token)
    secrets += [token.get_secret_value().encode() for token in tokens if token is not None]
    examiner = CauseFinder(project.config.routes, project.secrets, public_url(project))
    read = frozenset().union(*(route.provider.headers for route in project.config.routes))
    scrubber = Scrubber(secrets, examiner.token_headers, read)
    return Recorder(examiner, scrubber, vault_of(project.config, project.ring))


def _accepts_unverified(project: Project, route: Route) -> bool:
    """Whether unverified requests are accepted.

    Only in development, whatever the route says: in production nothing unverified is accepted.
    """
    if route.enforce:
        return False
    if project.settings.dev_secrets is None:
        log.error(
            "enforce_false_ignored",
            route=route.name,
            reason="this is not `gateway up`: requests without a valid signature are refused",
        )
        return False
    log.warning("accepts_unverified", route=route.name, reason="enforce: false, in development")
    return True


def public_url(project: Project) -> str:
    """Return the URL that senders call, which some of them sign.

    It is guessed only in development.
    """
    settings = project.settings
    if settings.public_url is not None:
        return settings.public_url
    signed = [route.name for route in project.config.doors if route.provider.signs_url]
    if signed and settings.dev_secrets is None:
        raise ConfigInvalid([missing_public_url(signed)])
    return f"http://{settings.host}:{settings.port}"


def _whom_to_tell(project: Project) -> AlertDestinations:
    """Return the destinations of alerts, or none if their references cannot be resolved.

    `serve` sends alerts, too, because an alert may be that all workers are gone. But receiving
    comes first, so a `serve` without the references starts anyway and leaves alerts to the workers.
    """
    try:
        return check_alerts(project.config, os.environ)
    except ConfigInvalid as error:
        log.warning("alerts_only_by_workers", reason=str(error))
        return AlertDestinations()


def _is_cut(route: Route) -> bool:
    return route.redaction is not None and route.redaction.at is RedactAt.STORE


def _reserved_paths(project: Project) -> frozenset[bytes]:
    """Return the paths of routes whose senders never retry."""
    doors = project.config.doors
    return frozenset(route.path.encode() for route in doors if not route.provider.retries)


def _spool(project: Project, claimer: Claimer) -> Spool | None:
    """Return the spool, even if no route spools any more: it may hold older files."""
    settings = project.settings
    if not settings.spool_size:
        return None
    directory = settings.data_dir / SPOOL_DIRECTORY
    encryption = vault_of(project.config, project.ring)
    return Spool(
        directory, max_bytes=settings.spool_size, claim=claimer.claim, encryption=encryption
    )


def _spools(project: Project) -> bool:
    """Whether some route's events are spooled while the ledger is away."""
    return project.settings.spool_size > 0 and any(r.spools for r in project.config.routes)


def _lifespan(
    claimers: Sequence[Claimer],
    hand_off: WakeUpSender,
    spool: Spool | None,
    queues: Queues,
    front: AdminApi,
    rejected: RejectedRequests,
    *beside: AbstractAsyncContextManager[None],
) -> Lifespan[Starlette]:
    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await hand_off.start()
        for claimer in claimers:
            await claimer.start()
        if spool is not None:
            await spool.start()
        await queues.open()
        await front.open()
        try:
            async with contextlib.AsyncExitStack() as stack:
                for work in beside:
                    await stack.enter_async_context(work)
                yield
        finally:
            await front.close()
            queues.close()
            await rejected.stop()
            if spool is not None:
                await spool.stop()
            for claimer in claimers:
                await claimer.stop()
            await hand_off.stop()

    return lifespan


async def check_ledger(opener: Opener) -> None:
    """Raise StorageUnavailable or SchemaMismatch if events cannot be claimed."""
    async with _checked(opener):
        return


async def _settle(opener: Opener, project: Project) -> Project:
    """Return the project with its names resolved.

    Raises the errors of `check_ledger`, and ConfigInvalid. Logs a warning if Postgres has fewer
    connections than are needed.
    """
    async with _checked(opener) as connection:
        await warn_of_shortage(connection, SERVE_CONNECTIONS)
        return project.identified(await settle_names(connection, project.declared_names()))


@contextlib.asynccontextmanager
async def _checked(opener: Opener) -> AsyncIterator[Connection]:
    connection = await opener.reach()
    try:
        await check_version(connection)
        yield connection
    except LOST as error:
        raise StorageUnavailable(f"Postgres does not answer: {describe(error)}") from error
    finally:
        await close_quietly(connection)


async def serve(
    project: Project,
    *,
    listener: socket.socket | None = None,
    on_started: Callable[[], None] = lambda: None,
    hangup: Hangup | None = None,
) -> None:
    """Serve until a signal.

    It refuses to start if the ledger has the wrong schema. It also refuses if the ledger is away,
    unless a route spools, because the senders of such a route do not retry.
    """
    settings = project.settings
    # before connecting to the ledger: raises ConfigInvalid
    public_url(project), redis_url(settings)
    state = State(
        max_connections=descriptors_for(settings.max_connections),
        max_requests=settings.max_in_flight,
        max_bytes=settings.max_buffered,
        reserved_paths=_reserved_paths(project),
    )
    try:
        project = await _settle(Opener(database_url(settings), name=CHECK), project)
        codec = ClaimCodec(vault_of(project.config, project.ring), project.names)
    except StorageUnavailable as error:
        if not _spools(project):
            raise
        log.warning("started_without_ledger", reason=str(error))
        project = project.identified(guess_names(project.declared_names()))
        codec = ResolvingCodec(project)
    show_names(project.names)
    app = build_app(project, codec, state, hangup or Hangup())
    listener = listener or listen(settings.host, settings.port)
    host, port = listener.getsockname()[:2]
    server = Server(
        uvicorn.Config(
            app,
            http=BoundedHttpProtocol,
            ws="none",
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
        on_started=on_started,
    )
    paths = [r.path for r in (*project.config.doors, *project.config.open_queues)]
    log.info("serving", url=f"http://{host}:{port}", routes=paths)
    await server.serve(sockets=[listener])
