"""The engines of the suite over TCP: their sockets cannot be reached from a sandbox."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.torture.wire import HOST, Wire


class Reach(NamedTuple):
    """Where they are."""

    database_url: str
    redis_url: str

    def as_role(self, name: str, password: str) -> str:
        """The database for somebody else than its owner."""
        return self.database_url.replace("gateway@", f"{name}:{password}@", 1)


@contextmanager
def over_tcp(database_url: str, redis_url: str) -> Iterator[Reach]:
    """Carried by a thread, so that a test may wait for a program."""
    database, redis = urlsplit(database_url), urlsplit(redis_url)
    [directory] = parse_qs(database.query)["host"]
    wires = Wire(Path(directory, ".s.PGSQL.5432")), Wire(Path(redis.path))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        for wire in wires:
            asyncio.run_coroutine_threadsafe(wire.open(), loop).result()
        yield Reach(
            f"postgresql://gateway@{HOST}:{wires[0].port}{database.path}",
            f"redis://{HOST}:{wires[1].port}/0",
        )
    finally:
        for wire in wires:
            asyncio.run_coroutine_threadsafe(wire.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
