"""One route's URL: body, signature, claim, answer. Plain ASGI, since every microsecond is here."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import orjson
import structlog
from starlette.types import Receive, Scope, Send

from gateway.errors import Replayed, RequestRejected, StorageUnavailable
from gateway.ledger.claims import Claim, Claimed, Claimer, Verdict
from gateway.model import Envelope
from gateway.providers import Headers
from gateway.receive import answers
from gateway.receive.admission import Admission, Overloaded
from gateway.receive.answers import Answer
from gateway.receive.body import SenderGone, read_body
from gateway.receive.metrics import Metrics
from gateway.routes import Route

CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})
"""Headers that are never stored."""

THREAD_BYTES: Final = 1024 * 1024
"""Bodies over this are hashed and read in a thread, so that they do not hold up the others."""

COMPLAINTS_PER_SECOND: Final = 20

log = structlog.get_logger("gateway.receive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A request that proved to come from the provider."""

    headers: Headers
    body: bytes
    digest: bytes
    received_at: datetime


class Endpoint:
    """Answers the requests of one route."""

    def __init__(
        self,
        route: Route,
        *,
        secrets: Sequence[bytes],
        match: Callable[[str, str], tuple[str, ...]],
        claimer: Claimer,
        admission: Admission,
        metrics: Metrics,
    ) -> None:
        self._route = route
        self._secrets = tuple(secrets)
        self._match = match
        self._claimer = claimer
        self._admission = admission
        self._requests = metrics.requests
        self._conflicts = metrics.conflicts.labels(route.name)
        self._flagged = metrics.flagged.labels(route.name)
        self._acknowledge = metrics.acknowledge.labels(route.name)
        self._log = log.bind(route=route.name)
        self._complaints = Throttle(COMPLAINTS_PER_SECOND)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await answers.METHOD_NOT_ALLOWED.send(send)
            return
        try:
            answer = await self._answer(scope, receive)
        except SenderGone:
            self._log.info("sender_gone")
            return
        await answer.send(send)

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        try:
            with self._admission.enter() as place:
                headers = {
                    name.decode("latin-1"): value.decode("latin-1")
                    for name, value in scope["headers"]
                }
                body = await read_body(
                    headers,
                    receive,
                    place,
                    limit=self._route.max_body,
                    within_s=self._route.receive_within.total_seconds(),
                )
                return await self._acknowledged(headers, body)
        except RequestRejected as rejection:
            self._count(rejection.code)
            self._complain("request_refused", code=rejection.code, reason=rejection.reason)
            return answers.refused(rejection)
        except Overloaded as error:
            self._count("UNAVAILABLE")
            self._complain("overloaded", reason=str(error))
            return answers.OVERLOADED

    async def _acknowledged(self, headers: Headers, body: bytes) -> Answer:
        started = time.monotonic()
        within_s = self._route.ack_within.total_seconds()
        try:
            async with asyncio.timeout(within_s):
                verified = await self._verified(headers, body)
                answer = await self._received(verified)
        except (TimeoutError, StorageUnavailable) as error:
            reason = str(error) or f"not durable within {within_s:g} s"
            self._count("UNAVAILABLE")
            self._complain("not_durable", reason=reason)
            return answers.UNAVAILABLE
        self._acknowledge.observe(time.monotonic() - started)
        return answer

    async def _verified(self, headers: Headers, body: bytes) -> Verified:
        received_at = datetime.now(UTC)
        if len(body) > THREAD_BYTES:
            digest = await asyncio.to_thread(self._check, headers, body, received_at)
        else:
            digest = self._check(headers, body, received_at)
        return Verified(headers=headers, body=body, digest=digest, received_at=received_at)

    def _check(self, headers: Headers, body: bytes, now: datetime) -> bytes:
        self._route.provider.verify(
            headers, body, secrets=self._secrets, now=now, tolerance=self._route.tolerance
        )
        return hashlib.sha256(body).digest()

    async def _received(self, request: Verified) -> Answer:
        read = self._route.provider.read
        if len(request.body) > THREAD_BYTES:
            envelope = await asyncio.to_thread(read, request.headers, request.body)
        else:
            envelope = read(request.headers, request.body)
        if not self._route.wants(envelope):
            self._count("ignored")
            self._log.info("event_ignored", event_id=envelope.id, type=envelope.type)
            return answers.received("ignored", envelope.id)
        claimed = await self._claimer.claim(self._claim(request, envelope))
        self._note(envelope, claimed)
        self._count(claimed.verdict.value)
        return answers.received(claimed.verdict.value, envelope.id)

    def _claim(self, request: Verified, envelope: Envelope) -> Claim:
        route = self._route
        return Claim(
            route=route.name,
            provider=route.provider.name,
            envelope=envelope,
            received_at=request.received_at,
            digest=request.digest,
            headers=storable_headers(request.headers),
            body=request.body,
            replay=route.provider.replay_policy(envelope.type, route.replay),
            handlers=self._match(route.name, envelope.type),
        )

    def _note(self, envelope: Envelope, claimed: Claimed) -> None:
        if claimed.verdict is Verdict.REPLAYED:
            raise Replayed(
                f"event {envelope.id} has the bytes of {claimed.first_event_id}, claimed before"
            )
        fields = {"event_id": envelope.id, "type": envelope.type}
        if claimed.conflict:
            self._conflicts.inc()
            self._log.warning("duplicate_with_another_body", **fields)
        elif claimed.first_event_id is not None:
            self._flagged.inc()
            self._log.warning("event_flagged", replay_of=claimed.first_event_id, **fields)
        self._log.info(
            f"event_{claimed.verdict.value}", delivery_ids=list(claimed.delivery_ids), **fields
        )

    def _count(self, outcome: str) -> None:
        self._requests.labels(self._route.name, outcome).inc()

    def _complain(self, event: str, **fields: str) -> None:
        """A warning, unless strangers have already caused enough of them this second."""
        if self._complaints.allow():
            self._log.warning(event, left_out_before=self._complaints.take_left_out(), **fields)


class Throttle:
    """At most so many a second; counts what it leaves out."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._second = 0
        self._used = 0
        self._left_out = 0

    def allow(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._used = second, 0
        self._used += 1
        if self._used > self._per_second:
            self._left_out += 1
            return False
        return True

    def take_left_out(self) -> int:
        left_out, self._left_out = self._left_out, 0
        return left_out


def storable_headers(headers: Headers) -> str:
    """The headers as JSON that Postgres can hold, without credentials."""
    kept = {name: value for name, value in headers.items() if name not in CREDENTIALS}
    return orjson.dumps(kept).decode().replace("\\u0000", "\\ufffd")
