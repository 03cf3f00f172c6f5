"""One timer for all requests: who is late is cancelled, and nobody else."""

import asyncio

import pytest

from gateway.http.body import Deadlines


class Late(Exception):
    pass


async def test_who_is_late_is_cancelled_and_told_why() -> None:
    deadlines = Deadlines()
    with pytest.raises(Late), deadlines.within(0.05, Late):
        await asyncio.sleep(30)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0, "the task must not stay cancelled"


async def test_who_is_in_time_hears_nothing_afterwards() -> None:
    deadlines = Deadlines()
    with deadlines.within(0.05, Late):
        await asyncio.sleep(0)
    with pytest.raises(Late), deadlines.within(0.1, Late):  # later than the first would have been
        await asyncio.sleep(30)


async def test_a_moved_limit_raises_what_belongs_to_its_part() -> None:
    class LateAgain(Exception):
        pass

    async def request() -> None:
        with Deadlines().within(0.01, Late) as deadline:
            deadline.move(0.05, LateAgain)
            await asyncio.sleep(30)

    with pytest.raises(LateAgain):
        await request()


async def test_each_request_has_its_own_limit() -> None:
    deadlines = Deadlines()

    async def request(limit_s: float, takes_s: float) -> str:
        try:
            with deadlines.within(limit_s, Late):
                await asyncio.sleep(takes_s)
        except Late:
            return "late"
        return "done"

    ends = await asyncio.gather(*(request(*((0.1, 30) if n % 2 else (30, 0.2))) for n in range(20)))
    assert ends == ["done", "late"] * 10


async def test_a_cancellation_from_elsewhere_passes_through() -> None:
    deadlines = Deadlines()

    async def request() -> None:
        with deadlines.within(30, Late):
            await asyncio.sleep(30)

    task = asyncio.create_task(request())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_the_request_wins_over_its_lateness() -> None:
    deadlines = Deadlines()

    async def request() -> None:
        with deadlines.within(0.05, Late):
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                raise ValueError("its own") from None

    with pytest.raises(ValueError, match="its own"):
        await request()
