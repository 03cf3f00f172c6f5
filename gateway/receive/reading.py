"""A request as it was received, and its claims: verify it first, then read it."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from starlette.types import Receive, Scope

from gateway.base.errors import (
    BadPayload,
    BadSignature,
    RequestRejected,
    UnsupportedCoding,
    UnsupportedEncoding,
)
from gateway.base.model import Envelope
from gateway.config.registry import Registry
from gateway.config.routes import Route
from gateway.ledger.claims import Claim
from gateway.ledger.make_claim import make_claim
from gateway.providers import Headers, Incoming
from gateway.providers.provider import Greeting, Key
from gateway.receive.keyring import EXPIRED, LONG_AGO, Keyring

NOT_QUOTED: Final = (
    "verified, but no event; the reason is left out, since it may quote the payload of a route"
    " with `redact` or `encrypt`"
)


@dataclass(slots=True, eq=False)
class ReceivedRequest:
    """A request, with as much as has been read of it."""

    scope: Scope
    receive: Receive
    headers: Headers
    body: bytes | None = None
    received_at: datetime = LONG_AGO


def path_and_query(scope: Scope) -> str:
    path: str = scope["raw_path"].decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def local_path(scope: Scope) -> str:
    """Return the decoded path below the one where this application is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def read_headers(scope: Scope) -> dict[str, str]:
    pairs = scope["headers"]
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
    return headers if len(headers) == len(pairs) else join_repeated(pairs)


def join_repeated(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Join repeated header fields into a list, and never use only the first or the last of them.

    A proxy in front may have checked the other one. No valid signature, timestamp or token is such
    a list. https://www.rfc-editor.org/rfc/rfc9110.html#section-5.3
    """
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    return {name: ", ".join(several) for name, several in values.items()}


def check_encoding(headers: Headers) -> None:
    """Check that the body is not encoded: signatures cover the bytes before any encoding."""
    content = headers.get("content-encoding", "").strip()
    if content and content.lower() != "identity":
        raise UnsupportedEncoding(f"content-encoding: found {content[:60]!a}; expected none")
    transfer = headers.get("transfer-encoding", "chunked")
    if transfer.lower() != "chunked":
        raise UnsupportedCoding(f"transfer-encoding: found {transfer[:60]!a}; expected chunked")


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
