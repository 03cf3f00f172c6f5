"""The ASGI application: webhooks and jobs go directly to their endpoints, the rest to Starlette."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final
from urllib.parse import quote, unquote_to_bytes

import structlog
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.routing import Route as HttpRoute
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

from gateway.base.errors import GatewayError, SchemaMismatch
from gateway.ledger.connection import TROUBLE
from gateway.receive import answers
from gateway.receive.answers import Answer
from gateway.receive.endpoint import RouteEndpoint
from gateway.receive.jobs import Queues
from gateway.receive.metrics import Metrics
from gateway.receive.reading import local_path
from gateway.receive.rejected.sources import UnknownPaths

READY_FOR_S: Final = 1.0
"""How long the result of a readiness check is cached, so that frequent checks are cheap."""

ANSWER_WITHIN_S: Final = 2.0
"""Shorter than the timeout of a load balancer."""

MARKS: Final = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))

STEPS: Final = frozenset({b".", b".."})

UNREACHABLE: Final = "LEDGER_UNREACHABLE"

log = structlog.get_logger("gateway.receive")


class Readiness:
    """Check that the ledger is reachable and its schema fits this code, at most once a second."""

    def __init__(
        self,
        check: Callable[[], Awaitable[None]],
        *,
        can_spool: Callable[[], bool],
        is_stopping: Callable[[], bool],
    ) -> None:
        self._check = check
        self._is_stopping = is_stopping
        self.can_spool = can_spool
        """Whether some senders can be served while the ledger is unavailable."""
        self._asking = asyncio.Lock()
        self._asked_at = -READY_FOR_S
        self._problem: str | None = None

    async def problem(self) -> str | None:
        """Return the code for why this process is not ready, or None if it is ready."""
        if self._is_stopping():  # whatever the ledger says: the load balancer must go elsewhere
            return "STOPPING"
        async with self._asking:
            if time.monotonic() - self._asked_at >= READY_FOR_S:
                self._problem = await self._ask()
                self._asked_at = time.monotonic()
            return self._problem

    async def _ask(self) -> str | None:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                await self._check()
        except (GatewayError, *TROUBLE) as error:
            log.warning("not_ready", reason=str(error))  # not in the public response
            return "SCHEMA_MISMATCH" if isinstance(error, SchemaMismatch) else UNREACHABLE
        return None


class App:
    """The ASGI application of `serve`."""

    def __init__(
        self,
        endpoints: Mapping[str, RouteEndpoint],
        queues: Queues,
        *,
        unknown: UnknownPaths,
        readiness: Readiness,
        metrics: Metrics,
        routes: Sequence[BaseRoute],
        guard_metrics: Callable[[Request], Answer | None],
        lifespan: Lifespan[Starlette],
    ) -> None:
        # Keyed by the raw path, which is what a proxy in front allows or denies too.
        self._endpoints = {path.encode(): endpoint for path, endpoint in endpoints.items()}
        self._queues = queues
        self.lifespan = lifespan
        """Must be that of the application in which this one is mounted, too."""
        self._rest = _rest(unknown, readiness, metrics, routes, guard_metrics, lifespan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = _path_here(scope)
            endpoint = self._endpoints.get(path)
            if endpoint is not None:
                await endpoint(scope, receive, send)
                return
            if _is_disguised(path):
                await answers.HIDDEN.send(scope, send)
                return
            if self._queues.has(local_path(scope)):
                await self._queues(scope, receive, send)
                return
        await self._rest(scope, receive, send)


def _path_here(scope: Scope) -> bytes:
    """Return the raw path below the one where this application is mounted."""
    path: bytes | None = scope.get("raw_path")
    if path is None:  # optional in ASGI
        path = scope["raw_path"] = quote(scope["path"]).encode()
    mounted_at: str | None = scope.get("root_path")
    return path.removeprefix(mounted_at.encode()) if mounted_at else path


def _is_disguised(path: bytes) -> bool:
    """Return whether a proxy in front could take this path for another one that it allows.

    This is the case if the first segment is percent-encoded, which only a client that hides the
    path does; later segments may hold ids, which may need encoding. It is also the case if dot
    segments lead back: a proxy that allows /webhooks/x may pass on
    /api/v1/events/../../../webhooks/x unchanged. The last segment may be an id, and a dot segment
    there leads only to a parent of the path.
    """
    if b"%" in path[1:].partition(b"/")[0]:
        return True
    return not STEPS.isdisjoint(unquote_to_bytes(path).split(b"/")[:-1])


def _rest(
    unknown: UnknownPaths,
    readiness: Readiness,
    metrics: Metrics,
    routes: Sequence[BaseRoute],
    guard_metrics: Callable[[Request], Answer | None],
    lifespan: Lifespan[Starlette],
) -> ASGIApp:
    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def readyz(_: Request) -> Response:
        problem = await readiness.problem()
        if problem is None:
            return JSONResponse({"status": "ready"})
        if problem == UNREACHABLE and readiness.can_spool():
            # If the load balancer took this process out, events that only its spool can keep would
            # be lost.
            return JSONResponse({"status": "spooling", "reason": problem})
        return JSONResponse({"status": "not ready", "reason": problem}, status_code=503)

    async def show_metrics(request: Request) -> Response:
        refusal = guard_metrics(request)
        if refusal is not None:
            return _as_response(refusal)
        return Response(await metrics.show(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def not_found(request: Request, _: Exception) -> Response:
        await unknown.note(request)
        return _as_response(answers.NOT_FOUND)

    app = Starlette(
        routes=[
            HttpRoute("/healthz", healthz),
            HttpRoute("/readyz", readyz),
            HttpRoute("/metrics", show_metrics),
            *routes,
        ],
        exception_handlers={404: not_found, 405: _method_not_allowed},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return _marked(app)


def _marked(app: ASGIApp) -> ASGIApp:
    """Add headers that forbid caching and MIME sniffing.

    Responses include events, whose content was chosen by the sender.
    """

    async def marked(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *MARKS]}
            await send(message)

        await app(scope, receive, send_marked)

    return marked


def _as_response(answer: Answer) -> Response:
    headers = {"connection": "close"}  # the request body, if there is one, may be unread
    headers |= {name.decode(): value.decode() for name, value in answer.headers}
    return Response(answer.body, answer.status, headers)


async def _method_not_allowed(_: Request, __: Exception) -> Response:
    headers = {"allow": "GET, HEAD", "connection": "close"}
    return JSONResponse({"error": "METHOD_NOT_ALLOWED"}, 405, headers)
