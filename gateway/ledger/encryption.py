"""Encrypted data of the ledger: events, errors and results, each bound to its own row."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from gateway.base.errors import ConfigInvalid, StorageUnavailable
from gateway.base.names import NO_NAMES, Names
from gateway.config.project import Project
from gateway.config.routes import Config
from gateway.ledger.claims import Claim
from gateway.ledger.connection import Connection
from gateway.ledger.names import settle_names
from gateway.privacy.encryption import KeyRing

_LENGTH: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionKeys:
    """The keys, and the routes whose events are encrypted."""

    ring: KeyRing = field(default_factory=KeyRing)
    routes: frozenset[str] = frozenset()

    def seal_claim(self, claim: Claim) -> Claim:
        """Return the claim in its stored form, encrypted if its route is."""
        if claim.key_id is not None or not (claim.encrypt or claim.route in self.routes):
            return claim
        ring, route, id = self.ring, claim.route, claim.envelope.id
        return claim._replace(
            envelope=replace(claim.envelope, object_id=None),  # the object id is in the payload
            digest=blind_digest(ring, route, claim.digest),
            guard=None if claim.guard is None else blind_digest(ring, route, claim.guard),
            headers={},
            body=seal_event(ring, route, id, claim.headers, claim.body),
            order_keys={h: blind_key(ring, route, h, k) for h, k in claim.order_keys.items()},
            key_id=ring.first,
        )

    def seal_for_disk(self, claim: Claim) -> Claim:
        """Return the claim in the form of the spool, encrypted if its route is.

        Unlike in the ledger, digests and keys are within the encrypted part: the keyed ones are
        made for an identity, which may not be known before the ledger is back.
        """
        if claim.route not in self.routes:
            return claim
        facts = {
            "headers": dict(claim.headers),
            "digest": claim.digest.hex(),
            "guard": None if claim.guard is None else claim.guard.hex(),
            "object_id": claim.envelope.object_id,
            "order_keys": dict(claim.order_keys),
        }
        document = _packed(facts, claim.body)
        return claim._replace(
            envelope=replace(claim.envelope, object_id=None),
            digest=b"",
            guard=None,
            headers={},
            body=self.ring.seal(document, _on_disk(claim)),
            order_keys={},
            key_id=self.ring.first,
        )

    def open_from_disk(self, claim: Claim) -> Claim:
        """Return a claim of the spool in its original form. Raises KeyMissing or SealBroken."""
        if claim.key_id is None:
            return claim
        facts, body = _unpacked(self.ring.open(claim.body, _on_disk(claim)))
        return claim._replace(
            envelope=replace(claim.envelope, object_id=facts["object_id"]),
            digest=bytes.fromhex(facts["digest"]),
            guard=None if facts["guard"] is None else bytes.fromhex(facts["guard"]),
            headers=facts["headers"],
            body=body,
            order_keys=facts["order_keys"],
            key_id=None,
            encrypt=True,
        )

    def turn_key(self, route: str, handler: str, key: str) -> str:
        """Return the stored form of a key from a payload."""
        return blind_key(self.ring, route, handler, key) if route in self.routes else key


def vault_of(config: Config, ring: KeyRing) -> EncryptionKeys:
    """Return the keys and encrypted routes of a configuration."""
    return EncryptionKeys(ring=ring, routes=frozenset(r.name for r in config.routes if r.encrypt))


OPEN: Final = EncryptionKeys()
"""Encrypts nothing: for a throwaway database with made-up events."""


class ClaimCodec:
    """Converts claims to their stored form, with names that were resolved before."""

    def __init__(self, encryption: EncryptionKeys, names: Names = NO_NAMES) -> None:
        self.encryption = encryption
        self.names = names
        self._has_renamed = bool(names)

    async def prepare(self, connection: Connection) -> None:
        """No-op: names were resolved when the process started."""

    def encode(self, claim: Claim) -> Claim:
        """Return the claim with the identities of its route and handlers, encrypted if its route
        is.

        An identity resolves to itself, so a resolved claim stays unchanged.
        """
        if self._has_renamed and claim.key_id is None:
            claim = self._identified(claim)
        return self.encryption.seal_claim(claim)

    def _identified(self, claim: Claim) -> Claim:
        handlers = self.names.handlers
        return claim._replace(
            route=self.names.routes.identity(claim.route),
            handlers=tuple(dict.fromkeys(map(handlers.identity, claim.handlers))),
            order_keys={handlers.identity(h): key for h, key in claim.order_keys.items()},
        )


class ResolvingCodec(ClaimCodec):
    """Resolves the names when the ledger is reachable, for a `serve` that started without it."""

    def __init__(self, project: Project) -> None:
        super().__init__(vault_of(project.config, project.ring), project.names)
        self._project = project

    async def prepare(self, connection: Connection) -> None:
        """Resolve the names of the project. Raises StorageUnavailable if they are refused."""
        try:
            names = await settle_names(connection, self._project.declared_names())
        except ConfigInvalid as error:
            raise StorageUnavailable(f"names of routes and handlers: {error}") from error
        project = self._project.identified(names)
        self.encryption, self.names = vault_of(project.config, project.ring), names
        self._has_renamed = bool(names)


def seal_event(
    ring: KeyRing, route: str, event_id: str, headers: Mapping[str, str], body: bytes
) -> bytes:
    """Encrypt headers and body as one document."""
    document = _packed(dict(headers), body)
    return ring.seal(document, ("processed_events", route, event_id))


def open_event(
    ring: KeyRing, route: str, event_id: str, sealed: bytes
) -> tuple[dict[str, str], bytes]:
    """Return headers and body. Raises KeyMissing or SealBroken."""
    return _unpacked(ring.open(sealed, ("processed_events", route, event_id)))


def seal_rejected(
    ring: KeyRing, route: str, at: datetime, path: str, headers: Mapping[str, str], body: bytes
) -> bytes:
    """Encrypt a rejected request."""
    document = _packed({"path": path, "headers": dict(headers)}, body)
    return ring.seal(document, rejected_identity(route, at))


def open_rejected(ring: KeyRing, route: str, at: datetime, sealed: bytes) -> dict[str, Any]:
    """Return path, headers and body of a rejected request. Raises KeyMissing or SealBroken."""
    facts, body = _unpacked(ring.open(sealed, rejected_identity(route, at)))
    return {**facts, "body": body}


def seal_error(ring: KeyRing, delivery_id: int, run: int, text: str) -> bytes:
    """Encrypt the error of one attempt."""
    return ring.seal(text.encode("utf-8", "backslashreplace"), _attempt(delivery_id, run))


def open_error(ring: KeyRing, delivery_id: int, run: int, sealed: bytes) -> str:
    """Return the error of one attempt. Raises KeyMissing or SealBroken."""
    return ring.open(sealed, _attempt(delivery_id, run)).decode()


def seal_result(ring: KeyRing, delivery_id: int, name: str, result: bytes) -> bytes:
    """Encrypt the result of an external effect."""
    return ring.seal(result, ("effects", str(delivery_id), name))


def open_result(ring: KeyRing, delivery_id: int, name: str, sealed: bytes) -> bytes:
    """Return the result of an external effect. Raises KeyMissing or SealBroken."""
    return ring.open(sealed, ("effects", str(delivery_id), name))


def blind_digest(ring: KeyRing, route: str, digest: bytes) -> bytes:
    """Return the keyed digest of a body.

    It is computed from the plain digest, so that it can be made after the body was deleted.
    """
    return ring.digest("body", route, digest)


def blind_key(ring: KeyRing, route: str, handler: str, key: str) -> str:
    """Return the keyed digest that replaces a key from a payload."""
    return ring.digest_text("key", route, handler, key)


def rejected_identity(route: str, at: datetime) -> tuple[str, str, str]:
    return "rejected", route, at.astimezone(UTC).isoformat()


def _packed(facts: Mapping[str, Any], body: bytes) -> bytes:
    """Pack a document: the length of the facts, the facts as JSON, the body."""
    head = orjson.dumps(facts)
    return b"".join((_LENGTH.pack(len(head)), head, body))


def _unpacked(document: bytes) -> tuple[dict[str, Any], bytes]:
    [size] = _LENGTH.unpack_from(document)
    end = _LENGTH.size + size
    return orjson.loads(document[_LENGTH.size : end]), document[end:]


def _on_disk(claim: Claim) -> tuple[str, str, str]:
    return "spool", claim.route, claim.envelope.id


def _attempt(delivery_id: int, run: int) -> tuple[str, str, str]:
    return "attempts", str(delivery_id), str(run)
