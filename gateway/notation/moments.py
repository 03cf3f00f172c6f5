"""Moments as people write them: `2h` (ago), a date, or a time."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import BeforeValidator, WithJsonSchema

from gateway.notation.problems import Unexpected, describe
from gateway.notation.quantities import parse_duration

TIME_EXPECTED: Final = "a time such as 2026-12-01T00:00:00Z"
MOMENT_EXPECTED: Final = "a duration such as 2h (ago), or a time such as 2026-11-16T02:00"
EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
"""What Postgres and Python can both hold, in any zone."""


def parse_moment(text: str) -> datetime:
    """Read a moment; one without a zone is in UTC."""
    with suppress(ValueError, OverflowError):
        return datetime.now(UTC) - parse_duration(text)
    return _parse(text, MOMENT_EXPECTED)


def parse_time(text: str) -> datetime:
    """Read a time, which may be still to come; one without a zone is in UTC."""
    return _parse(text, TIME_EXPECTED)


def _parse(text: str, expected: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise Unexpected(found=describe(text), expected=expected) from None
    if moment < EARLIEST:
        raise Unexpected(found=describe(text), expected=expected)
    return moment


def _moment(value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, str):
        return parse_moment(value)
    raise Unexpected(found=describe(value), expected=MOMENT_EXPECTED)


def _time(value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, str):
        return parse_time(value)
    raise Unexpected(found=describe(value), expected=TIME_EXPECTED)


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
