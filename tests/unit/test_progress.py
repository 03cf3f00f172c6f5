"""Progress where there is no terminal: plain lines, not too many of them, and the last one true."""

import pytest

from gateway.cli.progress import progress


class Clock:
    def __init__(self) -> None:
        self.at_s = 100.0

    def __call__(self) -> float:
        return self.at_s


def test_a_line_every_few_seconds_with_rate_and_remaining_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    with progress("replaying", 10_000, done=2_000, now=clock) as show:
        for done in range(2_250, 6_001, 250):  # a quarter of a second each
            clock.at_s += 0.25
            show(done)
    out, lines = capsys.readouterr()
    assert out == ""
    assert lines.splitlines() == [
        "replaying: 4,000 of 10,000, 1,000/s, 6s left",
        "replaying: 6,000 of 10,000, 1,000/s, 4s left",
    ]


def test_the_end_is_told_also_where_it_came_soon_or_by_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()

    def fail() -> None:
        with progress("asking", None, now=clock) as show:
            show(1_234)
            clock.at_s += 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert capsys.readouterr().err == "asking: 1,234, 1,234/s\n"


def test_nothing_is_said_where_nothing_was_done(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("asking", 5):
        pass
    assert capsys.readouterr().err == ""
