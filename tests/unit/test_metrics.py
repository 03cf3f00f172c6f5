"""The metrics without any process: what they ask of others, and when."""

import asyncio

import pytest

from gateway.base.model import Outcome
from gateway.ledger.metrics import REPAIRS
from gateway.receive.metrics import Metrics
from gateway.telemetry.metrics import ASK_EVERY_S, TICK_S, WINDOW_S, CachedQuestion, LoopMonitor
from gateway.worker.metrics import WorkerMetrics
from tests.support.scraping import Scraped


class Clock:
    """A time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_a_question_is_asked_once_however_many_want_to_know() -> None:
    clock, asked = Clock(), 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)

    asking = CachedQuestion(ask, clock)
    for _ in range(3):
        await asyncio.gather(*(asking.refresh() for _ in range(100)))
    assert asked == 1
    clock.now += ASK_EVERY_S
    await asyncio.gather(*(asking.refresh() for _ in range(100)))
    assert asked == 2


async def test_nobody_waits_for_an_answer_that_does_not_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.telemetry.metrics.WAIT_S", 0.01)
    asked, clock = asyncio.Event(), Clock()

    async def ask() -> None:
        asked.set()
        await asyncio.Event().wait()

    asking = CachedQuestion(ask, clock)
    await asking.refresh()
    assert asked.is_set()
    asked.clear()
    clock.now += 10 * ASK_EVERY_S
    await asking.refresh()
    assert not asked.is_set()  # the first question still stands


def test_a_loop_that_is_stuck_is_told_while_it_is_and_for_a_while_after() -> None:
    clock = Clock()
    pulse = LoopMonitor(clock)
    clock.now += 7
    assert pulse.silent_s == 7
    assert pulse.lag_s == 7
    pulse.beat()
    pulse._expected_at = clock.now + TICK_S
    assert pulse.silent_s == 0
    assert pulse.lag_s == 7
    for _ in range(2):
        assert pulse.lag_s == 7
        clock.now += WINDOW_S
        pulse._expected_at = clock.now
        pulse.beat()
    assert pulse.lag_s == 0


async def test_what_has_not_happened_yet_is_told_as_zero() -> None:
    """What is first seen as 1 is no increase to Prometheus."""
    worker = WorkerMetrics()
    worker.expect([("stripe", "handlers.bill")])
    told = Scraped((await worker.show()).decode())
    for outcome in Outcome:
        place = {"route": "stripe", "handler": "handlers.bill", "outcome": outcome.value}
        assert told.values("gateway_attempts_total", **place) == [0.0]
    assert told.values("gateway_dead_letters_total") == [0.0]
    for kind in REPAIRS["worker"]:
        assert told.values("gateway_repairs_total", kind=kind) == [0.0]


async def test_a_flood_of_scrapes_is_written_a_few_times_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written, clock = 0, Clock()

    def write(_: object) -> bytes:
        nonlocal written
        written += 1
        clock.now += 0.01
        return b"%d" % written

    monkeypatch.setattr("gateway.ledger.metrics.generate_latest", write)
    monkeypatch.setattr("gateway.ledger.metrics.time.monotonic", clock)
    metrics = Metrics()
    assert {await metrics.show() for _ in range(100)} == {b"1"}
    clock.now += 0.1
    assert await metrics.show() == b"2"
