"""The pytest plugin for handler authors, as their own pytest runs it."""

import asyncio
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent

import asyncpg
import pytest

from gateway.testing import plugin
from gateway.testing.throwaway import Throwaway

pytest_plugins = ["pytester"]

ROOT = Path(plugin.__file__).parents[2]
LOAD = ("-p", "gateway.pytest_plugin", "-p", "pytest_asyncio.plugin", "-p", "no:cacheprovider")
INI = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"

# Not `handlers`: the run is in this process, which may know that name already.
ROUTES = """
schema: [hooks/schema.sql]
routes:
  stripe:
    provider: stripe
    secrets: [env:NOWHERE]
    api_key: env:NOWHERE
    handlers: [hooks.shop]
    types: ["payment_intent.*", "invoice.*", "charge.*", "customer.*", "checkout.*"]
    forward: [{name: books, url: env:NOWHERE, sign: env:NOWHERE}]
  mails: {provider: publish, handlers: [hooks.mails]}
"""

SCHEMA = """
create table log (n bigint generated always as identity, note text, details jsonb);
create table kinds (name text primary key);
insert into kinds values ('seed');
"""

SHOP = """
from collections.abc import AsyncIterator

from gateway import Context, Defer, Event, Reject, handler, resource


async def note(event: Event, ctx: Context, text: str) -> None:
    await ctx.db.execute("insert into log (note) values ($1)", text)


@handler("payment_intent.succeeded")
async def two_notes(event: Event, ctx: Context) -> None:
    try:
        await note(event, ctx, "one")
        async with ctx.db.transaction():
            await note(event, ctx, "two")
    finally:
        ENDS.append(event.id)


ENDS: list[str] = []


@handler("invoice.paid")
async def also_on_invoices(event: Event, ctx: Context) -> None:
    await note(event, ctx, "also")


@handler("invoice.*", attempts=2)
async def failing(event: Event, ctx: Context) -> None:
    await note(event, ctx, "never kept")
    raise LookupError("no such order")


@handler("charge.refunded")
async def deciding(event: Event, ctx: Context) -> None:
    reason = event.payload["data"]["object"]["description"]
    raise Defer("later", after=3600) if reason == "defer" else Reject("never")


@handler("charge.succeeded", timeout="100ms")
async def slow(event: Event, ctx: Context) -> None:
    await ctx.db.execute("select pg_sleep(30)")


@handler("customer.subscription.*", order_by="data.object.id")
async def ordered(event: Event, ctx: Context) -> None:
    status = event.payload["data"]["object"]["status"]
    if status == "incomplete" and ctx.attempt == 1:
        raise LookupError("not yet")
    await note(event, ctx, status)


BROKEN: list[str] = []


@handler("checkout.session.expired", order_by="data.object.id", on_dead="block")
async def blocking(event: Event, ctx: Context) -> None:
    if event.id in BROKEN:
        raise Reject("broken")


@handler("charge.dispute.created")
async def refunding(event: Event, ctx: Context) -> None:
    known = event.payload["data"]["object"]
    dispute = await ctx.stripe.v1.disputes.retrieve_async(known["id"])
    refund = await ctx.stripe.v1.refunds.create_async({"charge": known["charge"]})
    await note(event, ctx, f"{refund.object} of {dispute.amount}: {bool(refund.id)}")


@handler("checkout.session.completed", once_per="data.object.id")
async def first_only(event: Event, ctx: Context) -> None:
    await note(event, ctx, "checkout")


@handler("checkout.session.*")
async def receipt(event: Event, ctx: Context) -> None:
    session = event.payload["data"]["object"]["id"]
    key = ctx.idempotency_key("receipt", per=session)
    sent = await ctx.once("receipt", post_receipt, ctx, key, per=session)
    await note(event, ctx, f"{sent} {key}")


async def post_receipt(ctx, key):
    assert ctx.idempotency_key("receipt") == key
    answer = await ctx.http.post("https://mail.example.com/", headers={"Idempotency-Key": key})
    return answer.status_code


@handler("charge.failed")
async def publishing(event: Event, ctx: Context) -> None:
    await ctx.publish("mails", {"n": 1})
    await ctx.publish("mails", {"n": 2}, key="fixed")


@resource
async def mailer() -> AsyncIterator[list[str]]:
    box = ["opened"]
    yield box
    box.append("closed")


@handler("customer.created")
async def greeting(event: Event, ctx: Context) -> None:
    ctx.resources.mailer.append("hello")
"""

