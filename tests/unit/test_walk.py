"""The walk of long operations: retried, paced, in pieces, and from its cursor to the end."""

import asyncio
from types import SimpleNamespace

import asyncpg
import pytest

from gateway.base.errors import CommandFailed
from gateway.ledger import walk as walk_module
from gateway.ledger.retention import Pruned
from gateway.ledger.walk import Pace, Piece, Stepped, step_rows, walk, walk_piece

END = 5


async def one_row(cursor: int) -> Stepped[Pruned, int]:
    return Stepped(Pruned(keys=1), cursor + 1 if cursor + 1 < END else None, 1)


class Contended:
    """A step that is the victim of a deadlock so many times."""

    def __init__(self, times: int) -> None:
        self.times = times

    async def __call__(self, cursor: int) -> Stepped[Pruned, int]:
        self.times -= 1
        if self.times >= 0:
            raise asyncpg.DeadlockDetectedError("deadlock detected")
        return await one_row(cursor)


async def test_a_walk_goes_from_its_cursor_to_the_end() -> None:
    cursors = [stepped.cursor async for stepped in walk(one_row, 2, what="the test")]
    assert cursors == [3, 4, None]


async def test_a_piece_ends_at_its_time_limit_and_the_next_one_begins_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(walk_module, "PIECE_S", -1.0)
    piece = await walk_piece(one_row, 0, Pruned(dead=7), what="the test")
    assert piece == Piece(Pruned(keys=1, dead=7), 1)
    monkeypatch.setattr(walk_module, "PIECE_S", 60.0)
    assert await walk_piece(one_row, 1, piece.total, what="the test") == Piece(
        Pruned(keys=END, dead=7), None
    )


async def test_a_step_that_meets_lock_contention_is_repeated() -> None:
    piece = await walk_piece(Contended(2), 0, Pruned(), what="the test")
    assert piece == Piece(Pruned(keys=END), None)


async def test_a_step_that_never_gets_its_locks_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(walk_module, "TRIES", 2)
    with pytest.raises(CommandFailed, match="the test meets lock contention"):
        await walk_piece(Contended(3), 0, Pruned(), what="the test")


@pytest.mark.parametrize(
    ("rate", "rows"), [(None, 500), (1, 1), (3, 1), (40, 10), (2_000, 500), (100_000, 500)]
)
def test_a_rate_makes_small_steps(rate: int | None, rows: int) -> None:
    assert step_rows(rate, 500) == rows


@pytest.mark.parametrize(("catch_up_s", "expected_s"), [(1.0, [0.25, 0.25]), (0.0, [0.25, 1.25])])
def test_a_pace_spaces_the_rows_and_makes_up_for_a_short_delay(
    catch_up_s: float, expected_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, waited_s = [100.0], list[float]()
    monkeypatch.setattr(walk_module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    async def rest(seconds: float) -> None:
        waited_s.append(seconds)
        now_s[0] += seconds

    async def work() -> None:
        pace = Pace(rest, catch_up_s=catch_up_s)
        pace.spend(25, 100)
        await pace.wait()
        now_s[0] += 5  # slower than the rate
        pace.spend(125, 100)
        await pace.wait()

    asyncio.run(work())
    assert waited_s == pytest.approx(expected_s)
