"""What is kept of a refused request: its cause, and the rest without credentials."""

import hashlib
from dataclasses import replace
from typing import Final

from gateway.ledger.rejected import NOWHERE, Clocks, Rejected
from gateway.ledger.sealed import Vault, blind_digest, seal_rejected
from gateway.receive.causes import Examiner
from gateway.receive.scrubbing import Scrubber
from gateway.receive.trying import Budget
from gateway.receive.turned_away import LONGEST_PATH, TurnedAway

HASHED_BYTES: Final = 32 * 1024 * 1024
"""How much may be hashed for one write, to find out causes: about 50 ms of a core."""


class Recorder:
    """Makes the rows. Takes its time: not for the event loop."""

    def __init__(self, examiner: Examiner, scrubber: Scrubber, vault: Vault) -> None:
        self._examiner = examiner
        self._scrubber = scrubber
        self._vault = vault

    def record(self, request: TurnedAway, clocks: Clocks | None, budget: Budget) -> Rejected:
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
        is_secret = request.route in self._vault.routes
        # What came to a wrong path may have been for any of them.
        is_secret |= request.route == NOWHERE and bool(self._vault.routes)
        return seal_row(row, self._vault) if is_secret else row


def seal_row(row: Rejected, vault: Vault) -> Rejected:
    """Encrypt what came. Only a release decrypts it."""
    ring = vault.ring
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
    """As Postgres can hold it: reasons may quote what came."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()
