"""One function per fault: it breaks something, holds it, puts it right, and says what it did."""

import asyncio
import contextlib
import errno
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final

from redis.asyncio import Redis as RedisClient

from gateway.ledger.connection import Connection
from tests.support.waiting import until
from tests.torture.http import get_date
from tests.torture.plan import SERVES, Step
from tests.torture.stage import NotPossible, Stage

Fault = Callable[[Stage, Step], Awaitable[str]]

PULSE_S: Final = 0.3
OFFSETS_S: Final = {"+10m": 600, "-10m": -600}
OFF_BY_S: Final = 60
BLOCK_BYTES: Final = 4096
LOOK_S: Final = 0.1


async def kill_one(stage: Stage, step: Step) -> str:
    """Over at once: the other one of the pair is there."""
    await stage.ready(step.target)
    stage.children[step.target].send(signal.SIGKILL)
    return "killed"


async def end_one(stage: Stage, step: Step) -> str:
    await stage.ready(step.target)
    stage.children[step.target].send(signal.SIGTERM)
    return "told to end"


async def kill_all(stage: Stage, step: Step) -> str:
    """Over when they are back: until then there is nobody who could recover anything."""
    await stage.ready()
    await _kill_and_wait(stage, *stage.children)
    return "all four killed and started again"


async def stop_one(stage: Stage, step: Step) -> str:
    """A process that is not dead, only not heard of: others take over, and then it is back."""
    await stage.ready(step.target)
    stage.children[step.target].send(signal.SIGSTOP)
    try:
        await asyncio.sleep(step.hold_s)
    finally:
        stage.children[step.target].send(signal.SIGCONT)
    return "stopped and continued"


async def rename(stage: Stage, step: Step) -> str:
    """The next step of a rolling deploy in which handlers get other names, or of its rollback."""
    half, is_renamed = next(stage.deploys)
    await stage.ready(*half)
    for name in half:
        stage.children[name].deploy({"RENAMED": is_renamed})
    await stage.ready(*half)
    return f"{' and '.join(half)}: {'new' if is_renamed == 'yes' else 'old'} names"


async def flushall(stage: Stage, step: Step) -> str:
    jobs = 0
    async with _redis(stage) as client:
        async for _ in _pulses(step.hold_s):
            jobs += await client.zcard("arq:queue")
            await client.flushall()
    return f"{jobs} waiting jobs dropped"


async def redis_restart(stage: Stage, step: Step) -> str:
    """It keeps nothing on disk: it comes back empty."""
    await stage.engine(stage.redis.kill)
    await asyncio.sleep(step.hold_s)
    await stage.engine(stage.redis.start)
    return "killed and started empty"


async def redis_unreachable(stage: Stage, step: Step) -> str:
    await stage.redis_wire.refuse()
    await asyncio.sleep(step.hold_s)
    await stage.redis_wire.open()
    return "connections refused"


async def redis_hang(stage: Stage, step: Step) -> str:
    stage.redis_wire.hang()
    await asyncio.sleep(step.hold_s)
    stage.redis_wire.flow()
    return "connections accepted, nothing answered"


async def redis_full(stage: Stage, step: Step) -> str:
    async with _redis(stage) as client:
        await client.config_set("maxmemory-policy", "noeviction")
        await client.config_set("maxmemory", 1)
        await asyncio.sleep(step.hold_s)
        await client.config_set("maxmemory", 0)
    return "every write refused"


async def postgres_kill(stage: Stage, step: Step) -> str:
    await stage.engine(stage.postgres.kill)
    await asyncio.sleep(step.hold_s)
    await stage.engine(stage.postgres.start)
    return "killed with its children, recovered from its log"


async def postgres_restart(stage: Stage, step: Step) -> str:
    await stage.engine(stage.postgres.restart)
    return "shut down and started"


async def postgres_immediate(stage: Stage, step: Step) -> str:
    await stage.engine(lambda: stage.postgres.restart("immediate"))
    return "shut down without a checkpoint, recovered from its log"


async def postgres_away(stage: Stage, step: Step) -> str:
    await stage.engine(stage.postgres.stop)
    await asyncio.sleep(step.hold_s)
    spooled_bytes = _spooled_bytes(stage)
    await stage.engine(stage.postgres.start)
    return f"{spooled_bytes:,} bytes in the spool at the end"


async def kill_spooling(stage: Stage, step: Step) -> str:
    """Both `serve` die with a full spool, and start while the ledger is still away."""
    await stage.ready(*SERVES)
    await stage.postgres_wire.refuse()
    await asyncio.sleep(step.hold_s / 2)
    spooled_bytes = _spooled_bytes(stage)
    for name in SERVES:
        stage.children[name].send(signal.SIGKILL)
    await asyncio.sleep(step.hold_s / 2)
    await stage.postgres_wire.open()
    await stage.ready(*SERVES)
    return f"{spooled_bytes:,} bytes in the spool at the kill"


async def connections_terminated(stage: Stage, step: Step) -> str:
    terminated = 0
    async with _postgres(stage) as connection:
        async for _ in _pulses(step.hold_s):
            terminated += await connection.fetchval(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity"
                " where application_name like 'gateway%'"
            )
    return f"{terminated} connections terminated"


