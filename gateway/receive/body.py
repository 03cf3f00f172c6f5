"""Reads a request's body, counted while it streams."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final

from starlette.types import Receive

from gateway.errors import TooLarge
from gateway.receive.admission import Place

DRAIN_BYTES: Final = 1024 * 1024
"""How much of a refused body is read and thrown away: a connection that is closed on unread bytes
is reset, and a sender that was only a little over would never see the answer."""
DRAIN_S: Final = 2.0


class SenderGone(Exception):
    """The sender closed the connection before its body was complete."""


async def read_body(
    headers: Mapping[str, str], receive: Receive, place: Place, *, limit: int
) -> bytes:
    """The whole body. Raises TooLarge where it is over the limit, announced or not."""
    announced = headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit:
        if int(announced[:20]) <= limit + DRAIN_BYTES:
            await _discard(receive, limit + DRAIN_BYTES)  # within the time of the request
        raise TooLarge(f"announced {announced[:20]} bytes; at most {limit} are taken")
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise SenderGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            if message.get("more_body", False):
                await drain(receive)
            raise TooLarge(f"more than {limit} bytes")
        place.hold(len(chunk))
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def drain(receive: Receive) -> None:
    """Before a refusal of a request whose body nobody wants to see."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            await _discard(receive, DRAIN_BYTES)


async def _discard(receive: Receive, at_most: int) -> None:
    while at_most > 0:
        message = await receive()
        at_most -= len(message.get("body", b""))
        if not message.get("more_body", False):
            return
