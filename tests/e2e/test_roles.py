"""Real processes, each under a database role that may do no more than it needs."""

from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import orjson
import pytest

from gateway.base.errors import StorageUnavailable
from gateway.dev.embedded import Postgres
from gateway.ledger.claims import Claim, Claimed
from gateway.receive.spool.spool import SPOOL_DIRECTORY, Spool
from tests.support.databases import drop, on_database, run_sql
from tests.support.ledger import Reader, make_claim
from tests.support.processes import SCHEMA, Project, github_request, stripe_request
from tests.support.receiver import receiving
from tests.support.waiting import until

ROLES_SQL = Path(__file__).parents[2] / "deploy" / "roles.sql"
ROUTES = """
schema: [deploy/roles.sql, handlers/schema.sql]
alerts: {dead: 1, webhook: {url: env:ALERT_URL}}
defaults:
  retry: {attempts: 2, backoff: fixed, base: 50ms, cap: 1s}
routes:
  stripe:
    provider: stripe
    secrets: [env:STRIPE_WEBHOOK_SECRET]
    handlers: [handlers.effects]
  github:
    provider: github
    secrets: [env:GITHUB_WEBHOOK_SECRET]
    handlers: [handlers.effects]
  tasks:
    provider: publish
    handlers: [handlers.jobs]
"""
HANDLERS = '''
"""One of each kind."""

from gateway import Context, Event, Reject, handler


@handler("invoice.paid", order_by="data.object.id", concurrency=2, rate="1000/s")
async def count(event: Event, ctx: Context) -> None:
    await ctx.db.execute("insert into effects (event_id, handler) values ($1, 'count')", event.id)
    await ctx.once("mail", dict)
    await ctx.publish("tasks", {"event": event.id})


@handler("invoice.paid", once_per="data.object.id")
async def once(event: Event, ctx: Context) -> None:
    await ctx.db.execute("insert into effects (event_id, handler) values ($1, 'once')", event.id)


@handler("bad.*")
async def refuse(event: Event, ctx: Context) -> None:
    raise Reject("never")
'''
JOBS = '''
"""The queue's."""

from gateway import Context, Event, handler


@handler("*")
async def job(event: Event, ctx: Context) -> None:
    await ctx.db.execute("insert into effects (event_id, handler) values ($1, 'job')", event.id)
'''
TOKEN = "adm1n-t0ken-of-the-suite"
GRANT = "grant select, insert on effects to gateway_worker;"


