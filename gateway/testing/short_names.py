"""Fixtures with short names that other plugins may use too. Each also has a longer name."""

import pytest

from gateway.testing.fixtures import Database


@pytest.fixture
def db(gateway_db: Database) -> Database:
    """The test's own database: `db.fetchval("select count(*) from orders")`."""
    return gateway_db
