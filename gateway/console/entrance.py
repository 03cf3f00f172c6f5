"""Logging in and out."""

from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.console.access import SESSION_S, Access, Patience
from gateway.console.rendering import TEMPLATES
from gateway.console.visit import PREFIX, safe_place

SESSION: Final = "gateway_session"
LARGEST_FORM: Final = 4096
WRONG: Final = "This is not the token."


class Entrance:
    """/console/login and /console/logout."""

    def __init__(self, access: Access, *, is_secure: bool) -> None:
        self._access = access
        self._patience = Patience()
        self._is_secure = is_secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.method != "POST":
            return _login_page(safe_place(request.query_params.get("next")))
        if request.url.path.endswith("/logout"):
            response = RedirectResponse(f"{PREFIX}/login", status_code=303)
            response.delete_cookie(SESSION, path=PREFIX, httponly=True, samesite="lax")
            return response
        return await self._log_in(request)

    async def _log_in(self, request: Request) -> Response:
        form = await _form(request)
        place = safe_place(form.get("next"))
        address = request.client.host if request.client is not None else ""
        wait_s = self._patience.wait_s(address)
        if wait_s > 0:  # not even a right one is looked at: trying costs time
            said = f"Too many wrong tokens: wait {wait_s:.0f} s."
            return _login_page(place, said=said, status=429, retry_after_s=wait_s)
        session = self._access.enter(form.get("token", ""), form.get("name", ""))
        if session is None:
            self._patience.failed(address)
            return _login_page(place, said=WRONG, status=403)
        self._patience.succeeded(address)
        response = RedirectResponse(place, status_code=303)
        response.set_cookie(
            SESSION,
            session,
            max_age=SESSION_S,
            path=PREFIX,
            httponly=True,
            secure=self._is_secure,
            samesite="lax",
        )
        return response


def _login_page(
    place: str, *, said: str = "", status: int = 200, retry_after_s: float = 0
) -> Response:
    text = TEMPLATES.get_template("login.html").render(place=place, said=said)
    headers = {"retry-after": f"{retry_after_s:.0f}"} if retry_after_s else None
    return HTMLResponse(text, status, headers)


async def _form(request: Request) -> dict[str, str]:
    """What was sent, or as much as a login is: a form of another size is none."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST_FORM:
            return {}
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=10))
    except ValueError:
        return {}