MAILS = """
from gateway import Context, Event, handler


@handler("mails")
async def send(event: Event, ctx: Context) -> None:
    await ctx.db.execute("insert into log (details) values ($1)", event.body.decode())
    await ctx.http.post("https://mail.example.com/", json=event.payload)
"""

BEHAVIOUR = """
import pytest

from gateway import Defer, Reject
from gateway.testing import DeliveryFailed
from hooks import mails, shop


CONNECTIONS = (
    "select count(*) from pg_stat_activity"
    " where datname = current_database() and application_name = 'gateway test handlers'"
)


def notes(db):
    return [row["note"] for row in db.fetch("select note from log order by n")]


def test_the_real_way(deliver, make_event, db):
    result = deliver(shop.two_notes, make_event("stripe", "payment_intent.succeeded"))
    assert (result.handler, result.status) == ("hooks.shop.two_notes", "done")
    assert result.outcome == "done"
    assert (result.error, result.traceback, result.attempts) == (None, None, 1)
    assert notes(db) == ["one", "two"]
    assert db.fetchval("select count(*) from gateway.processed_events") == 1


def test_every_test_has_its_own_database(deliver, make_event, db):
    assert notes(db) == []
    assert db.fetch("select name from kinds") == [{"name": "seed"}]


def test_rows_are_dicts_and_json_is_read(db):
    db.execute("insert into log (details) values ($1)", {"a": [1]})
    db.executemany("insert into log (note, details) values ($1, $2)", [("x", '{"b": 2}')])
    assert db.fetchrow("select note, details from log where note is null") == {
        "note": None, "details": {"a": [1]}}
    assert db.fetchval("select details from log where note = 'x'") == {"b": 2}
    assert db.fetchrow("select 1 where false") is None


def test_twice(deliver_twice, make_event, db):
    event = make_event("stripe", "payment_intent.succeeded")
    assert [r.status for r in deliver_twice(shop.two_notes, event)] == ["done", "done"]
    assert notes(db) == ["one", "two"] * 2
    assert db.fetchval("select count(*) from gateway.audit where action = 'replay'") == 1


def test_a_duplicate_is_not_run(deliver, make_event, db):
    event = make_event("stripe", "payment_intent.succeeded")
    deliver(shop.two_notes, event)
    assert deliver("hooks.shop.two_notes", event).outcome == "duplicate"
    assert notes(db) == ["one", "two"]


@pytest.mark.parametrize("statement", [0, 1, 2, 3, 4])
def test_a_crash(deliver, crash_after, make_event, db, statement):
    event = make_event("stripe", "payment_intent.succeeded")
    with crash_after(statement):
        result = deliver(shop.two_notes, event)
    assert (result.status, result.outcome) == ("running", None)
    assert notes(db) == []
    assert event.id not in shop.ENDS  # not even a `finally` was run
    assert any(db.fetchval(CONNECTIONS) == 0 for _ in range(2000))  # noticed in a moment
    assert deliver(shop.two_notes, event).attempts == 1
    assert notes(db) == ["one", "two"]
    attempts = db.fetch("select outcome from gateway.attempts order by number")
    assert [row["outcome"] for row in attempts] == ["lost", "done"]


def test_a_crash_that_does_not_happen(deliver, crash_after, make_event):
    event = make_event("stripe", "payment_intent.succeeded")
    with pytest.raises(DeliveryFailed, match="4 statements of ctx.db and 0 requests"):
        with crash_after(5):
            deliver(shop.two_notes, event)
    with pytest.raises(ValueError, match="Say one"):
        crash_after()


def test_a_crash_around_a_request(deliver, crash_after, make_event, db, outgoing):
    job = make_event("mails", payload={"n": 1})
    with crash_after(calls=1):
        deliver(mails.send, job)
    assert db.fetchval("select count(*) from log") == 0
    deliver(mails.send, job)
    assert db.fetchval("select count(*) from log") == 1
    assert [call.place for call in outgoing.calls] == ["hooks/mails.py:7"] * 2


def test_a_failing_handler(deliver, make_event, db):
    event = make_event("stripe", "invoice.paid")
    with pytest.raises(LookupError, match="no such order") as caught:
        deliver(shop.failing, event)
    assert [entry.name for entry in caught.traceback][-1] == "failing"
    result = deliver(shop.failing, event, check=False)
    assert (result.status, result.outcome, result.attempts) == ("dead", "dead", 2)
    assert result.error == "LookupError: no such order"
    assert "hooks/shop.py" in result.traceback
    assert isinstance(result.exception, LookupError)
    with pytest.raises(DeliveryFailed, match="is dead .* deliver.replay"):
        deliver(shop.failing, event)
    with pytest.raises(LookupError):
        deliver.replay(shop.failing, event)
    assert notes(db) == []


def test_decisions_of_a_handler(deliver, make_event):
    with pytest.raises(Defer):
        deliver(shop.deciding, make_event("stripe", "charge.refunded", description="defer"))
    with pytest.raises(Reject):
        deliver(shop.deciding, make_event("stripe", "charge.refunded"))
    deferred = make_event("stripe", "charge.refunded", description="defer")
    assert deliver(shop.deciding, deferred, check=False).outcome == "deferred"
    assert deliver(shop.deciding, deferred, check=False).attempts == 0  # not after an hour: now


def test_a_handler_that_takes_too_long(deliver, make_event):
    with pytest.raises(DeliveryFailed, match="TIMEOUT: the handler ran longer than 0.1 s"):
        deliver(shop.slow, make_event("stripe", "charge.succeeded"))


def test_order(deliver, make_event, db):
    first = make_event("stripe", "customer.subscription.created", id="sub_1", status="incomplete")
    second = make_event("stripe", "customer.subscription.updated", id="sub_1", status="active")
    with pytest.raises(LookupError):
        deliver(shop.ordered, first)
    with pytest.raises(DeliveryFailed, match=f"{first.id}.* is pending: deliver that event first"):
        deliver(shop.ordered, second)
    deliver(shop.ordered, first)
    deliver(shop.ordered, second)
    assert notes(db) == ["incomplete", "active"]


def test_a_blocked_key(deliver, make_event):
    first, second = (make_event("stripe", "checkout.session.expired", id="cs_1") for _ in "12")
    shop.BROKEN.append(first.id)
    assert deliver(shop.blocking, first, check=False).status == "dead"
    waiting = deliver(shop.blocking, second, check=False)
    assert (waiting.status, waiting.outcome, waiting.attempts) == ("pending", None, 0)
    for part in (first.id, "data.object.id", "is dead and blocks it", "deliver.replay"):
        assert part in waiting.error
    shop.BROKEN.clear()
    deliver.replay(shop.blocking, first)
    assert deliver(shop.blocking, second).status == "done"


def test_stripe_answers_with_objects(deliver, make_event, db, outgoing):
    event = make_event("stripe", "charge.dispute.created", amount=77)
    deliver(shop.refunding, event)
    outgoing.answer("POST", "https://api.stripe.com/v1/refunds", json={"object": "mine", "id": ""})
    deliver.replay(shop.refunding, event)
    assert notes(db) == ["refund of 77: True", "mine of 77: False"]


def test_once_per_thing(deliver, make_event, db, outgoing):
    types = ("completed", "async_payment_succeeded")
    events = [make_event("stripe", f"checkout.session.{t}", id="cs_1") for t in types]
    for event in events:
        deliver(shop.receipt, event)
    deliver.replay(shop.receipt, events[1])
    assert len(outgoing.calls) == 1
    assert len(notes(db)) == 3
    assert len(set(notes(db))) == 1
    deliver(shop.receipt, make_event("stripe", "checkout.session.completed", id="cs_2"))
    assert len(outgoing.calls) == 2


def test_once_per(deliver, make_event, db):
    for outcome in ("done", "skipped"):
        event = make_event("stripe", "checkout.session.completed", id="cs_1")
        assert deliver(shop.first_only, event).outcome == outcome
    assert notes(db) == ["checkout"]


def test_jobs(deliver, make_event, db, outgoing):
    result = deliver(shop.publishing, make_event("stripe", "charge.failed"))
    assert [job.payload for job in result.published] == [{"n": 1}, {"n": 2}]
    assert result.published[1].id == "fixed"
    assert deliver(mails.send, result.published[0]).published == ()
    assert [found.handler for found in deliver.pending()] == ["hooks.mails.send"]
    assert [call.json for call in outgoing.calls] == [{"n": 1}, {"n": 2}]
    assert deliver.pending() == []


def test_what_else_is_due(deliver, make_event, db):
    event = make_event("stripe", "invoice.paid")
    deliver(shop.also_on_invoices, event)
    with pytest.raises(LookupError):
        deliver.pending()  # the other handler of the event
    assert [found.status for found in deliver.pending(check=False)] == []  # it waits for its retry


def test_resources(deliver, make_event, resources):
    event = make_event("stripe", "customer.created")
    with pytest.raises(LookupError, match=r"mailer has no stand-in .* resources\\['mailer'\\] = "):
        deliver(shop.greeting, event)
    with pytest.raises(ValueError, match="there is no 'mialer'; this project has mailer"):
        resources["mialer"] = []
    sent = resources["mailer"] = []
    deliver(shop.greeting, event)
    assert sent == ["hello"]


OPENED = []


def test_a_real_resource(deliver, make_event, resources):
    resources.open("mailer")
    OPENED.append(resources["mailer"])
    deliver(shop.greeting, make_event("stripe", "customer.created"))


def test_a_real_resource_is_closed_with_its_test():
    assert OPENED == [["opened", "hello", "closed"]]


def test_what_cannot_be_delivered(deliver, make_event):
    with pytest.raises(ValueError, match="takes payment_intent.succeeded; this event is invoice"):
        deliver(shop.two_notes, make_event("stripe", "invoice.paid"))
    with pytest.raises(ValueError, match="takes events of the route mails; this is one of stripe"):
        deliver(mails.send, make_event("stripe", "invoice.paid"))
    with pytest.raises(ValueError, match="hooks.shop.note is no handler of this project; it has h"):
        deliver(shop.note, make_event("stripe", "invoice.paid"))
    with pytest.raises(ValueError, match="'forward.books' is a forward: tests run your own code"):
        deliver("forward.books", make_event("stripe", "invoice.paid"))
    with pytest.raises(ValueError, match="the route stripe ignores this event"):
        deliver("hooks.shop.everything", make_event("stripe", "payout.paid"))


async def test_in_an_async_test(deliver, make_event, db):
    deliver(shop.two_notes, make_event("stripe", "payment_intent.succeeded"))
    assert notes(db) == ["one", "two"]
"""


