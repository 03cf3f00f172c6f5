"""One route's URL: signature, claim, answer."""

import asyncio
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from starlette.types import Scope

from gateway.errors import (
    BadSignature,
    Replayed,
    RequestRejected,
    SpoolUnavailable,
    StaleTimestamp,
    StorageUnavailable,
)
from gateway.failpoints import reached
from gateway.ledger.claims import Claim, Claimed, Verdict
from gateway.ledger.making import make_claim
from gateway.ledger.refusals import Refusal
from gateway.model import Envelope
from gateway.providers import Headers, Incoming
from gateway.providers.provider import Greeting, Verified
from gateway.receive import answers
from gateway.receive.answers import Answer, Taken
from gateway.receive.door import Door, Reception
from gateway.receive.keyring import EXPIRED, Keyring
from gateway.receive.refused import Refused
from gateway.redaction import RedactAt
from gateway.routes import Route
from gateway.secrets import Secret
from gateway.spool.spool import Spool

THREAD_BYTES: Final = 1024 * 1024
"""Bodies over this are hashed and read in a thread, so that they do not hold up the others."""

CUT_THREAD_BYTES: Final = 64 * 1024
"""The same where fields are taken out of them, which takes many times as long."""

SPOOL_S: Final = 1.0
"""How much of `ack_within` is left for the disk where the ledger does not answer; half at most."""


