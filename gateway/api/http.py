"""The operations over HTTP: authentication, parameters, response."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import orjson
import structlog
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.openapi import describe_api
from gateway.api.operation import PREFIX, Operation, Params
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
from gateway.base.problems import one_of, refusals
from gateway.base.secrets import Secret, is_borne
from gateway.ledger.connection import TROUBLE, describe
from gateway.operations.context import OperationContext
from gateway.receive.answers import RETRY_AFTER_S
from gateway.receive.guard import TokenGuard

LARGEST_BODY: Final = 256 * 1024
"""More than any body that the document allows, with each character as two \\uXXXX escapes."""
LATER: Final = {"retry-after": "5"}
CLOSING: Final = {"connection": "close"}
"""The connection is closed, because a request body may not have been read."""
BODY_WITHIN_S: Final = 10.0
ANSWER_WITHIN_S: Final = 45.0
"""Longer than any statement may take. It also bounds the wait for a connection."""
MOST_TOLD: Final = 5
"""Limit on reported parameter errors, because suggestions for misspelled names take time."""
ACTOR_HEADER: Final = "gateway-actor"
LONGEST_ACTOR: Final = 100

log = structlog.get_logger("gateway.api")


class TooMuch(Exception):
    """The body is larger than any operation accepts."""


class TooSlow(Exception):
    """The body did not arrive in time."""


def routes(
    operations: Iterable[Operation[Any, Any]],
    *,
    token: Secret | None,
    read_token: Secret | None = None,
    guard: TokenGuard,
    open_office: Callable[[str], OperationContext],
    queues: Sequence[str] = (),
) -> list[BaseRoute]:
    """Return the routes of all operations and of the OpenAPI document, behind the token.

    The document also describes the queues.
    """
    operations = tuple(operations)
    by_path: dict[str, dict[str, Operation[Any, Any]]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    inside = Router(
        [
            Route("/openapi.json", _Document(orjson.dumps(describe_api(operations, queues)))),
            *(Route(path, _Endpoint(methods, open_office)) for path, methods in by_path.items()),
        ],
        default=_unknown,
        redirect_slashes=False,
    )
    return [Mount(PREFIX, _Guarded(inside, token, read_token, guard))]


class _Guarded:
    """Checks the token before anything else, so that others cannot learn which paths exist."""

    def __init__(
        self,
        inside: ASGIApp,
        token: Secret | None,
        read_token: Secret | None,
        guard: TokenGuard,
    ) -> None:
        self._inside = inside
        self._ordering = [secret for secret in (token,) if secret is not None]
        self._all = [secret for secret in (token, read_token) if secret is not None]
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        refusal = self._guard.refusal(request, *self._all)
        app = self._inside if refusal is None else REFUSALS[refusal.status]
        if refusal is None and not self._may(request):
            app = ONLY_READING
        with suppress(ClientDisconnect):
            await app(scope, receive, send)

    def _may(self, request: Request) -> bool:
        """Whether the token permits the request: the read token only permits GET and HEAD."""
        is_read = request.method in ("GET", "HEAD")
        return is_read or is_borne(request.headers.get("authorization", ""), self._ordering)


class _Document:
    """Serves the OpenAPI document."""

    def __init__(self, document: bytes) -> None:
        self._answer = Response(document, media_type="application/json")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_read = scope["method"] in ("GET", "HEAD")
        await (self._answer if is_read else _other_method({"GET"}))(scope, receive, send)


async def _unknown(scope: Scope, receive: Receive, send: Send) -> None:
    path = scope["path"]
    detail = f"found {path[:200]!r}; see {PREFIX}/openapi.json"
    await error(404, "NOT_FOUND", detail, headers=CLOSING)(scope, receive, send)


class _Endpoint:
    """One path with its methods."""

    def __init__(
        self,
        methods: dict[str, Operation[Any, Any]],
        open_office: Callable[[str], OperationContext],
    ) -> None:
        self._methods = methods
        self._open_office = open_office

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._answer(Request(scope, receive))
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        operation = self._methods.get(request.method)
        if operation is None:
            return _other_method(self._methods)
        try:
            params = operation.params.model_validate(await _given(operation, request))
        except ValidationError as invalid:
            return error(400, "BAD_REQUEST", _words(operation.params, invalid))
        except BadRequest as refused:
            return error(400, "BAD_REQUEST", str(refused))
        except TooMuch as refused:
            return error(413, "TOO_LARGE", str(refused), headers=CLOSING)
        except TooSlow as refused:
            return error(408, "TIMEOUT", str(refused), headers=CLOSING)
        return await self._carry_out(operation, params, _actor(request))

    async def _carry_out(
        self, operation: Operation[Any, Any], params: Params, actor: str
    ) -> Response:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                result = await operation.perform(self._open_office(actor), params)
        except BadRequest as refused:
            return error(400, "BAD_REQUEST", str(refused))
        except NotFound as failed:
            return error(404, "NOT_FOUND", str(failed))
        except (CommandFailed, TransitionRefused) as refused:
            return error(409, "REFUSED", str(refused))
        except (StorageUnavailable, SchemaMismatch, *TROUBLE) as failed:
            log.warning("ledger_unreachable", operation=operation.name, error=describe(failed))
            return error(503, "UNAVAILABLE", "the ledger cannot be reached", headers=LATER)
        except ConfigInvalid as failed:
            return error(409, "REFUSED", str(failed))
        except GatewayError as failed:
            log.exception("operation_failed", operation=operation.name)
            return error(500, "FAILED", type(failed).__name__)
        body = orjson.dumps(result, default=str, option=orjson.OPT_UTC_Z)
        return Response(body, operation.status, media_type="application/json")


async def _given(operation: Operation[Any, Any], request: Request) -> dict[str, Any]:
    given: dict[str, Any] = dict(request.path_params)
    if operation.in_body:
        if request.url.query:
            raise BadRequest("found a query; expected everything in the JSON body")
        more: Any = await _body(request)
    else:
        more = dict(request.query_params)
        if len(more) != len(request.query_params.multi_items()):
            raise BadRequest("found a parameter twice; expected each at most once")
    if twice := given.keys() & more.keys():
        raise BadRequest(f"found {', '.join(sorted(twice))} beside the path; expected it there")
    return {**given, **more}


async def _read(request: Request) -> bytes:
    body = b""
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            async for piece in request.stream():
                body += piece
                if len(body) > LARGEST_BODY:
                    raise TooMuch(f"found a body over {LARGEST_BODY} bytes")
    except TimeoutError:
        raise TooSlow(f"found no whole body within {BODY_WITHIN_S:.0f} s") from None
    return body


async def _body(request: Request) -> dict[str, Any]:
    body = await _read(request)
    if not body:
        return {}
    try:
        value: Any = orjson.loads(body)
    except ValueError:
        raise BadRequest("found a body that is no JSON; expected a JSON object") from None
    if not isinstance(value, dict):
        raise BadRequest("found JSON that is no object; expected a JSON object")
    return {str(name): given for name, given in value.items()}


def _words(params: type[Params], invalid: ValidationError) -> str:
    told = []
    for refusal in islice(refusals(invalid), MOST_TOLD):
        name = ".".join(map(str, refusal.location)) or "the parameters"
        expected = refusal.expected
        if refusal.unknown:
            expected = one_of(params.model_fields, like=str(refusal.location[-1]))
        told.append(f"{name[:100]}: found {refusal.found}; expected {expected}")
    more = invalid.error_count() - len(told)
    return "; ".join([*told, f"and {more} more"] if more > 0 else told)


def _other_method(methods: Iterable[str]) -> Response:
    allowed = {"allow": ", ".join(sorted(methods)), **CLOSING}
    return error(405, "METHOD_NOT_ALLOWED", f"expected {one_of(methods)}", headers=allowed)


def _actor(request: Request) -> str:
    """Return the actor for the audit log. A caller with the token may name a person."""
    name = request.headers.get(ACTOR_HEADER, "")
    if 0 < len(name) <= LONGEST_ACTOR and name.isprintable():
        return f"{name} (api)"
    return "api"


def error(
    status: int, code: str, detail: str, *, headers: dict[str, str] | None = None
) -> JSONResponse:
    """Build the response for an error. All errors have this form."""
    return JSONResponse({"error": code, "detail": detail}, status, headers)


UNAUTHORIZED: Final = error(
    401,
    "UNAUTHORIZED",
    "expected the header Authorization: Bearer, with GATEWAY_ADMIN_TOKEN",
    headers={"www-authenticate": "Bearer", **CLOSING},
)
TOO_MANY: Final = error(
    429,
    "TOO_MANY_REFUSED",
    "too many wrong tokens came from this address; try again in a moment",
    headers={"retry-after": str(RETRY_AFTER_S), **CLOSING},
)
ONLY_READING: Final = error(
    403, "READ_ONLY", "found the token for reading; expected GATEWAY_ADMIN_TOKEN", headers=CLOSING
)
REFUSALS: Final = {answer.status_code: answer for answer in (UNAUTHORIZED, TOO_MANY)}
