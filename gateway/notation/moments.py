"""Moments as people write them: `2h` (ago), a date, or a time."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import BeforeValidator, WithJsonSchema

from gateway.notation.problems import Unexpected, describe
from gateway.notation.quantities import parse_duration

MOMENT_EXPECTED: Final = "a duration such as 2h (ago), or a time such as 2026-11-16T02:00"
EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
"""What Postgres and Python can both hold, in any zone."""


def parse_moment(text: str) -> datetime:
    """Read a moment; one without a zone is in UTC."""
    with suppress(ValueError, OverflowError):
        return datetime.now(UTC) - parse_duration(text)
    try:
        moment = datetime.fromisoformat(text)
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise Unexpected(found=describe(text), expected=MOMENT_EXPECTED) from None
    if moment < EARLIEST:
        raise Unexpected(found=describe(text), expected=MOMENT_EXPECTED)
    return moment


def _moment(value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, str):
        return parse_moment(value)
    raise Unexpected(found=describe(value), expected=MOMENT_EXPECTED)


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
