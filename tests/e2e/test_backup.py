"""A dump that was taken under load, restored elsewhere: what is there, what is missing, what comes
a second time, and how the rest is brought back. Then a restore to the moment before a mistake."""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import uuid4

import asyncpg
import pytest

from gateway import Context, Event, Reject
from gateway.dev.embedded import Postgres
from gateway.ledger.migrate import migrate
from tests.support.backups import back_up, give
from tests.support.databases import drop, on_database, run_sql
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.processes import Project, github_request
from tests.support.provider_apis import FakeStripe, on_port, stripe_event
from tests.support.waiting import until
from tests.support.workers import Function, subscribe, working

EVENTS: Final = 80
DUMPED_AFTER: Final = 20

ROUTES: Final = """
schema: [handlers/schema.sql]
routes:
  stripe:
    provider: stripe
    secrets: [env:STRIPE_WEBHOOK_SECRET]
    api_key: env:STRIPE_API_KEY
    handlers: [handlers.effects]
    reconcile: {{api_url: "{stripe}"}}
  github:
    provider: github
    secrets: [env:GITHUB_WEBHOOK_SECRET]
    handlers: [handlers.effects]
"""
HANDLERS: Final = """
import os

from gateway import Context, Event, handler


@handler("*")
async def count(event: Event, ctx: Context) -> None:
    await ctx.db.execute("insert into effects (event_id, handler) values ($1, 'count')", event.id)
    await ctx.once("call", call, f"{event.id} {ctx.idempotency_key('call')}\\n")


async def call(line: str) -> None:
    file = os.open(os.environ["CALLS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)
"""
CONSISTENT: Final = """
select d.event_id, d.status, count(e.n) as effects, max(f.status) as call
from gateway.deliveries d
left join public.effects e using (event_id)
left join gateway.effects f on f.delivery_id = d.id
group by d.event_id, d.status
"""


def furnish(project: Project, stripe_url: str, api: FakeStripe, calls: Path) -> Project:
    """The same project, wherever it stands."""
    project.write("config/routes.yaml", ROUTES.format(stripe=stripe_url))
    project.write("handlers/effects.py", HANDLERS)
    project.environ |= {"STRIPE_API_KEY": api.key, "CALLS": str(calls)}
    return project


@pytest.fixture
async def restored_url(postgres: Postgres) -> AsyncIterator[str]:
    """An empty database to restore into."""
    name = f"restored_{uuid4().hex}"
    await run_sql(postgres.url, f'create database "{name}"')
    yield on_database(postgres.url, name)
    await drop(postgres.url, name)


async def test_a_dump_under_load_is_a_ledger_that_goes_on(
    project: Project, database_url: str, restored_url: str, redis_url: str, tmp_path: Path
) -> None:
    api, calls, dump = FakeStripe(), tmp_path / "calls", tmp_path / "ledger.dump"
    at = datetime.now(UTC) - timedelta(minutes=10)
    api.events = [stripe_event(n, at) for n in range(EVENTS)]
    async with on_port(api) as stripe_url:
        furnish(project, stripe_url, api, calls)
        before = await _lose(project, api, database_url, dump)
        await asyncio.to_thread(
            back_up, "pg_restore", "--exit-on-error", "--dbname", restored_url, dump
        )
        elsewhere = Project(tmp_path / "elsewhere", restored_url, redis_url)
        furnish(elsewhere, stripe_url, api, calls)
        connection = await asyncpg.connect(restored_url)
        try:
            await _go_on(elsewhere, Reader(connection), api, before, calls)
        finally:
            await connection.close()


async def _lose(project: Project, api: FakeStripe, url: str, dump: Path) -> set[str]:
    """Sends everything, with a dump on the way, and dies. The ids that were acknowledged before
    the dump began."""
    await run_sql(url, "insert into gateway.pauses values ('github', '', 'anna', 'a look first')")
    before: set[str] = set()
    with project.serve() as serving, project.process("worker") as worker:
        await serving.ready()
        [waiting] = await serving.post_all([github_request("guid-1")], path="/webhooks/github")
        assert waiting.status_code == 200
        dumping: asyncio.Task[None] | None = None
        for start in range(0, EVENTS, 10):
            if start == DUMPED_AFTER:
                dumping = asyncio.create_task(
                    asyncio.to_thread(back_up, "pg_dump", "--format=custom", "--file", dump, url)
                )
            answers = await serving.post_all([api.live(e) for e in api.events[start : start + 10]])
            assert {answer.status_code for answer in answers} == {200}
            if dumping is None:
                before |= {e["id"] for e in api.events[start : start + 10]}
        assert dumping is not None
        await dumping
        worker.kill()
        serving.running.kill()
    return before