@pytest.fixture(autouse=True)
def _no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this environment take seconds to load."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    """One server for all runs: each would take a second to start its own."""
    with Throwaway([]) as throwaway:
        yield asyncio.run(throwaway.clone())


@pytest.fixture
def project(pytester: pytest.Pytester, server_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's project, whose databases are made on a server that runs already."""
    monkeypatch.setenv("GATEWAY_TEST_DATABASE_URL", server_url)
    _write(
        pytester.path,
        {
            "pytest.ini": INI,
            "config/routes.yaml": ROUTES,
            "hooks/__init__.py": "",
            "hooks/schema.sql": SCHEMA,
            "hooks/shop.py": SHOP,
            "hooks/mails.py": MAILS,
        },
    )
    return pytester.path


def _write(directory: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text).lstrip("\n"), encoding="utf-8")


def test_handlers_are_run_as_the_gateway_runs_them(
    project: Path, pytester: pytest.Pytester, server_url: str
) -> None:
    before = asyncio.run(_databases(server_url))
    everything = '@handler("payout.*")\nasync def everything(event, ctx): ...\n'
    _write(project, {"hooks/shop.py": f"{SHOP}\n\n{everything}", "tests/test_it.py": BEHAVIOUR})
    result = pytester.runpytest_inprocess(*LOAD, "-W", "error")
    result.assert_outcomes(passed=len(re.findall(r"^(?:async )?def test_", BEHAVIOUR, re.M)) + 4)
    assert asyncio.run(_databases(server_url)) == before


