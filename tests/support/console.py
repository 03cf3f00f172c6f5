"""A console that is being looked at: who logs in, and what the ledger says meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import asyncpg
import httpx
from playwright.sync_api import Page

from tests.support.bulk import add_dead, add_events
from tests.support.ledger import Reader
from tests.support.processes import Serving, stripe_request
from tests.support.waiting import PATIENCE_S

ADMIN: Final = "admin-token-of-the-console-suite"
READER: Final = "reader-token-of-the-console-suite"
TOKENS: Final = {"GATEWAY_ADMIN_TOKEN": ADMIN, "GATEWAY_READ_TOKEN": READER}

T = TypeVar("T")


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """In a thread of its own: playwright's loop runs in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


class Ledger:
    """The ledger of the project, for tests that do not wait themselves."""

    def __init__(self, url: str) -> None:
        self._url = url

    def do(self, work: Callable[[Reader], Awaitable[T]]) -> T:
        async def go() -> T:
            connection = await asyncpg.connect(self._url)
            try:
                return await work(Reader(connection))
            finally:
                await connection.close()

        return wait_for(go())

    def add_dead(self, n: int, prefix: str, *, error: str, handler: str = "handlers.count") -> None:
        async def add(reader: Reader) -> None:
            await add_events(reader, n, prefix=prefix)
            await add_dead(reader, n, handler, error=error, prefix=prefix)

        self.do(add)

    def add_unknown_effects(self, n: int, prefix: str, *, handler: str) -> None:
        """Completed deliveries, each with a receipt of unknown outcome."""

        async def add(reader: Reader) -> None:
            await add_events(reader, n, prefix=prefix)
            await reader.run(
                "with done as ("
                " insert into gateway.deliveries (route, event_id, handler, status, finished_at)"
                " select 'stripe', $1 || n, $2, 'done', now() from generate_series(1, $3::int) n"
                " returning id)"
                " insert into gateway.effects"
                " (delivery_id, name, token, status, error, unknown_at)"
                " select id, 'receipt', gen_random_uuid(), 'unknown', 'HTTPStatusError 500', now()"
                " from done",
                prefix,
                handler,
                n,
            )

        self.do(add)

    def value(self, query: str, *args: object) -> Any:
        return self.do(lambda reader: reader.value(query, *args))

    def run(self, query: str, *args: object) -> None:
        self.do(lambda reader: reader.run(query, *args))


def log_in(page: Page, url: str, token: str = ADMIN, *, name: str = "Ada") -> None:
    """By the form."""
    page.goto(f"{url}/console/login")
    page.get_by_label("Token").fill(token)
    page.get_by_label("Your name").fill(name)
    page.get_by_role("button", name="Log in").click()


@contextmanager
def logged_in(url: str, token: str = ADMIN, *, name: str = "Ada") -> Iterator[httpx.Client]:
    """One who sends what a browser would, and does not follow."""
    with httpx.Client(base_url=url, headers={"origin": url}, timeout=PATIENCE_S) as client:
        answer = client.post("/console/login", data={"token": token, "name": name})
        assert answer.status_code == 303, answer.text
        yield client


def send(console: Serving, event_id: str, *, extra: str = "") -> None:
    """A signed event."""
    answer = wait_for(console.post(*stripe_request(event_id, extra=extra)))
    assert answer.status_code == 200, answer.text
