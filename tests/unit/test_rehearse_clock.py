"""The clock that a rehearsal advances for the user's modules."""

import datetime
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gateway.testing.rehearse.isolation import LATER, later_clock

THEIRS = """
import datetime as dt
import time as clock
from datetime import UTC, date, datetime
from time import strftime, time, time_ns


def read():
    return {
        "now": datetime.now(UTC),
        "utcnow": datetime.utcnow().replace(tzinfo=UTC),
        "module": dt.datetime.now(dt.UTC),
        "time": datetime.fromtimestamp(time(), UTC),
        "time_ns": datetime.fromtimestamp(time_ns() // 1_000_000_000, UTC),
        "module_time": datetime.fromtimestamp(clock.time(), UTC),
        "local": datetime.fromtimestamp(clock.mktime(clock.localtime()), UTC),
        "strftime": datetime.fromtimestamp(int(strftime("%s")), UTC),
    }


def read_days():
    return [date.today(), dt.date.today(), datetime.today().date()]


def make():
    return [
        datetime(2024, 5, 5, tzinfo=UTC),
        datetime.fromisoformat("2024-05-05T00:00:00+00:00"),
        datetime.fromtimestamp(1714867200, UTC),
        date(2024, 5, 5),
        clock.gmtime(1714867200),
    ]


def knows(value):
    match value:
        case datetime():
            return "datetime"
        case date():
            return "date"
"""


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[ModuleType]:
    """A module of the user's."""
    module = ModuleType("theirs")
    module.__file__ = str(tmp_path / "theirs.py")
    exec(THEIRS, vars(module))  # noqa: S102 (the text above)
    sys.modules["theirs"] = module
    yield module
    del sys.modules["theirs"]


@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")
def test_every_way_to_read_the_clock_is_later(theirs: ModuleType, tmp_path: Path) -> None:
    before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    with later_clock(tmp_path):
        read, days = theirs.read(), theirs.read_days()
    after = datetime.datetime.now(datetime.UTC)
    assert {k: v for k, v in read.items() if not before <= v - LATER <= after} == {}
    assert all(day >= (before + LATER).date() - datetime.timedelta(days=1) for day in days)


def test_afterwards_the_clock_is_the_real_one(theirs: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), later_clock(tmp_path):
        raise RuntimeError
    own = vars(theirs)
    assert own["datetime"] is datetime.datetime
    assert own["date"] is datetime.date
    assert own["dt"] is datetime
    assert own["clock"] is time
    assert own["time"] is time.time


def test_values_that_are_made_with_it_are_plain_ones(theirs: ModuleType, tmp_path: Path) -> None:
    expected = theirs.make()
    with later_clock(tmp_path):
        made = theirs.make()
        kinds = [theirs.knows(value) for value in expected[:4]]
    assert made == expected
    assert [type(value) for value in made] == [type(value) for value in expected]
    assert kinds == ["datetime"] * 3 + ["date"]


def test_modules_outside_the_project_keep_the_real_clock(
    theirs: ModuleType, tmp_path: Path
) -> None:
    with later_clock(tmp_path / "another"):
        assert vars(theirs)["datetime"] is datetime.datetime
