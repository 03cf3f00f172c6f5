"""`ctx.once`: external side effects that are recorded, so that a rerun does not repeat them."""

import asyncio
import functools
import inspect
import socket
import sys
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal, TypeVar

import httpx
import orjson
import structlog

from gateway.base.errors import Defer, NotSent, StorageUnavailable
from gateway.base.failpoints import reached
from gateway.base.model import Lease
from gateway.ledger.connection import LOST, TROUBLE, Pool, describe
from gateway.ledger.effects import (
    Effect,
    EffectName,
    begin_effect,
    begin_effect_of_key,
    finish_effect,
    name_effect,
    note_effect_error,
    release_effect,
)
from gateway.ledger.encryption import EncryptionKeys
from gateway.worker.idempotency import keys_of_effect

NOT_DONE_STATUSES: Final = frozenset(
    {400, 401, 403, 404, 405, 406, 411, 413, 414, 415, 422, 425, 429, 431, 451}
)
"""Statuses of a request that the service refused before acting on it. These are not included:
402 (a charge may have been tried), 408 (received in part), 409 and 410 (perhaps because an earlier
call was done)."""


class NotReached(NotSent):
    """An HTTP client of the gateway could not connect, so this request was not sent."""


NOT_CONNECTED: Final = (
    NotReached,
    ConnectionRefusedError,
    socket.gaierror,
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
)
"""Errors of one request that was never sent: there was no connection to send it on."""

