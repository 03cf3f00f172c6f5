"""One function per fault, as in the torture, and what may be drawn for each."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from tests.cluster.network import BACK
from tests.cluster.pair import fetch
from tests.cluster.stage import REDIS, SERVES, WORKERS, Cluster
from tests.support.waiting import until
from tests.torture.plan import Shape, Step

WRITTEN: Final = "select pg_current_wal_lsn() - '0/0'::pg_lsn"
CLAIMED: Final = "select count(*) from gateway.processed_events"
DONE: Final = "select count(*) from gateway.deliveries where status = 'done'"


async def cut_host(cluster: Cluster, step: Step) -> str:
    """Off both networks. A worker that comes back after its lease is a stranger to its runs."""
    await cluster.ready(step.target)
    await _hold(cluster, step.target, step.hold_s)
    return "cut off and back"


async def cut_ledger(cluster: Cluster, step: Step) -> str:
    """Senders reach it, and it reaches neither Postgres nor Redis."""
    await cluster.ready(step.target)
    await _hold(cluster, step.target, step.hold_s, only=BACK)
    return "cut off from all but the senders"


async def cut_redis(cluster: Cluster, step: Step) -> str:
    await _hold(cluster, REDIS, step.hold_s)
    return "cut off and back"


async def cut_standby(cluster: Cluster, step: Step) -> str:
    """Where commits wait for it, none ends until it is back."""
    await _hold(cluster, cluster.pair.standby.host.name, step.hold_s)
    return f"{cluster.pair.standby.host.name} cut off and back"


async def kill_primary(cluster: Cluster, step: Step) -> str:
    await cluster.pair.order(cluster.pair.primary.kill)
    await asyncio.sleep(step.hold_s)
    return await _fail_over(cluster)


async def kill_lonely_primary(cluster: Cluster, step: Step) -> str:
    """What it acknowledges while its standby is cut off, the standby never gets."""
    standby = cluster.pair.standby.host.name
    cluster.network.cut(standby)
    await asyncio.sleep(step.hold_s)
    await cluster.pair.order(cluster.pair.primary.kill)
    cluster.network.heal(standby)
    return await _fail_over(cluster)


async def cut_primary(cluster: Cluster, step: Step) -> str:
    """It goes on alone, is ended before the network is back (that is the operator's duty), and
    comes back as a standby."""
    old = cluster.pair.primary
    cluster.network.cut(old.host.name)
    await asyncio.sleep(step.hold_s)
    promoted = await _promote(cluster)
    await cluster.pair.order(old.kill)
    cluster.network.heal(old.host.name)
    return f"{promoted}; {await _restore(cluster)}"


async def unfenced_primary(cluster: Cluster, step: Step) -> str:
    """The duty is neglected: the old one is back beside the new one, and takes what comes to it.

    As long as its commits wait for a standby that follows another, it can acknowledge nothing.
    """
    old = cluster.pair.primary
    cluster.network.cut(old.host.name)
    await asyncio.sleep(step.hold_s)
    promoted = await _promote(cluster)
    cluster.network.heal(old.host.name)
    before = await fetch(old, WRITTEN)
    await asyncio.sleep(step.hold_s)
    after = await fetch(old, WRITTEN)
    await cluster.pair.order(old.kill)
    return f"{promoted}; {_written(before, after)} written to the old; {await _restore(cluster)}"


FAULTS: Final[Mapping[str, Callable[[Cluster, Step], Awaitable[str]]]] = {
    "cut-serve": cut_host,
    "cut-serve-from-ledger": cut_ledger,
    "cut-worker": cut_host,
    "cut-redis": cut_redis,
    "cut-standby": cut_standby,
    "kill-primary": kill_primary,
    "kill-lonely-primary": kill_lonely_primary,
    "cut-primary": cut_primary,
    "unfenced-primary": unfenced_primary,
}
SHAPES: Final[Mapping[str, Shape]] = {
    "cut-serve": Shape(targets=SERVES, hold_s=(4.0, 6.0)),
    "cut-serve-from-ledger": Shape(targets=SERVES, hold_s=(4.0, 6.0)),
    # Past the lease; about as long as Postgres lets the open transactions live.
    "cut-worker": Shape(targets=WORKERS, hold_s=(5.0, 7.0)),
    "cut-redis": Shape(hold_s=(4.0, 6.0)),
    # Past the time after which a claim is given up, and its event is sent again.
    "cut-standby": Shape(hold_s=(7.0, 9.0)),
    "kill-primary": Shape(hold_s=(0.5, 1.5)),
    "kill-lonely-primary": Shape(hold_s=(8.0, 10.0)),
    "cut-primary": Shape(hold_s=(3.0, 5.0)),
    "unfenced-primary": Shape(hold_s=(6.0, 8.0)),
}
TELLING: Final = ("cut-standby", "kill-primary", "kill-lonely-primary")
"""Those that tell what replication without waiting costs."""


async def _hold(cluster: Cluster, name: str, seconds: float, *, only: str | None = None) -> None:
    cluster.network.cut(name, only=only)
    try:
        await asyncio.sleep(seconds)
    finally:
        cluster.network.heal(name)


async def _fail_over(cluster: Cluster) -> str:
    return f"{await _promote(cluster)}; {await _restore(cluster)}"


async def _promote(cluster: Cluster) -> str:
    """Over when everybody has found the new one: an old one that is silent must not keep them."""
    began_at = time.monotonic()
    await cluster.promote()
    took_s = time.monotonic() - began_at
    claimed_s, done_s = await asyncio.gather(*(_grown(cluster, q) for q in (CLAIMED, DONE)))
    name = cluster.pair.primary.host.name
    return f"{name} promoted in {took_s:.1f} s, claims {claimed_s:.1f} s, effects {done_s:.1f} s"


async def _grown(cluster: Cluster, query: str) -> float:
    """How long it takes until there is more than now."""
    began_at, before = time.monotonic(), await fetch(cluster.pair.primary, query)
    await until(lambda: _differs(cluster, query, before), within_s=math.inf)  # FAULT_S ends it
    return time.monotonic() - began_at


async def _differs(cluster: Cluster, query: str, before: object) -> bool:
    return await fetch(cluster.pair.primary, query) != before


async def _restore(cluster: Cluster) -> str:
    began_at = time.monotonic()
    await cluster.pair.restore_standby()
    return f"copied back in {time.monotonic() - began_at:.1f} s"


def _written(before: object, after: object) -> str:
    return f"{int(str(after)) - int(str(before)):,} bytes"
