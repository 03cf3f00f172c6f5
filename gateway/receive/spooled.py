"""Spooled requests that turn out to be duplicates because of their bodies."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.errors import Duplicate, KeyMissing, SealBroken
from gateway.ledger.claims import Claim
from gateway.ledger.sealed import Vault, open_event
from gateway.receive.refused import Refused
from gateway.receive.turned_away import TurnedAway
from gateway.routes import Route


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledDuplicates:
    """Keeps them among the rejected requests: each may be another event with the same content."""

    routes: Mapping[str, Route]
    vault: Vault
    refused: Refused

    async def keep(self, claim: Claim, first_event_id: str) -> None:
        """Keep the request that a claim from the spool was made of. Raises StorageUnavailable."""
        route = self.routes.get(claim.route)
        if route is None:
            return
        headers, body = self._opened(claim)
        is_kept = body is not None and len(body) <= self.refused.largest_body
        request = TurnedAway(
            route=claim.route,
            at=claim.received_at,
            code=Duplicate.code,
            reason=f"its body is that of event {first_event_id}: a retry, or another event;"
            " it was acknowledged from the spool",
            scope={"method": "POST", "raw_path": route.path.encode(), "query_string": b""},
            headers=headers,
            body=body if is_kept else None,
            body_bytes=None if body is None else len(body),
            address=None,
            verified_by=claim.verified_by,
        )
        if is_kept and claim.verified_by is not None:
            await self.refused.keep_duplicates([request])
        else:
            self.refused.keep(request)

    def _opened(self, claim: Claim) -> tuple[Mapping[str, str], bytes | None]:
        if claim.key_id is None:
            return claim.headers, claim.body
        try:
            return open_event(self.vault.ring, claim.route, claim.envelope.id, claim.body)
        except (KeyMissing, SealBroken):
            return {}, None
