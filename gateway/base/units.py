"""Durations, sizes and rates: how they are read from text and written."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    BeforeValidator,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)

from gateway.base.model import Rate
from gateway.base.problems import Unexpected, describe

MILLISECOND: Final = timedelta(milliseconds=1)
DURATION_UNITS: Final[Mapping[str, timedelta]] = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": MILLISECOND,
}
SIZE_UNITS: Final[Mapping[str, int]] = {
    "GiB": 1024**3,
    "MiB": 1024**2,
    "KiB": 1024,
    "GB": 1000**3,
    "MB": 1000**2,
    "KB": 1000,
    "B": 1,
}
LONGEST: Final = timedelta(days=36_500)
"""A century: a time that far away is still a date that Python and Postgres can represent."""

DURATION_PATTERN: Final = "(?=[0-9])" + "".join(
    f"(?:([0-9]{{1,12}}){unit})?" for unit in DURATION_UNITS
)
SIZE_PATTERN: Final = f"([0-9]{{1,12}})({'|'.join(SIZE_UNITS)})?"
DURATION_EXPECTED: Final = "a duration such as 250ms, 15s, 5m, 1h30m or 35d"
SIZE_EXPECTED: Final = "a size such as 64KiB, 1MiB or 1000000"
MOST_IN_PERIOD: Final = 10_000
RATE_PATTERN: Final = r"([0-9]{1,5})/(\S{1,20})"
RATE_EXPECTED: Final = f"a rate such as 5/s, 100/m or 20/10s, of at most {MOST_IN_PERIOD} a period"


def parse_duration(text: str) -> timedelta:
    """Parse a duration. Units go from large to small, each at most once, and are required."""
    match = re.fullmatch(DURATION_PATTERN, text)
    if match is None:
        raise Unexpected(found=describe(text), expected=DURATION_EXPECTED)
    counts = zip(match.groups(), DURATION_UNITS.values(), strict=True)
    ms = sum(int(count or 0) * (unit // MILLISECOND) for count, unit in counts)
    if ms > LONGEST // MILLISECOND:
        raise Unexpected(found=describe(text), expected=f"at most {LONGEST.days}d")
    return ms * MILLISECOND


def format_duration(duration: timedelta) -> str:
    """Format a duration so that `parse_duration` can read it.

    Parts below a millisecond are dropped.
    """
    if duration < timedelta(0):
        raise Unexpected(found=str(duration), expected="a duration that is not negative")
    parts = []
    for unit, length in DURATION_UNITS.items():
        count, duration = divmod(duration, length)
        parts.append(f"{count}{unit}" if count else "")
    return "".join(parts) or "0s"


def format_roughly(duration: timedelta) -> str:
    """Format a duration in one suitable unit, such as the age of something. At least 0s."""
    for unit in (DURATION_UNITS[name] for name in "dhm"):
        if duration >= 2 * unit:
            return format_duration(duration // unit * unit)
    return format_duration(timedelta(seconds=max(int(duration.total_seconds()), 0)))


def parse_size(text: str) -> int:
    """Parse a number of bytes. Without a unit it is in bytes."""
    match = re.fullmatch(SIZE_PATTERN, text)
    if match is None:
        raise Unexpected(found=describe(text), expected=SIZE_EXPECTED)
    count, unit = match.groups()
    return int(count) * SIZE_UNITS[unit or "B"]


def parse_rate(text: str) -> tuple[int, timedelta]:
    """Parse a maximum number per period. `100/m` is the same as `100/1m`."""
    match = re.fullmatch(RATE_PATTERN, text)
    if match is None:
        raise Unexpected(found=describe(text), expected=RATE_EXPECTED)
    count, unit = int(match[1]), match[2]
    try:
        period = DURATION_UNITS.get(unit) or parse_duration(unit)
    except Unexpected:
        raise Unexpected(found=describe(text), expected=RATE_EXPECTED) from None
    if not 1 <= count <= MOST_IN_PERIOD or not period:
        raise Unexpected(found=describe(text), expected=RATE_EXPECTED)
    return count, period


def format_rate(count: int, period: timedelta) -> str:
    """Format a rate so that `parse_rate` can read it."""
    units = {length: unit for unit, length in DURATION_UNITS.items()}
    return f"{count}/{units.get(period) or format_duration(period)}"


def format_size(size_bytes: int) -> str:
    """Format a size so that `parse_size` can read it, in the largest unit that divides it."""
    if size_bytes < 0:
        raise Unexpected(found=str(size_bytes), expected="a size that is not negative")
    if size_bytes == 0:
        return "0B"
    unit = next(unit for unit, length in SIZE_UNITS.items() if size_bytes % length == 0)
    return f"{size_bytes // SIZE_UNITS[unit]}{unit}"


def format_size_roughly(size_bytes: int) -> str:
    """Format a size for display, rounded to a suitable unit."""
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes >= SIZE_UNITS[unit]:
            return f"{size_bytes / SIZE_UNITS[unit]:,.1f} {unit}"
    return f"{size_bytes} B"


def format_count(count: int, one: str, more: str | None = None) -> str:
    """Format a count with its noun: `1 event`, `2,000 events`."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def _duration(value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str):
        return parse_duration(value)
    raise Unexpected(found=describe(value), expected=DURATION_EXPECTED)


def _size(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        return parse_size(value)
    raise Unexpected(found=describe(value), expected=SIZE_EXPECTED)


Duration = Annotated[
    timedelta,
    BeforeValidator(_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": f"^{DURATION_PATTERN}$",
            "examples": ["250ms", "15s", "5m", "1h30m", "35d"],
        }
    ),
]
Size = Annotated[
    int,
    BeforeValidator(_size),
    PlainSerializer(format_size, return_type=str),
    WithJsonSchema(
        {
            "type": ["string", "integer"],
            "pattern": f"^{SIZE_PATTERN}$",
            "minimum": 0,
            "examples": ["64KiB", "1MiB", "25MiB"],
        }
    ),
]


def lasting(low: timedelta, high: timedelta) -> AfterValidator:
    """Limit a `Duration` to a range that includes both bounds."""

    def check(duration: timedelta) -> timedelta:
        if not low <= duration <= high:
            expected = f"{format_duration(low)} to {format_duration(high)}"
            raise Unexpected(found=format_duration(duration), expected=expected)
        return duration

    return AfterValidator(check)


def holding(low: int, high: int) -> AfterValidator:
    """Limit a `Size` to a range that includes both bounds."""

    def check(size_bytes: int) -> int:
        if not low <= size_bytes <= high:
            expected = f"{format_size(low)} to {format_size(high)}"
            raise Unexpected(found=format_size(size_bytes), expected=expected)
        return size_bytes

    return AfterValidator(check)


def _rate(value: object) -> Rate:
    if isinstance(value, Rate):  # the default value
        return value
    if not isinstance(value, str):
        raise Unexpected(found=describe(value), expected=RATE_EXPECTED)
    count, period = parse_rate(value)
    return Rate(count=count, period=period)


RateText = Annotated[
    Rate,
    PlainValidator(_rate),
    PlainSerializer(lambda rate: format_rate(rate.count, rate.period), return_type=str),
    WithJsonSchema({"type": "string", "pattern": f"^{RATE_PATTERN}$", "examples": ["100/m"]}),
]
