"""Base class of the webhook and queue endpoints: limits, deadlines, counters and responses.

It uses no web framework, because this is the hot path, where microseconds count.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog
from starlette.types import Receive, Scope

from gateway.base.errors import (
    BodyTimeout,
    NotFromHere,
    Overloaded,
    RequestRejected,
    StorageUnavailable,
    TokenMissing,
    Unauthorized,
    UnsupportedCoding,
    UnsupportedEncoding,
)
from gateway.config.registry import Registry
from gateway.config.routes import Route
from gateway.http.admission import Admission
from gateway.http.body import Deadlines, SenderGone, drain, read_body
from gateway.http.client_address import Addresses
from gateway.http.limits import Limiters, Throttle
from gateway.http.protocol import SHED, Reply
from gateway.ledger.claims import Claimer
from gateway.ledger.statistics import ACKNOWLEDGED, REQUESTS, MinuteStats
from gateway.providers import Headers
from gateway.receive import answers
from gateway.receive.access import AccessPolicy
from gateway.receive.answers import Answer
from gateway.receive.metrics import Metrics, Outcomes

if TYPE_CHECKING:  # opentelemetry, which is an extra
    from gateway.telemetry.spans import Traces

COMPLAINTS_PER_SECOND: Final = 20
FLOODS_PER_SECOND: Final = 1
REFUSED: Final = 400

log = structlog.get_logger("gateway.receive")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveContext:
    """The dependencies that all endpoints of one process share."""

    registry: Registry
    claimer: Claimer
    admission: Admission
    deadlines: Deadlines
    metrics: Metrics
    stats: MinuteStats
    addresses: Addresses
    limiters: Limiters
    traces: "Traces | None" = None


class RouteEndpoint(ABC):
    """Base class of an endpoint that takes the POST requests of one route."""

    def __init__(self, route: Route, reception: ReceiveContext) -> None:
        metrics = reception.metrics
        self._route = route
        self._registry = reception.registry
        self._claimer = reception.claimer
        self._traces = reception.traces
        self._admission = reception.admission
        self._deadlines = reception.deadlines
        self._gate = AccessPolicy(route, reception.addresses, reception.limiters)
        self._retries = route.provider.retries
        self._receive_s = route.receive_within.total_seconds()
        self._acknowledge_s = route.ack_within.total_seconds()
        self._count = Outcomes(metrics.requests, reception.stats, route.name)
        self._conflicts = metrics.conflicts.labels(route.name)
        self._shed_count = metrics.shed.labels(route.name, str(self._retries).lower())
        self._acknowledge = metrics.acknowledge.labels(route.name)
        self._stats = reception.stats
        self._log = log.bind(route=route.name)
        self._complaints = Throttle(COMPLAINTS_PER_SECOND)
        self._floods = Throttle(FLOODS_PER_SECOND)

    @abstractmethod
    async def _receive(self, scope: Scope, headers: Headers, body: bytes) -> Answer:
        """Process a request whose body has been read, and return the response."""

    def _greet(self, _: Scope) -> Answer | None:
        """Return the response to a handshake that is not a POST, or None if it is not one."""
        return None

    def _knows(self, _: Headers) -> bool:
        """Whether the headers authenticate the request.

        Webhooks are authenticated by their body instead.
        """
        return True

    def _headers(self, scope: Scope) -> dict[str, str]:
        pairs = scope["headers"]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
        return headers if len(headers) == len(pairs) else _joined(pairs)

    async def __call__(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        if self._gate.is_closed_to(scope):
            self._not_looked_at(scope).send(reply)
            return
        if scope["method"] != "POST":
            self._without_body(scope).send(reply)
            return
        try:
            answer = await self._answer(scope, receive)
        except SenderGone:
            if SHED in scope:
                self._shed(scope, Overloaded("one of the slowest of too many arriving bodies"))
            else:
                self._log.info("sender_gone")
            return
        answer.send(reply)

    def _not_looked_at(self, scope: Scope) -> Answer:
        self._count("TOO_MANY_REFUSED")
        if self._floods.allow():
            left_out = self._floods.take_left_out()
            address = self._gate.address_of(scope)
            self._log.warning("not_looked_at", left_out_before=left_out, address=address)
        return answers.NOT_LOOKED_AT

    def _without_body(self, scope: Scope) -> Answer:
        """Return the response to a request with another method than POST."""
        headers = self._headers(scope)
        try:
            if not self._knows(headers):
                raise _unauthorized(headers)
            self._gate.check_address(scope)
            answer = self._greet(scope) or answers.METHOD_NOT_ALLOWED
        except TokenMissing as missing:
            return self._refused(missing)
        except RequestRejected as rejection:
            answer = self._refused(rejection)
        if answer.status >= REFUSED:
            self._gate.handshakes.refused(scope)
        elif self._gate.handshakes is not self._gate.limiter:  # it has the verify_token
            self._gate.handshakes.verified(scope)
        return answer

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        headers: Headers = {}
        body: bytes | None = None
        try:
            with (
                self._admission.enter(retries=self._retries) as place,
                self._deadlines.within(self._receive_s, self._body_late) as deadline,
            ):
                headers = self._headers(scope)
                if not self._knows(headers):
                    await drain(receive)
                    raise _unauthorized(headers)
                await self._turn_away_others(scope, receive)
                if (encoding := _encoding(headers)) is not None:
                    await drain(receive)
                    raise encoding
                body = await read_body(headers, receive, place, limit=self._route.max_body)
                started = time.monotonic()
                deadline.move(self._acknowledge_s, self._claim_late)
                answer = await self._receive(scope, headers, body)
                if answer.is_to_stranger:
                    self._gate.limiter.refused(scope, len(body))
                else:
                    self._observe(time.monotonic() - started)
                    self._gate.limiter.verified(scope)
                return answer
        except Overloaded as overloaded:
            self._shed(scope, overloaded)
            return answers.OVERLOADED
        except RequestRejected as rejection:
            self._keep(rejection, scope, headers, body)
            if rejection.counts_against_address:
                self._gate.limiter.refused(scope, len(body or b""))
            return self._refused(rejection)
        except StorageUnavailable as error:
            self._count("UNAVAILABLE")
            self._complain("not_durable", reason=str(error))
            return answers.UNAVAILABLE

    def _shed(self, scope: Scope, overloaded: Overloaded) -> None:
        """Count and log a request that is answered 503 because of overload.

        If its sender never retries, the event is lost until it is redelivered, so the headers are
        kept too.
        """
        self._count(overloaded.code)
        self._shed_count.inc()
        self._complain("request_shed", reason=overloaded.reason, sender_retries=self._retries)
        if not self._retries:
            self._keep(overloaded, scope, self._headers(scope), None)

    async def _turn_away_others(self, scope: Scope, receive: Receive) -> None:
        try:
            self._gate.check_address(scope)
        except NotFromHere:
            await drain(receive)
            raise

    def _observe(self, seconds: float) -> None:
        self._acknowledge.observe(seconds)
        self._stats.add(self._route.name, REQUESTS, ACKNOWLEDGED, seconds)

    @abstractmethod
    def _keep(
        self, rejection: RequestRejected, scope: Scope, headers: Headers, body: bytes | None
    ) -> None:
        """Keep the rejected request for operators to inspect."""

    def _refused(self, rejection: RequestRejected) -> Answer:
        self._count(rejection.code)
        self._complain("request_refused", code=rejection.code, reason=rejection.reason)
        return answers.refused(rejection)

    def _body_late(self) -> Exception:
        return BodyTimeout(f"the body was not complete within {self._receive_s:g} s")

    def _claim_late(self) -> Exception:
        self._claimer.suspect()
        return StorageUnavailable(f"not durable within {self._acknowledge_s:g} s")

    def _complain(self, event: str, **fields: str | bool) -> None:
        """Log a warning, but only a few per second: senders can cause any number of them."""
        if self._complaints.allow():
            self._log.warning(event, left_out_before=self._complaints.take_left_out(), **fields)


def _joined(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Join repeated header fields into a list, and never use only the first or the last of them.

    A proxy in front may have checked the other one. No valid signature, timestamp or token is such
    a list. https://www.rfc-editor.org/rfc/rfc9110.html#section-5.3
    """
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    return {name: ", ".join(several) for name, several in values.items()}


def _unauthorized(headers: Headers) -> Unauthorized:
    """Return why a request without a valid bearer token is rejected."""
    if "authorization" in headers:
        return Unauthorized("a wrong bearer token")
    return TokenMissing("no bearer token")


def _encoding(headers: Headers) -> RequestRejected | None:
    """Return the error if the body is encoded, or None.

    Signatures cover the bytes before any encoding.
    """
    content = headers.get("content-encoding", "").strip()
    if content and content.lower() != "identity":
        return UnsupportedEncoding(f"content-encoding: found {content[:60]!a}; expected none")
    transfer = headers.get("transfer-encoding", "chunked")
    if transfer.lower() != "chunked":
        return UnsupportedCoding(f"transfer-encoding: found {transfer[:60]!a}; expected chunked")
    return None
