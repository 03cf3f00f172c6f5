"""Long listings, a bounded piece at a time: all that match, each once, whoever comes in between."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from gateway.api.operations import dead as dead_operation
from gateway.api.operations import events as events_operation
from gateway.api.parameters import Cursor, Page
from gateway.ledger.connection import QUERIES, Connection
from gateway.ledger.filter import Filter
from gateway.operations import inspect
from gateway.operations.inspect import EventListing, list_dead, list_events
from tests.support.bulk import add_dead, add_events
from tests.support.ledger import Reader, claim_all, make_claim

EVENTS = 1_000
RARE = [f"evt_{n}" for n in (3, 4, 510, 511, 512, 513, 998)]
LIMIT = 2
Ask = Callable[[tuple[Any, ...]], Awaitable[EventListing]]


@pytest.fixture(autouse=True)
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk of a hundred, so that a thousand is many."""
    monkeypatch.setattr(inspect, "FAR", 100)
    monkeypatch.setattr(inspect, "FAR_WITH_DELIVERIES", 100)


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
async def past(ledger: Reader) -> None:
    """Events with a dead delivery each, of which a few are unlike the others."""
    await add_events(ledger, EVENTS)
    await add_dead(ledger, EVENTS)
    await ledger.run(
        "update gateway.processed_events set type = 'rare.type' where event_id = any ($1::text[])",
        RARE,
    )
    await ledger.run(
        "update gateway.deliveries set error = 'KeyError: rare', handler = 'handlers.rare'"
        " where event_id = any ($1::text[])",
        RARE,
    )
    await ledger.run(
        "update gateway.deliveries set status = 'discarded' where event_id = any ($1::text[])",
        RARE[:2],
    )


async def walk(
    ask: Ask,
    cursor: Cursor[Any],
    between: Callable[[], Awaitable[None]] | None = None,
) -> tuple[list[str], int]:
    """What all pages show together, and how many they were."""
    seen: list[str] = []
    after, pages = None, 0
    while pages == 0 or after is not None:
        listed = await ask(cursor.read(after))
        page: Page[Any] = cursor.page(listed.rows, LIMIT, end=listed.end)
        assert len(page["items"]) <= LIMIT
        seen += [row["event_id"] for row in page["items"]]
        after, pages = page["next"], pages + 1
        if between is not None:
            await between()
    return seen, pages


def events(connection: Connection, filter: Filter, **more: Any) -> Ask:
    return lambda mark: list_events(connection, filter, mark, LIMIT + 1, **more)


def dead(connection: Connection, filter: Filter) -> Ask:
    return lambda mark: list_dead(connection, filter, mark, LIMIT + 1)


FILTERS = {
    "type": (Filter(type="rare.*"), {}, RARE),
    "handler": (Filter(handler="handlers.rare"), {}, RARE),
    "status": (Filter(), {"status": "discarded"}, RARE[:2]),
    "type and status": (Filter(type="rare.*"), {"status": "dead"}, RARE[2:]),
    "none": (Filter(route="nobody's"), {}, []),
}


@pytest.mark.usefixtures("past")
@pytest.mark.parametrize("name", FILTERS)
async def test_rare_events_are_all_found_each_once_while_others_come_in(
    database_url: str, connection: Connection, name: str
) -> None:
    filter, more, expected = FILTERS[name]
    ids = iter(range(10_000))

    async def receive() -> None:
        fresh = make_claim(f"new_{next(ids)}", type="rare.type", handlers=["handlers.rare"])
        await claim_all(database_url, [fresh])

    ask = events(connection, filter, **more)
    seen, pages = await walk(ask, events_operation.PLACE, receive)
    assert seen == expected[::-1]
    assert pages >= EVENTS // 100, "each page looks at a hundred events"


@pytest.mark.usefixtures("past")
async def test_no_page_looks_at_more_than_it_may(connection: Connection) -> None:
    """Its end is a hundred events further on, whether or not anything matched."""
    listed = await list_events(connection, Filter(type="rare.*"), (None,) * 3, LIMIT + 1)
    assert [row["event_id"] for row in listed.rows] == ["evt_998"]
    assert listed.end is not None
    assert listed.end[2] == "evt_901"
    listed = await list_dead(connection, Filter(error="rare"), (None,) * 2, LIMIT + 1)
    assert listed.end is not None
    assert [row["event_id"] for row in listed.rows] == ["evt_998"]


