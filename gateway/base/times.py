"""Parse external timestamps, limited to the range that Python and Postgres can both represent.

Every timestamp from a sender, an API or a user is parsed here. A time outside the range is a
ValueError like any other malformed text, and never an OverflowError further on.
"""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, WithJsonSchema

from gateway.base.problems import Unexpected, describe
from gateway.base.units import parse_duration

TIME_EXPECTED: Final = "a time such as 2026-12-01T00:00:00Z"
MOMENT_EXPECTED: Final = "a duration such as 2h (ago), or a time such as 2026-11-16T02:00"
EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)
"""One day from each end of Python's calendar, so that such a time exists in every time zone.

asyncpg maps the ends themselves to -infinity and infinity, and returns those without a time zone.
"""
LONGEST_ISO: Final = 40
"""In characters. A time with microseconds and an offset has 32."""


def to_utc(moment: datetime) -> datetime:
    """Return an aware time in UTC. Raises ValueError if it is out of range."""
    try:
        moment = moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(_OUT_OF_RANGE) from None
    if not EARLIEST <= moment <= LATEST:
        raise ValueError(_OUT_OF_RANGE)
    return moment


def from_unix(seconds: float) -> datetime:
    """Return a time from unix seconds. Raises ValueError if it is out of range, or not a number."""
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError):
        raise ValueError(_OUT_OF_RANGE) from None
    return to_utc(moment)


def parse_iso(text: str) -> datetime:
    """Return a time from ISO 8601 text with its offset, in UTC. Raises ValueError."""
    if len(text) > LONGEST_ISO:
        raise ValueError(f"{len(text)} characters; expected at most {LONGEST_ISO}")
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("no offset from UTC")
    return to_utc(moment)


_OUT_OF_RANGE: Final = f"out of range: expected {EARLIEST:%Y-%m-%d} to {LATEST:%Y-%m-%d}"


def parse_moment(text: str) -> datetime:
    """Parse a duration before now, or a time. A time without a zone is in UTC."""
    with suppress(ValueError):
        return datetime.now(UTC) - parse_duration(text)
    return _parse(text, MOMENT_EXPECTED)


def parse_time(text: str) -> datetime:
    """Parse a time, which may be in the future. A time without a zone is in UTC."""
    return _parse(text, TIME_EXPECTED)


def _parse(text: str, expected: str) -> datetime:
    try:
        return _in_utc(datetime.fromisoformat(text))
    except ValueError:
        raise Unexpected(found=describe(text), expected=expected) from None


def _in_utc(moment: datetime) -> datetime:
    return to_utc(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _moment(value: object) -> datetime:
    if isinstance(value, datetime):
        return _in_utc(value)
    if isinstance(value, str):
        return parse_moment(value)
    raise Unexpected(found=describe(value), expected=MOMENT_EXPECTED)


def _time(value: object) -> datetime:
    if isinstance(value, datetime):
        return _in_utc(value)
    if isinstance(value, str):
        return parse_time(value)
    raise Unexpected(found=describe(value), expected=TIME_EXPECTED)


UtcTime = Annotated[AwareDatetime, AfterValidator(to_utc)]
"""A time in an external JSON document, converted to UTC and checked against the range."""
Time = Annotated[
    datetime,
    BeforeValidator(_time),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^\d{4}-\d{2}-\d{2}([T ].+)?$",
            "examples": ["2026-12-01T00:00:00Z"],
        }
    ),
]
Moment = Annotated[
    datetime,
    BeforeValidator(_moment),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "format": "date-time"},
                {"type": "string", "pattern": "^[0-9]{1,4}[smhd]$"},
            ],
            "examples": ["2h", "2026-11-16T02:00:00Z"],
        }
    ),
]
