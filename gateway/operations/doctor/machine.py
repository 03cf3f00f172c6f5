"""Checks of this machine: the data directory, the spool and the limit of open files."""

import resource
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from arq.connections import ArqRedis

from gateway.base.units import format_roughly, format_size_roughly
from gateway.http.listening import OTHER_FILES
from gateway.ledger.connection import Connection
from gateway.operations.doctor.finding import Finding, Installation, ok, problem, warning
from gateway.receive.spool.spool import SPOOL_DIRECTORY, look_at

CLOCK: Final = "clock"
NOTICEABLE: Final = timedelta(seconds=2)

Ask = Callable[[], Awaitable[datetime]]


async def check_clock(installation: Installation, name: str, ask: Ask) -> list[Finding]:
    """Measure the clock difference to a server, assuming that both directions take equally long."""
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
    """Return a function that reads the clock of Postgres."""

    async def ask() -> datetime:
        now: datetime = await connection.fetchval("select clock_timestamp()")
        return now

    return ask


def redis_time(redis: ArqRedis) -> Ask:
    """Return a function that reads the clock of Redis."""

    async def ask() -> datetime:
        seconds, microseconds = await redis.time()
        return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)

    return ask


MACHINE: Final = "this machine"
SPOOL: Final = "spool"


def check_machine(installation: Installation) -> list[Finding]:
    """Run the checks that only work on this machine. Blocking, so call it in a thread."""
    return [*_data_dir(installation), *_spool(installation), *_descriptors(installation)]


def _data_dir(installation: Installation) -> Iterator[Finding]:
    settings = installation.settings
    directory = settings.data_dir.absolute()
    there = _nearest(directory)
    reason = _cannot_write(there)
    if reason is not None:
        yield problem(
            MACHINE,
            f"{directory} cannot be written ({reason}): nothing can be spooled",
            "give it to the account that runs serve, or name another GATEWAY_DATA_DIR",
        )
        return
    free = shutil.disk_usage(there).free
    room = format_size_roughly(free)
    if free < settings.spool_size:
        yield warning(
            MACHINE,
            f"{directory} has {room} left, and the spool may take"
            f" {format_size_roughly(settings.spool_size)}",
            "make room, or lower GATEWAY_SPOOL_SIZE",
        )
    else:
        yield ok(MACHINE, f"{directory} can be written, {room} are free")


def _nearest(directory: Path) -> Path:
    """Return the directory, or its nearest parent that exists."""
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    return directory


def _cannot_write(directory: Path) -> str | None:
    try:
        with tempfile.TemporaryFile(dir=directory):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _spool(installation: Installation) -> Iterator[Finding]:
    settings = installation.settings
    never_again = [route.name for route in installation.routes if route.spools]
    if not settings.spool_size:
        if never_again:
            yield warning(
                SPOOL,
                f"GATEWAY_SPOOL_SIZE is 0: while Postgres is away, events of"
                f" {', '.join(never_again)} are lost, whose sender does not retry",
                "set it to some GiB",
            )
        return
    stock = look_at(settings.data_dir / SPOOL_DIRECTORY)
    for piece in stock.unreadable:
        yield problem(
            SPOOL, f"{piece} cannot be read", "acknowledged events may be in it: keep the file"
        )
    if stock.events:
        yield warning(
            SPOOL,
            f"{stock.events:,} events wait to be claimed",
            "they are, as soon as a serve on this machine reaches Postgres",
        )
    elif not stock.unreadable:
        yield ok(SPOOL, "empty")


def _descriptors(installation: Installation) -> Iterator[Finding]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = installation.settings.max_connections + OTHER_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        yield warning(
            MACHINE,
            f"at most {hard:,} files may be open, GATEWAY_MAX_CONNECTIONS needs {needed:,}",
            "raise the hard limit (LimitNOFILE, ulimit -Hn), or lower the setting",
        )
    else:
        yield ok(MACHINE, "enough files may be open")
