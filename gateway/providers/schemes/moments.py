"""Times as senders write them: unix seconds, milliseconds, or ISO 8601."""

from datetime import UTC, datetime
from typing import Final

_MAX_DIGITS: Final = {"s": 12, "ms": 15}
_LAST_SECOND: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
_MAX_CHARS: Final = 40


def parse_moment(text: str, unit: str) -> float | None:
    """Unix seconds; None for what is no such time."""
    if unit == "iso":
        return _from_iso(text)
    # Digits only: int() would also take signs, spaces and underscores.
    if not text.isascii() or not text.isdigit() or len(text) > _MAX_DIGITS[unit]:
        return None
    seconds = int(text) if unit == "s" else int(text) / 1000
    return seconds if seconds <= _LAST_SECOND else None


def _from_iso(text: str) -> float | None:
    if len(text) > _MAX_CHARS:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return None if moment.tzinfo is None else moment.timestamp()
    except (ValueError, OverflowError):
        return None


def format_moment(moment: datetime, unit: str) -> str:
    """The same the other way round."""
    if unit == "iso":
        milliseconds = moment.astimezone(UTC).isoformat(timespec="milliseconds")
        return milliseconds.replace("+00:00", "Z")
    return str(int(moment.timestamp() * (1 if unit == "s" else 1000)))
