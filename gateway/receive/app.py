"""The HTTP surface: webhooks and jobs straight to their doors, all else by Starlette."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final
from urllib.parse import unquote_to_bytes

import structlog
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.routing import Route as HttpRoute
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

from gateway.errors import GatewayError, SchemaMismatch
from gateway.ledger.connection import TROUBLE
from gateway.metrics.serve import Metrics
from gateway.receive import answers
from gateway.receive.answers import Answer
from gateway.receive.door import Door
from gateway.receive.protocol import take_reply
from gateway.receive.queues import Queues
from gateway.receive.unknown import UnknownPaths

READY_FOR_S: Final = 1.0
"""How long an answer of the readiness check stands, so that asking often costs nothing."""

ANSWER_WITHIN_S: Final = 2.0
"""Less than a balancer waits."""

MARKS: Final = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))

STEPS: Final = frozenset({b".", b".."})

UNREACHABLE: Final = "LEDGER_UNREACHABLE"

log = structlog.get_logger("gateway.receive")


class Readiness:
    """Whether the ledger can be reached and fits this code; asks at most once a second."""

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
        """Whether some senders are served even while the ledger is away."""
        self._asking = asyncio.Lock()
        self._asked_at = -READY_FOR_S
        self._problem: str | None = None

    async def problem(self) -> str | None:
        """A word for why this process is not ready; None where it is."""
        if self._is_stopping():  # whatever the ledger says: the balancer shall look elsewhere
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
            log.warning("not_ready", reason=str(error))  # not in the answer: strangers may ask
            return "SCHEMA_MISMATCH" if isinstance(error, SchemaMismatch) else UNREACHABLE
        return None


class App:
    """The ASGI application of `serve`."""

    def __init__(
        self,
        doors: Mapping[str, Door],
        queues: Queues,
        *,
        unknown: UnknownPaths,
        readiness: Readiness,
        metrics: Metrics,
        routes: Sequence[BaseRoute],
        guard_metrics: Callable[[Request], Answer | None],
        lifespan: Lifespan[Starlette],
    ) -> None:
        # By the path as it was sent: a front that allows or denies one sees it so, too.
        self._doors = {path.encode(): door for path, door in doors.items()}
        self._queues = queues
        self._rest = _rest(unknown, readiness, metrics, routes, guard_metrics, lifespan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            reply, path = take_reply(scope), scope["raw_path"]
            door = self._doors.get(path)
            if door is not None:
                await door(scope, receive, reply)
                return
            if _is_disguised(path):
                answers.HIDDEN.send(reply)
                return
            if self._queues.has(scope["path"]):
                await self._queues(scope, receive, reply)
                return
        await self._rest(scope, receive, send)


def _is_disguised(path: bytes) -> bool:
    """Whether a front may take it for another one, which it lets through. Its first part is
    encoded, as nobody does who is not hiding it; further on there are ids, which may be. Or steps
    lead back: what a front allows as /webhooks/x was sent as /api/v1/events/../../../webhooks/x.
    The last part may be an id: a step there leads to nothing that is not above it."""
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
            # Taken out by the balancer, it would lose what only it can keep.
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
    """Answers that no cache keeps, and no browser takes for anything but what they say they are:
    events are among them, and whoever sent those chose what is in them."""

    async def marked(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *MARKS]}
            await send(message)

        await app(scope, receive, send_marked)

    return marked


def _as_response(answer: Answer) -> Response:
    lines = answer.lines.decode().splitlines()
    headers = {"connection": "close"}  # its body, if it has one, may be unread
    headers |= {name: value for name, _, value in (line.partition(": ") for line in lines)}
    return Response(answer.body, answer.status, headers, media_type="application/json")


async def _method_not_allowed(_: Request, __: Exception) -> Response:
    headers = {"allow": "GET, HEAD", "connection": "close"}
    return JSONResponse({"error": "METHOD_NOT_ALLOWED"}, 405, headers)