async def _databases(url: str) -> list[str]:
    connection = await asyncpg.connect(url)
    try:
        return [row["datname"] for row in await connection.fetch("select datname from pg_database")]
    finally:
        await connection.close()


def test_a_failing_handler_fails_its_test_with_its_own_lines_only(
    project: Path, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        """
        from hooks.shop import failing

        def test_it(deliver, make_event):
            deliver(failing, make_event("stripe", "invoice.paid"))
        """
    )
    result = pytester.runpytest_inprocess(*LOAD)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([">*deliver(failing, *", ">*raise LookupError*", "E*no such order"])
    result.stdout.no_fnmatch_line("*gateway/*.py:*: *")


def test_what_is_wrong_with_the_project_is_said_without_a_traceback(
    project: Path, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile("def test_it(db): ...")
    _write(project, {"hooks/schema.sql": "create table a (b int);\ncreate tabel c ();"})
    result = pytester.runpytest_inprocess(*LOAD)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(['hooks/schema.sql:2: Postgres refused it: *at or near "tabel"'])
    result.stdout.no_fnmatch_line("*throwaway.py*")

    _write(project, {"config/routes.yaml": ROUTES.replace("schema:", "shema:")})
    result = pytester.runpytest_inprocess(*LOAD)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["config/routes.yaml:1: shema: found an unknown key; *schema*"])


