"""The path of a request, from its head to its answer.

It uses no web framework, because this is the hot path, where microseconds count.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

from starlette.types import Receive, Scope, Send

from gateway.base.errors import (
    BodyTimeout,
    Overloaded,
    RequestRejected,
    StorageUnavailable,
    TokenMissing,
)
from gateway.base.failpoints import reached
from gateway.config.routes import Route
from gateway.http.admission import Admission
from gateway.http.body import Deadlines, SenderGone, drain, read_body
from gateway.ledger.claims import Claim, Claimer
from gateway.receive import answers
from gateway.receive.access import AccessPolicy
from gateway.receive.answers import Answer, Taken
from gateway.receive.reading import Items, ReceivedRequest, check_encoding, read_headers
from gateway.receive.telemetry import MakeDurable, RouteTelemetry

FAILED: Final = 400

OnRejected = Callable[[ReceivedRequest, RequestRejected], None]


class RequestKind(Protocol):
    """The steps that differ between webhooks and jobs."""

    claimer: Claimer
    telemetry: RouteTelemetry

    def greet(self, request: ReceivedRequest) -> Answer | None:
        """Return the answer to a handshake that is not a POST, or None if it is not one."""

    async def read(self, request: ReceivedRequest) -> Items | Answer:
        """Verify and read a request. Return its events, or the answer to a handshake."""

    async def make_durable(self, request: ReceivedRequest, items: Items) -> list[Taken]:
        """Claim the events of a request, and return the outcome of each."""

    async def answer(self, request: ReceivedRequest, items: Items, outcomes: list[Taken]) -> Answer:
        """Return the answer to a request whose events are durable."""

    def reject(self, rejection: RequestRejected) -> Answer:
        """Return the answer to a rejected request."""


class RouteEndpoint:
    """The URL of one route."""

    def __init__(
        self,
        route: Route,
        kind: RequestKind,
        make_durable: MakeDurable,
        *,
        access: AccessPolicy,
        admission: Admission,
        deadlines: Deadlines,
        on_rejected: OnRejected,
    ) -> None:
        """Initialize.

        `make_durable` is that of the kind, with hooks around it. `on_rejected` is called with each
        POST request that is rejected or lost.
        """
        self._kind = kind
        self._access = access
        self._admission = admission
        self._deadlines = deadlines
        self._telemetry = kind.telemetry
        self._on_rejected = on_rejected
        self._make_durable = make_durable
        self._retries = route.provider.retries
        self._max_body = route.max_body
        self._is_limited = route.limit is not None
        self._receive_s = route.receive_within.total_seconds()
        self._acknowledge_s = route.ack_within.total_seconds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self.receive(ReceivedRequest(scope, receive, {}))
        if answer is not None:
            await answer.send(scope, send)

    async def receive(self, request: ReceivedRequest) -> Answer | None:
        """Return the answer to a request, or None if its sender is gone."""
        access, scope = self._access, request.scope
        if access.is_closed_to(scope):
            self._telemetry.rejected_unexamined(access.describe_address(scope))
            return answers.TOO_MANY_REJECTED
        request.headers = read_headers(scope)
        if scope["method"] != "POST":
            return self._answer_without_body(request)
        try:
            return await self._answer_post(request)
        except SenderGone:
            self._telemetry.log.info("sender_gone")
            return None
        except Overloaded as overloaded:
            self._telemetry.shed(overloaded)
            if not self._retries:  # the event is lost until it is redelivered
                self._on_rejected(request, overloaded)
            return answers.OVERLOADED
        except RequestRejected as rejection:
            self._on_rejected(request, rejection)
            if rejection.counts_against_address:
                access.limiter.refused(scope, len(request.body or b""))
            self._telemetry.rejected(rejection)
            return self._kind.reject(rejection)
        except StorageUnavailable as error:
            self._telemetry.unavailable(error)
            return answers.UNAVAILABLE

    async def _answer_post(self, request: ReceivedRequest) -> Answer:
        with (
            self._admission.enter(retries=self._retries) as slot,
            self._deadlines.within(self._receive_s, self._body_late) as deadline,
        ):
            try:
                self._access.check(request.scope, request.headers)
                check_encoding(request.headers)
            except RequestRejected:
                await drain(request.receive)
                raise
            request.body = await read_body(
                request.headers, request.receive, slot, limit=self._max_body
            )
            deadline.move(self._acknowledge_s, self._claim_late)
            started, request.received_at = time.monotonic(), datetime.now(UTC)
            items = await self._kind.read(request)
            if isinstance(items, Answer):  # to a handshake
                answer = items
            else:
                if self._is_limited:
                    self._access.take(sum(isinstance(one, Claim) for one in items))
                reached("claim.verified")
                outcomes = await self._make_durable(request, items)
                answer = await self._kind.answer(request, items, outcomes)
                reached("claim.answering")
            if answer.is_unauthenticated:
                self._access.limiter.refused(request.scope, len(request.body))
            else:
                self._telemetry.acknowledged(time.monotonic() - started)
                self._access.limiter.verified(request.scope)
            return answer

    def _answer_without_body(self, request: ReceivedRequest) -> Answer:
        """Return the answer to a request with another method than POST."""
        access, scope = self._access, request.scope
        try:
            access.check(scope, request.headers)
            answer = self._kind.greet(request) or answers.METHOD_NOT_ALLOWED
        except RequestRejected as rejection:
            self._telemetry.rejected(rejection)
            answer = self._kind.reject(rejection)
            if isinstance(rejection, TokenMissing):
                return answer
        if answer.status >= FAILED:
            access.handshakes.refused(scope)
        elif access.handshakes is not access.limiter:  # it has the verify_token
            access.handshakes.verified(scope)
        return answer

    def _body_late(self) -> Exception:
        return BodyTimeout(f"the body was not complete within {self._receive_s:g} s")

    def _claim_late(self) -> Exception:
        self._kind.claimer.suspect()
        return StorageUnavailable(f"not durable within {self._acknowledge_s:g} s")
