"""Webhooks: verify the signature, claim the events, respond."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from gateway.base.errors import (
    BadPayload,
    BadSignature,
    Duplicate,
    RepeatedBody,
    RequestRejected,
    SpoolUnavailable,
    StaleTimestamp,
    StorageUnavailable,
)
from gateway.base.model import Envelope
from gateway.base.secrets import Secret
from gateway.config.routes import Route
from gateway.http.body import Deadlines
from gateway.ledger.claims import Claim, Claimed, Claimer, ClaimVerdict
from gateway.ledger.rejected import NoRoom, Refusal
from gateway.privacy.redaction import RedactAt
from gateway.providers import Headers, Incoming
from gateway.providers.provider import Greeting
from gateway.receive import answers
from gateway.receive.access import AccessPolicy
from gateway.receive.answers import Answer, Taken
from gateway.receive.reading import (
    Items,
    Read,
    Reading,
    ReceivedRequest,
    RejectedItem,
    path_and_query,
)
from gateway.receive.rejected.requests import UnexaminedRequest, measure
from gateway.receive.rejected.writer import RejectedRequests
from gateway.receive.spool.spool import Spool
from gateway.receive.telemetry import RouteTelemetry

THREAD_BYTES: Final = 1024 * 1024
"""Bodies over this are hashed and parsed in a thread, so that they do not block other requests."""

SLOW_THREAD_BYTES: Final = 64 * 1024
"""The same limit for routes that redact payloads before storing them, or parse bodies before
verifying them: that takes many times as long.
"""

NO_ROOM: Final = "its neighbours are refused, since rejected items wait to be released"
REJECTED_ITEM: Final = Taken("rejected", None)

SPOOL_S: Final = 1.0
"""The part of `ack_within` reserved for the spool if the ledger does not respond; at most half."""


class WebhookRequests:
    """How the webhooks of one route are read, claimed and answered."""

    def __init__(
        self,
        route: Route,
        reading: Reading,
        *,
        claimer: Claimer,
        spool: Spool | None,
        rejected: RejectedRequests,
        access: AccessPolicy,
        deadlines: Deadlines,
        telemetry: RouteTelemetry,
        public_url: str,
        verify_token: Secret | None = None,
        accepts_unverified: bool = False,
    ) -> None:
        self._route = route
        self._provider = route.provider
        is_cut = route.redaction is not None and route.redaction.at is RedactAt.STORE
        is_slow = is_cut or route.provider.parses_first
        self._thread_bytes = SLOW_THREAD_BYTES if is_slow else THREAD_BYTES
        self._reading = reading
        self.claimer = claimer
        self._spool = spool
        self._rejected = rejected
        self._largest_kept = -1 if is_cut else rejected.largest_body
        self._access = access
        self._deadlines = deadlines
        self.telemetry = telemetry
        self._public_url = public_url
        self._verify_token = None if verify_token is None else verify_token.reveal()
        self._accepts_unverified = accepts_unverified
        acknowledge_s = route.ack_within.total_seconds()
        self._ledger_s = max(acknowledge_s - SPOOL_S, acknowledge_s / 2)
        self._keep_s = acknowledge_s - self._ledger_s

    def greet(self, request: ReceivedRequest) -> Answer | None:
        method = request.scope["method"]
        if self._provider.greet_by_get is None or method not in {"GET", "HEAD"}:
            return None
        incoming = Incoming(request.headers, b"", method, self._url(request))
        greeting = self._provider.greet_by_get(incoming, key=self._verify_token)
        return None if greeting is None else answers.greeted(greeting)

    async def read(self, request: ReceivedRequest) -> Items | Answer:
        incoming = self._incoming(request)
        try:
            if len(incoming.body) > self._thread_bytes:
                read = await asyncio.to_thread(self._reading.read, incoming, request.received_at)
            else:
                read = self._reading.read(incoming, request.received_at)
        except (BadSignature, StaleTimestamp) as rejection:
            if (greeting := self._greet_unverified(request, incoming)) is not None:
                return greeting
            if not self._accepts_unverified:
                raise
            read = self._read_unverified(rejection, request, incoming)
        if isinstance(read, Greeting):
            self.telemetry.count("greeted")
            return answers.greeted(read)
        return read

    def _greet_unverified(self, request: ReceivedRequest, incoming: Incoming) -> Answer | None:
        """Answer a handshake that no secret of the route proves.

        It is not an event, and it does not count as a verified request of its address.
        """
        if self._provider.greet_unverified is None:
            return None
        greeting = self._provider.greet_unverified(
            incoming._replace(url=self._url(request)), now=request.received_at
        )
        if greeting is None:
            return None
        self.telemetry.count("greeted")
        if self.telemetry.complaints.allow():
            address = self._access.describe_address(request.scope)
            self.telemetry.log.info("handshake_answered", address=address)
        return answers.greeted(greeting, is_unauthenticated=True)

    def _read_unverified(
        self, rejection: RequestRejected, request: ReceivedRequest, incoming: Incoming
    ) -> Read:
        """Read and report an unverified request, which is still accepted.

        Only in development, on a route with `enforce: false`.
        """
        read = self._reading.read_unverified(incoming, request.received_at)
        self.telemetry.unverified.inc()
        self.keep(request, rejection, is_shadow=True)
        self.telemetry.complain("accepted_unverified", code=rejection.code, reason=rejection.reason)
        return read

    def _incoming(self, request: ReceivedRequest) -> Incoming:
        url = self._url(request) if self._provider.uses_url else ""
        return Incoming(request.headers, request.body or b"", "POST", url)

    def _url(self, request: ReceivedRequest) -> str:
        """Return the public URL, as it is configured at the sender.

        Proxies may have changed host and scheme.
        """
        return self._public_url + path_and_query(request.scope)

    async def make_durable(self, request: ReceivedRequest, items: Items) -> list[Taken]:
        """Claim the events of a request concurrently.

        If one of them does not become durable, the sender sends the batch again, and the others are
        duplicates. If some items are rejected, they are kept and the batch is accepted without
        them. If all items are rejected, the request is rejected.
        """
        if len(items) == 1:
            return [await self._take(items[0])]
        taken = await asyncio.gather(*map(self._take, items), return_exceptions=True)
        rejected = {n: one for n, one in enumerate(taken) if isinstance(one, RequestRejected)}
        for one in taken:
            is_rejected = isinstance(one, RequestRejected)
            if isinstance(one, BaseException) and (not is_rejected or len(rejected) == len(taken)):
                raise one
        if rejected:
            await self._keep_items(rejected, items, request)
        return [one if isinstance(one, Taken) else REJECTED_ITEM for one in taken]

    async def answer(self, request: ReceivedRequest, items: Items, taken: list[Taken]) -> Answer:
        if self._provider.keyed_by_digest:
            await self._keep_repeated(request, items, taken)
        return answers.received(taken, self._provider.acknowledgement)

    def reject(self, rejection: RequestRejected) -> Answer:
        is_forged = isinstance(rejection, BadSignature | StaleTimestamp)
        return answers.rejected(rejection, self._provider.refusal_status if is_forged else None)

    async def _keep_repeated(
        self, request: ReceivedRequest, claims: Items, taken: Sequence[Taken]
    ) -> None:
        """Keep duplicates by body before the response: each may be a different event."""
        repeated: list[UnexaminedRequest] = []
        for item, claim, one in zip(self._split(request), claims, taken, strict=True):
            if not isinstance(claim, Claim) or one.event_id == claim.envelope.id:
                continue
            duplicate = Duplicate(
                f"its body is that of event {one.event_id}: a retry, or another event"
            )
            body = self._route.redacted(item.headers, item.body)
            if claim.verified_by is None or len(body) > self._rejected.largest_body:
                self.keep(request, duplicate, item)
                continue
            kept = self._unexamined(request, duplicate, item.headers, body)
            repeated.append(kept._replace(verified_by=claim.verified_by))
        if repeated:
            keep = self._rejected.keep_duplicates
            await self._keep_durably(keep, repeated, otherwise="duplicates_not_kept")

    async def _keep_items(
        self,
        rejected: Mapping[int, RequestRejected],
        claims: Items,
        request: ReceivedRequest,
    ) -> None:
        """Keep the rejected items of a batch before the response: they are not sent again."""
        items = self._split(request)
        requests = []
        for n, rejection in rejected.items():
            verified_by = getattr(claims[n], "verified_by", None)
            if verified_by is None:  # in development: an unverified item is not kept
                raise rejection
            body = self._route.redacted(items[n].headers, items[n].body)
            kept = self._unexamined(request, rejection, items[n].headers, body)
            requests.append(kept._replace(verified_by=verified_by))
        try:
            keep = self._rejected.keep_items
            await self._keep_durably(keep, requests, otherwise="items_not_kept")
        except NoRoom:
            if self._provider.retries:
                first = next(iter(rejected.values()))
                raise BadPayload(f"{first.reason}; {NO_ROOM}") from None
            self.telemetry.complain("items_not_kept", reason="too many items wait to be released")
            self._rejected.list_items(requests)
        for rejection in rejected.values():
            self.telemetry.count(rejection.code)
            self.telemetry.complain("item_rejected", code=rejection.code, reason=rejection.reason)

    async def _keep_durably(
        self,
        keep: Callable[[Sequence[UnexaminedRequest]], Awaitable[None]],
        requests: Sequence[UnexaminedRequest],
        *,
        otherwise: str,
    ) -> None:
        """Commit rejected items or duplicates before the response.

        A sender that never retries would not send them again after an error either. So if that
        takes too long, they are committed later, and `otherwise` is logged.
        """
        try:
            if self.claimer.is_away:
                raise StorageUnavailable("Postgres is away")
            with self._deadlines.within(self._keep_s, self._kept_late):
                await keep(requests)
        except StorageUnavailable as error:
            if self._provider.retries:
                raise
            self.telemetry.complain(otherwise, reason=f"{error}; kept as soon as possible")
            self._rejected.keep_later(requests)

    def _kept_late(self) -> Exception:
        return StorageUnavailable(
            f"rejected items or duplicates not kept within {self._keep_s:g} s"
        )

    def _split(self, request: ReceivedRequest) -> Sequence[Incoming]:
        incoming = self._incoming(request)
        split = self._provider.split
        return [incoming] if split is None else split(incoming)

    def keep(
        self,
        request: ReceivedRequest,
        rejection: RequestRejected,
        item: Incoming | None = None,
        *,
        is_shadow: bool = False,
    ) -> None:
        """Keep a rejected request, or an item of it, for operators to inspect, if there is room."""
        content = request if item is None else item
        kept = content.body if len(content.body or b"") <= self._largest_kept else None
        unexamined = self._unexamined(request, rejection, content.headers, kept)
        size = measure(content.headers, content.body)
        self._rejected.keep(unexamined._replace(body_bytes=size, shadow=is_shadow))

    def _unexamined(
        self,
        request: ReceivedRequest,
        rejection: RequestRejected,
        headers: Headers,
        body: bytes | None,
    ) -> UnexaminedRequest:
        return UnexaminedRequest(
            route=self._route.name,
            at=datetime.now(UTC),
            code=rejection.code,
            reason=rejection.reason,
            scope=request.scope,
            headers=headers,
            body=body,
            body_bytes=None if body is None else len(body),
            address=self._access.address_of(request.scope),
        )

    async def _take(self, claim: Claim | Envelope | RejectedItem) -> Taken:
        if isinstance(claim, RejectedItem):
            raise claim.rejection
        if isinstance(claim, Envelope):
            self.telemetry.count("ignored")
            self.telemetry.log.info("event_ignored", event_id=claim.id, type=claim.type)
            return Taken("ignored", claim.id)
        claimed = await self._claim(claim)
        self._report(claim, claimed)
        self.telemetry.count(claimed.verdict)
        return Taken(claimed.verdict, claimed.event_id(claim))

    async def _claim(self, claim: Claim) -> Claimed:
        """Write a claim to the ledger, or to the route's spool if the ledger does not respond."""
        if self._spool is None or not self._spool.working:
            return await self.claimer.claim(claim)
        if not (self.claimer.is_away or self._spool.is_behind):
            try:
                with self._deadlines.within(self._ledger_s, self._ledger_late):
                    await self._spool.wait_empty()  # earlier events go first
                    return await self.claimer.claim(claim)
            except StorageUnavailable as error:
                self.telemetry.complain("ledger_late", reason=str(error))
        try:
            await self._spool.keep(claim)
        except SpoolUnavailable as error:
            self.telemetry.complain("spool_unavailable", reason=str(error))
            return await self.claimer.claim(claim)  # the only way to notice that it is back
        self.telemetry.spooled.inc()
        return Claimed(verdict=ClaimVerdict.ACCEPTED, is_spooled=True)

    def _ledger_late(self) -> Exception:
        self.claimer.suspect()
        return StorageUnavailable(f"not in the ledger within {self._ledger_s:g} s")

    def _report(self, claim: Claim, claimed: Claimed) -> None:
        """Log the verdict on a claim. Raises RepeatedBody if the body is a repeated one."""
        envelope, telemetry = claim.envelope, self.telemetry
        if claimed.verdict is ClaimVerdict.REPEATED_BODY:
            if self._route.reconcile is not None and claimed.guard is not None:
                self._rejected.note(Refusal(claim.route, envelope.id, claimed.guard))
            raise RepeatedBody(
                f"event {envelope.id} has the bytes of {claimed.first_event_id}, claimed before"
            )
        fields = {"event_id": claimed.event_id(claim), "type": envelope.type}
        if claimed.conflict:
            telemetry.conflicts.inc()
            telemetry.log.warning("duplicate_with_another_body", **fields)
        elif claimed.is_flagged:
            telemetry.flagged.inc()
            telemetry.log.warning("event_flagged", repeat_of=claimed.first_event_id, **fields)
        if claimed.is_spooled:
            telemetry.log.info("event_spooled", **fields)
        else:
            verdict = f"event_{claimed.verdict}"
            telemetry.log.info(verdict, delivery_ids=claimed.delivery_ids, **fields)
