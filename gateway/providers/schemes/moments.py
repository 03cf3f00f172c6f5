"""Parse and format times as senders write them: unix seconds, milliseconds, or ISO 8601."""

from datetime import UTC, datetime
from typing import Final

from gateway.base.times import EARLIEST, LATEST, parse_iso

UNIT_EXPECTED: Final = {
    "s": "unix seconds",
    "ms": "unix milliseconds",
    "s_or_ms": "unix seconds or milliseconds",
    "iso": "ISO 8601 with its offset",
}
MILLISECOND_DIGITS: Final = 13
"""Digits of a time in milliseconds between 2001 and 2286. As seconds it is after the year 9999."""
_MAX_DIGITS: Final = {"s": 12, "ms": 15, "s_or_ms": MILLISECOND_DIGITS}
_FIRST_SECOND: Final = EARLIEST.timestamp()
_LAST_SECOND: Final = LATEST.timestamp()


def parse_moment(text: str, unit: str) -> float | None:
    """Return unix seconds, or None if the text is not a time in this unit."""
    if unit == "iso":
        try:
            return parse_iso(text).timestamp()
        except ValueError:
            return None
    # Digits only: int() would also accept signs, spaces and underscores.
    if not text.isascii() or not text.isdigit() or len(text) > _MAX_DIGITS[unit]:
        return None
    is_ms = unit == "ms" or (unit == "s_or_ms" and len(text) == MILLISECOND_DIGITS)
    return bounded(int(text) / 1000 if is_ms else int(text))


def bounded(seconds: float) -> float | None:
    """Return unix seconds, or None if they are out of range or not a number."""
    return seconds if _FIRST_SECOND <= seconds <= _LAST_SECOND else None


def format_moment(moment: datetime, unit: str) -> str:
    """Format a time so that `parse_moment` reads it."""
    if unit == "iso":
        milliseconds = moment.astimezone(UTC).isoformat(timespec="milliseconds")
        return milliseconds.replace("+00:00", "Z")
    return str(int(moment.timestamp() * (1000 if unit == "ms" else 1)))
