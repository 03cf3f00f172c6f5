"""Webhooks to a path that no route has: most likely the URL at the sender is wrong."""

import asyncio
from datetime import UTC, datetime
from typing import Final

from starlette.requests import Request

from gateway.base.errors import Overloaded, TooLarge
from gateway.http.admission import Admission
from gateway.http.body import SenderGone, read_body
from gateway.http.client_address import Addresses
from gateway.ledger.rejected import NOWHERE
from gateway.receive.rejected_requests import RejectedRequests
from gateway.receive.turned_away import UnexaminedRequest, measure

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
