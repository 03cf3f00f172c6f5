"""The endpoint of one webhook route: verify the signature, claim the events, respond."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from starlette.types import Scope

from gateway.base.errors import (
    BadPayload,
    BadSignature,
    Duplicate,
    Replayed,
    RequestRejected,
    SpoolUnavailable,
    StaleTimestamp,
    StorageUnavailable,
)
from gateway.base.failpoints import reached
from gateway.base.model import Envelope
from gateway.base.secrets import Secret
from gateway.config.routes import Route
from gateway.ledger.claims import Claim, Claimed, ClaimVerdict
from gateway.ledger.rejected import NoRoom, Refusal
from gateway.privacy.redaction import RedactAt
from gateway.providers import Headers, Incoming
from gateway.providers.provider import Greeting
from gateway.receive import answers
from gateway.receive.answers import Answer, Taken
from gateway.receive.keyring import Keyring
from gateway.receive.reading import Read, Reading, RejectedItem
from gateway.receive.rejected_requests import RejectedRequests
from gateway.receive.route_endpoint import ReceiveContext, RouteEndpoint
from gateway.receive.spool.spool import Spool
from gateway.receive.turned_away import UnexaminedRequest, measure

if TYPE_CHECKING:  # opentelemetry, which is an extra
    from gateway.telemetry.spans import Traces

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


class Endpoint(RouteEndpoint):
    """The endpoint for the webhooks of one route."""

    def __init__(
        self,
        route: Route,
        reception: ReceiveContext,
        *,
        keyring: Keyring,
        public_url: str,
        verify_token: Secret | None = None,
        spool: Spool | None,
        refused: RejectedRequests,
        accepts_unverified: bool = False,
    ) -> None:
        super().__init__(route, reception)
        self._provider = route.provider
        is_cut = route.redaction is not None and route.redaction.at is RedactAt.STORE
        is_slow = is_cut or route.provider.parses_first
        self._thread_bytes = SLOW_THREAD_BYTES if is_slow else THREAD_BYTES
        self._reading = Reading(route, reception.registry, keyring)
        self._public_url = public_url
        self._verify_token = None if verify_token is None else verify_token.reveal()
        self._spool = spool
        self._remembering = refused
        self._largest_kept = -1 if is_cut else refused.largest_body
        self._addresses = reception.addresses
        self._accepts_unverified = accepts_unverified
        self._ledger_s = max(self._acknowledge_s - SPOOL_S, self._acknowledge_s / 2)
        self._keep_s = self._acknowledge_s - self._ledger_s
        self._flagged = reception.metrics.flagged.labels(route.name)
        self._spooled = reception.metrics.spooled.labels(route.name)
        self._unverified = reception.metrics.unverified.labels(route.name)

    def _ledger_late(self) -> Exception:
        self._claimer.suspect()
        return StorageUnavailable(f"not in the ledger within {self._ledger_s:g} s")

    def _url(self, scope: Scope) -> str:
        """Return the public URL, as it is configured at the sender.

        Proxies may have changed host and scheme.
        """
        query = scope["query_string"].decode("latin-1")
        path = scope["raw_path"].decode("latin-1")
        return f"{self._public_url}{path}?{query}" if query else f"{self._public_url}{path}"

    def _greet(self, scope: Scope) -> Answer | None:
        if self._provider.greet_by_get is None or scope["method"] not in {"GET", "HEAD"}:
            return None
        incoming = Incoming(self._headers(scope), b"", scope["method"], self._url(scope))
        greeting = self._provider.greet_by_get(incoming, key=self._verify_token)
        return None if greeting is None else answers.greeted(greeting)

    def _greet_unverified(self, scope: Scope, incoming: Incoming, now: datetime) -> Answer | None:
        """Answer a handshake that no secret of the route proves.

        It is not an event, and it does not count as a verified request of its address.
        """
        if self._provider.greet_unverified is None:
            return None
        greeting = self._provider.greet_unverified(incoming._replace(url=self._url(scope)), now=now)
        if greeting is None:
            return None
        self._count("greeted")
        if self._complaints.allow():
            self._log.info("handshake_answered", address=self._gate.address_of(scope))
        return answers.greeted(greeting, is_to_stranger=True)

    async def _receive(self, scope: Scope, headers: Headers, body: bytes) -> Answer:
        received_at = datetime.now(UTC)
        url = self._url(scope) if self._provider.uses_url else ""
        incoming = Incoming(headers, body, "POST", url)
        try:
            if len(body) > self._thread_bytes:
                read = await asyncio.to_thread(self._reading.read, incoming, received_at)
            else:
                read = self._reading.read(incoming, received_at)
        except (BadSignature, StaleTimestamp) as refusal:
            if (greeting := self._greet_unverified(scope, incoming, received_at)) is not None:
                return greeting
            if not self._accepts_unverified:
                raise
            read = self._read_unverified(refusal, scope, incoming, received_at)
        if isinstance(read, Greeting):
            self._count("greeted")
            return answers.greeted(read)
        if self._route.limit is not None:
            self._gate.take(sum(isinstance(one, Claim) for one in read))
        reached("claim.verified")
        if self._traces is None:
            taken = await self._take_all(read, scope, incoming)
        else:
            taken = await self._take_traced(self._traces, read, scope, incoming, received_at)
        if self._provider.keyed_by_digest:
            await self._keep_repeated(read, taken, scope, incoming)
        reached("claim.answering")
        return answers.received(taken, self._provider.acknowledgement)

    async def _take_traced(
        self,
        traces: "Traces",
        read: Sequence[Claim | Envelope | RejectedItem],
        scope: Scope,
        incoming: Incoming,
        at: datetime,
    ) -> list[Taken]:
        with traces.receiving(self._route.label, incoming.headers, at) as span:
            here = traces.here()
            traced = [one._replace(trace=here) if isinstance(one, Claim) else one for one in read]
            taken = await self._take_all(traced, scope, incoming)
            traces.tell(span, [(one.event_id or "-", one.status) for one in taken])
            return taken

    def _read_unverified(
        self, refusal: RequestRejected, scope: Scope, incoming: Incoming, now: datetime
    ) -> Read:
        """Read and report an unverified request, which is still accepted.

        Only in development, on a route with `enforce: false`.
        """
        read = self._reading.read_unverified(incoming, now)
        self._unverified.inc()
        self._keep(refusal, scope, incoming.headers, incoming.body, is_shadow=True)
        self._complain("accepted_unverified", code=refusal.code, reason=refusal.reason)
        return read

    async def _keep_repeated(
        self,
        read: Sequence[Claim | Envelope | RejectedItem],
        taken: Sequence[Taken],
        scope: Scope,
        incoming: Incoming,
    ) -> None:
        """Keep duplicates by body before the response: each may be a different event."""
        split = self._provider.split
        items = [incoming] if split is None else split(incoming)
        repeated: list[UnexaminedRequest] = []
        for item, claim, one in zip(items, read, taken, strict=True):
            if not isinstance(claim, Claim) or one.event_id == claim.envelope.id:
                continue
            reason = f"its body is that of event {one.event_id}: a retry, or another event"
            body = self._route.redacted(item.headers, item.body)
            if claim.verified_by is None or len(body) > self._remembering.largest_body:
                self._keep(Duplicate(reason), scope, item.headers, item.body)
                continue
            request = self._turned_away(Duplicate(reason), scope, item.headers, body)
            repeated.append(request._replace(verified_by=claim.verified_by))
        if not repeated:
            return
        try:
            await self._keep_durably(self._remembering.keep_duplicates, repeated)
        except StorageUnavailable as error:
            if self._retries:
                raise
            self._complain("duplicates_not_kept", reason=f"{error}; kept as soon as possible")
            self._remembering.keep_later(repeated)

    def _keep(
        self,
        rejection: RequestRejected,
        scope: Scope,
        headers: Headers,
        body: bytes | None,
        *,
        is_shadow: bool = False,
    ) -> None:
        kept = body if len(body or b"") <= self._largest_kept else None
        request = self._turned_away(rejection, scope, headers, kept)
        self._remembering.keep(
            request._replace(body_bytes=measure(headers, body), shadow=is_shadow)
        )

    def _turned_away(
        self, rejection: RequestRejected, scope: Scope, headers: Headers, body: bytes | None
    ) -> UnexaminedRequest:
        client = self._addresses.of(scope)
        return UnexaminedRequest(
            route=self._route.name,
            at=datetime.now(UTC),
            code=rejection.code,
            reason=rejection.reason,
            scope=scope,
            headers=headers,
            body=body,
            body_bytes=None if body is None else len(body),
            address=None if client is None else str(client.address),
        )

    async def _take_all(
        self,
        read: Sequence[Claim | Envelope | RejectedItem],
        scope: Scope,
        incoming: Incoming,
    ) -> list[Taken]:
        """Claim the events of a request concurrently.

        If one of them does not become durable, the sender sends the batch again, and the others are
        duplicates. If some items are rejected, they are kept and the batch is accepted without
        them. If all items are rejected, the request is rejected.
        """
        if len(read) == 1:
            return [await self._take(read[0])]
        taken = await asyncio.gather(*map(self._take, read), return_exceptions=True)
        rejected = {n: one for n, one in enumerate(taken) if isinstance(one, RequestRejected)}
        for one in taken:
            is_rejected = isinstance(one, RequestRejected)
            if isinstance(one, BaseException) and (not is_rejected or len(rejected) == len(taken)):
                raise one
        if rejected:
            await self._keep_items(rejected, read, scope, incoming)
        return [one if isinstance(one, Taken) else REJECTED_ITEM for one in taken]

    async def _keep_items(
        self,
        rejected: Mapping[int, RequestRejected],
        read: Sequence[Claim | Envelope | RejectedItem],
        scope: Scope,
        incoming: Incoming,
    ) -> None:
        """Keep the rejected items of a batch before the response: they are not sent again."""
        items = [] if self._provider.split is None else self._provider.split(incoming)
        requests = []
        for n, rejection in rejected.items():
            verified_by = getattr(read[n], "verified_by", None)
            if verified_by is None:  # in development: an unverified item is not kept
                raise rejection
            body = self._route.redacted(items[n].headers, items[n].body)
            request = self._turned_away(rejection, scope, items[n].headers, body)
            requests.append(request._replace(verified_by=verified_by))
        try:
            await self._keep_durably(self._remembering.keep_items, requests)
        except (StorageUnavailable, NoRoom) as error:
            if self._retries:
                if isinstance(error, StorageUnavailable):
                    raise
                first = next(iter(rejected.values()))
                raise BadPayload(f"{first.reason}; {NO_ROOM}") from None
            # A sender that never retries would not send the batch again after an error either.
            if isinstance(error, NoRoom):
                self._complain("items_not_kept", reason="too many items wait to be released")
                self._remembering.list_items(requests)
            else:
                self._complain("items_not_kept", reason=f"{error}; kept as soon as possible")
                self._remembering.keep_later(requests)
        for rejection in rejected.values():
            self._count(rejection.code)
            self._complain("item_rejected", code=rejection.code, reason=rejection.reason)

    async def _keep_durably(
        self,
        keep: Callable[[Sequence[UnexaminedRequest]], Awaitable[None]],
        requests: Sequence[UnexaminedRequest],
    ) -> None:
        if self._claimer.is_away:
            raise StorageUnavailable("Postgres is away")
        with self._deadlines.within(self._keep_s, self._kept_late):
            await keep(requests)

    def _kept_late(self) -> Exception:
        return StorageUnavailable(
            f"rejected items or duplicates not kept within {self._keep_s:g} s"
        )

    async def _take(self, claim: Claim | Envelope | RejectedItem) -> Taken:
        if isinstance(claim, RejectedItem):
            raise claim.rejection
        if isinstance(claim, Envelope):
            self._count("ignored")
            self._log.info("event_ignored", event_id=claim.id, type=claim.type)
            return Taken("ignored", claim.id)
        claimed = await self._make_durable(claim)
        self._note(claim, claimed)
        self._count(claimed.verdict)
        return Taken(claimed.verdict, claimed.event_id(claim))

    async def _make_durable(self, claim: Claim) -> Claimed:
        """Write a claim to the ledger, or to the route's spool if the ledger does not respond."""
        if self._spool is None or not self._spool.working:
            return await self._claimer.claim(claim)
        if not (self._claimer.is_away or self._spool.is_behind):
            try:
                with self._deadlines.within(self._ledger_s, self._ledger_late):
                    await self._spool.wait_empty()  # earlier events go first
                    return await self._claimer.claim(claim)
            except StorageUnavailable as error:
                self._complain("ledger_late", reason=str(error))
        try:
            await self._spool.keep(claim)
        except SpoolUnavailable as error:
            self._complain("spool_unavailable", reason=str(error))
            return await self._claimer.claim(claim)  # the only way to notice that it is back
        self._spooled.inc()
        return Claimed(verdict=ClaimVerdict.ACCEPTED, is_spooled=True)

    def _refused(self, rejection: RequestRejected) -> Answer:
        told = super()._refused(rejection)
        if isinstance(rejection, BadSignature | StaleTimestamp):
            return answers.refused(rejection, self._provider.refusal_status)
        return told

    def _note(self, claim: Claim, claimed: Claimed) -> None:
        envelope = claim.envelope
        if claimed.verdict is ClaimVerdict.REPLAYED:
            if self._route.reconcile is not None and claimed.guard is not None:
                self._remembering.note(Refusal(claim.route, envelope.id, claimed.guard))
            raise Replayed(
                f"event {envelope.id} has the bytes of {claimed.first_event_id}, claimed before"
            )
        fields = {"event_id": claimed.event_id(claim), "type": envelope.type}
        if claimed.conflict:
            self._conflicts.inc()
            self._log.warning("duplicate_with_another_body", **fields)
        elif claimed.is_flagged:
            self._flagged.inc()
            self._log.warning("event_flagged", replay_of=claimed.first_event_id, **fields)
        if claimed.is_spooled:
            self._log.info("event_spooled", **fields)
        else:
            self._log.info(f"event_{claimed.verdict}", delivery_ids=claimed.delivery_ids, **fields)