class Endpoint(Door):
    """Answers the webhooks of one route."""

    def __init__(
        self,
        route: Route,
        reception: Reception,
        *,
        keyring: Keyring,
        public_url: str,
        verify_token: Secret | None = None,
        spool: Spool | None,
        refused: Refused,
    ) -> None:
        super().__init__(route, reception)
        self._provider = route.provider
        is_cut = route.redaction is not None and route.redaction.at is RedactAt.STORE
        self._thread_bytes = CUT_THREAD_BYTES if is_cut else THREAD_BYTES
        self._keyring = keyring
        self._public_url = public_url
        self._verify_token = None if verify_token is None else verify_token.reveal()
        self._spool = spool
        self._refusals = refused if route.reconcile is not None else None
        self._ledger_s = max(self._acknowledge_s - SPOOL_S, self._acknowledge_s / 2)
        self._flagged = reception.metrics.flagged.labels(route.name)
        self._spooled = reception.metrics.spooled.labels(route.name)

    def _ledger_late(self) -> Exception:
        self._claimer.suspect()
        return StorageUnavailable(f"not in the ledger within {self._ledger_s:g} s")

    def _url(self, scope: Scope) -> str:
        """As the sender was told it: whatever a proxy has made of host and scheme."""
        query = scope["query_string"].decode("latin-1")
        path = scope["raw_path"].decode("latin-1")
        return f"{self._public_url}{path}?{query}" if query else f"{self._public_url}{path}"

    def _greet(self, scope: Scope) -> Answer | None:
        if self._provider.greet_by_get is None or scope["method"] not in {"GET", "HEAD"}:
            return None
        incoming = Incoming(self._headers(scope), b"", scope["method"], self._url(scope))
        greeting = self._provider.greet_by_get(incoming, key=self._verify_token)
        return None if greeting is None else answers.greeted(greeting)

    async def _receive(self, scope: Scope, headers: Headers, body: bytes) -> Answer:
        received_at = datetime.now(UTC)
        url = self._url(scope) if self._provider.uses_url else ""
        incoming = Incoming(headers, body, "POST", url)
        if len(body) > self._thread_bytes:
            read = await asyncio.to_thread(self._read, incoming, received_at)
        else:
            read = self._read(incoming, received_at)
        if isinstance(read, Greeting):
            self._count("greeted")
            return answers.greeted(read)
        if self._route.limit is not None:
            self._gate.take(sum(isinstance(one, Claim) for one in read))
        reached("claim.verified")
        if len(read) == 1:
            taken = [await self._take(read[0])]
        else:
            taken = await self._take_all(read)
        reached("claim.answering")
        return answers.received(taken, self._provider.acknowledgement)

    async def _take_all(self, claims: Sequence[Claim | Envelope]) -> list[Taken]:
        """Together, in their order. Where one is not durable, the sender comes back with all of
        them, and those that were are duplicates."""
        taken = await asyncio.gather(*map(self._take, claims), return_exceptions=True)
        for one in taken:
            if isinstance(one, BaseException):
                raise one
        return [one for one in taken if isinstance(one, Taken)]

    async def _take(self, claim: Claim | Envelope) -> Taken:
        if isinstance(claim, Envelope):
            self._count("ignored")
            self._log.info("event_ignored", event_id=claim.id, type=claim.type)
            return Taken("ignored", claim.id)
        claimed = await self._make_durable(claim)
        self._note(claim, claimed)
        self._count(claimed.verdict)
        return Taken(claimed.verdict, claim.envelope.id)

    async def _make_durable(self, claim: Claim) -> Claimed:
        """In the ledger; or on the disk, where the ledger does not answer and the route spools."""
        if self._spool is None or not self._spool.working:
            return await self._claimer.claim(claim)
        if not (self._claimer.is_away or self._spool.is_behind):
            try:
                with self._deadlines.within(self._ledger_s, self._ledger_late):
                    await self._spool.wait_empty()  # what came before goes before
                    return await self._claimer.claim(claim)
            except StorageUnavailable as error:
                self._complain("ledger_late", reason=str(error))
        try:
            await self._spool.keep(claim)
        except SpoolUnavailable as error:
            self._complain("spool_unavailable", reason=str(error))
            return await self._claimer.claim(claim)  # the only one who would notice that it is back
        self._spooled.inc()
        return Claimed(verdict=Verdict.ACCEPTED, is_spooled=True)

    def _read(self, incoming: Incoming, now: datetime) -> Greeting | list[Claim | Envelope]:
        """Verifies first: nothing of a body is looked at before its sender is known."""
        provider = self._provider
        ring = self._keyring.at(now)
        if not ring.keys:
            raise BadSignature(EXPIRED)
        verified = provider.verify(
            incoming, keys=ring.keys, now=now, tolerance=self._route.tolerance
        )
        held = ring.held[verified.key]
        held.use.note(now)
        if provider.greet is not None:
            greeting = provider.greet(incoming, key=held.key)
            if greeting is not None:
                return greeting
        if provider.split is None:
            return [self._claim(incoming, verified, held.name, now)]
        return [self._claim(item, verified, held.name, now) for item in provider.split(incoming)]

    def _claim(
        self, incoming: Incoming, verified: Verified, verified_by: str, now: datetime
    ) -> Claim | Envelope:
        """The envelope alone, where the event is not wanted."""
        envelope = self._provider.read(incoming)
        if not self._route.wants(envelope):
            return envelope
        signed_at_s = verified.signed_at_s
        return make_claim(
            self._route,
            self._registry,
            envelope,
            headers=incoming.headers,
            body=incoming.body,
            digest=hashlib.sha256(incoming.body).digest(),
            received_at=now,
            vault=self._vault,
            verified_by=verified_by,
            clock_s=None if signed_at_s is None else now.timestamp() - signed_at_s,
        )

    def _refused(self, rejection: RequestRejected) -> Answer:
        told = super()._refused(rejection)
        if isinstance(rejection, BadSignature | StaleTimestamp):
            return answers.refused(rejection, self._provider.refusal_status)
        return told

    def _note(self, claim: Claim, claimed: Claimed) -> None:
        envelope = claim.envelope
        if claimed.verdict is Verdict.REPLAYED:
            if self._refusals is not None:
                self._refusals.note(Refusal(claim.route, envelope.id, claim.digest))
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
        if claimed.is_spooled:
            self._log.info("event_spooled", **fields)
        else:
            self._log.info(f"event_{claimed.verdict}", delivery_ids=claimed.delivery_ids, **fields)
