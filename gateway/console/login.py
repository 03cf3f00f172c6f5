"""Log in and out of the console."""

import math
from collections.abc import Callable, Hashable
from typing import Final

import structlog
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.base.errors import BadRequest
from gateway.console.rendering import TEMPLATES
from gateway.console.request import LARGEST_FORM, PREFIX, read_form, safe_place
from gateway.console.sessions import SESSION_S, Access, LoginBackoff
from gateway.http.client_address import Addresses
from gateway.http.limits import Throttle
from gateway.ledger.connection import TROUBLE, describe
from gateway.ledger.reloads import end_session
from gateway.operations.context import OperationContext

SESSION: Final = "gateway_session"
BROWSER: Final = "gateway_browser"
BROWSER_S: Final = 90 * 86_400
COMPLAINTS_PER_SECOND: Final = 5
WRONG: Final = "This is not the token."
NOT_ENDED: Final = (
    "Postgres does not answer: this browser has forgotten the session, but a copy of its cookie"
    " would still be good until it runs out."
)

log = structlog.get_logger("gateway.console")


class Login:
    """The endpoints /console/login and /console/logout."""

    def __init__(
        self, access: Access, addresses: Addresses, open_office: Callable[[str], OperationContext]
    ) -> None:
        self._access = access
        self._open_office = open_office
        self._addresses = addresses
        self._patience = LoginBackoff()
        self._complaints = Throttle(COMPLAINTS_PER_SECOND)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.method != "POST":
            return _login_page(safe_place(request.query_params.get("next")))
        if request.url.path.endswith("/logout"):
            return await self._log_out(request)
        return await self._log_in(request)

    async def _log_out(self, request: Request) -> Response:
        """End the session in the ledger, so that copies of its cookie are invalid too."""
        visitor = self._access.recognise(request.cookies.get(SESSION))
        response: Response = RedirectResponse(f"{PREFIX}/login", status_code=303)
        try:
            if visitor is not None and visitor.until is not None:
                ledger = self._open_office(visitor.actor).ledger
                await end_session(ledger, visitor.session, visitor.until)
        except TROUBLE as error:
            log.warning("session_not_ended", error=describe(error))
            response = _login_page(f"{PREFIX}/", said=NOT_ENDED, status=503)
        response.delete_cookie(SESSION, path=PREFIX, httponly=True, samesite="lax")
        return response

    async def _log_in(self, request: Request) -> Response:
        try:
            form = dict(await read_form(request, largest=LARGEST_FORM))
        except BadRequest:
            form = {}  # another kind of form is not a login
        place = safe_place(form.get("next"))
        address = self._address(request)
        wait_s = self._patience.wait_s(address)
        if wait_s > 0:  # a correct token is not checked either: guessing must cost time
            said = f"Too many wrong tokens: wait {math.ceil(wait_s)} s."
            return _login_page(place, said=said, status=429, retry_after_s=math.ceil(wait_s))
        token = form.get("token", "")
        session = self._access.enter(token, form.get("name", ""))
        if session is None:
            if token:  # a form without a token is not a guess
                self._patience.failed(address)
                self._complain(request)
            return _login_page(place, said=WRONG, status=403)
        response = RedirectResponse(place, status_code=303)
        _keep(response, SESSION, session, SESSION_S)
        visitor = self._access.recognise(session)
        assert visitor is not None  # noqa: S101 (the session was just created)
        log.info("logged_in", name=visitor.name, role=visitor.role, address=self._shown(request))
        if visitor.role is self._access.highest:
            self._trust(request, response)
        return response

    def _complain(self, request: Request) -> None:
        """Log a failed login, with a rate limit, so that guessing is visible in the log."""
        if self._complaints.allow():
            log.warning(
                "login_refused",
                address=self._shown(request),
                left_out_before=self._complaints.take_left_out(),
            )

    def _shown(self, request: Request) -> str | None:
        seen = self._addresses.of(request.scope)
        return None if seen is None else str(seen.address)

    def _trust(self, request: Request, response: Response) -> None:
        """Reset the failures and set the browser cookie.

        Not for a reader, because a reader could reset the count with each login and go on
        guessing the admin token.
        """
        self._patience.succeeded(self._address(request))
        if self._known(request) is None:
            _keep(response, BROWSER, self._access.remember(), BROWSER_S)

    def _address(self, request: Request) -> Hashable | None:
        """Return the key under which wrong tokens are counted.

        It is the browser's id if the browser has logged in before, or else the address. None if the
        address is a proxy's, which many clients share.
        """
        browser = self._known(request)
        if browser is not None:
            return browser
        client = self._addresses.of(request.scope)
        if client is None or self._addresses.is_masked(request.scope):
            return None
        return client.group

    def _known(self, request: Request) -> str | None:
        return self._access.known_browser(request.cookies.get(BROWSER))


def _keep(response: Response, name: str, value: str, max_age_s: int) -> None:
    response.set_cookie(name, value, max_age=max_age_s, path=PREFIX, httponly=True, samesite="lax")


def _login_page(
    place: str, *, said: str = "", status: int = 200, retry_after_s: int = 0
) -> Response:
    text = TEMPLATES.get_template("login.html").render(place=place, said=said)
    headers = {"retry-after": str(retry_after_s)} if retry_after_s else None
    return HTMLResponse(text, status, headers)
