"""One route's URL: signature, claim, answer."""

import asyncio
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

from gateway.errors import Replayed, SpoolUnavailable, StorageUnavailable
from gateway.failpoints import reached
from gateway.ledger.claims import Claim, Claimed, Verdict
from gateway.ledger.making import make_claim
from gateway.ledger.refusals import Refusal
from gateway.model import Envelope
from gateway.providers import Headers
from gateway.receive import answers
from gateway.receive.answers import Answer
from gateway.receive.door import Door, Reception
from gateway.receive.refused import Refused
from gateway.routes import Route
from gateway.spool.spool import Spool

THREAD_BYTES: Final = 1024 * 1024
"""Bodies over this are hashed and read in a thread, so that they do not hold up the others."""

SPOOL_S: Final = 1.0
"""How much of `ack_within` is left for the disk where the ledger does not answer; half at most."""


class Endpoint(Door):
    """Answers the webhooks of one route."""

    def __init__(
        self,
        route: Route,
        reception: Reception,
        *,
        secrets: Sequence[bytes],
        spool: Spool | None,
        refused: Refused,
    ) -> None:
        super().__init__(route, reception)
        self._provider = route.provider
        self._secrets = tuple(secrets)
        self._spool = spool
        self._refusals = refused if route.reconcile is not None else None
        self._ledger_s = max(self._acknowledge_s - SPOOL_S, self._acknowledge_s / 2)
        self._flagged = reception.metrics.flagged.labels(route.name)
        self._spooled = reception.metrics.spooled.labels(route.name)

    def _ledger_late(self) -> Exception:
        self._claimer.suspect()
        return StorageUnavailable(f"not in the ledger within {self._ledger_s:g} s")

    async def _receive(self, headers: Headers, body: bytes) -> Answer:
        received_at = datetime.now(UTC)
        if len(body) > THREAD_BYTES:
            envelope, digest = await asyncio.to_thread(self._read, headers, body, received_at)
        else:
            envelope, digest = self._read(headers, body, received_at)
        if not self._route.wants(envelope):
            self._count("ignored")
            self._log.info("event_ignored", event_id=envelope.id, type=envelope.type)
            return answers.received("ignored", envelope.id)
        make = partial(
            make_claim,
            self._route,
            self._registry,
            envelope,
            headers=headers,
            body=body,
            digest=digest,
            received_at=received_at,
        )
        claim = await asyncio.to_thread(make) if len(body) > THREAD_BYTES else make()
        reached("claim.verified")
        claimed = await self._make_durable(claim)
        self._note(claim, claimed)
        self._count(claimed.verdict)
        reached("claim.answering")
        return answers.received(claimed.verdict, envelope.id)

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

    def _read(self, headers: Headers, body: bytes, now: datetime) -> tuple[Envelope, bytes]:
        """Verifies first: nothing of a body is looked at before its sender is known."""
        self._provider.verify(
            headers, body, secrets=self._secrets, now=now, tolerance=self._route.tolerance
        )
        return self._provider.read(headers, body), hashlib.sha256(body).digest()

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
