"""Requests that are kept like rejected ones: to unknown paths, and duplicates from the spool."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from starlette.requests import Request

from gateway.base.errors import Duplicate, Overloaded, TooLarge
from gateway.config.routes import Route
from gateway.http.admission import Admission
from gateway.http.body import SenderGone, read_body
from gateway.http.client_address import Addresses
from gateway.ledger.claims import Claim
from gateway.ledger.encryption import ClaimCodec
from gateway.ledger.rejected import NOWHERE
from gateway.receive.rejected.requests import UnexaminedRequest, measure
from gateway.receive.rejected.writer import RejectedRequests

WITHIN_S: Final = 2.0


class UnknownPaths:
    """Keep a few such requests with their bodies, to be released to the right route."""

    def __init__(
        self,
        rejected: RejectedRequests,
        admission: Admission,
        addresses: Addresses,
        *,
        keeps_bodies: bool,
    ) -> None:
        """Initialize.

        `keeps_bodies` is False if some route may not store its whole payload: the request may be
        meant for it.
        """
        self._rejected = rejected
        self._keeps_bodies = keeps_bodies
        self._admission = admission
        self._addresses = addresses

    async def note(self, request: Request) -> None:
        """Keep a request, if there is room.

        Called before the response, since the body is unavailable afterwards.
        """
        if request.method != "POST" or not self._rejected.has_room(NOWHERE):
            return
        headers = dict(request.headers)
        body = await self._body(request, headers)
        client = self._addresses.of(request.scope)
        self._rejected.keep(
            UnexaminedRequest(
                route=NOWHERE,
                at=datetime.now(UTC),
                code="NOT_FOUND",
                reason="no route has this path",
                scope=request.scope,
                headers=headers,
                body=body,
                body_bytes=measure(headers, body),
                address=None if client is None else str(client.address),
            )
        )

    async def _body(self, request: Request, headers: dict[str, str]) -> bytes | None:
        """Return the body, or None if it is too large, does not arrive, or must not be kept."""
        if not self._keeps_bodies:
            return None
        limit = self._rejected.largest_body
        try:
            async with asyncio.timeout(WITHIN_S):
                with self._admission.enter() as slot:
                    return await read_body(headers, request.receive, slot, limit=limit)
        except (TooLarge, SenderGone, Overloaded, TimeoutError):
            return None


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
