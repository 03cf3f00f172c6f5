"""Turn a request into claims: verify it first, then read it."""

import hashlib
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from gateway.base.errors import BadPayload, BadSignature, RequestRejected
from gateway.base.model import Envelope
from gateway.config.registry import Registry
from gateway.config.routes import Route
from gateway.ledger.claims import Claim
from gateway.ledger.make_claim import make_claim
from gateway.providers import Incoming
from gateway.providers.provider import Greeting, Key
from gateway.receive.keyring import EXPIRED, Keyring

NOT_QUOTED: Final = (
    "verified, but no event; the reason is left out, since it may quote the payload of a route"
    " with `redact` or `encrypt`"
)


class RejectedItem(NamedTuple):
    """An item of a verified batch that cannot be read."""

    rejection: RequestRejected
    verified_by: str


Items = list[Claim | Envelope | RejectedItem]
"""The events of a request. An event that is not wanted is only an Envelope."""

Read = Greeting | Items


class Reading:
    """Interpret the requests of one route: in its endpoint, and when a rejected request is
    released.
    """

    def __init__(self, route: Route, registry: Registry, keyring: Keyring) -> None:
        self._route = route
        self._provider = route.provider
        self._registry = registry
        self._keyring = keyring
        self._is_confidential = route.redaction is not None or route.encrypt

    def read(self, incoming: Incoming, now: datetime) -> Read:
        """Verify and read a request.

        Nothing of the body is parsed before the sender is verified.
        """
        ring = self._keyring.at(now)
        if not ring.keys:
            raise BadSignature(EXPIRED)
        verified = self._provider.verify(
            incoming, keys=ring.keys, now=now, tolerance=self._route.tolerance
        )
        held = ring.held[verified.key]
        held.use.note(now)
        try:
            return self._understand(incoming, held.key, held.name, verified.signed_at_s, now)
        except BadPayload as rejection:
            raise self._discreet(rejection) from None

    def read_unverified(self, incoming: Incoming, now: datetime) -> Read:
        """Read a request without verifying it. For development only."""
        try:
            return self._understand(incoming, None, None, None, now)
        except BadPayload as rejection:
            raise self._discreet(rejection) from None

    def _discreet(self, rejection: BadPayload) -> BadPayload:
        """Return the rejection in a form that may be logged, stored and shown."""
        return BadPayload(NOT_QUOTED) if self._is_confidential else rejection

    def _understand(
        self,
        incoming: Incoming,
        key: Key,
        verified_by: str | None,
        signed_at_s: float | None,
        now: datetime,
    ) -> Read:
        provider = self._provider
        if provider.greet is not None:
            greeting = provider.greet(incoming, key=key)
            if greeting is not None:
                return greeting
        if provider.split is None:
            return [self._claim(incoming, verified_by, signed_at_s, now)]
        # A microsecond apart: the id of an item without one of its own is its digest and its time.
        read = [
            self._read_item(item, verified_by, signed_at_s, now + n * timedelta.resolution)
            for n, item in enumerate(provider.split(incoming))
        ]
        rejected = [one for one in read if isinstance(one, RejectedItem)]
        if rejected and len(rejected) == len(read):
            raise rejected[0].rejection
        return read

    def _read_item(
        self,
        item: Incoming,
        verified_by: str | None,
        signed_at_s: float | None,
        now: datetime,
    ) -> Claim | Envelope | RejectedItem:
        """Read one item of a batch, so that an unreadable item does not reject the others."""
        try:
            return self._claim(item, verified_by, signed_at_s, now)
        except BadPayload as rejection:
            if verified_by is None:  # in development: an unverified item is not kept
                raise
            return RejectedItem(self._discreet(rejection), verified_by)

    def read_verified(self, item: Incoming, verified_by: str, now: datetime) -> Read:
        """Read a rejected item or a duplicate again. It was verified when it arrived."""
        try:
            return [self._claim(item, verified_by, None, now)]
        except BadPayload as rejection:
            raise self._discreet(rejection) from None

    def _claim(
        self,
        incoming: Incoming,
        verified_by: str | None,
        signed_at_s: float | None,
        now: datetime,
    ) -> Claim | Envelope:
        envelope = self._provider.read(incoming)
        if not self._route.wants(envelope):
            return envelope
        return make_claim(
            self._route,
            self._registry,
            envelope,
            headers=incoming.headers,
            body=incoming.body,
            digest=hashlib.sha256(incoming.body).digest(),
            received_at=now,
            guard=None if verified_by is None else self._guard(incoming),
            verified_by=verified_by,
            unverified=verified_by is None,
            clock_s=None if signed_at_s is None else now.timestamp() - signed_at_s,
        )

    def _guard(self, incoming: Incoming) -> bytes | None:
        proof = self._provider.proof
        return None if proof is None else hashlib.sha256(proof(incoming)).digest()