async def cut_after_commit(stage: Stage, step: Step) -> str:
    """What was sent is done, and its sender will never know: COMMITs among it."""
    lost = 0
    async for _ in _pulses(step.hold_s):
        stage.postgres_wire.swallow()
        await asyncio.sleep(PULSE_S)
        lost += stage.postgres_wire.cut_swallowed()
    return f"{lost} connections cut before their answers"


async def slow_database(stage: Stage, step: Step) -> str:
    async with _postgres(stage) as connection:
        for table in ("gateway.deliveries", "gateway.processed_events"):
            async with connection.transaction():
                await connection.execute(f"lock table {table} in access exclusive mode")
                await asyncio.sleep(step.hold_s)
    return "both tables of the ledger locked, one after the other"


async def full_disk(stage: Stage, step: Step) -> str:
    """Postgres is away, and then there is no room to spool either, and then there is again."""
    if not stage.disk_is_small:
        raise NotPossible("a small disk cannot be mounted here")
    ballast = stage.disk / "ballast"
    await stage.postgres_wire.refuse()
    try:
        await asyncio.sleep(step.hold_s / 3)
        _fill(ballast)
        before = _spooled_bytes(stage)
        await asyncio.sleep(step.hold_s / 3)
        added = _spooled_bytes(stage) - before
        ballast.unlink()
        await asyncio.sleep(step.hold_s / 3)
    finally:
        ballast.unlink(missing_ok=True)
        await stage.postgres_wire.open()
    return f"{before:,} bytes in the spool, {added:,} added while full"


async def clock_jump(stage: Stage, step: Step) -> str:
    who, jump = step.target.split()
    clock = stage.clocks[who]
    if not clock.is_movable:
        raise NotPossible("libfaketime is not installed")
    look = _look_at_postgres if who == "postgres" else _look_at_serve
    try:
        clock.move(OFFSETS_S[jump])
        await _differs(stage, look, OFFSETS_S[jump])
        await asyncio.sleep(step.hold_s)
    finally:
        clock.move(0)
    await _differs(stage, look, 0)
    return "moved and moved back"


FAULTS: Final[Mapping[str, Fault]] = {
    "kill-serve": kill_one,
    "term-serve": end_one,
    "kill-worker": kill_one,
    "term-worker": end_one,
    "kill-all": kill_all,
    "stop-worker": stop_one,
    "stop-serve": stop_one,
    "rename": rename,
    "flushall": flushall,
    "redis-restart": redis_restart,
    "redis-unreachable": redis_unreachable,
    "redis-hang": redis_hang,
    "redis-full": redis_full,
    "postgres-kill": postgres_kill,
    "postgres-restart": postgres_restart,
    "postgres-immediate": postgres_immediate,
    "postgres-away": postgres_away,
    "kill-spooling": kill_spooling,
    "connections-terminated": connections_terminated,
    "cut-after-commit": cut_after_commit,
    "slow-database": slow_database,
    "full-disk": full_disk,
    "clock-jump": clock_jump,
}


async def _kill_and_wait(stage: Stage, *names: str) -> None:
    starts = {name: stage.children[name].starts for name in names}
    for name in names:
        stage.children[name].send(signal.SIGKILL)
    await until(lambda: all(stage.children[name].starts > starts[name] for name in names))
    await stage.ready(*names)


async def _pulses(seconds: float) -> AsyncIterator[None]:
    """Now, and again and again for so long."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while True:
        yield
        if loop.time() + PULSE_S > until:
            return
        await asyncio.sleep(PULSE_S)


@contextlib.asynccontextmanager
async def _redis(stage: Stage) -> AsyncIterator[RedisClient]:
    client = RedisClient.from_url(stage.redis.url)
    try:
        yield client
    finally:
        await client.aclose()


@contextlib.asynccontextmanager
async def _postgres(stage: Stage) -> AsyncIterator[Connection]:
    connection = await stage.connect()
    try:
        yield connection
    finally:
        await connection.close()


def _spooled_bytes(stage: Stage) -> int:
    return sum(file.stat().st_size for file in (stage.disk / "spool").glob("*.spool"))


def _fill(ballast: Path) -> None:
    """To the last block."""
    with ballast.open("wb", buffering=0) as sink:
        try:
            while True:
                os.write(sink.fileno(), bytes(BLOCK_BYTES))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


async def _differs(
    stage: Stage, look: Callable[[Stage], Awaitable[datetime]], offset_s: int
) -> None:
    """Waits until the other clock says so: a fault that does not happen proves nothing."""
    while True:
        with contextlib.suppress(OSError):  # the one that is asked may just be restarting
            found = await look(stage)
            if abs((found - datetime.now(UTC)).total_seconds() - offset_s) < OFF_BY_S:
                return
        await asyncio.sleep(LOOK_S)


async def _look_at_postgres(stage: Stage) -> datetime:
    async with _postgres(stage) as connection:
        found: datetime = await connection.fetchval("select clock_timestamp()")
        return found


async def _look_at_serve(stage: Stage) -> datetime:
    await stage.ready(*SERVES)
    return parsedate_to_datetime(await get_date(stage.addresses[0]))
