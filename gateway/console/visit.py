"""One request of a person: who it is, what he asks for, and how a page is made for him."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from gateway.api.office import Office
from gateway.api.operation import Operation, Params
from gateway.console.access import Visitor
from gateway.console.rendering import TEMPLATES
from gateway.errors import BadRequest
from gateway.notation.problems import refusals

PREFIX: Final = "/console"
NOTICE: Final = "gateway_notice"
LONGEST_NOTICE: Final = 500
LONGEST_COOKIE: Final = 3000
"""Of a notice as it is written: a browser drops a cookie over 4096 bytes without a word."""

NOTICE_S: Final = 60
LONGEST_PLACE: Final = 5000
LARGEST_FORM: Final = 64 * 1024
MOST_FIELDS: Final = 2000
FORM_WITHIN_S: Final = 10.0

P = TypeVar("P", bound=Params)
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """What a page has at hand."""

    request: Request
    visitor: Visitor
    office: Office
    shared: Mapping[str, Any] = field(default_factory=dict)
    """What every page shows."""

    @property
    def query(self) -> dict[str, str]:
        """What was asked for, without what was left empty in a form."""
        return {name: value for name, value in self.request.query_params.items() if value}

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    async def ask(self, operation: Operation[P, R], **given: Any) -> R:
        """Carries an operation out, as its command would. Raises a GatewayError."""
        return await operation.run(self.office, read_params(operation.params, given))

    def page(self, template: str, *, code: int = 200, **content: Any) -> Response:
        shown = {**self.shared, **content, "visit": self, "visitor": self.visitor}
        text = TEMPLATES.get_template(template).render(shown)
        response = HTMLResponse(text, code)
        if NOTICE in self.request.cookies:
            response.delete_cookie(NOTICE, path=PREFIX, httponly=True, samesite="lax")
        return response

    @property
    def notice(self) -> str | None:
        """What the last order said."""
        return unquote(self.request.cookies.get(NOTICE, ""))[:LONGEST_NOTICE] or None

    def is_at(self, path: str) -> bool:
        """Whether a link of the navigation leads to where one is."""
        here = self.request.url.path
        return here == path if path == f"{PREFIX}/" else here.startswith(path)

    @property
    def here(self) -> str:
        """This page, to come back to."""
        query = self.request.url.query
        return f"{self.request.url.path}?{query}" if query else self.request.url.path

    @property
    def came_from(self) -> str:
        """The page on which an order was given. What identifies things stands in the URL of a form,
        never in its fields: a browser sends those with other line ends, and a page shows them with
        what does not show written out."""
        return safe_place(self.request.query_params.get("from"))

    def link(self, **changes: str | None) -> str:
        """This page, asked for a little differently."""
        query = {**self.query, **changes}
        kept = {name: value for name, value in query.items() if value is not None}
        return f"{self.request.url.path}?{urlencode(kept)}" if kept else self.request.url.path

    async def form(self) -> list[tuple[str, str]]:
        """What was sent. Raises BadRequest."""
        return await read_form(self.request, largest=LARGEST_FORM)


async def read_form(request: Request, *, largest: int) -> list[tuple[str, str]]:
    """The fields of a form, as they were sent, within a bound of bytes and of time. Raises
    BadRequest."""
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
    """What a page or a form asks an operation for. Raises BadRequest."""
    try:
        return params.model_validate({n: v for n, v in given.items() if v not in (None, "")})
    except ValidationError as invalid:
        first = next(iter(refusals(invalid)))
        name = ".".join(map(str, first.location))
        raise BadRequest(f"{name}: found {first.found}; expected {first.expected}") from None


def read_id(text: str) -> int:
    """The id of a row, from a form. Raises BadRequest."""
    if not re.fullmatch("[0-9]{1,18}", text):
        raise BadRequest(f"id: found {text[:50]!r}; expected the id of a row, in digits")
    return int(text)


def safe_place(path: str | None) -> str:
    """A page of ours to go to, whatever a link says: never another site, and nothing that would
    not fit into the form of the login."""
    if path is None or len(path) > LONGEST_PLACE or not path.startswith(f"{PREFIX}/"):
        return f"{PREFIX}/"
    return path if path.isprintable() and "\\" not in path else f"{PREFIX}/"


def back_to(path: str, notice: str = "") -> Response:
    """After an order: the page to look at, which says what came of it."""
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
    """For a cookie; cut where it is too long for one."""
    while len(written := quote(notice)) > LONGEST_COOKIE:
        notice = notice[: len(notice) * LONGEST_COOKIE // len(written)]
    return written
