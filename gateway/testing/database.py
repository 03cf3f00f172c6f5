"""Synchronous access to the test's own database."""

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from gateway.ledger.connection import Connection, connect, users_search_path
from gateway.testing.background import Background


class Database:
    """A connection that is separate from the handlers', and sees the data that they have committed.

    A row is a dict, and JSON columns are decoded.
    """

    def __init__(self, url: str, background: Background) -> None:
        self.url = url
        """The URL, for a client of your own."""
        self._background = background
        self._connection = background.run(_connect(url))

    def execute(self, query: str, *args: Any) -> str:
        """Run a statement, or several without arguments, and return the status: `INSERT 0 1`."""
        return self._background.run(self._connection.execute(query, *args))

    def executemany(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement once per row of arguments."""
        self._background.run(self._connection.executemany(query, rows))

    def fetch(self, query: str, *args: Any) -> list[dict[str, Any]]:
        """Return all rows."""
        return [dict(row) for row in self._background.run(self._connection.fetch(query, *args))]

    def fetchrow(self, query: str, *args: Any) -> dict[str, Any] | None:
        """Return the first row, or None."""
        row = self._background.run(self._connection.fetchrow(query, *args))
        return None if row is None else dict(row)

    def fetchval(self, query: str, *args: Any, column: int = 0) -> Any:
        """Return one value of the first row, or None."""
        return self._background.run(self._connection.fetchval(query, *args, column=column))

    def close(self) -> None:
        self._background.run(self._connection.close())


async def _connect(url: str) -> Connection:
    connection = await connect(url, name="gateway test", command_timeout_s=None)
    path = await users_search_path(connection)
    await connection.execute("select set_config('search_path', $1, false)", path)
    for name in ("json", "jsonb"):
        await connection.set_type_codec(
            name, schema="pg_catalog", encoder=_as_json, decoder=orjson.loads
        )
    return connection


def _as_json(value: Any) -> str:
    """Encode a value as JSON. A str must already be JSON, as in `ctx.db`."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()
