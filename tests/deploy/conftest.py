"""The project that the tests of a module share, and engines that a sandbox can reach."""

from collections.abc import Iterator

import pytest

from tests.deploy.reach import Reach, over_tcp
from tests.e2e.conftest import module_project

__all__ = ["module_project"]


@pytest.fixture
def reach(database_url: str, redis_url: str) -> Iterator[Reach]:
    """A migrated database and an empty Redis, over TCP."""
    with over_tcp(database_url, redis_url) as found:
        yield found
