"""Spooled requests that turn out to be duplicates by body."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.base.errors import Duplicate
from gateway.config.routes import Route
from gateway.ledger.claims import Claim
from gateway.ledger.encryption import ClaimCodec
from gateway.receive.rejected_requests import RejectedRequests
from gateway.receive.turned_away import UnexaminedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledDuplicates:
    """Keep these duplicates as rejected requests: each may be another event."""

    routes: Sequence[Route]
    codec: ClaimCodec
    rejected: RejectedRequests

    async def keep(self, claim: Claim, first_event_id: str) -> None:
        """Keep the request from which a spooled claim was made. Raises StorageUnavailable."""
        route = self._route(claim)
        if route is None:
            return
        is_kept = len(claim.body) <= self.rejected.largest_body
        request = UnexaminedRequest(
            route=route.name,
            at=claim.received_at,
            code=Duplicate.code,
            reason=f"its body is that of event {first_event_id}: a retry, or another event;"
            " it was acknowledged from the spool",
            scope={"method": "POST", "raw_path": route.path.encode(), "query_string": b""},
            headers=claim.headers,
            body=claim.body if is_kept else None,
            body_bytes=len(claim.body),
            address=None,
            verified_by=claim.verified_by,
        )
        if is_kept and claim.verified_by is not None:
            await self.rejected.keep_duplicates([request])
        else:
            self.rejected.keep(request)

    def _route(self, claim: Claim) -> Route | None:
        """Find the route by its identity: the record may have been written under a former name."""
        names = self.codec.names.routes
        identity = names.identity(claim.route)
        return next((r for r in self.routes if names.identity(r.label) == identity), None)
