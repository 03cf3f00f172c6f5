"""What the fixtures give to tests: the database, resources, and a guard of connections."""

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson

from gateway.config.registry import Registry
from gateway.ledger.connection import Connection, connect, users_search_path
from gateway.testing.drivers import wrap_drivers
from gateway.testing.guard import AllowedHosts, Guard, guarding
from gateway.worker.resources import OpenResources

T = TypeVar("T")


class Background:
    """Runs coroutines for synchronous code, or for code that runs in another event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="gateway tests", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and return its result or raise its exception."""
        __tracebackhide__ = True
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        """Cancel the remaining tasks, and stop the event loop."""
        self.run(_end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_tasks() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


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


class NoStandIn(LookupError):
    """The handler uses a resource for which the test has provided no stand-in."""


class Resources(dict[str, Any]):
    """The mapping behind `ctx.resources` in a test: your stand-ins, and the resources you opened.

    No resource is opened automatically, because a test should not reach a mail server by accident.
    """

    def __init__(self, registry: Registry, background: Background) -> None:
        super().__init__()
        self._known = {resource.name: resource for resource in registry.resources}
        self._background = background
        self._opened: list[OpenResources] = []

    def __setitem__(self, name: str, stand_in: Any) -> None:
        self._check(name)
        super().__setitem__(name, stand_in)

    def __missing__(self, name: str) -> Any:
        if name not in self._known:
            raise KeyError(name)
        raise NoStandIn(
            f"ctx.resources.{name} has no stand-in in this test: resources[{name!r}] = ..., "
            f"or resources.open({name!r}) for the real one"
        )

    def open(self, *names: str) -> None:
        """Open the real resources until the end of the test."""
        __tracebackhide__ = True
        for name in names:
            self._check(name)
            opening = OpenResources([self._known[name]])
            self[name] = self._background.run(opening.open())[name]
            self._opened.append(opening)

    @property
    def has_opened(self) -> bool:
        """Whether the test has opened a real resource."""
        return bool(self._opened)

    def close(self) -> None:
        while self._opened:
            self._background.run(self._opened.pop().close())

    def _check(self, name: str) -> None:
        __tracebackhide__ = True
        if name not in self._known:
            known = ", ".join(sorted(self._known)) or "none: no module has a @resource"
            raise ValueError(f"resources: there is no {name!r}; this project has {known}")


ALLOW: Final = "gateway_allow_hosts"
"""The name of the marker of a test, and of the pytest setting."""


class ConnectionNotAllowed(AssertionError):
    """A handler opened a connection itself, which a test must allow explicitly."""


class Connections:
    """Guards the runs of a test's handlers."""

    def __init__(self, root: Path, resources: Resources, hosts: Sequence[str]) -> None:
        self._guard = Guard(
            root, _REASON, allowed=AllowedHosts(tuple(hosts)), is_in_run=lambda: True
        )
        self._resources = resources

    @contextmanager
    def refused(self) -> Iterator[None]:
        """Refuse connections while a handler runs.

        If the test has opened a real resource, all connections are allowed, because the resource
        may connect at any time.
        """
        if self._resources.has_opened:
            yield
            return
        wrap_drivers()
        with guarding(self._guard):
            yield

    def take_refused(self) -> ConnectionNotAllowed | None:
        """Return an error that lists the connections refused since the last call, or None."""
        refused = [
            f"{escape.target} ({escape.place})" if escape.place else escape.target
            for escape in self._guard.escapes.values()
        ]
        self._guard.escapes.clear()
        if not refused:
            return None
        return ConnectionNotAllowed(
            f"the handler connects by itself to {', '.join(refused)}, and was refused: {_HINT}"
        )


_HINT: Final = (
    f'use ctx.http, ctx.db or a @resource, or allow it with @pytest.mark.{ALLOW}("host:port")'
)
_REASON: Final = "a handler in a test may not connect to {target} by itself: " + _HINT