_FOREIGN_NOT_CONNECTED: Final = (
    ("aiohttp", "ClientConnectorError"),
    ("requests", "ConnectTimeout"),
    ("urllib3.exceptions", "NewConnectionError"),
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
"""The method of each HTTP client through which all of its requests go: counted when it is called,
before there is a connection."""
_WIRE: Final = (
    ("httpx", "AsyncHTTPTransport", "handle_async_request"),
    ("httpx", "HTTPTransport", "handle_request"),
    ("httpx", "MockTransport", "handle_async_request"),
    ("httpx", "MockTransport", "handle_request"),
    ("aiohttp", "ClientRequest", "send"),
    ("http.client", "HTTPConnection", "endheaders"),  # under urllib, urllib3 and requests
    ("smtplib", "SMTP", "mail"),
)
"""The method below them through which each single request goes, so that redirects, logins and
retries of a client, a session or a transport are counted one by one."""


class CallOutcome(StrEnum):
    """Whether a call that raised an error is known not to be done."""

    NOT_DONE = "not done"
    UNKNOWN = "unknown"


class SentRequests:
    """Counts the requests that were sent inside one call."""

    def __init__(self) -> None:
        self.by_layer: Counter[object] = Counter()

    @property
    def count(self) -> int:
        """The request count. Both layers count the same ones; a test double may hit only one."""
        return max(self.by_layer.values(), default=0)


_INSIDE: Final[ContextVar[SentRequests | None]] = ContextVar("gateway_requests", default=None)


@contextmanager
def counting_requests() -> Iterator[SentRequests]:
    """Count the requests of this context, and of the tasks and threads that inherit it."""
    for layer in (_CLIENTS, _WIRE):
        for module, name, method in layer:
            _count_calls(getattr(sys.modules.get(module), name, None), method, layer)
    outer, made = _INSIDE.get(), SentRequests()
    token = _INSIDE.set(made)
    try:
        yield made
    finally:
        _INSIDE.reset(token)
        if outer is not None:
            outer.by_layer += made.by_layer


def classify(
    error: BaseException, made: SentRequests, not_done: tuple[type[BaseException], ...] = ()
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


def _is_not_connected(error: object) -> bool:
    if isinstance(error, NOT_CONNECTED):
        return True
    if any(_is_a(error, *kind) for kind in _FOREIGN_NOT_CONNECTED):
        return True
    if _is_a(error, "requests", "ConnectionError"):  # raised for broken connections, too
        arguments: tuple[object, ...] = getattr(error, "args", ())
        return any(_is_not_connected(cause) for cause in arguments)
    if isinstance(error, urllib.error.URLError) or _is_a(
        error, "urllib3.exceptions", "MaxRetryError"
    ):
        return _is_not_connected(getattr(error, "reason", None))
    return False


def _is_refused(error: BaseException) -> bool:
    if _is_a(error, "stripe", "StripeError"):
        return any(_is_a(error, "stripe", name) for name in _STRIPE_NOT_DONE)
    return _status(error) in NOT_DONE_STATUSES


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error that was raised for a response, or else None."""
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


def _is_a(error: object, module: str, name: str) -> bool:
    """Whether the error is of this class, whose library may not be installed or imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(error, kind)


@functools.cache
def _count_calls(client: type | None, method: str, layer: object) -> None:
    """Wrap the method to count requests inside a `ctx.once`, also of clients made elsewhere.

    Outside of `ctx.once`, the method works as before. A request without a connection is not
    counted.
    """
    send = getattr(client, method, None)
    if send is None:
        return

    @functools.wraps(send)
    def counted(*args: Any, **options: Any) -> Any:
        with _counting(layer):
            return send(*args, **options)

    @functools.wraps(send)
    async def counted_async(*args: Any, **options: Any) -> Any:
        with _counting(layer):
            return await send(*args, **options)

    setattr(client, method, counted_async if inspect.iscoroutinefunction(send) else counted)


@contextmanager
def _counting(layer: object) -> Iterator[None]:
    made = _INSIDE.get()
    if made is None:
        yield
        return
    made.by_layer[layer] += 1
    try:
        yield
    except BaseException as error:
        made.by_layer[layer] -= _is_not_connected(error)
        raise


Unknown = Literal["retry", "skip"]
"""Policy of the next run for a call whose outcome is unknown."""
NotDone = tuple[type[BaseException], ...]
"""Exceptions that mean that the call was not done."""

T = TypeVar("T")

LONGEST_NAME: Final = 200
LARGEST_RESULT_BYTES: Final = 1024 * 1024
KEEP_AGAIN_S: Final = 0.5
SHORTEST_WAIT: Final = timedelta(seconds=1)
LONGEST_WAIT: Final = timedelta(seconds=30)
"""Maximum wait of a delivery until it checks again whether another delivery's call has ended. It
waits for as long as that call has taken so far, so that a long call costs few runs."""
NOTE_S: Final = 2.0
"""Time limit for recording the error of a failed call, because its run may be shutting down."""


class Effects:
    """The effects of one run of a delivery."""

    def __init__(
        self,
        ledger: Pool,
        lease: Lease,
        encryption: EncryptionKeys,
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        self._ledger = ledger
        self._lease = lease
        self._encryption = encryption
        self._log = log
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._made: set[str] = set()
        self._open: set[str] = set()
        """Effects that this run may have begun and whose outcome it does not know."""

    async def once(
        self,
        name: str,
        call: Callable[[], Any | Awaitable[Any]],
        unknown: Unknown,
        not_done: NotDone,
        key: str | None = None,
    ) -> Any:
        """Make the call, unless it was made before.

        Without a key, only earlier runs of this delivery count; with a key, the calls for all
        events with the same key.
        """
        _check(name, unknown, not_done)
        of = name_effect(self._encryption, self._lease, name, key)
        async with self._locks[of.name]:
            if of.name in self._made:
                raise ValueError(
                    f"ctx.once({of.name!r}) twice in one run: the second would not be called; "
                    "give each effect a name or a key (per=...) of its own"
                )
            self._open.add(of.name)
            effect = await self._begin_or_undo(of, again=unknown == "retry")
            if effect.is_busy:
                raise _defer(of, effect)
            self._made.add(of.name)
            if effect.is_done:
                self._open.discard(of.name)
                return effect.result
            if not effect.is_ours:
                self._log.warning("effect_unknown", effect=of.name, begun_at=effect.begun_at)
                return None
            reached("effect.begun")
            with keys_of_effect(name, key):
                result = await self._call(of, effect, call, not_done)
            reached("effect.called")
            kept = await self._keep(of, result)
            self._open.discard(of.name)
            reached("effect.kept")
            return kept

    async def _begin_or_undo(self, of: EffectName, *, again: bool) -> Effect:
        """Begin an effect, and release it if the run is cancelled before its call.

        Otherwise the effect would be listed with an unknown outcome, although nothing was called.
        """
        beginning = asyncio.ensure_future(self._begin(of, again=again))
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            if (begun := await beginning).is_ours:
                await self._release(of, begun)
            raise

    async def _begin(self, of: EffectName, *, again: bool) -> Effect:
        ledger, lease, encryption = self._ledger, self._lease, self._encryption
        try:
            if of.key is None:
                return await begin_effect(
                    ledger, lease, of.name, again=again, encryption=encryption
                )
            return await begin_effect_of_key(ledger, lease, of, again=again, encryption=encryption)
        except LOST as error:
            raise StorageUnavailable(f"once({of.name!r}): {describe(error)}") from error

    async def _call(
        self,
        of: EffectName,
        begun: Effect,
        call: Callable[[], Any | Awaitable[Any]],
        not_done: NotDone,
    ) -> Any:
        with counting_requests() as made:
            try:
                result = call()
                return await result if inspect.isawaitable(result) else result
            except BaseException as error:
                self._made.discard(of.name)  # the handler may catch it and try again
                is_released = classify(error, made, not_done) is CallOutcome.NOT_DONE and (
                    await self._insist(lambda: self._release(of, begun))
                )
                if not is_released:
                    await self._note(of.name, error)
                raise

    async def _release(self, of: EffectName, begun: Effect) -> bool:
        """Release an effect whose call was not done.

        Return False if an earlier call may have been done and no operator has requested this one:
        the outcome then stays unknown.
        """
        is_released = await release_effect(self._ledger, self._lease, of, begun)
        if is_released and not begun.is_requested:
            self._open.discard(of.name)
        return is_released

    async def _note(self, name: str, error: BaseException) -> None:
        """Record the error of a call for operators.

        The effect is listed without the error if it cannot be recorded.
        """
        try:
            async with asyncio.timeout(NOTE_S):
                await note_effect_error(self._ledger, self._lease, name, describe_error(error))
        except TROUBLE as trouble:
            self._log.warning("effect_error_not_kept", effect=name, error=describe(trouble))

    @property
    def is_settled(self) -> bool:
        """Whether this run knows the outcome of every effect that it has asked for."""
        return not self._open

    async def _keep(self, of: EffectName, result: Any) -> Any:
        """Record that the call was done, even if its result is not JSON. Return the result."""
        try:
            document = orjson.dumps(result)
            problem = "it is over 1 MiB" if len(document) > LARGEST_RESULT_BYTES else None
        except TypeError as error:
            problem = str(error)
        kept = b"null" if problem else document
        await self._insist(
            lambda: finish_effect(
                self._ledger, self._lease, of.name, kept, encryption=self._encryption
            )
        )
        if problem:
            raise TypeError(
                f"ctx.once({of.name!r}) has made its call, but cannot keep the result "
                f"({type(result).__name__}): {problem}. Return JSON, such as an id, or nothing."
            )
        return orjson.loads(document)

    async def _insist(self, write: Callable[[], Awaitable[T]]) -> T:
        """Retry a write until Postgres is back, because a call that is not recorded is repeated."""
        while True:
            try:
                return await write()
            except TROUBLE as error:
                self._log.warning("effect_again", error=describe(error))
                await self._ledger.expire_connections()
                await asyncio.sleep(KEEP_AGAIN_S)


def _defer(of: EffectName, effect: Effect) -> Defer:
    """Return a deferral until the call of another event's delivery may have ended."""
    taken = SHORTEST_WAIT if effect.begun_at is None else datetime.now(UTC) - effect.begun_at
    after = min(max(taken, SHORTEST_WAIT), LONGEST_WAIT)
    by = "another event" if effect.by_event is None else f"event {effect.by_event}"
    return Defer(f"ctx.once({of.name!r}) is running for {by}", after=after)


def _check(name: str, unknown: str, not_done: NotDone) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise ValueError(
            f"ctx.once: name: found {name!r}; expected a short text that tells this effect from "
            "the handler's others, and is the same in every run"
        )
    if unknown not in ("retry", "skip"):
        raise ValueError(f"ctx.once({name!r}): unknown: found {unknown!r}; expected retry or skip")
    if not isinstance(not_done, tuple) or not all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in not_done
    ):
        raise ValueError(
            f"ctx.once({name!r}): not_done: found {not_done!r:.80}; expected a tuple of exception "
            "classes, such as not_done=(MailRefused,)"
        )
