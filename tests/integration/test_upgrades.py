"""From every schema to the newest one, with rows of every kind in it.

The newest schema is among them: nothing is migrated then, and today's code reads, runs and rejects
the rows that SQL of that schema has written.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final
from uuid import uuid4

import asyncpg
import pytest

from gateway import Context, Event
from gateway.base.model import RepeatPolicy
from gateway.dev.embedded import Postgres
from gateway.ledger.claims import ClaimVerdict
from gateway.ledger.connection import Connection
from gateway.ledger.encryption import EncryptionKeys
from gateway.ledger.migrate import Migration, check_version, migrate, read_migrations
from gateway.operations.encryption import reveal
from gateway.operations.inspect import find
from tests.support.databases import drop, on_database, run_sql
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.past import ERRORS, HANDLER, HEADERS, RESULTS, RING, body_of, lived_at
from tests.support.waiting import until
from tests.support.workers import make_config, make_route, subscribe, working

MIGRATIONS: Final = read_migrations()
OLDEST: Final = MIGRATIONS[0].version
NEWEST: Final = MIGRATIONS[-1].version

Row = dict[str, Any]


@pytest.fixture(scope="module")
def pasts(postgres: Postgres) -> Iterator[dict[int, str]]:
    """A database of each schema, to be cloned, that has lived since the first one."""
    names = {migration.version: f"past_{uuid4().hex}" for migration in MIGRATIONS}
    asyncio.run(_live(postgres.url, names))
    yield names
    for name in names.values():
        asyncio.run(drop(postgres.url, name))


async def _live(url: str, names: dict[int, str]) -> None:
    template = "template1"
    for migration in MIGRATIONS:
        name = names[migration.version]
        await run_sql(url, f'create database "{name}" template "{template}"')
        connection = await asyncpg.connect(on_database(url, name))
        try:
            await _migrate_to(connection, migration)
            await connection.execute(lived_at(migration.version))
        finally:
            await connection.close()
        template = name


async def _migrate_to(connection: Connection, newest: Migration) -> None:
    """Migrate as the code did for which this migration was the newest."""
    with pytest.MonkeyPatch.context() as older:
        known = [m for m in MIGRATIONS if m.version <= newest.version]
        older.setattr("gateway.ledger.migrate.read_migrations", lambda: known)
        await migrate(connection, ())


@pytest.fixture
async def past_url(
    request: pytest.FixtureRequest, postgres: Postgres, pasts: dict[int, str]
) -> AsyncIterator[str]:
    """A ledger of that schema, of this test's own."""
    name = f"test_{uuid4().hex}"
    await run_sql(postgres.url, f'create database "{name}" template "{pasts[request.param]}"')
    yield on_database(postgres.url, name)
    await drop(postgres.url, name)


