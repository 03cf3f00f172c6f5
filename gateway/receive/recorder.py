"""Build the stored row of a rejected request: its cause, and its data without credentials."""

import hashlib
from dataclasses import replace
from typing import Final

from gateway.ledger.encryption import EncryptionKeys, blind_digest, seal_rejected
from gateway.ledger.rejected import NOWHERE, Clocks, Rejected
from gateway.receive.causes import CauseFinder
from gateway.receive.scrubbing import Scrubber
from gateway.receive.trying import HashBudget
from gateway.receive.turned_away import LONGEST_PATH, UnexaminedRequest

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
