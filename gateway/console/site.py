"""The console as a whole: who is let in, what every answer says, which page answers what."""

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

from gateway.api.office import Office
from gateway.console.access import Access, Visitor
from gateway.console.entrance import SESSION, Entrance
from gateway.console.pages import ORDERS, PAGES
from gateway.console.visit import PREFIX, Visit, back_to, safe_place
from gateway.errors import (
    BadRequest,
    CommandFailed,
    ConfigInvalid,
    GatewayError,
    NotFound,
    SchemaMismatch,
    StorageUnavailable,
    TransitionRefused,
)
from gateway.ledger.connection import TROUBLE, describe
from gateway.ledger.logins import has_ended
from gateway.receive.address import Addresses
from gateway.receive.body import drain

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
"""Nothing from elsewhere, nothing inline: a payload that got into a page could still do nothing."""

# Referrers stay here, but are not left out altogether: with them a browser leaves out the origin of
# an order, too, and without TLS it has no other way to say where that comes from.
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
"""What a tunnel or a proxy adds that lets others in under the name of this machine."""

log = structlog.get_logger("gateway.console")

Page = Callable[[Visit], Awaitable[Response]]


class _ReadingRoute(Route):
    """A route that other methods than GET and HEAD pass by. A webhook that is sent to this path is
    one for an unknown path: answered 404, and kept as a rejected request."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        return (Match.NONE, {}) if match is Match.PARTIAL else (match, child)


class Site:
    """Answers everything under /console."""

    def __init__(
        self,
        access: Access,
        *,
        addresses: Addresses,
        open_office: Callable[[str], Office],
        is_secure: bool,
        shared: Mapping[str, Any],
    ) -> None:
        self._access = access
        self._entrance = Entrance(access, addresses, open_office)
        self._is_secure = is_secure
        self._open_office = open_office
        self._shared = shared
        self._static = {name: _static(name, kind) for name, kind in STATIC.items()}
        self._inside = Router(
            [
                *(Route(path, self._shows(page), methods=["GET"]) for path, page in PAGES.items()),
                *(Route(path, self._does(o), methods=["POST"]) for path, o in ORDERS.items()),
            ],
            default=request_response(self._shows(_unknown)),
            redirect_slashes=False,
        )

    @property
    def routes(self) -> list[BaseRoute]:
        """None where there is no token, and no loopback to trust."""
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
                await drain(receive)  # else the connection is cut before the answer is read
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
        except TROUBLE as error:  # which no page could do without either
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

    def _does(self, order: Page) -> Callable[[Request], Awaitable[Response]]:
        """An order is refused as a notice on the page that it was given on."""

        async def answer(request: Request) -> Response:
            visit = self._visit(request)
            if not visit.visitor.may_order:
                await drain(request.receive)
                return back_to(visit.came_from, "Not done: this session may only look.")
            try:
                return await order(visit)
            except (BadRequest, CommandFailed, TransitionRefused, ConfigInvalid) as refused:
                return back_to(visit.came_from, f"Not done: {refused}")
            except (GatewayError, *TROUBLE) as error:
                return _trouble(visit, error)

        return answer

    def _visit(self, request: Request) -> Visit:
        visitor: Visitor = request.scope["visitor"]
        office = self._open_office(visitor.actor)
        return Visit(request=request, visitor=visitor, office=office, shared=self._shared)


def _static(name: str, kind: str) -> Response:
    content = files("gateway.console").joinpath("static", name).read_bytes()
    return Response(content, headers={"content-type": kind, "cache-control": "max-age=3600"})


async def _to_front(_: Request) -> Response:
    return RedirectResponse(f"{PREFIX}/", status_code=307)


async def _unknown(visit: Visit) -> Response:
    raise NotFound("there is no such page")


def _to_login(request: Request) -> Response:
    """With where to go on from there; an order is not repeated, but one is where it was given."""
    place = request.url.path
    if request.url.query:
        place += f"?{request.url.query}"
    place = place if request.method in READING else safe_place(request.query_params.get("from"))
    return RedirectResponse(f"{PREFIX}/login?{urlencode({'next': place})}", status_code=303)


def is_own(request: Request) -> bool:
    """Whether an order comes from one of our own pages. Browsers say so, each in its way; what
    says nothing is no browser, and has the Admin API."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin", "")
    return origin.partition("://")[2] == request.headers.get("host", "") != ""


def _is_encrypted(request: Request) -> bool:
    """Whether the browser talks TLS, to whatever is before us: its orders say so themselves."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def _is_local(request: Request) -> bool:
    """By the name that was asked for: a page elsewhere can have its own name lead to us. What
    somebody passed on is not from here, whatever name it asks for."""
    if any(name in request.headers for name in FORWARDING):
        return False
    try:
        name = urlsplit(f"//{request.headers.get('host', '')}").hostname
    except ValueError:
        return False
    return name in LOOPBACK


def _trouble(visit: Visit, error: Exception) -> Response:
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
    "this order did not come from a page of the console", 403, media_type="text/plain"
)
