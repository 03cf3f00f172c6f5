"""Classify a failed call of `ctx.once`: it is known not to be done, or its outcome is unknown.

The table in docs/handlers.md ("What becomes of a call that fails") is this module in words.
"""

import functools
import inspect
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Any, Final

import httpx

from gateway.errors import NotSent

NOT_DONE_STATUSES: Final = frozenset(
    {400, 401, 403, 404, 405, 406, 411, 413, 414, 415, 422, 425, 429, 431, 451}
)
"""Answers by which a service says that it refused the request before acting on it. Not among them:
402 (a charge may have been tried), 408 (received in part), 409 and 410 (perhaps because an earlier
call was done)."""


class NotReached(NotSent):
    """A client of the gateway's own could not connect, so this request was not sent."""


NOT_CONNECTED: Final = (
    NotReached,
    ConnectionRefusedError,
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
)
"""Errors of one request that was never sent: there was no connection to send it on."""

_FOREIGN_NOT_CONNECTED: Final = (
    ("aiohttp", "ClientConnectorError"),
    ("requests", "ConnectTimeout"),
)
_STRIPE_NOT_DONE: Final = (
    "AuthenticationError",
    "PermissionError",
    "InvalidRequestError",
    "RateLimitError",
)
"""Classes of stripe-python for requests that Stripe refused. All others are unknown, among them
IdempotencyError: an earlier request with the same key may have been done."""

_CLIENTS: Final = (
    ("httpx", "AsyncClient", "send"),
    ("httpx", "Client", "send"),
    ("requests", "Session", "send"),
    ("aiohttp", "ClientSession", "_request"),
    ("urllib.request", "OpenerDirector", "open"),
)
"""The method of each HTTP client through which all of its requests go."""


class CallOutcome(StrEnum):
    """What is known of a call that raised."""

    NOT_DONE = "not done"
    UNKNOWN = "unknown"


class Requests:
    """How many requests were sent inside one call."""

    def __init__(self) -> None:
        self.count = 0
        self._seen: BaseException | None = None

    def failed(self, error: BaseException, arguments: tuple[Any, ...]) -> None:
        """Take back a request that was not sent. A redirect can fail to connect as well: then the
        request that was redirected stays counted."""
        is_nested, self._seen = error is self._seen, error
        if _is_not_connected(error) and not (is_nested or _is_redirected(error, arguments)):
            self.count -= 1


_INSIDE: Final[ContextVar[Requests | None]] = ContextVar("gateway_requests", default=None)


@contextmanager
def counting_requests() -> Iterator[Requests]:
    """Count the requests of this context, and of the tasks and threads that inherit it."""
    for module, name, method in _CLIENTS:
        _count_calls(getattr(sys.modules.get(module), name, None), method)
    outer, made = _INSIDE.get(), Requests()
    token = _INSIDE.set(made)
    try:
        yield made
    finally:
        _INSIDE.reset(token)
        if outer is not None:
            outer.count += made.count


def classify(
    error: BaseException, made: Requests, not_done: tuple[type[BaseException], ...] = ()
) -> CallOutcome:
    """Return NOT_DONE only if the error proves it for the whole call: it is about the only request
    that the call sent."""
    if _is_not_connected(error):
        proven = made.count == 0
    elif isinstance(error, (NotSent, *not_done)):
        proven = made.count <= 1
    else:
        proven = made.count == 1 and _is_refused(error)
    return CallOutcome.NOT_DONE if proven else CallOutcome.UNKNOWN


def describe_error(error: BaseException) -> str:
    """Name an error by its class and HTTP status: nothing that could hold a customer's data."""
    status = _status(error)
    return type(error).__name__ if status is None else f"{type(error).__name__} {status}"


def _is_not_connected(error: BaseException) -> bool:
    if isinstance(error, NOT_CONNECTED):
        return True
    if isinstance(error, urllib.error.URLError):
        return isinstance(error.reason, ConnectionRefusedError)
    if any(_is_a(error, *kind) for kind in _FOREIGN_NOT_CONNECTED):
        return True
    if _is_a(error, "requests", "ConnectionError"):  # of broken connections, too
        reason = getattr(error.args[0] if error.args else None, "reason", None)
        return _is_a(reason, "urllib3.exceptions", "NewConnectionError")
    return False


def _is_refused(error: BaseException) -> bool:
    if _is_a(error, "stripe", "StripeError"):
        return any(_is_a(error, "stripe", name) for name in _STRIPE_NOT_DONE)
    return _status(error) in NOT_DONE_STATUSES and not _had_more_answers(error)


def _status(error: BaseException) -> int | None:
    """Return the status of the answer that the error stands for."""
    match error:
        case httpx.HTTPStatusError():
            return error.response.status_code
        case urllib.error.HTTPError():
            return error.code
    if _is_a(error, "requests", "HTTPError"):
        return getattr(getattr(error, "response", None), "status_code", None)
    if _is_a(error, "aiohttp", "ClientResponseError"):
        return getattr(error, "status", None)
    if _is_a(error, "stripe", "StripeError"):
        return getattr(error, "http_status", None)
    return None


def _had_more_answers(error: BaseException) -> bool:
    """Whether the client sent several requests: redirects, a login or its own retries."""
    response = getattr(error, "response", None)
    retries = getattr(getattr(response, "raw", None), "retries", None)  # urllib3, under requests
    return any(getattr(of, "history", None) for of in (error, response, retries))


def _is_a(error: object, module: str, name: str) -> bool:
    """Whether it is of a class of a library that may not be installed, or not be imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(error, kind)


@functools.cache
def _count_calls(client: type | None, method: str) -> None:
    """Wrap the client's method so that requests inside a `ctx.once` are counted, whoever has made
    the client. Outside of one it only passes on."""
    if client is None:
        return
    send = getattr(client, method)

    @functools.wraps(send)
    def counted(*args: Any, **options: Any) -> Any:
        made = _INSIDE.get()
        if made is None:
            return send(*args, **options)
        made.count += 1
        try:
            return send(*args, **options)
        except BaseException as error:
            made.failed(error, args)
            raise

    @functools.wraps(send)
    async def counted_async(*args: Any, **options: Any) -> Any:
        made = _INSIDE.get()
        if made is None:
            return await send(*args, **options)
        made.count += 1
        try:
            return await send(*args, **options)
        except BaseException as error:
            made.failed(error, args)
            raise

    setattr(client, method, counted_async if inspect.iscoroutinefunction(send) else counted)


def _is_redirected(error: BaseException, arguments: tuple[Any, ...]) -> bool:
    """Whether it failed for another request than the one that the client was given. (If a client
    sends redirects through the wrapped method, `Requests.failed` has seen the error already.)"""
    match error:
        case httpx.RequestError():
            return getattr(error, "_request", None) not in (None, *arguments)
    if _is_a(error, "aiohttp", "ClientConnectorError"):
        first = httpx.URL(str(arguments[-1]))
        port = first.port or {"http": 80, "https": 443}.get(first.scheme)
        return (first.host, port) != (getattr(error, "host", None), getattr(error, "port", None))
    return False
