"""Postgres for the bench's own, synchronous process: it asks between the measurements."""

import asyncio
from typing import Any

import asyncpg

from bench.figures import steady_rate

FOREVER_S = 3600.0

TABLES = """
select string_agg(format('%I.%I', schemaname, tablename), ', ')
from pg_tables
where schemaname in ('gateway', 'public') and tablename not in ('migrations', 'workers')
"""
EFFECTS = "select extract(epoch from pg_xact_commit_timestamp(xmin))::float8 from orders"
EFFECTS_BY_ID = "select id, extract(epoch from pg_xact_commit_timestamp(xmin))::float8 from orders"


class Database:
    """One connection, and an event loop that runs only while something is asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._runner = asyncio.Runner()
        self._connection = self._runner.run(asyncpg.connect(url, command_timeout=FOREVER_S))

    def execute(self, sql: str, *arguments: Any) -> None:
        self._runner.run(self._connection.execute(sql, *arguments))

    def fetch(self, sql: str, *arguments: Any) -> list[asyncpg.Record]:
        return self._runner.run(self._connection.fetch(sql, *arguments))

    def fetchval(self, sql: str, *arguments: Any) -> Any:
        return self._runner.run(self._connection.fetchval(sql, *arguments))

    def count(self, table: str) -> int:
        found: int = self.fetchval(f"select count(*) from {table}")  # noqa: S608 (our own names)
        return found

    def empty(self) -> None:
        """Every table of the gateway and of the contestants, and a checkpoint: the same start."""
        self.execute(f"truncate {self.fetchval(TABLES)} restart identity")
        self.execute("checkpoint")

    def effect_moments(self) -> list[float]:
        """When each row of `orders` was committed, in seconds of the wall clock."""
        return [row[0] for row in self.fetch(EFFECTS)]

    def effect_moments_by_id(self) -> dict[str, float]:
        return {row[0]: row[1] for row in self.fetch(EFFECTS_BY_ID)}

    def effects_per_second(self) -> float:
        return steady_rate(self.effect_moments())

    def close(self) -> None:
        self._runner.run(self._connection.close())
        self._runner.close()
