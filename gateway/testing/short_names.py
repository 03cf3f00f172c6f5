"""Fixtures whose names another plugin may want: those of the plugin have longer ones, too."""

import pytest

from gateway.testing.database import Database


@pytest.fixture
def db(gateway_db: Database) -> Database:
    """The test's own database: `db.fetchval("select count(*) from orders")`."""
    return gateway_db