class Roles:
    """A database of a plain owner's, and who connects to it."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._suffix = name

    def name(self, role: str) -> str:
        return f"{role}_{self._suffix}"

    def url(self, role: str) -> str:
        parts = urlsplit(on_database(self._url, self._suffix))
        _, _, host = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{self.name(role)}@{host}"))


LOGINS = ("serve", "worker", "operator", "readonly")


@pytest.fixture
async def roles(postgres: Postgres) -> AsyncIterator[Roles]:
    """An owner that is no superuser; the others do not even exist yet."""
    found = Roles(postgres.url, f"roles_{uuid4().hex[:12]}")
    owner = found.name("owner")
    groups = ", ".join(f"gateway_{role}" for role in LOGINS)
    for role in LOGINS:  # of another test, whose owner is another one
        await run_sql(postgres.url, f"drop role if exists gateway_{role}")
    await run_sql(postgres.url, f"create role {owner} login createrole")
    await run_sql(postgres.url, f'create database "{found.name("x")[2:]}" owner {owner}')
    yield found
    await drop(postgres.url, found.name("x")[2:])
    for role in LOGINS:
        await run_sql(postgres.url, f"drop role if exists {found.name(role)}")
    await run_sql(postgres.url, f"drop role {groups}", f"drop role {owner}")


@pytest.fixture
def project(tmp_path: Path, roles: Roles, redis_url: str) -> Project:
    """Whose commands are run by the operator, where nothing else is said."""
    made = Project(tmp_path, roles.url("operator"), redis_url)
    made.write("config/routes.yaml", ROUTES)
    made.write("handlers/effects.py", HANDLERS)
    made.write("handlers/jobs.py", JOBS)
    made.write("handlers/schema.sql", SCHEMA + GRANT)
    made.write("deploy/roles.sql", ROLES_SQL.read_text(encoding="utf-8"))
    return made


@pytest.fixture
async def ledger(roles: Roles, project: Project, postgres: Postgres) -> AsyncIterator[Reader]:
    """After the migration, by the owner; and with a login for each role."""
    migrated = project.run("migrate", GATEWAY_DATABASE_URL=roles.url("owner"))
    assert migrated.returncode == 0, migrated.stderr
    for role in LOGINS:
        await run_sql(postgres.url, f"create role {roles.name(role)} login in role gateway_{role}")
    connection = await asyncpg.connect(on_database(postgres.url, roles.name("x")[2:]))
    yield Reader(connection)
    await connection.close()


def done(project: Project, *command: str, **environ: str) -> str:
    result = project.run(*command, **environ)
    assert result.returncode == 0, (command, result.stdout, result.stderr)
    return result.stdout


async def spool(directory: Path, claim: Claim) -> None:
    """What an earlier `serve` has kept while Postgres was away."""

    async def away(_: Claim) -> Claimed:
        raise StorageUnavailable("for good")

    spool = Spool(directory, max_bytes=2**20, claim=away)
    await spool.start()
    await spool.keep(claim)
    await spool.stop()


async def test_events_go_their_way_with_each_process_under_its_role(
    project: Project, roles: Roles, ledger: Reader
) -> None:
    project.environ["GATEWAY_DATA_DIR"] = str(project.directory / "data")
    kept = make_claim("evt_kept", route="github", type="push", handlers=())
    await spool(project.directory / "data" / SPOOL_DIRECTORY, kept)
    async with receiving() as receiver:
        project.environ["ALERT_URL"] = receiver.url
        with ExitStack() as stack:
            serving = stack.enter_context(project.serve(GATEWAY_DATABASE_URL=roles.url("serve")))
            worker = stack.enter_context(
                project.process("worker", GATEWAY_DATABASE_URL=roles.url("worker"))
            )
            await serving.ready()
            for n in range(4):
                body, headers = stripe_request(f"evt_{n}", object_id=f"in_{n // 2}")
                for verdict in ("accepted", "duplicate"):
                    assert (await serving.post(body, headers)).json()["status"] == verdict
            await serving.post(*stripe_request("evt_bad", "bad.one"))
            await serving.post(*stripe_request("evt_worse", "bad.two"))
            body, headers = github_request("guid_1")
            await serving.post(body, headers, path="/webhooks/github")
            replayed = await serving.post(
                body, headers | {"x-github-delivery": "guid_2"}, path="/webhooks/github"
            )
            assert replayed.json()["error"] == "REPEATED_BODY"
            await until(lambda: _effects(ledger, count=4, once=2, job=4))
            await until(
                lambda: ledger.value(
                    "select count(*) = 2 from gateway.deliveries where status = 'dead'"
                )
            )
            await until(
                lambda: ledger.value(
                    "select spooled from gateway.processed_events where event_id = 'evt_kept'"
                )
            )
            await until(lambda: receiver.requests)
            await _operate(project, ledger, roles)
            await until(lambda: ledger.value("select count(*) > 0 from gateway.totals"))
            logs = serving.running.output + worker.output
    assert "permission denied" not in logs
    assert "Traceback" not in logs


async def test_an_admin_api_needs_the_rights_of_an_operator(
    project: Project, roles: Roles, ledger: Reader, postgres: Postgres
) -> None:
    project.environ |= {"GATEWAY_ADMIN_TOKEN": TOKEN, "ALERT_URL": "http://127.0.0.1:9"}
    with project.serve(GATEWAY_DATABASE_URL=roles.url("serve")) as serving:
        await serving.ready()
        await serving.post(*stripe_request("evt_1", "bad.one"))
        asked = ("events", "--json", "--url", serving.url)
        assert project.run(*asked).returncode == 1
        operator, serve = "gateway_operator", roles.name("serve")
        await run_sql(postgres.url, f"grant {operator} to {serve}")
        assert '"evt_1"' in done(project, *asked)
        done(project, "discard", "1", "--reason", "a test", "--url", serving.url)
        await run_sql(postgres.url, f"revoke {operator} from {serve}")


async def _effects(ledger: Reader, **expected: int) -> bool:
    rows = await ledger.rows("select handler, count(*) as n from public.effects group by handler")
    return {row["handler"]: row["n"] for row in rows} == expected


async def _operate(project: Project, ledger: Reader, roles: Roles) -> None:
    [dead, worse] = orjson.loads(done(project, "dead", "--json"))
    done(project, "replay", str(dead["delivery_id"]))
    done(project, "discard", str(worse["delivery_id"]), "--reason", "a test")
    await until(
        lambda: ledger.value("select count(*) = 1 from gateway.deliveries where status = 'dead'")
    )
    done(project, "replay", "--dead", "--yes")
    done(project, "pause", "stripe", "--reason", "a test")
    done(project, "resume", "stripe")
    done(project, "replay", "--handler", "handlers.effects.count", "--since", "1h", "--yes")
    for command in ("status", "events", "audit", "bulk", "alerts", "dead", "rejected"):
        done(project, command, "--json")
    assert '"evt_1"' in done(project, "show", "evt_1", "--body")
    done(project, "dead", "--group")
    done(project, "prune")
    done(project, "erase", "--event", "evt_0", "--yes", "--reason", "asked for")
    examined = project.run("doctor")
    assert "is of gateway_operator" in examined.stdout, examined.stdout
    assert "permission denied" not in examined.stdout
    looking = {"GATEWAY_DATABASE_URL": roles.url("readonly")}
    for command in ("status", "dead", "audit", "bulk", "alerts", "rejected"):
        done(project, command, "--json", **looking)
    refused = project.run("show", "evt_1", **looking)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.strip() == "error: permission denied for table payloads"
