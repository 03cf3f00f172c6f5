"""What of the ledger is kept sealed: events, errors and results, each for its own row."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from gateway.ledger.claims import Claim
from gateway.routes import Config
from gateway.sealing import KeyRing

_LENGTH: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vault:
    """The keys, and the routes whose events are kept under them."""

    ring: KeyRing = field(default_factory=KeyRing)
    routes: frozenset[str] = frozenset()

    def seal_claim(self, claim: Claim) -> Claim:
        """As it is kept, on disk and in the ledger, where its route is encrypted."""
        if claim.route not in self.routes:
            return claim
        ring, route, id = self.ring, claim.route, claim.envelope.id
        return claim._replace(
            envelope=replace(claim.envelope, object_id=None),  # which is in the payload
            digest=blind_digest(ring, route, claim.digest),
            guard=None if claim.guard is None else blind_digest(ring, route, claim.guard),
            headers={},
            body=seal_event(ring, route, id, claim.headers, claim.body),
            order_keys={h: blind_key(ring, route, h, k) for h, k in claim.order_keys.items()},
            key_id=ring.first,
        )

    def turn_key(self, route: str, handler: str, key: str) -> str:
        """A key from a payload as it is kept."""
        return blind_key(self.ring, route, handler, key) if route in self.routes else key


def vault_of(config: Config, ring: KeyRing) -> Vault:
    """Of a configuration, and the keys that it refers to."""
    return Vault(ring=ring, routes=frozenset(r.name for r in config.routes if r.encrypt))


OPEN: Final = Vault()
"""Where nothing is to be hidden: a throwaway database with made-up events."""


def seal_event(
    ring: KeyRing, route: str, event_id: str, headers: Mapping[str, str], body: bytes
) -> bytes:
    """Headers and body as one sealed document."""
    head = orjson.dumps(dict(headers))
    document = b"".join((_LENGTH.pack(len(head)), head, body))
    return ring.seal(document, ("processed_events", route, event_id))


def open_event(
    ring: KeyRing, route: str, event_id: str, sealed: bytes
) -> tuple[dict[str, str], bytes]:
    """Headers and body. Raises KeyMissing or SealBroken."""
    document = ring.open(sealed, ("processed_events", route, event_id))
    [size] = _LENGTH.unpack_from(document)
    end = _LENGTH.size + size
    return orjson.loads(document[_LENGTH.size : end]), document[end:]


def seal_rejected(
    ring: KeyRing, route: str, at: datetime, path: str, headers: Mapping[str, str], body: bytes
) -> bytes:
    """A refused request."""
    head = orjson.dumps({"path": path, "headers": dict(headers)})
    document = b"".join((_LENGTH.pack(len(head)), head, body))
    return ring.seal(document, rejected_identity(route, at))


def open_rejected(ring: KeyRing, route: str, at: datetime, sealed: bytes) -> dict[str, Any]:
    """Its path, headers and body. Raises KeyMissing or SealBroken."""
    document = ring.open(sealed, rejected_identity(route, at))
    [size] = _LENGTH.unpack_from(document)
    end = _LENGTH.size + size
    return {**orjson.loads(document[_LENGTH.size : end]), "body": document[end:]}


def seal_error(ring: KeyRing, delivery_id: int, run: int, text: str) -> bytes:
    """The error of one attempt."""
    return ring.seal(text.encode("utf-8", "backslashreplace"), _attempt(delivery_id, run))


def open_error(ring: KeyRing, delivery_id: int, run: int, sealed: bytes) -> str:
    """Raises KeyMissing or SealBroken."""
    return ring.open(sealed, _attempt(delivery_id, run)).decode()


def seal_result(ring: KeyRing, delivery_id: int, name: str, result: bytes) -> bytes:
    """What came of an outside effect."""
    return ring.seal(result, ("effects", str(delivery_id), name))


def open_result(ring: KeyRing, delivery_id: int, name: str, sealed: bytes) -> bytes:
    """Raises KeyMissing or SealBroken."""
    return ring.open(sealed, ("effects", str(delivery_id), name))


def blind_digest(ring: KeyRing, route: str, digest: bytes) -> bytes:
    """The digest of a body, keyed: made from the plain one, so that it can be made when the body
    is long gone."""
    return ring.digest("body", route, digest)


def blind_key(ring: KeyRing, route: str, handler: str, key: str) -> str:
    """What stands in the place of a key that was taken from a payload."""
    return ring.digest_text("key", route, handler, key)


def rejected_identity(route: str, at: datetime) -> tuple[str, str, str]:
    return "rejected", route, at.astimezone(UTC).isoformat()


def _attempt(delivery_id: int, run: int) -> tuple[str, str, str]:
    return "attempts", str(delivery_id), str(run)
