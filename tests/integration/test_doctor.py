"""`gateway doctor`: broken installations, and what it says of each. Never a secret."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import httpx
import pytest
import respx
from pydantic import SecretStr
from redis.asyncio import Redis as RedisClient

from gateway.base.networks import make_networks
from gateway.base.secrets import SecretRef
from gateway.config.development import RunningUp, write_up
from gateway.config.registry import Registry
from gateway.config.routes import Route
from gateway.config.routes.reconcile import Reconcile
from gateway.config.settings import Settings
from gateway.dev.embedded import Postgres
from gateway.ledger.connection import open_pool
from gateway.ledger.statistics import REQUESTS, MinuteStats
from gateway.operations.health.doctor import examine
from gateway.operations.health.findings import Finding, Installation, read_installation, utc_now
from gateway.providers import PROVIDERS
from gateway.receive.spool.file import TORN
from gateway.receive.spool.spool import SPOOL_DIRECTORY
from gateway.worker.sweeper import VERSION
from tests.support.databases import run_sql
from tests.support.in_process import in_project
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.ports import free_port
from tests.support.processes import Project
from tests.support.workers import count, make_config, make_route, make_settings, subscribe

ROLES_SQL = Path(__file__).parents[2] / "deploy" / "roles.sql"
EVERY_15M = Reconcile(every=timedelta(minutes=15), api_url="https://api.stripe.com")
SECRET = "whsec_0123456789abcdef0123456789abcdef"
OTHER = "a github secret of 32 characters"
PROXIES = make_networks(["10.0.0.0/8"])
TOKEN = "adm1n-t0ken-of-the-suite"


def found(findings: Sequence[Finding], *levels: str) -> str:
    """All of these levels, a line each."""
    return "\n".join(
        f"{f['level']} {f['about']}: {f['found']} / {f['advice']}"
        for f in findings
        if not levels or f["level"] in levels
    )


@pytest.fixture
def settings(database_url: str, redis_url: str, tmp_path: Path) -> Settings:
    return make_settings(
        database_url,
        redis_url=SecretStr(redis_url),
        data_dir=tmp_path,
        admin_token=SecretStr(TOKEN),
    )


def place(
    settings: Settings,
    *routes: Route,
    environ: Mapping[str, str] | None = None,
    setting: Mapping[str, Any] | None = None,
    now: Callable[[], datetime] = utc_now,
) -> Installation:
    return Installation(
        settings=settings.model_copy(update=setting),
        environ=environ if environ is not None else {"STRIPE": SECRET, "GITHUB": OTHER},
        config=make_config(*(routes or (stripe(),))),
        registry=Registry([subscribe(count)], []),
        now=now,
    )


def stripe(*names: str, **changes: Any) -> Route:
    refs = tuple(SecretRef(kind="env", target=name) for name in names or ("STRIPE",))
    return make_route(**({"secrets": refs} | changes))


def github(name: str = "GITHUB") -> Route:
    refs = (SecretRef(kind="env", target=name),)
    return make_route("github", provider=PROVIDERS["github"], secrets=refs, tolerance=None)


async def test_what_is_in_order_is_no_problem_but_for_the_engines_of_tests(
    settings: Settings, ledger: Reader
) -> None:
    """They do not write to the disk, which the doctor has to notice."""
    await add_worker(ledger)
    findings = await examine(place(settings))
    assert "fsync is off" in found(findings, "problem")
    told = found([f for f in findings if "is off" not in f["found"]], "problem")
    assert told == ""
    assert "reachable, version" in found(findings, "ok")
    assert "as this code needs it" in found(findings, "ok")
    assert "may read and write the ledger" in found(findings, "ok")
    assert "this host and Postgres agree" in found(findings, "ok")
    assert "this host and Redis agree" in found(findings, "ok")
    assert "keeps up" in found(findings, "ok")


async def add_worker(
    ledger: Reader, *handlers: str, version: str = VERSION, host: str = "one"
) -> None:
    await ledger.run(
        "insert into gateway.workers (id, host, pid, handlers, version)"
        " values (gen_random_uuid(), $1, 1, $2, $3)",
        host,
        list(handlers or ["stripe handlers.count"]),
        version,
    )


async def test_each_finding_is_a_line_or_two_and_says_what_to_do(settings: Settings) -> None:
    findings = await examine(place(settings, stripe("NONE"), github(), environ={}))
    for finding in findings:
        assert len(finding["found"]) < 200, finding
        assert "\n" not in finding["found"]
        assert (finding["advice"] is None) == (finding["level"] == "ok"), finding


async def test_where_nothing_can_be_reached_everything_else_is_still_examined(
    settings: Settings, tmp_path: Path
) -> None:
    port = free_port()
    away = {
        "database_url": SecretStr(f"postgresql://ann:hush@127.0.0.1:{port}/none"),
        "redis_url": SecretStr(f"redis://:hush@127.0.0.1:{port}/0"),
        "public_url": f"http://127.0.0.1:{port}",
    }
    findings = await examine(place(settings, setting=away))
    told = found(findings, "problem")
    assert "Postgres: Postgres cannot be reached" in told
    assert "Redis: cannot be reached" in told
    assert "does not answer" in told
    assert "can be written" in found(findings, "ok")
    assert "1 secret in order" in found(findings, "ok")
    assert "hush" not in str(findings)


async def test_settings_that_are_wrong_are_findings_and_hide_nothing(project: Project) -> None:
    environ = {
        **project.environ,
        "GATEWAY_PORT": "many",
        "GATEWAY_DATABSE_URL": "postgresql://ann:hush@db/x",
        "GATEWAY_ADMIN_TOKEN": "hush",
    }
    with in_project(project.directory):
        installation, findings = read_installation(environ)
    told = found(findings, "problem")
    for variable in ("GATEWAY_PORT", "GATEWAY_DATABSE_URL", "GATEWAY_ADMIN_TOKEN"):
        assert f"environment: {variable}: found" in told
    assert "hush" not in told
    assert len(installation.routes) == 2
    assert installation.settings.database_url is not None


async def test_every_problem_of_routes_and_handlers_is_told(project: Project) -> None:
    routes = project.directory / "config/routes.yaml"
    routes.write_text("routes: {stripe: {provider: strype}, b: {colour: red}}")
    with in_project(project.directory):
        installation, findings = read_installation(project.environ)
    assert installation.config is None
    assert len(findings) >= 2
    assert "strype" in found(findings, "problem")
    assert "config/routes.yaml:1" in found(findings, "problem")


async def test_no_urls_at_all(settings: Settings) -> None:
    nothing = {"database_url": None, "redis_url": None}
    told = found(await examine(place(settings, setting=nothing)), "problem")
    assert "GATEWAY_DATABASE_URL is not set" in told
    assert "GATEWAY_REDIS_URL is not set" in told


async def test_a_database_that_was_not_migrated(
    settings: Settings, empty_database_url: str
) -> None:
    empty = {"database_url": SecretStr(empty_database_url)}
    findings = await examine(place(settings, setting=empty))
    assert "schema is at version 0" in found(findings, "problem")
    assert "run `gateway migrate`" in found(findings, "problem")


async def test_a_schema_that_newer_code_has_changed(settings: Settings, ledger: Reader) -> None:
    await ledger.run(
        "insert into gateway.migrations (version, name, checksum, oldest_code)"
        " values (900, 'later', 'x', 4)"
    )
    assert "newer than this code" in found(await examine(place(settings)), "ok")
    await ledger.run("update gateway.migrations set oldest_code = 900 where version = 900")
    assert "upgrade the gateway" in found(await examine(place(settings)), "problem")


@pytest.fixture
async def role(postgres: Postgres, database_url: str) -> AsyncIterator[str]:
    name = f"role_{uuid4().hex}"
    await run_sql(postgres.url, f"create role {name} login")
    yield name
    await run_sql(database_url, f"drop owned by {name} cascade")
    await run_sql(postgres.url, f"drop role {name}")


def as_role(url: str, role: str) -> SecretStr:
    parts = urlsplit(url)
    _, _, host = parts.netloc.rpartition("@")
    return SecretStr(urlunsplit(parts._replace(netloc=f"{role}@{host}")))


async def test_a_role_without_privileges(settings: Settings, database_url: str, role: str) -> None:
    installation = place(settings, setting={"database_url": as_role(database_url, role)})
    told = found(await examine(installation), "problem")
    assert f"the role {role} lacks usage on schema gateway" in told
    assert "grant usage on schema gateway" in told
    await run_sql(
        database_url,
        f"grant usage on schema gateway to {role}",
        f"grant select, insert, update on all tables in schema gateway to {role}",
    )
    told = found(await examine(installation), "problem")
    assert f"the role {role} lacks delete on gateway." in told
    await run_sql(database_url, f"grant delete on all tables in schema gateway to {role}")
    findings = await examine(installation)
    assert f"the role {role} may read and write the ledger" in found(findings, "ok")
    assert f"the role {role} cannot migrate" in found(findings, "ok")


async def test_a_role_that_may_do_more_than_it_needs(
    settings: Settings, database_url: str, role: str, tmp_path: Path
) -> None:
    told = found(await examine(place(settings)), "warning")
    assert "the role gateway is a superuser" in told
    assert "deploy/roles.sql" in told
    name = urlsplit(database_url).path[1:]
    await run_sql(
        database_url,
        f"grant create on database {name} to {role}",
        f"alter schema gateway owner to {role}",
        *(f"alter table gateway.{table} owner to {role}" for table in await tables(database_url)),
    )
    owner = as_role(database_url, role)
    installation = place(settings, setting={"database_url": owner, "data_dir": tmp_path})
    assert f"the role {role} owns the schema" in found(await examine(installation), "warning")
    url = owner.get_secret_value()
    write_up(tmp_path, RunningUp(pid=1, url="", database_url=url, redis_url=""))
    assert "owns the schema" not in found(await examine(installation), "warning")


async def tables(url: str) -> list[str]:
    connection = await asyncpg.connect(url)
    rows = await connection.fetch(
        "select relname from pg_class where relnamespace = 'gateway'::regnamespace"
        " and relkind in ('r', 'p', 'v')"
    )
    await connection.close()
    return [row["relname"] for row in rows]


async def test_a_role_that_may_do_what_it_needs(
    settings: Settings, database_url: str, role: str, ledger: Reader
) -> None:
    await run_sql(database_url, ROLES_SQL.read_text(), f"grant gateway_operator to {role}")
    installation = place(settings, setting={"database_url": as_role(database_url, role)})
    findings = await examine(installation)
    assert f"the role {role} is of gateway_operator" in found(findings, "ok")
    assert role not in found(findings, "problem") + found(findings, "warning")
    await ledger.run("create table gateway.later (n int)")
    told = found(await examine(installation), "problem")
    assert "may not read gateway.later" in told
    assert "run deploy/roles.sql again" in told


async def test_a_role_with_too_few_connections(
    settings: Settings, database_url: str, role: str
) -> None:
    await run_sql(database_url, f"alter role {role} connection limit 5")
    installation = place(settings, setting={"database_url": as_role(database_url, role)})
    told = found(await examine(installation), "warning")
    assert "5 connections are allowed (the role's connection limit)" in told


async def test_commits_that_wait_for_no_disk(settings: Settings, database_url: str) -> None:
    name = urlsplit(database_url).path[1:]
    await run_sql(database_url, f'alter database "{name}" set synchronous_commit = off')
    assert "synchronous_commit is off" in found(await examine(place(settings)), "warning")


@pytest.mark.parametrize(
    ("setting", "level", "told"),
    [
        ("default_transaction_isolation = serializable", "ok", "handlers run at it"),
        ("default_transaction_read_only = on", "problem", "nothing can be claimed"),
        ("statement_timeout = '20s'", "warning", "statement_timeout is 20s for this role"),
    ],
)
async def test_defaults_of_the_database_that_change_transactions(
    setting: str, level: str, told: str, settings: Settings, database_url: str
) -> None:
    assert told not in found(await examine(place(settings)))
    name = urlsplit(database_url).path[1:]
    await run_sql(database_url, f'alter database "{name}" set {setting}')
    assert told in found(await examine(place(settings)), level)


async def test_a_role_whose_default_schema_is_the_ledger(
    settings: Settings, database_url: str
) -> None:
    """The suite's own role has the name of the schema."""
    told = "the default schema of role gateway is the gateway's own"
    assert told in found(await examine(place(settings)), "warning")
    name = urlsplit(database_url).path[1:]
    await run_sql(database_url, f'alter database "{name}" set search_path = public')
    assert told not in found(await examine(place(settings)))


