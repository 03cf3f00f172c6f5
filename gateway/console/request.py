"""A request of a console user, and helpers to render pages and read forms."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from gateway.api.operation import Operation, Params
from gateway.base.errors import BadRequest
from gateway.base.names import NO_NAMES
from gateway.base.problems import refusals
from gateway.config.project import Project
from gateway.console.rendering import TEMPLATES
from gateway.console.sessions import ConsoleUser
from gateway.operations.context import OperationContext

PREFIX: Final = "/console"
NOTICE: Final = "gateway_notice"
LONGEST_NOTICE: Final = 500
LONGEST_COOKIE: Final = 3000
"""Maximum length of a notice as encoded. A browser silently drops a cookie over 4096 bytes."""

NOTICE_S: Final = 60
LONGEST_PLACE: Final = 5000
LARGEST_FORM: Final = 64 * 1024
MOST_FIELDS: Final = 2000
FORM_WITHIN_S: Final = 10.0

P = TypeVar("P", bound=Params)
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class ConsoleRequest:
    """The context of a page."""

    request: Request
    visitor: ConsoleUser
    office: OperationContext
    shared: Mapping[str, Any] = field(default_factory=dict)
    """Variables of every page."""

    @cached_property
    def project(self) -> Project:
        """Routes and handlers under the names that people see. Raises ConfigInvalid."""
        return self.office.project.identified(NO_NAMES)

    @property
    def query(self) -> dict[str, str]:
        """The query parameters, without the fields of a form that were left empty."""
        return {name: value for name, value in self.request.query_params.items() if value}

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    async def ask(self, operation: Operation[P, R], **given: Any) -> R:
        """Run an operation, like its command does. Raises a GatewayError."""
        return await operation.perform(self.office, read_params(operation.params, given))

    def page(self, template: str, *, code: int = 200, **content: Any) -> Response:
        shown = {**self.shared, **content, "visit": self, "visitor": self.visitor}
        text = TEMPLATES.get_template(template).render(shown)
        response = HTMLResponse(text, code)
        if NOTICE in self.request.cookies:
            response.delete_cookie(NOTICE, path=PREFIX, httponly=True, samesite="lax")
        return response

    @property
    def notice(self) -> str | None:
        """The result of the last action."""
        return unquote(self.request.cookies.get(NOTICE, ""))[:LONGEST_NOTICE] or None

    def is_at(self, path: str) -> bool:
        """Whether the navigation link to `path` is the current one."""
        here = self.request.url.path
        return here == path if path == f"{PREFIX}/" else here.startswith(path)

    @property
    def here(self) -> str:
        """The URL of this page, to return to it."""
        query = self.request.url.query
        return f"{self.request.url.path}?{query}" if query else self.request.url.path

    @property
    def came_from(self) -> str:
        """The page from which a form was sent.

        Identifiers are in the URL of a form, never in its fields: a browser changes line endings in
        fields, and a page shows invisible characters in them escaped.
        """
        return safe_place(self.request.query_params.get("from"))

    def link(self, **changes: str | None) -> str:
        """Return the URL of this page with changed query parameters."""
        query = {**self.query, **changes}
        kept = {name: value for name, value in query.items() if value is not None}
        return f"{self.request.url.path}?{urlencode(kept)}" if kept else self.request.url.path

    async def form(self) -> list[tuple[str, str]]:
        """Read the form. Raises BadRequest."""
        return await read_form(self.request, largest=LARGEST_FORM)


async def read_form(request: Request, *, largest: int) -> list[tuple[str, str]]:
    """Return the fields of a form in order, with a limit on size and time. Raises BadRequest."""
    body = b""
    try:
        async with asyncio.timeout(FORM_WITHIN_S):
            async for piece in request.stream():
                body += piece
                if len(body) > largest:
                    raise BadRequest(f"found a form over {largest} bytes")
    except TimeoutError:
        raise BadRequest(f"found no whole form within {FORM_WITHIN_S:.0f} s") from None
    try:
        return parse_qsl(
            body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"
        )
    except ValueError:
        raise BadRequest("found a form that cannot be read") from None


def read_params(params: type[P], given: Mapping[str, Any]) -> P:
    """Validate the parameters of an operation. Raises BadRequest."""
    try:
        return params.model_validate({n: v for n, v in given.items() if v not in (None, "")})
    except ValidationError as invalid:
        first = next(iter(refusals(invalid)))
        name = ".".join(map(str, first.location))
        raise BadRequest(f"{name}: found {first.found}; expected {first.expected}") from None


def read_id(text: str) -> int:
    """Read the id of a row from a form. Raises BadRequest."""
    if not re.fullmatch("[0-9]{1,18}", text):
        raise BadRequest(f"id: found {text[:50]!r}; expected the id of a row, in digits")
    return int(text)


def safe_place(path: str | None) -> str:
    """Return the path if it is a page of the console, or else the path of the overview.

    It never leads to another site, and always fits into the login form.
    """
    if path is None or len(path) > LONGEST_PLACE or not path.startswith(f"{PREFIX}/"):
        return f"{PREFIX}/"
    return path if path.isprintable() and "\\" not in path else f"{PREFIX}/"


def back_to(path: str, notice: str = "") -> Response:
    """Redirect to a page after an action, with a notice about its result."""
    response = RedirectResponse(path, status_code=303)
    if notice:
        response.set_cookie(
            NOTICE,
            _written(notice[:LONGEST_NOTICE]),
            path=PREFIX,
            httponly=True,
            samesite="lax",
            max_age=NOTICE_S,
        )
    return response


def _written(notice: str) -> str:
    """Encode a notice for a cookie, and truncate it if it is too long."""
    while len(written := quote(notice)) > LONGEST_COOKIE:
        notice = notice[: len(notice) * LONGEST_COOKIE // len(written)]
    return written
