"""Build the stored row of a rejected request: its cause, and its data without credentials."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from gateway.ledger.encryption import EncryptionKeys, blind_digest, seal_rejected
from gateway.ledger.rejected import NOWHERE, Clocks, Rejected
from gateway.providers.provider import CREDENTIALS
from gateway.receive.rejected.causes import CauseFinder
from gateway.receive.rejected.requests import LONGEST_PATH, UnexaminedRequest
from gateway.receive.rejected.tries import HashBudget

NOT_KEPT: Final = "(not kept)"
FEWEST_BYTES: Final = 6
"""Shorter secrets would be found everywhere by chance."""

LONGEST_VALUE: Final = 4096

_WORDS: Final = frozenset(
    {
        *("authorization", "auth", "token", "secret", "password", "passwd", "pwd", "bearer"),
        *("cookie", "cookie2", "apikey", "credential", "credentials", "session", "jwt", "key"),
    }
)
_SEPARATORS: Final = re.compile(r"[-_.]")
_PARAMETER: Final = re.compile(r"([?&])([^=&]+)=([^&]*)")
_HARMLESS: Final = frozenset({"idempotency-key", "sec-websocket-key"})


def is_credential(name: str) -> bool:
    """Return whether a header or parameter of this name most likely carries a credential."""
    name = name.lower()
    if name in _HARMLESS:
        return False
    return name in CREDENTIALS or not _WORDS.isdisjoint(_SEPARATORS.split(name))


class Scrubber:
    """Remove credentials, and the secrets of this gateway wherever they occur."""

    def __init__(
        self,
        secrets: Iterable[bytes],
        headers: Iterable[str] = (),
        harmless: Iterable[str] = (),
    ) -> None:
        self._secrets = tuple(secret for secret in secrets if len(secret) >= FEWEST_BYTES)
        self._texts = tuple(secret.decode("latin-1") for secret in self._secrets)
        self._headers = frozenset(headers)
        """Headers that carry a token, whatever their name."""
        self._harmless = frozenset(harmless)
        """Headers that a signature scheme reads as part of an event, whatever their name."""

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return all headers, with the values of credentials replaced."""
        return {name: self._value(name, value) for name, value in headers.items()}

    def body(self, body: bytes | None) -> bytes | None:
        """Return the body, or None if it contains one of our secrets."""
        if body is None or any(secret in body for secret in self._secrets):
            return None
        return body

    def path(self, path: str) -> str:
        """Return the path with its query, in which credentials are replaced."""
        if self._has_secret(path):
            return path.partition("?")[0] if not self._has_secret(path.partition("?")[0]) else "/"
        return _PARAMETER.sub(_parameter, path)

    def _value(self, name: str, value: str) -> str:
        is_secret = name in self._headers or (name not in self._harmless and is_credential(name))
        if is_secret or self._has_secret(value):
            return NOT_KEPT
        return value[:LONGEST_VALUE].replace("\0", "")

    def _has_secret(self, text: str) -> bool:
        return any(secret in text for secret in self._texts)


def _parameter(match: re.Match[str]) -> str:
    mark, name, value = match.groups()
    return f"{mark}{name}={NOT_KEPT if is_credential(name) else value}"


HASHED_BYTES: Final = 32 * 1024 * 1024
"""How many bytes may be hashed per write, to find causes: about 50 ms of a core."""


class Recorder:
    """Build the rows of rejected requests. Slow: not for the event loop."""

    def __init__(
        self, examiner: CauseFinder, scrubber: Scrubber, encryption: EncryptionKeys
    ) -> None:
        self._examiner = examiner
        self._scrubber = scrubber
        self._encryption = encryption

    def record(
        self, request: UnexaminedRequest, clocks: Clocks | None, budget: HashBudget
    ) -> Rejected:
        cause = self._examiner.explain(request, clocks, budget)
        body = self._scrubber.body(request.body)
        row = Rejected(
            route=request.route,
            at=request.at,
            code=request.code,
            cause=cause.kind,
            detail=_text(cause.words),
            shadow=request.shadow,
            method=request.method,
            path=_text(self._scrubber.path(request.path))[:LONGEST_PATH],
            address=request.address,
            sender=_text(request.sender),
            headers=self._scrubber.headers(request.headers),
            body=body,
            body_bytes=request.body_bytes,
            digest=None if body is None else hashlib.sha256(body).digest(),
            verified_by=request.verified_by,
        )
        is_secret = request.route in self._encryption.routes
        # A request to an unknown path may have been meant for any of the encrypted routes.
        is_secret |= request.route == NOWHERE and bool(self._encryption.routes)
        return seal_row(row, self._encryption) if is_secret else row


def seal_row(row: Rejected, encryption: EncryptionKeys) -> Rejected:
    """Encrypt the content of a rejected request. Only a release decrypts it."""
    ring = encryption.ring
    hidden = replace(row, path=row.path.partition("?")[0], headers=None)
    if row.body is None or row.digest is None:
        return hidden
    return replace(
        hidden,
        body=seal_rejected(ring, row.route, row.at, row.path, row.headers or {}, row.body),
        digest=blind_digest(ring, row.route, row.digest),
        key_id=ring.first,
    )


def _text(text: str) -> str:
    """Return text that Postgres can store. Reasons may quote the request."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()
