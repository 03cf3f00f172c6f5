"""Removing a safeguard of the schema changes the schema that the migrations produce."""

from gateway.dev.embedded import Postgres
from gateway.ledger.migrate import read_migrations
from tests.safeguards import SAFEGUARDS
from tests.support.schema import dump_schema, migrations_without


async def test_a_safeguard_of_the_schema_is_in_force(postgres: Postgres) -> None:
    in_force = await dump_schema(postgres.url, read_migrations())
    unchanged = [
        safeguard.name
        for safeguard in SAFEGUARDS
        if safeguard.is_in_schema
        and await dump_schema(postgres.url, migrations_without(safeguard)) == in_force
    ]
    assert unchanged == []
