"""The SQL statement of `ctx.upsert`."""

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import orjson

from gateway.base.times import to_utc

LONGEST_S: Final = 366 * 24 * 3600.0
"""Claims later than a year after the event's time all get the last fraction of its second."""


class Unversioned:
    """Marker for an omitted version, as opposed to a version that is None."""


UNVERSIONED: Final = Unversioned()


@lru_cache(maxsize=512)
def upsert_statement(
    table: str, key: tuple[str, ...], values: tuple[str, ...], versioned: bool
) -> str:
    """Return the SQL for a row with these columns."""
    columns = [*key, *values, *(["version"] if versioned else [])]
    names = ", ".join(map(quote, columns))
    places = ", ".join(f"${n}" for n in range(1, len(columns) + 1))
    changes = ", ".join(f"{quote(c)} = excluded.{quote(c)}" for c in columns[len(key) :])
    guard = " where t.version is null or t.version <= excluded.version" if versioned else ""
    action = f"update set {changes}{guard}" if changes else "nothing"
    return (
        f"insert into {quote_table(table)} as t ({names}) values ({places}) "  # noqa: S608
        f"on conflict ({', '.join(map(quote, key))}) do {action} returning true"
    )


def quote_table(name: str) -> str:
    """Quote a table name, with or without a schema: `orders` or `shop.orders`."""
    return ".".join(map(quote, name.split(".")))


def quote(name: str) -> str:
    """Quote an identifier. Raises ValueError if it cannot be one."""
    if not name or "\0" in name:
        raise ValueError(f"not a name of a table or column: {name!r}")
    return '"' + name.replace('"', '""') + '"'


def arguments(
    key: Mapping[str, Any], values: Mapping[str, Any], version: Any, received_at: datetime
) -> list[Any]:
    """Return the values in the order of the columns, with a dict as JSON."""
    row = [*key.values(), *values.values()]
    if not isinstance(version, Unversioned):
        row.append(ordered_version(version, received_at))
    return [orjson.dumps(v).decode() if isinstance(v, dict) else v for v in row]


def ordered_version(version: Any, received_at: datetime) -> Any:
    """Return the version. A time in whole seconds gets a fraction that orders it by claim time.

    Providers stamp events in steps of a second, so two changes of one object can tie. Of those,
    the one that was claimed later wins, whichever runs first. The fraction grows with the time
    from the event to the claim, finely at first: it distinguishes claims 0.1 ms apart in the first
    second, and a minute apart after a month.
    """
    if not isinstance(version, datetime):
        return version
    if version.tzinfo is None:
        raise ValueError(f"version={version!r} has no time zone: pass an aware datetime")
    try:
        version = to_utc(version)
    except ValueError as error:
        raise ValueError(f"version={version!r} is {error}") from None
    if version.microsecond:
        return version
    late_s = min(max((received_at - version).total_seconds(), 0.0), LONGEST_S)
    share = math.log1p(late_s * 1000) / math.log1p(LONGEST_S * 1000)
    return version + timedelta(microseconds=int(share * 999_999))
