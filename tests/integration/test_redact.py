"""Redacted fields on a real Postgres: what is stored, what is said of a run, and what is shown."""

import hashlib
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import structlog
from starlette.applications import Starlette

from gateway import Context, Event, Reject
from gateway.api.http import routes
from gateway.api.operations import OPERATIONS
from gateway.base.model import Envelope
from gateway.base.secrets import Secret
from gateway.config.registry import Registry
from gateway.config.routes import Config
from gateway.config.settings import Settings
from gateway.ledger.connection import open_pool
from gateway.ledger.make_claim import make_claim as make_real_claim
from gateway.operations.context import OperationContext
from gateway.privacy.redaction import FieldPath, RedactAt, Redaction
from gateway.providers import PROVIDERS
from gateway.receive.spool.file import encode
from tests.support.guarding import a_guard
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.waiting import until
from tests.support.workers import Function, make_config, make_route, subscribe, working

EMAIL = "a.person@b.example"
BODY = b'{"id":"evt_1","type":"invoice.paid","n":123456789012345678901,"who":{"email":"%s"}}'
BODY = BODY.replace(b"%s", EMAIL.encode())
CUT = BODY.replace(f'"{EMAIL}"'.encode(), b'"[redacted]"')
TOKEN = "a-token-for-the-tests"


def redacting(at: RedactAt, *paths: str) -> Redaction:
    return Redaction(tuple(map(FieldPath.parse, paths)), at)


