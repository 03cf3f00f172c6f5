"""Webhooks that come to a path that no route has: most likely the URL at the sender is wrong."""

import asyncio
from datetime import UTC, datetime
from typing import Final

from starlette.requests import Request

from gateway.errors import Overloaded, TooLarge
from gateway.ledger.rejected import NOWHERE
from gateway.receive.address import Addresses
from gateway.receive.admission import Admission
from gateway.receive.body import SenderGone, read_body
from gateway.receive.refused import Refused
from gateway.receive.turned_away import TurnedAway, measure

WITHIN_S: Final = 2.0


class UnknownPaths:
    """Remembers a few of them, with their bodies: they can be released to the right route."""

    def __init__(
        self,
        refused: Refused,
        admission: Admission,
        addresses: Addresses,
        *,
        keeps_bodies: bool,
    ) -> None:
        """Without their bodies where a route may not store all of its own: it may be one of its."""
        self._refused = refused
        self._keeps_bodies = keeps_bodies
        self._admission = admission
        self._addresses = addresses

    async def note(self, request: Request) -> None:
        """Before the answer, since the body comes no later; not where many have come already."""
        if request.method != "POST" or not self._refused.has_room(NOWHERE):
            return
        headers = dict(request.headers)
        body = await self._body(request, headers)
        client = self._addresses.of(request.scope)
        self._refused.keep(
            TurnedAway(
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
        """None where it is too large, does not come, or is not to be kept."""
        if not self._keeps_bodies:
            return None
        limit = self._refused.largest_body
        try:
            async with asyncio.timeout(WITHIN_S):
                with self._admission.enter() as place:
                    return await read_body(headers, request.receive, place, limit=limit)
        except (TooLarge, SenderGone, Overloaded, TimeoutError):
            return None
