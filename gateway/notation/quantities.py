"""Durations, sizes and rates as people write them: `1h30m`, `25MiB`, `100/m`."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, WithJsonSchema

from gateway.notation.problems import Unexpected, describe

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
"""A century: a moment that far away is still a date that Python and Postgres can hold."""

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
    """Read a duration. Units go from large to small, each at most once; a bare number has none."""
    match = re.fullmatch(DURATION_PATTERN, text)
    if match is None:
        raise Unexpected(found=describe(text), expected=DURATION_EXPECTED)
    counts = zip(match.groups(), DURATION_UNITS.values(), strict=True)
    ms = sum(int(count or 0) * (unit // MILLISECOND) for count, unit in counts)
    if ms > LONGEST // MILLISECOND:
        raise Unexpected(found=describe(text), expected=f"at most {LONGEST.days}d")
    return ms * MILLISECOND


def format_duration(duration: timedelta) -> str:
    """Write a duration as `parse_duration` reads it. What is under a millisecond is cut off."""
    if duration < timedelta(0):
        raise Unexpected(found=str(duration), expected="a duration that is not negative")
    parts = []
    for unit, length in DURATION_UNITS.items():
        count, duration = divmod(duration, length)
        parts.append(f"{count}{unit}" if count else "")
    return "".join(parts) or "0s"


def format_roughly(duration: timedelta) -> str:
    """A duration in one unit, as one tells how long ago something was; 0s at the least."""
    for unit in (DURATION_UNITS[name] for name in "dhm"):
        if duration >= 2 * unit:
            return format_duration(duration // unit * unit)
    return format_duration(timedelta(seconds=max(int(duration.total_seconds()), 0)))


def parse_size(text: str) -> int:
    """Read a number of bytes. Without a unit it is bytes already."""
    match = re.fullmatch(SIZE_PATTERN, text)
    if match is None:
        raise Unexpected(found=describe(text), expected=SIZE_EXPECTED)
    count, unit = match.groups()
    return int(count) * SIZE_UNITS[unit or "B"]


def parse_rate(text: str) -> tuple[int, timedelta]:
    """Read how many there may be in which period; `100/m` is `100/1m`."""
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
    """Write a rate as `parse_rate` reads it."""
    units = {length: unit for unit, length in DURATION_UNITS.items()}
    return f"{count}/{units.get(period) or format_duration(period)}"


def format_size(size_bytes: int) -> str:
    """Write a size as `parse_size` reads it, exactly: in the largest unit that divides it."""
    if size_bytes < 0:
        raise Unexpected(found=str(size_bytes), expected="a size that is not negative")
    if size_bytes == 0:
        return "0B"
    unit = next(unit for unit, length in SIZE_UNITS.items() if size_bytes % length == 0)
    return f"{size_bytes // SIZE_UNITS[unit]}{unit}"


def format_size_roughly(size_bytes: int) -> str:
    """Write a size for people, in the unit that fits."""
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes >= SIZE_UNITS[unit]:
            return f"{size_bytes / SIZE_UNITS[unit]:,.1f} {unit}"
    return f"{size_bytes} B"


def format_count(count: int, one: str, more: str | None = None) -> str:
    """Write how many there are: `1 event`, `2,000 events`."""
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
    """The bounds of a `Duration`, both included."""

    def check(duration: timedelta) -> timedelta:
        if not low <= duration <= high:
            expected = f"{format_duration(low)} to {format_duration(high)}"
            raise Unexpected(found=format_duration(duration), expected=expected)
        return duration

    return AfterValidator(check)


def holding(low: int, high: int) -> AfterValidator:
    """The bounds of a `Size`, both included."""

    def check(size_bytes: int) -> int:
        if not low <= size_bytes <= high:
            expected = f"{format_size(low)} to {format_size(high)}"
            raise Unexpected(found=format_size(size_bytes), expected=expected)
        return size_bytes

    return AfterValidator(check)
