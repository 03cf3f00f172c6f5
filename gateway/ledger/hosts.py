"""Connects to whichever of several servers can be written to, however silent the others are."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from gateway.notation.hosts import split_hosts

if TYPE_CHECKING:  # generic in its stubs only
    Opened = asyncpg.Connection[asyncpg.Record]
else:
    Opened = asyncpg.Connection

WANTED: Final = "target_session_attrs"
WRITABLE: Final = "read-write"


async def connect_to_any(url: str, **options: Any) -> Opened:
    """All are asked at once. asyncpg asks one after the other within one time limit: a first one
    that is cut off, and does not even refuse, would keep it from the second for good."""
    urls = split_hosts(url)
    if len(urls) == 1:
        return await asyncpg.connect(url, **options)
    if WANTED not in url:
        options |= {WANTED: WRITABLE}
    attempts = [asyncio.ensure_future(asyncpg.connect(one, **options)) for one in urls]
    chosen: Opened | None = None
    try:
        chosen = await _first(attempts)
        return chosen
    finally:
        for attempt in attempts:
            _give_up(attempt, chosen)


async def _first(attempts: "Sequence[asyncio.Future[Opened]]") -> Opened:
    """Of those that all fail, the one that is not merely a standby says why."""
    waiting = set(attempts)
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for attempt in done:
            if attempt.exception() is None:
                return attempt.result()
    failures = [failure for attempt in attempts if (failure := attempt.exception())]
    telling = [f for f in failures if not isinstance(f, asyncpg.TargetServerAttributeNotMatched)]
    raise (telling or failures)[0]


def _give_up(attempt: "asyncio.Future[Opened]", chosen: object) -> None:
    if not attempt.done():
        attempt.cancel()
    elif attempt.exception() is None and attempt.result() is not chosen:
        attempt.result().terminate()