def config(at: RedactAt = RedactAt.SHOW) -> Config:
    tasks = make_route("tasks", provider=PROVIDERS["publish"], redaction=redacting(at, "email"))
    return make_config(make_route(redaction=redacting(at, "who.email")), tasks)


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What is logged, as it is written."""
    found: list[str] = []

    def keep(_: Any, __: str, event: Any) -> str:
        found.append(repr(dict(event)))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[keep])
    yield found
    structlog.configure(**before)


async def run(url: str, ledger: Reader, handler: Function, status: str, **options: Any) -> None:
    await claim_all(url, [make_claim("evt_1", body=BODY)])

    async def reached() -> bool:
        return bool((await ledger.delivery())["status"] == status)

    async with working(url, subscribe(handler, **options), config=config()):
        await until(reached)


async def test_no_error_and_no_line_of_a_run_quotes_a_redacted_field(
    database_url: str, ledger: Reader, lines: list[str]
) -> None:
    async def quotes(event: Event, ctx: Context) -> None:
        email = event.payload["who"]["email"]
        assert email == EMAIL  # a handler gets what came
        ctx.log.info("about to greet", to=email, whole=event.payload)
        try:
            raise KeyError(email)
        except KeyError:
            ctx.log.exception("no such person")
        await ctx.db.execute("create temp table t (email text unique) on commit drop")
        await ctx.db.execute("insert into t values ($1)", email)
        await ctx.db.execute("insert into t values ($1)", email)

    await run(database_url, ledger, quotes, "dead")
    delivery = await ledger.delivery()
    assert "([redacted]) already exists" in (delivery["error"] + str(await _attempts(ledger)))
    said = [line for line in lines if "about to greet" in line or "no such person" in line]
    assert len(said) == 6
    assert "[redacted]" in said[0]
    for text in (delivery["error"], str(await _attempts(ledger)), *lines):
        assert "a.person" not in text


async def test_a_value_that_the_error_is_too_long_for_is_hidden_before_it_is_cut(
    database_url: str, ledger: Reader
) -> None:
    async def quotes(event: Event, _: Context) -> None:
        raise Reject("x" * 490 + " " + EMAIL)

    await run(database_url, ledger, quotes, "dead")
    assert "a.per" not in (await ledger.delivery())["error"]


async def test_of_a_body_that_cannot_be_searched_errors_and_lines_say_no_more_than_their_kind(
    database_url: str, ledger: Reader, lines: list[str]
) -> None:
    async def quotes(event: Event, ctx: Context) -> None:
        ctx.log.info(f"greeting {event.body.decode()}")
        raise Reject(event.body.decode())

    await claim_all(database_url, [make_claim("evt_1", body=f"<who>{EMAIL}</who>".encode())])
    async with working(database_url, subscribe(quotes), config=config()):
        await until(lambda: _is_dead(ledger))
    assert (await ledger.delivery())["error"] == "REJECTED: [redacted]"
    assert any("'delivery_dead'" in line for line in lines)
    assert not [line for line in lines if "a.person" in line]


async def _is_dead(ledger: Reader) -> bool:
    return bool((await ledger.delivery())["status"] == "dead")


async def _attempts(ledger: Reader) -> list[dict[str, Any]]:
    return await ledger.rows("select error from gateway.attempts")


async def test_a_job_is_stored_without_the_field_and_known_by_what_was_published(
    database_url: str, ledger: Reader
) -> None:
    new: list[bool] = []
    got: list[Any] = []

    async def publisher(_: Event, ctx: Context) -> None:
        for email in (EMAIL, EMAIL, "other@b.example"):
            new.append(await ctx.publish("tasks", {"email": email, "n": 1}, key="one"))

    async def jobs(event: Event, _: Context) -> None:
        got.append(event.payload)

    await claim_all(database_url, [make_claim("evt_1", body=BODY)])
    subscriptions = [subscribe(publisher), subscribe(jobs, name="jobs", route="tasks")]
    with structlog.testing.capture_logs() as lines:
        async with working(database_url, *subscriptions, config=config(RedactAt.STORE)):
            await until(lambda: _done(ledger))
    assert (new, got) == ([True, False, False], [{"email": "[redacted]", "n": 1}])
    conflicts = [line for line in lines if line["event"] == "published_with_another_payload"]
    assert len(conflicts) == 1


async def _done(ledger: Reader) -> bool:
    return await ledger.statuses() == {"done": 2}


def store(headers: dict[str, str], body: bytes, *paths: str) -> Any:
    route = make_route(redaction=redacting(RedactAt.STORE, *paths))
    return make_real_claim(
        route,
        Registry(()),
        Envelope(id="evt_1", type="invoice.paid"),
        headers=headers,
        body=body,
        digest=hashlib.sha256(body).digest(),
        received_at=datetime.now(UTC),
    )


async def test_at_store_neither_the_ledger_nor_the_spool_gets_the_field(
    database_url: str, ledger: Reader
) -> None:
    claim = store({}, BODY, "who.email")
    assert EMAIL.encode() not in encode(claim)
    [first, again] = await claim_all(database_url, [claim, claim])
    assert {first.verdict, again.verdict} == {"accepted", "duplicate"}
    assert {first.conflict, again.conflict} == {False}
    [row] = await ledger.rows("select body, digest from gateway.events")
    assert row == {"body": CUT, "digest": hashlib.sha256(BODY).digest()}
    other = store({}, BODY.replace(b"a.person", b"b.person"), "who.email")
    [conflict] = await claim_all(database_url, [other])
    assert conflict.conflict  # though what would be stored is the same


async def test_at_store_a_body_without_fields_is_not_stored_at_all(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [store({}, b"<who>a.person</who>", "who.email")])
    stored = await ledger.value("select body from gateway.events")
    assert orjson.loads(stored) == "[redacted]"


@pytest.fixture
async def api(database_url: str, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    pool = await open_pool(database_url, name="test api", size=1, command_timeout_s=10)
    file = tmp_path / "routes.yaml"
    secret = "secrets: [env:A]"
    file.write_text(
        f"routes:\n  stripe: {{provider: stripe, {secret}, redact: [who.email]}}\n"
        f"  open: {{provider: stripe, {secret}}}\n"
    )

    async def wake(_: Any) -> None: ...

    def open_office(actor: str) -> OperationContext:
        return OperationContext(settings=Settings(config=file), ledger=pool, actor=actor, wake=wake)

    app = Starlette(
        routes=routes(
            OPERATIONS, token=Secret(TOKEN.encode()), guard=a_guard(), open_office=open_office
        )
    )
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://gateway/api/v1",
        headers={"authorization": f"Bearer {TOKEN}"},
    ) as client:
        yield client
    await pool.close()


async def test_the_api_shows_an_event_without_the_field(
    api: httpx.AsyncClient, database_url: str, tmp_path: Path
) -> None:
    routes = ("stripe", "open", "gone")
    await claim_all(database_url, [make_claim("evt_1", route=r, body=BODY) for r in routes])
    shown = {event["route"]: event for event in (await api.get("/events/evt_1")).json()}
    assert shown["stripe"]["body"] == CUT.decode()
    assert shown["stripe"]["redacted"] == "who.email"
    assert (shown["open"]["body"], shown["open"]["redacted"]) == (BODY.decode(), None)
    assert shown["gone"]["body"] == '"[redacted]"'
    assert "is not in routes.yaml" in shown["gone"]["redacted"]
    (tmp_path / "routes.yaml").write_text("routes: {")
    for event in (await api.get("/events/evt_1")).json():
        assert event["body"] == '"[redacted]"'
        assert "cannot be read" in event["redacted"]