async def _go_on(
    project: Project, ledger: Reader, api: FakeStripe, before: set[str], calls: Path
) -> None:
    """Nobody has emptied Redis: it still has the ids of what the dump does not know."""
    kept = {row["event_id"]: row for row in await ledger.rows(CONSISTENT)}
    assert before | {"guid-1"} <= kept.keys()
    lost = {e["id"] for e in api.events} - kept.keys()
    assert lost, "the dump was over before the traffic was"
    assert {(r["status"] == "done", r["effects"]) for r in kept.values()} <= {(True, 1), (False, 0)}
    assert kept["guid-1"]["status"] == "pending"
    with project.serve() as serving, project.process("worker"):
        await serving.ready()
        again = await serving.post_all([api.live(e) for e in api.events if e["id"] in kept])
        assert {answer.json()["status"] for answer in again} == {"duplicate"}
        [back] = await serving.post_all([api.live(e) for e in api.events if e["id"] == max(lost)])
        assert back.json()["status"] == "accepted", "its sender tries again, before the others"
        await ledger.run("delete from gateway.pauses")
        asked = await asyncio.to_thread(
            project.run, "reconcile", "stripe", "--since", "1h", "--json"
        )
        [report] = json.loads(asked.stdout)
        assert (report["status"], report["recovered"]) == ("done", len(lost) - 1), asked.stderr

        async def all_done() -> bool:
            return await ledger.statuses() == {"done": EVENTS + 1}

        await until(all_done)
    applied = await ledger.rows("select event_id, count(*) as n from public.effects group by 1")
    assert {row["event_id"]: row["n"] for row in applied} == dict.fromkeys(kept.keys() | lost, 1)
    _check_calls(calls, done={id for id, row in kept.items() if row["call"] == "done"})


def _check_calls(calls: Path, done: set[str]) -> None:
    """Only what was not kept as done is called again, and then under the same key."""
    lines = Counter(calls.read_text(encoding="utf-8").splitlines())
    ids = [line.split()[0] for line in lines]
    assert len(set(ids)) == len(ids) == EVENTS + 1, "one key for each, whichever ledger asked"
    assert max(lines.values()) == 2
    assert not {line.split()[0] for line, n in lines.items() if n > 1} & done


@pytest.fixture
def archiving(engine_dir: Path) -> Iterator[Postgres]:
    """A Postgres that archives its write-ahead log."""
    engine = Postgres(engine_dir / f"archiving-{uuid4().hex[:8]}", durable=False)
    engine.start()
    (engine.home / "archive").mkdir()
    give(engine.home / "archive", engine.home)
    yield engine
    engine.remove()


async def test_a_mistake_is_undone_by_going_back_to_the_moment_before_it(
    archiving: Postgres, engine_dir: Path, tmp_path: Path
) -> None:
    url, archive, copy = archiving.url, archiving.home / "archive", tmp_path / "base"
    await run_sql(
        url,
        "alter system set archive_mode = on",
        f"alter system set archive_command = 'cp %p {archive}/%f'",
    )
    archiving.restart()
    connection = await asyncpg.connect(url)
    await migrate(connection, ())
    ledger = Reader(connection)
    await claim_all(url, [make_claim("evt_1")])
    await _run(url, ledger, reject, {"dead": 1})
    back_up("pg_basebackup", "--checkpoint=fast", "--pgdata", copy, "--dbname", url)
    await claim_all(url, [make_claim("evt_2")])
    await _run(url, ledger, reject, {"dead": 2})
    moment = await ledger.value("select clock_timestamp()::text")
    for row in await ledger.rows("select id from gateway.deliveries"):
        await ledger.discard(row["id"])
    await claim_all(url, [make_claim("evt_3")])
    archived = await ledger.value("select pg_walfile_name(pg_switch_wal())")
    await connection.close()
    await until(lambda: (archive / archived).exists())
    archiving.kill()
    with _restored(copy, archive, moment, engine_dir) as restored:
        await _check_undone(restored.url)


async def reject(_: Event, __: Context) -> None:
    raise Reject("no")


async def accept(_: Event, __: Context) -> None:
    pass


async def _run(url: str, ledger: Reader, function: Function, to: dict[str, int]) -> None:
    async def stand() -> bool:
        return await ledger.statuses() == to

    async with working(url, subscribe(function)):
        await until(stand)


@contextmanager
def _restored(copy: Path, archive: Path, moment: str, engine_dir: Path) -> Iterator[Postgres]:
    """The copy, brought forward from the archive to that moment."""
    engine = Postgres(engine_dir / f"restored-{uuid4().hex[:8]}", durable=False)
    data = engine.home / "data"
    shutil.copytree(copy, data)
    (data / "recovery.signal").touch()
    with (data / "postgresql.auto.conf").open("a", encoding="utf-8") as settings:
        settings.write(
            f"restore_command = 'cp {archive}/%f %p'\n"
            f"recovery_target_time = '{moment}'\n"
            "recovery_target_action = 'promote'\n"
            "archive_mode = off\n"
        )
    data.chmod(0o700)
    give(data, engine.home)
    engine.start()
    try:
        yield engine
    finally:
        engine.remove()


async def _check_undone(url: str) -> None:
    connection = await asyncpg.connect(url)
    ledger = Reader(connection)
    await until(lambda: ledger.value("select not pg_is_in_recovery()"))
    assert await ledger.statuses() == {"dead": 2}
    assert await ledger.value("select count(*) from gateway.audit where action = 'discard'") == 0
    assert await migrate(connection, ()) == ()
    verdicts = [
        claimed.verdict.name
        for claimed in await claim_all(url, [make_claim(f"evt_{n}") for n in (1, 2, 3)])
    ]
    assert verdicts == ["DUPLICATE", "DUPLICATE", "ACCEPTED"], "what came later was lost with it"
    for row in await ledger.rows("select id from gateway.deliveries where status = 'dead'"):
        await ledger.replay(row["id"])
    await _run(url, ledger, accept, {"done": 3})
    await connection.close()