@pytest.mark.usefixtures("past")
@pytest.mark.parametrize(
    "filter",
    [Filter(error="KeyError*rare"), Filter(handler="handlers.rare"), Filter(type="rare.type")],
    ids=["error", "handler", "type"],
)
async def test_rare_dead_letters_are_all_found_each_once_while_others_die(
    connection: Connection, ledger: Reader, filter: Filter
) -> None:
    ids = iter(range(10_000))

    async def die() -> None:
        prefix = f"new_{next(ids)}_"
        await add_events(ledger, 1, prefix=prefix, type="rare.type")
        await ledger.run(
            "insert into gateway.deliveries (route, event_id, handler, status, finished_at, error)"
            " values ('stripe', $1, 'handlers.rare', 'dead', now(), 'KeyError: rare')",
            f"{prefix}1",
        )

    seen, pages = await walk(dead(connection, filter), dead_operation.PLACE, die)
    assert seen == RARE[2:][::-1]
    assert pages >= (EVENTS - 2) // 100


@pytest.mark.usefixtures("past")
async def test_without_a_filter_all_are_shown_each_once(connection: Connection) -> None:
    seen, pages = await walk(events(connection, Filter()), events_operation.PLACE)
    assert seen == [f"evt_{n}" for n in range(EVENTS, 0, -1)]
    assert pages == EVENTS // LIMIT
    seen, _ = await walk(dead(connection, Filter()), dead_operation.PLACE)
    assert seen == [f"evt_{n}" for n in range(EVENTS, 0, -1) if f"evt_{n}" not in RARE[:2]]


@pytest.mark.usefixtures("past")
async def test_events_of_the_same_moment_are_told_apart(
    connection: Connection, ledger: Reader
) -> None:
    """A place is more than a time: a page may end in the middle of a moment."""
    await ledger.run("update gateway.processed_events set received_at = '2026-11-01'")
    await ledger.run("update gateway.deliveries set finished_at = '2026-11-01'")
    seen, _ = await walk(events(connection, Filter(type="rare.*")), events_operation.PLACE)
    assert sorted(seen) == sorted(RARE)
    seen, _ = await walk(dead(connection, Filter(error="rare")), dead_operation.PLACE)
    assert sorted(seen) == sorted(RARE[2:])


@pytest.mark.usefixtures("past")
async def test_events_of_an_account_or_about_an_object_are_found_at_once(
    connection: Connection, ledger: Reader
) -> None:
    """By their own index: not even a hundred others are looked at."""
    await ledger.run(
        "update gateway.processed_events set account = 'acct_rare', object_id = 'pi_rare'"
        " where event_id = any ($1::text[])",
        RARE[:3],
    )
    asked: list[tuple[Filter, dict[str, Any]]] = [
        (Filter(account="acct_rare"), {}),
        (Filter(), {"object_id": "pi_rare"}),
        (Filter(account="acct_rare"), {"object_id": "pi_rare"}),
    ]
    for filter, more in asked:
        seen, pages = await walk(events(connection, filter, **more), events_operation.PLACE)
        assert (seen, pages) == (RARE[:3][::-1], 2)
    nobody = events(connection, Filter(account="acct_rare"), object_id="pi_other")
    assert await walk(nobody, events_operation.PLACE) == ([], 1)


@pytest.mark.usefixtures("past")
async def test_an_event_that_is_pruned_meanwhile_ends_no_listing(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its key and itself: what is behind it is still shown."""
    read = QUERIES["read_events"].replace("\norder by", "\nwhere e.event_id <> 'evt_512'\norder by")
    monkeypatch.setattr(inspect, "QUERIES", {**QUERIES, "read_events": read})
    seen, _ = await walk(events(connection, Filter(type="rare.*")), events_operation.PLACE)
    assert seen == [id for id in RARE[::-1] if id != "evt_512"]


@pytest.mark.usefixtures("past")
async def test_a_time_that_is_asked_for_bounds_every_page(
    connection: Connection, ledger: Reader
) -> None:
    received: list[Any] = [
        await ledger.value(
            "select received_at from gateway.processed_events where event_id = $1", id
        )
        for id in (RARE[1], RARE[-1])
    ]
    filter = Filter(type="rare.*", since=received[0], until=received[1])
    seen, _ = await walk(events(connection, filter), events_operation.PLACE)
    assert seen == RARE[1:-1][::-1]
    died: list[Any] = [
        await ledger.value("select finished_at from gateway.deliveries where event_id = $1", id)
        for id in (RARE[3], RARE[-1])
    ]
    filter = Filter(error="rare", since=died[0], until=died[1])
    seen, _ = await walk(dead(connection, filter), dead_operation.PLACE)
    assert seen == RARE[3:-1][::-1]
    # A place from another time than the one that is asked for.
    later = (await list_events(connection, Filter(), (None,) * 3, 1)).rows[0]
    mark = later["received_at"], later["route"], later["event_id"]
    listed = await list_events(connection, Filter(until=received[0]), mark, LIMIT)
    assert listed.rows == []