def test_the_project_may_lie_elsewhere_and_django_keeps_its_db(
    project: Path, pytester: pytest.Pytester
) -> None:
    (project / "services").mkdir()
    (project / "config").rename(project / "services/config")
    (project / "hooks").rename(project / "services/hooks")
    _write(project, {"pytest.ini": f"{INI}gateway_dir = services\n"})
    pytester.makepyfile(
        django="import pytest\n\n@pytest.fixture\ndef db():\n    return 'of django'",
        test_it="""
        from hooks.shop import two_notes

        def test_it(deliver, make_event, db, gateway_db):
            deliver(two_notes, make_event("stripe", "payment_intent.succeeded"))
            assert gateway_db.fetchval("select count(*) from log") == 2
            assert db == "of django"
        """,
    )
    pytester.syspathinsert()
    pytester.runpytest_inprocess(*LOAD, "-p", "django").assert_outcomes(passed=1)


def test_where_there_are_no_routes_the_plugin_loads_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it(request):
            assert request.config.pluginmanager.has_plugin("gateway.pytest_plugin")
            ours = [name for name in sys.modules if name.partition(".")[0] == "gateway"]
            assert ours == ["gateway", "gateway.pytest_plugin"]
        """
    )
    pytester.runpytest_subprocess(*LOAD, f"--rootdir={pytester.path}").assert_outcomes(passed=1)


def test_the_examples_of_the_guide_pass_and_may_run_twice(
    pytester: pytest.Pytester, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs/testing.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w+\n(?:#|--) (\S+)\n(.*?)^```$", text, flags=re.M | re.S)
    _write(pytester.path, {**dict(blocks), "handlers/__init__.py": "", "pytest.ini": INI})
    tests = re.findall(r"^def (test_\w+)", text, flags=re.M)
    assert len(tests) > 10
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    result = pytester.runpytest_subprocess(*LOAD, "-W", "error")
    result.assert_outcomes(passed=len(tests) + 2)  # one has three cases
    monkeypatch.setenv("GATEWAY_TEST_DATABASE_URL", server_url)
    cache = f"--cache-dir={ROOT / '.mypy_cache'}"
    for command in (("gateway", "rehearse"), ("mypy", "--strict", cache, "handlers")):
        ran = pytester.run(sys.executable, "-m", *command)
        assert ran.ret == 0, ran.outlines + ran.errlines
