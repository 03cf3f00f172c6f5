"""Whether a worker lives and leases, by the clock."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import pytest

from gateway.telemetry.metrics import TICK_S
from gateway.worker.runner import Runner, WorkerHealth

LEASE = timedelta(seconds=15)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Told:
    """What a runner tells of itself."""

    is_taking: bool = True
    asked_at: float | None = None
    beat_at: float = 1000.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def runner() -> Told:
    return Told()


@pytest.fixture
async def part() -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(asyncio.sleep(60))
    yield task
    task.cancel()


@pytest.fixture
def vitals(clock: Clock, runner: Told, part: asyncio.Task[None]) -> WorkerHealth:
    vitals = WorkerHealth(sweep=timedelta(seconds=5), lease=LEASE, clock=clock)
    vitals.watch(cast(Runner, runner), [part])
    return vitals


def beat(vitals: WorkerHealth, clock: Clock) -> None:
    """The loop goes on."""
    vitals.pulse._expected_at = clock.now + TICK_S


async def test_a_worker_that_has_not_started_lives_and_is_not_ready(clock: Clock) -> None:
    vitals = WorkerHealth(sweep=timedelta(seconds=5), lease=LEASE, clock=clock)
    assert vitals.stuck() is None
    assert vitals.not_ready() == "STARTING"


async def test_a_loop_is_stuck_when_its_leases_have_run_out(
    vitals: WorkerHealth, clock: Clock
) -> None:
    clock.now += LEASE.total_seconds()
    assert vitals.stuck() is None
    clock.now += 1
    assert vitals.stuck() == vitals.not_ready() == "EVENT_LOOP_STUCK"


async def test_a_part_that_ended_is_told(vitals: WorkerHealth, part: asyncio.Task[None]) -> None:
    """Under the arq command nobody else would notice."""
    part.cancel()
    await asyncio.wait({part})
    assert vitals.stuck() == vitals.not_ready() == "PART_ENDED"


async def test_heartbeats_that_hang_are_told(vitals: WorkerHealth, clock: Clock) -> None:
    clock.now += 30
    beat(vitals, clock)
    assert vitals.stuck() is None
    clock.now += 10
    beat(vitals, clock)
    assert vitals.stuck() == vitals.not_ready() == "HEARTBEAT_STUCK"


async def test_a_worker_is_ready_while_the_ledger_answers(
    vitals: WorkerHealth, clock: Clock, runner: Told
) -> None:
    assert vitals.not_ready() == "LEDGER_UNREACHABLE"  # nothing was asked yet
    runner.asked_at = clock.now
    assert vitals.not_ready() is None
    clock.now += 24
    runner.beat_at = clock.now
    beat(vitals, clock)
    assert vitals.not_ready() is None
    clock.now += 2
    beat(vitals, clock)
    assert vitals.not_ready() == "LEDGER_UNREACHABLE"
    assert vitals.stuck() is None


async def test_a_worker_that_drains_is_neither_ready_nor_stuck(
    vitals: WorkerHealth, runner: Told, part: asyncio.Task[None]
) -> None:
    runner.is_taking = False
    part.cancel()
    await asyncio.wait({part})
    assert vitals.stuck() is None
    assert vitals.not_ready() == "STOPPING"
