"""gateway/ledger/schema.sql is the schema that the migrations produce."""

import asyncpg

from gateway.dev.embedded import Postgres
from gateway.ledger.migrate import read_migrations
from tests.schema import FILE, render
from tests.support.databases import run_sql
from tests.support.schema import dump, dump_schema


async def test_the_schema_file_is_written_from_the_migrated_ledger(direct_url: str) -> None:
    connection = await asyncpg.connect(direct_url)
    try:
        assert FILE.read_text(encoding="utf-8") == await render(connection), "make docs"
    finally:
        await connection.close()


async def test_the_schema_file_creates_exactly_what_the_migrations_create(
    postgres: Postgres, empty_database_url: str
) -> None:
    await run_sql(
        empty_database_url,
        "create schema gateway",
        FILE.read_text(encoding="utf-8"),
        "select gateway.make_partitions()",
    )
    assert dump(empty_database_url) == await dump_schema(postgres.url, read_migrations())