@pytest.fixture
async def past(past_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(past_url)
    yield connection
    await connection.close()


async def _rows(connection: Connection) -> dict[str, list[Row]]:
    """Return all rows by table."""
    tables = await connection.fetch(
        "select relname from pg_class where relnamespace = 'gateway'::regnamespace"
        " and relkind in ('r', 'p') and not relispartition and relname <> 'migrations'"
    )
    found: dict[str, list[Row]] = {}
    for [table] in tables:
        rows = await connection.fetch(f'select * from gateway."{table}"')  # noqa: S608 (our own)
        found[table] = [dict(row) for row in rows]
    return found


def _lost(table: str, before: list[Row], after: list[Row]) -> list[str]:
    """Return the rows that are not there as they were, by the columns that are still there."""
    columns = sorted({*before[0]} & {*(after or before)[0]})
    assert columns
    old, new = (
        Counter(repr([row[column] for column in columns]) for row in rows)
        for rows in (before, after)
    )
    return [f"{table}: {row}" for row in old - new]


@pytest.mark.parametrize("past_url", [m.version for m in MIGRATIONS], indirect=True)
async def test_every_row_of_a_schema_is_there_afterwards(past_url: str, past: Connection) -> None:
    before = {table: rows for table, rows in (await _rows(past)).items() if rows}
    assert {"processed_events", "deliveries", "attempts", "audit"} <= before.keys()
    await migrate(past, ())
    await past.reload_schema_state()
    await check_version(past)
    after = await _rows(past)
    assert [row for table in before for row in _lost(table, before[table], after[table])] == []


@pytest.mark.parametrize("past_url", [NEWEST], indirect=True)
async def test_a_ledger_that_has_lived_has_rows_in_every_table(
    past_url: str, past: Connection
) -> None:
    """A migration that adds a table adds a row of it to tests/past/."""
    assert [table for table, rows in (await _rows(past)).items() if not rows] == []


KEPT: Final = "select event_id from gateway.processed_events where event_id <> 'pruned'"
DELIVERED: Final = "select id, event_id, status from gateway.deliveries where event_id <> 'pruned'"
ENDED: Final = {"done", "dead", "discarded"}


@pytest.mark.parametrize("past_url", sorted({OLDEST, NEWEST}), indirect=True)
async def test_what_came_before_an_upgrade_is_read_run_and_refused_after_it(
    past_url: str, past: Connection
) -> None:
    events = [row["event_id"] for row in await past.fetch(KEPT)]
    await migrate(past, ())
    await past.reload_schema_state()
    ledger = Reader(past)
    await _check_shown(past, events)
    deliveries = await ledger.rows(DELIVERED)
    assert {row["status"] for row in deliveries} > ENDED
    for row in deliveries:
        if row["status"] in ENDED:
            await ledger.replay(row["id"])
    seen = await _run_all(past_url, ledger)
    assert seen == {row["event_id"]: (HEADERS, body_of(row["event_id"])) for row in deliveries}
    await _check_refused(past_url, events)


async def _check_shown(past: Connection, events: list[str]) -> None:
    """As `gateway show --reveal` does it."""
    for id in events:
        found = await find(past, id, None)
        [shown] = await reveal(past, found, RING, actor="anna", reason=None)
        assert (shown["headers"], shown["body"]) == (HEADERS, body_of(id)), id
        if id in ERRORS:
            [attempt] = shown["deliveries"][0]["attempt_log"]
            assert (attempt["outcome"], attempt["error"]) == ("dead", ERRORS[id])


ROUTES: Final = tuple(
    make_route(name, encrypt=name == "vault") for name in ("stripe", "github", "jobs", "vault")
)


async def _run_all(url: str, ledger: Reader) -> dict[str, tuple[dict[str, str], bytes]]:
    """What handlers were given, when all that waited has been run."""
    seen: dict[str, tuple[dict[str, str], bytes]] = {}

    async def handle(event: Event, ctx: Context) -> None:
        assert event.id not in seen, "twice"
        if event.id in RESULTS:
            assert await ctx.once("receipt", _call) == RESULTS[event.id]
        seen[event.id] = (dict(event.headers), event.body)

    async def all_done() -> bool:
        return {*await ledger.statuses()} == {"done"}

    handlers = [subscribe(handle, name=HANDLER, route=route.name) for route in ROUTES]
    async with working(url, *handlers, config=make_config(*ROUTES), ring=RING):
        await until(all_done)
    return seen


async def _call() -> None:
    raise AssertionError("the result was kept")


async def _check_refused(url: str, events: list[str]) -> None:
    """The same ids, and the same bytes under another one."""
    encryption = EncryptionKeys(ring=RING, routes=frozenset({"vault"}))
    sent = ("done", "stripe"), ("pruned", "stripe"), ("guarded", "github"), ("sealed", "vault")
    claims = [
        encryption.seal_claim(make_claim(id, route=route, body=body_of(id)))
        for id, route in sent
        if id in {*events, "pruned"}
    ]
    answers = await claim_all(url, claims)
    assert {(a.verdict, a.conflict) for a in answers} == {(ClaimVerdict.DUPLICATE, False)}
    [again] = await claim_all(
        url,
        [make_claim("fresh", route="github", body=body_of("guarded"), repeats=RepeatPolicy.REFUSE)],
    )
    assert (again.verdict, again.first_event_id) == (ClaimVerdict.REPEATED_BODY, "guarded")
