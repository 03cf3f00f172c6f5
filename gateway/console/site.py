"""The console application: authentication, security headers and routing."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import structlog
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Mount, Route, Router, request_response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.base.errors import (
    BadRequest,
    CommandFailed,
    ConfigInvalid,
    GatewayError,
    NotFound,
    SchemaMismatch,
    StorageUnavailable,
    TransitionRefused,
)
from gateway.console.login import SESSION, Login
from gateway.console.pages import ACTIONS, PAGES
from gateway.console.request import PREFIX, ConsoleRequest, back_to, safe_place
from gateway.console.sessions import Access, ConsoleUser
from gateway.http.body import drain
from gateway.http.client_address import Addresses
from gateway.ledger.connection import TROUBLE, describe
from gateway.ledger.reloads import has_ended
from gateway.operations.context import OperationContext

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "script-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""Only our own, external resources: a payload that was injected into a page could not run."""

# Referrers are sent to this site only, but not disabled: without them a browser also omits the
# Origin of a form, and without TLS nothing else says where the form came from.
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
STATIC: Final = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
READING: Final = frozenset({"GET", "HEAD"})
UNAVAILABLE: Final = 503
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
FORWARDING: Final = (
    *("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
    *("x-real-ip", "cf-connecting-ip", "tailscale-user-login"),
)
"""Headers of tunnels and proxies, which may let remote clients in under
the name of this machine.
"""

log = structlog.get_logger("gateway.console")

Page = Callable[[ConsoleRequest], Awaitable[Response]]


class _ReadingRoute(Route):
    """A route that does not match methods other than GET and HEAD.

    A webhook sent to this path is treated like one to an unknown path: the response is 404, and it
    is kept as a rejected request.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        return (Match.NONE, {}) if match is Match.PARTIAL else (match, child)


class Site:
    """ASGI application for all paths under /console."""

    def __init__(
        self,
        access: Access,
        *,
        addresses: Addresses,
        open_office: Callable[[str], OperationContext],
        is_secure: bool,
        shared: Mapping[str, Any],
    ) -> None:
        self._access = access
        self._entrance = Login(access, addresses, open_office)
        self._is_secure = is_secure
        self._open_office = open_office
        self._shared = shared
        self._static = {name: _static(name, kind) for name, kind in STATIC.items()}
        self._inside = Router(
            [
                *(Route(path, self._shows(page), methods=["GET"]) for path, page in PAGES.items()),
                *(
                    Route(path, self._does(page), methods=["POST"])
                    for path, page in ACTIONS.items()
                ),
            ],
            default=request_response(self._shows(_unknown)),
            redirect_slashes=False,
        )

    @property
    def routes(self) -> list[BaseRoute]:
        """The routes, or none if there is neither a token nor a trusted loopback address."""
        if self._access.is_off:
            return []
        return [_ReadingRoute("/", _to_front), Route(PREFIX, _to_front), Mount(PREFIX, self)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        marks = b"; Secure" if self._is_secure or _is_encrypted(request) else b""

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    (name, value + marks if name == b"set-cookie" else value)
                    for name, value in message["headers"]
                ]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        with suppress(ClientDisconnect):
            app = await self._choose(request)
            if app not in (self._inside, self._entrance):
                await drain(receive)  # else the connection is reset before the client reads
            await app(scope, receive, send_guarded)

    async def _choose(self, request: Request) -> ASGIApp:
        path = request.url.path.removeprefix(PREFIX)
        if path.startswith("/static/"):
            return self._static.get(path.removeprefix("/static/"), NOT_FOUND)
        if self._access.is_open and not _is_local(request):
            return NOT_LOCAL
        if request.method not in READING and not is_own(request):
            return FROM_ELSEWHERE
        if path in ("/login", "/logout"):
            return self._entrance
        visitor = self._access.recognise(request.cookies.get(SESSION))
        if visitor is None:
            return _to_login(request)
        request.scope["visitor"] = visitor
        try:
            is_over = visitor.session and await has_ended(
                self._open_office(visitor.actor).ledger, visitor.session
            )
        except TROUBLE as error:  # no page works without the ledger
            return _trouble(self._visit(request), error)
        return _to_login(request) if is_over else self._inside

    def _shows(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            visit = self._visit(request)
            try:
                return await page(visit)
            except (GatewayError, *TROUBLE) as error:
                return _trouble(visit, error)

        return answer

    def _does(self, action: Page) -> Callable[[Request], Awaitable[Response]]:
        """Wrap an action. If it fails, show the reason as a notice on the page of its form."""

        async def answer(request: Request) -> Response:
            visit = self._visit(request)
            if not visit.visitor.may_act:
                await drain(request.receive)
                return back_to(visit.came_from, "Not done: this session may only look.")
            try:
                return await action(visit)
            except (BadRequest, CommandFailed, TransitionRefused, ConfigInvalid) as refused:
                return back_to(visit.came_from, f"Not done: {refused}")
            except (GatewayError, *TROUBLE) as error:
                return _trouble(visit, error)

        return answer

    def _visit(self, request: Request) -> ConsoleRequest:
        visitor: ConsoleUser = request.scope["visitor"]
        office = self._open_office(visitor.actor)
        return ConsoleRequest(request=request, visitor=visitor, office=office, shared=self._shared)


def _static(name: str, kind: str) -> Response:
    content = files("gateway.console").joinpath("static", name).read_bytes()
    return Response(content, headers={"content-type": kind, "cache-control": "max-age=3600"})


async def _to_front(_: Request) -> Response:
    return RedirectResponse(f"{PREFIX}/", status_code=307)


async def _unknown(visit: ConsoleRequest) -> Response:
    raise NotFound("there is no such page")


def _to_login(request: Request) -> Response:
    """Redirect to the login, and from there back to the page.

    A form is not sent again after the login, so the user returns to the page of the form.
    """
    place = request.url.path
    if request.url.query:
        place += f"?{request.url.query}"
    place = place if request.method in READING else safe_place(request.query_params.get("from"))
    return RedirectResponse(f"{PREFIX}/login?{urlencode({'next': place})}", status_code=303)


def is_own(request: Request) -> bool:
    """Return whether a form was sent from one of our own pages.

    Browsers say so in `Sec-Fetch-Site` or `Origin`. A client that sends neither is not a browser,
    and should use the Admin API.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin", "")
    return origin.partition("://")[2] == request.headers.get("host", "") != ""


def _is_encrypted(request: Request) -> bool:
    """Whether the browser uses TLS, possibly to a proxy in front of us. Its `Origin` shows this."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def _is_local(request: Request) -> bool:
    """Return whether the request is for this machine, by its Host header.

    DNS rebinding can make another site's name resolve to us, so only loopback names are accepted. A
    forwarded request is not local, whatever its Host is.
    """
    if any(name in request.headers for name in FORWARDING):
        return False
    try:
        name = urlsplit(f"//{request.headers.get('host', '')}").hostname
    except ValueError:
        return False
    return name in LOOPBACK


def _trouble(visit: ConsoleRequest, error: Exception) -> Response:
    match error:
        case NotFound():
            status, said = 404, str(error)
        case BadRequest():
            status, said = 400, str(error)
        case CommandFailed() | TransitionRefused() | ConfigInvalid():
            status, said = 409, str(error)
        case StorageUnavailable() | SchemaMismatch():
            status, said = 503, str(error)
        case _:
            status, said = 503, "Postgres does not answer"
    if status == UNAVAILABLE:
        log.warning("ledger_unreachable", path=visit.request.url.path, error=describe(error))
    return visit.page("trouble.html", code=status, title="Trouble", said=said)


NOT_FOUND: Final = Response("there is no such file", 404, media_type="text/plain")
NOT_LOCAL: Final = Response(
    "without GATEWAY_ADMIN_TOKEN the console is only for this machine: open it as localhost",
    403,
    media_type="text/plain",
)
FROM_ELSEWHERE: Final = Response(
    "this form did not come from a page of the console", 403, media_type="text/plain"
)
