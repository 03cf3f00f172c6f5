"""A primary is lost while its standby is away: is what was acknowledged on the other side?

The short form of `make cluster`, with claims alone.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from gateway.ledger.claims import Claimer
from gateway.ledger.migrate import migrate
from tests.cluster.engines import Node
from tests.cluster.network import Host
from tests.cluster.pair import Pair, connect_to, fetch
from tests.support.ledger import make_claim
from tests.support.waiting import until

SENDERS = 4
CLAIMED = "select count(*) from gateway.processed_events"


@asynccontextmanager
async def replicated(directory: Path, *, is_synchronous: bool) -> AsyncIterator[Pair]:
    """A primary that is migrated, and its standby."""
    subnet = f"127.78.{secrets.randbelow(254) + 1}"
    nodes = []
    for n in (1, 2):
        place = f"{subnet}.{n}"
        host = Host(name=f"pg-{n}", address=place, front=place, listen=place, enter=())
        nodes.append(Node(directory / f"{subnet}-{n}", host, durable=False))
    pair = Pair(*nodes, is_synchronous=is_synchronous)
    try:
        await pair.start()
        connection = await connect_to(pair.primary)
        await migrate(connection, [])
        await connection.close()
        yield pair
    finally:
        await pair.stop()


@asynccontextmanager
async def claims_going_on(url: str) -> AsyncIterator[set[str]]:
    """Each is repeated until it is answered; those that were are what is given."""
    acknowledged: set[str] = set()
    numbers = count()
    claimer = Claimer(url, on_accepted=lambda _: None, patience_s=0.3)

    async def claim_forever() -> None:
        while True:
            event_id = f"evt_{next(numbers)}"
            await claimer.claim(make_claim(event_id))
            acknowledged.add(event_id)

    await claimer.start()
    tasks = [asyncio.create_task(claim_forever()) for _ in range(SENDERS)]
    try:
        yield acknowledged
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await claimer.stop()


@pytest.mark.parametrize("is_synchronous", [True, False])
async def test_what_a_promoted_standby_has_is_what_commits_waited_for(
    engine_dir: Path, is_synchronous: bool
) -> None:
    async with (
        replicated(engine_dir, is_synchronous=is_synchronous) as pair,
        claims_going_on(pair.url) as acknowledged,
    ):
        await grown(acknowledged)
        await pair.order(pair.standby.kill)
        if is_synchronous:
            await until(lambda: stands_here_only(pair, acknowledged))
        else:
            await grown(acknowledged)
        await pair.order(pair.primary.kill)
        promised = set(acknowledged)
        await pair.order(pair.standby.start)
        await pair.promote()
        await grown(acknowledged)
        connection = await connect_to(pair.primary)
        rows = await connection.fetch("select event_id from gateway.processed_events")
        await connection.close()
    lost = promised - {row["event_id"] for row in rows}
    if is_synchronous:
        assert lost == set()
    else:
        assert lost, "the standby had nothing of this, and nobody waited for it"


async def grown(acknowledged: set[str]) -> None:
    enough = len(acknowledged) + 50
    await until(lambda: len(acknowledged) >= enough)


async def stands_here_only(pair: Pair, acknowledged: set[str]) -> bool:
    """Whether all that is being claimed was given up, and can be seen on the old side."""
    found = await fetch(pair.primary, CLAIMED)
    return bool(found == len(acknowledged) + SENDERS)
