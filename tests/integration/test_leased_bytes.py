"""Deliveries with large and small bodies, due at the same time for one worker."""

import asyncio
from typing import Final

import pytest

from gateway import Context, Event
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.waiting import until
from tests.support.workers import subscribe, working

MIB: Final = 1024**2
LARGE: Final = 8
SMALL: Final = 5
LARGE_BODY: Final = b'{"large":"' + b"x" * (2 * MIB) + b'"}'


@pytest.mark.parametrize("concurrency", [None, 4], ids=["unlimited", "limited"])
async def test_large_bodies_without_room_do_not_hold_up_small_ones(
    concurrency: int | None, database_url: str, ledger: Reader
) -> None:
    """All slots but one are free, and the oldest due deliveries do not fit."""
    may_end = asyncio.Event()

    async def wait_if_large(event: Event, _: Context) -> None:
        if event.id.startswith("large"):
            await may_end.wait()

    claims = [make_claim(f"large_{n}", body=LARGE_BODY + b" " * n) for n in range(LARGE)]
    claims += [make_claim(f"small_{n}") for n in range(SMALL)]
    await claim_all(database_url, claims)

    async def small_ones_done() -> bool:
        return (await ledger.statuses()).get("done") == SMALL

    async def all_done() -> bool:
        return await ledger.statuses() == {"done": LARGE + SMALL}

    subscription = subscribe(wait_if_large, concurrency=concurrency)
    async with working(database_url, subscription, concurrency=4, max_leased=MIB):
        await until(small_ones_done)
        assert await ledger.statuses() == {"done": SMALL, "running": 1, "pending": LARGE - 1}
        may_end.set()
        await until(all_done)
