"""Whether the clocks agree: signatures carry a time, and so do leases and wake-ups."""

from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from arq.connections import ArqRedis

from gateway.ledger.connection import Connection
from gateway.notation.quantities import format_roughly
from gateway.operate.doctor.finding import Finding, ok, problem, warning
from gateway.operate.doctor.installation import Installation

CLOCK: Final = "clock"
NOTICEABLE: Final = timedelta(seconds=2)

Ask = Callable[[], Awaitable[datetime]]


async def check_clock(installation: Installation, name: str, ask: Ask) -> list[Finding]:
    """How far this host is ahead of a server, or behind it; the way there counts half."""
    before = installation.now()
    theirs = await ask()
    ours = before + (installation.now() - before) / 2
    return [*_judge(name, ours - theirs, installation.tolerance)]


def _judge(name: str, ahead: timedelta, tolerance: timedelta) -> Iterator[Finding]:
    by = abs(ahead)
    side = "ahead of" if ahead > timedelta() else "behind"
    told = f"this host is {format_roughly(by)} {side} {name}"
    if by < NOTICEABLE:
        yield ok(CLOCK, f"this host and {name} agree")
    elif by >= tolerance / 2:
        yield problem(
            CLOCK,
            f"{told}: signed requests are refused as stale from {format_roughly(tolerance)} on",
            "set both by NTP (chrony, systemd-timesyncd), then look again",
        )
    else:
        yield warning(CLOCK, told, "set both by NTP (chrony, systemd-timesyncd)")


def postgres_time(connection: Connection) -> Ask:
    """The ledger's clock."""

    async def ask() -> datetime:
        now: datetime = await connection.fetchval("select clock_timestamp()")
        return now

    return ask


def redis_time(redis: ArqRedis) -> Ask:
    """The queue's clock."""

    async def ask() -> datetime:
        seconds, microseconds = await redis.time()
        return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)

    return ask