async def test_a_transaction_that_somebody_left_open(
    settings: Settings, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.operations.health.postgres.LONG", timedelta())
    connection = await asyncpg.connect(database_url, server_settings={"application_name": "psql"})
    async with connection.transaction():
        await connection.fetchval("select 1")
        told = found(await examine(place(settings)), "warning")
    await connection.close()
    assert "transactions are open and idle, the oldest (psql, pid" in told
    assert "pg_terminate_backend" in told


@asynccontextmanager
async def configured(url: str, **settings: str) -> AsyncIterator[None]:
    client = RedisClient.from_url(url, decode_responses=True)
    names = {name: name.replace("_", "-") for name in settings}
    before = {name: (await client.config_get(name))[name] for name in names.values()}
    try:
        for name, value in settings.items():
            await client.config_set(names[name], value)
        yield
    finally:
        for name, value in before.items():
            await client.config_set(name, value)
        await client.aclose()


async def test_a_redis_that_throws_things_away(settings: Settings, redis_url: str) -> None:
    async with configured(redis_url, maxmemory_policy="allkeys-lru"):
        assert "maxmemory-policy is allkeys-lru" in found(await examine(place(settings)), "warning")
        async with configured(redis_url, maxmemory="1gb"):
            told = found(await examine(place(settings)), "problem")
    assert "maxmemory-policy is allkeys-lru: wake-ups may be thrown away" in told
    assert "set maxmemory-policy noeviction" in told


async def test_a_redis_that_keeps_nothing_or_is_full(settings: Settings, redis_url: str) -> None:
    async with configured(redis_url, save="", maxmemory="1mb"):
        told = found(await examine(place(settings)), "warning")
    assert "keeps nothing over a restart" in told
    assert "raise maxmemory" in told
    async with configured(redis_url, save="3600 1"):
        assert "keeps its data (snapshots)" in found(await examine(place(settings)), "ok")


async def test_wake_ups_that_nobody_takes(settings: Settings, redis_url: str) -> None:
    client = RedisClient.from_url(redis_url)
    await client.zadd("arq:queue", {f"job {n}": n for n in range(3)})
    await client.aclose()
    told = found(await examine(place(settings, setting={"queue_depth": 3})), "warning")
    assert "3 wake-ups wait" in told


@pytest.mark.parametrize(
    ("ahead_s", "level", "said"),
    [
        (0, "ok", "this host and Postgres agree"),
        (10, "warning", "ahead of Postgres"),
        (-10, "warning", "behind Postgres"),
        (200, "problem", "refused as stale from 5m on"),
        (-200, "problem", "behind Redis: signed requests are refused"),
    ],
)
async def test_clocks_that_differ(settings: Settings, ahead_s: int, level: str, said: str) -> None:
    def skewed() -> datetime:
        return utc_now() + timedelta(seconds=ahead_s)

    assert said in found(await examine(place(settings, now=skewed)), level)


@pytest.mark.parametrize(
    ("secret", "level", "said"),
    [
        ("", "problem", "env:STRIPE, which is empty"),
        (f"{SECRET}\n", "problem", "ends with a newline"),
        (f'"{SECRET}"', "problem", "stands in quotes"),
        ("sk_live_0123456789abcdef0123456789", "problem", "env:STRIPE is a Stripe API key"),
        ("rk_live_0123456789abcdef0123456789", "problem", "env:STRIPE is a Stripe API key"),
        ("0123456789abcdef0123456789abcdef", "problem", "does not begin with whsec_"),
        ("whsec_short", "warning", "has only 11 characters"),
        (SECRET, "ok", "1 secret in order"),
    ],
)
async def test_secrets_that_no_signature_of_stripes_can_match(
    settings: Settings, secret: str, level: str, said: str
) -> None:
    findings = await examine(place(settings, environ={"STRIPE": secret}))
    assert said in found(findings, level)
    if secret:
        assert secret not in str(findings)


@pytest.mark.parametrize("token", ["ghp_0123456789abcdef0123456789", "github_pat_0123456789abcdef"])
async def test_a_token_in_the_place_of_githubs_secret(settings: Settings, token: str) -> None:
    findings = await examine(place(settings, github(), environ={"GITHUB": token}))
    assert "env:GITHUB is a GitHub token" in found(findings, "problem")
    assert token not in str(findings)


async def test_one_secret_for_two_routes(settings: Settings) -> None:
    findings = await examine(place(settings, stripe(), github("STRIPE")))
    assert "the routes github, stripe have the same secret" in found(findings, "warning")
    assert SECRET not in str(findings)


async def test_an_api_key_that_is_none(settings: Settings) -> None:
    route = stripe(api_key=SecretRef(kind="env", target="KEY"))
    for key, level, said in (
        (SECRET, "problem", "begins neither with sk_ nor with rk_"),
        ("sk_test_0123456789", "ok", "has an api_key"),
    ):
        findings = await examine(place(settings, route, environ={"STRIPE": SECRET, "KEY": key}))
        assert said in found(findings, level)
        assert key not in str(findings)
    missing = await examine(place(settings, route))
    assert "api_key: found env:KEY, which is not set" in found(missing, "warning")


async def test_what_workers_refer_to_and_is_not_set(tmp_path: Path) -> None:
    """A worker does not start without it."""
    routes = tmp_path / "routes.yaml"
    routes.write_text(
        "alerts: {slack: env:SLACK_URL}\n"
        "routes:\n"
        "  github:\n"
        "    provider: github\n"
        "    secrets: [env:GITHUB]\n"
        "    reconcile: {hook: repos/octo/shop/hooks/7, token: env:HOOK_TOKEN}\n"
        "    forward: [{name: ci, url: env:CI_URL, sign: env:CI_KEY}]\n"
    )
    place = {"GATEWAY_CONFIG": str(routes), "GATEWAY_DATA_DIR": str(tmp_path), "GITHUB": OTHER}
    installation, wrong = read_installation(place)
    told = found(wrong + await examine(installation), "warning")
    for name in ("SLACK_URL", "HOOK_TOKEN", "CI_URL", "CI_KEY"):
        assert f"found env:{name}, which is not set" in told
    given = {"SLACK_URL": "https://hooks.example.com/s3cret", "HOOK_TOKEN": "ghp_0123456789abcdef"}
    installation, wrong = read_installation(place | given)
    told = found(wrong + await examine(installation))
    assert "SLACK_URL" not in told
    assert "HOOK_TOKEN" not in told
    assert "s3cret" not in told


@pytest.mark.parametrize(
    ("public", "level"), [("https://hooks.example.com", "problem"), (None, "warning")]
)
async def test_a_made_up_secret_in_production(
    settings: Settings, tmp_path: Path, public: str | None, level: str
) -> None:
    made_up = tmp_path / "secrets.json"
    made_up.write_text(f'{{"env:STRIPE": "{SECRET}"}}')
    changes = {"dev_secrets": made_up, "public_url": public}
    with respx.mock(assert_all_called=False) as http:
        http.get("https://hooks.example.com/healthz").respond(json={"status": "alive"})
        findings = await examine(place(settings, environ={}, setting=changes))
    assert "env:STRIPE: a made-up development secret is used" in found(findings, level)
    assert SECRET not in str(findings)


@pytest.mark.parametrize(
    ("answer", "level", "said"),
    [
        (httpx.Response(200, json={"status": "alive"}), "ok", "answers as a gateway"),
        (httpx.Response(200, text="<h1>It works!"), "problem", "but not as a gateway"),
        (httpx.Response(404), "problem", "/in/healthz answers 404"),
        (
            httpx.Response(301, headers={"location": "https://www.example.com"}),
            "problem",
            "redirects to https://www.example.com",
        ),
    ],
)
async def test_the_public_url_is_asked_as_a_sender_would(
    settings: Settings, answer: httpx.Response, level: str, said: str
) -> None:
    changes = {"public_url": "http://hooks.example.com/in"}
    with respx.mock as http:
        http.get("http://hooks.example.com/in/healthz").mock(return_value=answer)
        findings = await examine(place(settings, setting=changes))
    assert said in found(findings, level)
    assert "is not https" in found(findings, "warning")


@pytest.mark.parametrize(
    ("setting", "is_told"),
    [
        ({"public_url": "https://hooks.example.com"}, True),
        ({"public_url": "https://hooks.example.com", "trusted_proxies": PROXIES}, False),
        ({"public_url": "http://10.0.0.7:8000"}, False),
        ({}, False),
    ],
)
async def test_a_list_of_addresses_behind_a_proxy_that_is_not_named(
    settings: Settings, setting: Mapping[str, Any], is_told: bool
) -> None:
    with respx.mock as http:
        http.get(url__regex=".*/healthz").mock(return_value=httpx.Response(404))
        findings = await examine(place(settings, stripe(allow=PROXIES), setting=setting))
    said = "stripe: `allow` sees the address of your proxy"
    assert (said in found(findings, "warning")) == is_told


async def test_a_data_directory_that_cannot_be_written(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    findings = await examine(place(settings, setting={"data_dir": file}))
    assert "cannot be written" in found(findings, "problem")


async def test_a_spool_without_room_or_with_something_in_it(
    settings: Settings, tmp_path: Path
) -> None:
    spool = tmp_path / SPOOL_DIRECTORY
    spool.mkdir()
    (spool / f"1{TORN}").touch()
    findings = await examine(place(settings, setting={"spool_size": 1024**5}))
    assert "and the spool may take" in found(findings, "warning")
    assert f"cannot be read: {spool}/1{TORN} / acknowledged events" in found(findings, "problem")


async def test_a_route_whose_sender_never_retries_without_a_spool(settings: Settings) -> None:
    route = make_route("github", provider=PROVIDERS["github"], spools=True)
    findings = await examine(place(settings, route, setting={"spool_size": 0}))
    assert "events of github are lost" in found(findings, "warning")


async def test_workers_of_other_code(settings: Settings, ledger: Reader) -> None:
    told = found(await examine(place(settings)), "problem")
    assert "no worker is alive" in told
    await add_worker(ledger, "stripe handlers.other", version="0.0.1", host="old")
    await add_worker(ledger, "stripe handlers.other", "stripe handlers.more")
    findings = await examine(place(settings))
    assert "the worker on old, pid 1, runs version 0.0.1" in found(findings, "warning")
    assert "the worker on old, pid 1, lacks stripe handlers.more" in found(findings, "warning")
    assert "no worker has stripe handlers.count" in found(findings, "problem")


async def test_a_route_that_never_had_an_event_is_told_where_to_point_its_sender(
    settings: Settings, database_url: str
) -> None:
    with respx.mock as http:
        http.get("https://hooks.example.com/healthz").respond(json={"status": "alive"})
        changes = {"public_url": "https://hooks.example.com"}
        findings = await examine(place(settings, stripe(), github(), setting=changes))
    told = found(findings, "warning")
    assert "route stripe: has never had an event" in told
    assert "paste https://hooks.example.com/webhooks/stripe into Stripe" in told
    assert "paste https://hooks.example.com/webhooks/github into GitHub" in told
    await claim_all(database_url, [make_claim()])
    assert "before they were counted" in found(await examine(place(settings)), "ok")


async def test_a_route_of_which_everything_is_refused(
    settings: Settings, database_url: str
) -> None:
    pool = await open_pool(database_url, name="test", size=1, command_timeout_s=10)
    stats = MinuteStats()
    stats.add("stripe", REQUESTS, "BAD_SIGNATURE")
    await stats.flush(pool)
    told = found(await examine(place(settings)), "warning")
    assert "a request was refused as BAD_SIGNATURE 0s ago, and no event was ever accepted" in told
    stats.add("stripe", REQUESTS, "accepted")
    await stats.flush(pool)
    await pool.close()
    assert "the last event came 0s ago" in found(await examine(place(settings)), "ok")


async def test_a_reconcile_that_does_not_come(settings: Settings, ledger: Reader) -> None:
    installation = place(settings, stripe(reconcile=EVERY_15M))
    never = found(await examine(installation), "warning")
    assert "route stripe: is to be reconciled every 15m, and never was" in never
    await ledger.run(
        "insert into gateway.reconciliations"
        " (route, actor, since, until, dry_run, status, started_at, finished_at)"
        " values ('stripe', 'schedule', now(), now(), false, 'done', now(), now())"
    )
    assert "was reconciled 0s ago" in found(await examine(installation), "ok")
    await ledger.run("update gateway.reconciliations set finished_at = now() - interval '1 h'")
    assert "the last was 1h ago" in found(await examine(installation), "warning")


async def test_dead_letters_that_nobody_looked_at(
    settings: Settings, ledger: Reader, database_url: str
) -> None:
    await claim_all(database_url, [make_claim()])
    await ledger.run(
        "update gateway.deliveries set status = 'dead', finished_at = now() - interval '20 d'"
    )
    findings = await examine(place(settings))
    assert "1 dead letter" in found(findings, "problem")
    told = found(findings, "warning")
    assert "has waited for 20d; after 90d it is given up" in told


async def test_retention_that_is_behind(
    settings: Settings, ledger: Reader, database_url: str
) -> None:
    old = datetime.now(UTC) - timedelta(days=60)
    [claimed] = await claim_all(database_url, [make_claim(received_at=old)])
    assert "keeps up" in found(await examine(place(settings)), "ok")  # it is pending
    await ledger.run(
        "update gateway.deliveries set status = 'done', finished_at = $1 where id = $2",
        old,
        claimed.delivery_ids[0],
    )
    assert f"events of {old:%Y-%m-%d} should have been forgotten" in found(
        await examine(place(settings)), "warning"
    )


def test_a_doctor_of_no_settings_at_all_does_not_fail(tmp_path: Path) -> None:
    installation, findings = read_installation({"GATEWAY_DATA_DIR": str(tmp_path)})
    told = found(findings + asyncio.run(examine(installation)), "problem")
    assert "GATEWAY_DATABASE_URL is not set" in told
