"""The parts of a rehearsal that need no database."""

import asyncio
import smtplib
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gateway.base.errors import CommandFailed
from gateway.base.model import RetryPolicy
from gateway.config.registry import Subscription
from gateway.config.registry.decorator import ResourceFunction
from gateway.config.registry.key_path import KeyPath
from gateway.config.routes import Route, load_config
from gateway.providers.samples import Recorded, make_sample
from gateway.testing.rehearse import services
from gateway.testing.rehearse.database import Column, MadeUp, Table, compare, is_recent, learn
from gateway.testing.rehearse.events import evenly, find_occasions, wanted_rows, without_sample
from gateway.testing.rehearse.guard import RehearsalGuard, RehearsalLoop, rehearsing
from gateway.testing.rehearse.pairs import Relation, find_pairs, find_relatives, run_in_turn
from gateway.testing.rehearse.patches import quick_sleeps, recorded_mail
from gateway.testing.rehearse.services import (
    HTTP,
    RESOURCE,
    Answers,
    RecordingTransport,
    StandIn,
    load_answers,
    make_stand_in,
)
from gateway.testing.rehearse.trace import (
    Failing,
    Killed,
    Moment,
    Outage,
    RehearsedRun,
    Step,
    StepKind,
    running,
)
from gateway.worker.effects import CallOutcome, classify, counting_requests

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
ROOT = Path(__file__).parents[2]


def column(name: str, *, default: str | None = None, is_required: bool = False) -> Column:
    return Column(
        name=name,
        type="text",
        category="S",
        is_required=is_required,
        is_computed=False,
        first_label=None,
        default=default,
    )


ORDERS = Table(
    schema="public",
    name="orders",
    key=("id",),
    columns=(
        column("id"),
        column("status", is_required=True),
        column("at", default="now()"),
        column("token", default="gen_random_uuid()"),
    ),
)


async def nothing(_: Any, __: Any) -> None: ...


def subscription(
    *types: str,
    once_per: str | None = None,
    order_by: str | None = None,
    concurrency: int | None = None,
) -> Subscription:
    return Subscription(
        route="stripe",
        handler="handlers.h",
        types=types,
        function=nothing,
        timeout=timedelta(seconds=1),
        retry=RetryPolicy(),
        once_per=None if once_per is None else KeyPath.parse(once_per),
        order_by=None if order_by is None else KeyPath.parse(order_by),
        concurrency=concurrency,
    )


@pytest.fixture
def route() -> Route:
    return load_config(ROOT / "config/routes.yaml").routes[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-11-16T12:00:00.5+00:00", True),
        ("2026-11-16T12:00:00", True),
        ("2026-11-16", True),
        (int(NOW.timestamp()), True),
        (int(NOW.timestamp() * 1000), True),
        ("2026-11-13T12:00:00+00:00", False),
        ("2026-12-16T12:00:00+00:00", False),
        (1999, False),
        (True, False),
        ("2026-99-16T12:00", False),
        ("infinity", False),
        (10**30, False),
    ],
)
def test_a_time_of_the_rehearsal_is_told_from_one_of_the_event(value: Any, expected: bool) -> None:
    assert is_recent(value, NOW) is expected


def test_columns_that_the_database_fills_anew_are_left_out_of_comparisons() -> None:
    one = {"orders": [{"id": "a", "status": "paid", "at": 1, "token": "x"}]}
    other = {"orders": [{"id": "a", "status": "paid", "at": 1, "token": "y"}]}
    assert not compare([ORDERS], one, other, learn([ORDERS], one, one))
    assert compare([ORDERS], one, other, {})


def test_columns_that_differ_between_two_single_runs_are_left_out_and_their_rows_counted() -> None:
    one, other = [{"orders": [{"id": id, "status": "paid"}]} for id in "ab"]
    masks = learn([ORDERS], one, other)
    third = {"orders": [{"id": "c", "status": "paid"}]}
    fourth = {"orders": [{"id": id, "status": "paid"} for id in "cd"]}
    assert not compare([ORDERS], one, third, masks)
    [difference] = compare([ORDERS], one, fourth, masks)
    [change] = difference.changes
    assert change.before is None
    assert change.after == {"status": "paid"}


def test_a_row_that_changed_is_told_as_one_change() -> None:
    one, other = [
        {"orders": [{"id": "a", "status": s}, {"id": "b", "status": "new"}]} for s in "xy"
    ]
    [difference] = compare([ORDERS], one, other, {})
    [change] = difference.changes
    assert change.before == {"id": "a", "status": "x"}
    assert change.after == {"id": "a", "status": "y"}


def step(text: str, *arguments: object, rows: int = 0) -> Step:
    return Step(
        number=0, kind=StepKind.STATEMENT, text=text, place=None, rows=rows, arguments=arguments
    )


def test_a_row_is_made_up_for_a_statement_that_found_none() -> None:
    [row] = wanted_rows([step("UPDATE orders o SET status = $2 WHERE o.id = $1", "a", 1)], [ORDERS])
    assert row.arguments == ("a",)
    assert row.sql == (
        'insert into "public"."orders" ("id", "status") overriding system value values ($1, \'\')'
    )


@pytest.mark.parametrize(
    "found",
    [
        step("update orders set status = $2 where id = $1", "a", rows=1),
        step("update elsewhere set status = $2 where id = $1", "a"),
        step("insert into orders (id) values ($1) on conflict do nothing", "a"),
        step("insert into orders (id) values ($1) on conflict (id) do update set status = ''", "a"),
    ],
)
def test_no_row_is_made_up_where_none_is_missing_or_none_is_looked_for(found: Step) -> None:
    assert not list(wanted_rows([found], [ORDERS]))


def test_a_killed_run_does_nothing_any_more() -> None:
    run = RehearsedRun(root=ROOT, kill_at=Moment(step=1, is_after=False))
    run.finish(run.begin(StepKind.STATEMENT, "one"))
    with pytest.raises(Killed):
        run.begin(StepKind.STATEMENT, "two")
    with pytest.raises(Killed):
        run.begin(StepKind.CALL, "three")
    assert [step.text for step in run.steps] == ["one", "two"]


async def test_a_resource_is_stood_in_for_and_its_calls_are_recorded() -> None:
    run, mailer = RehearsedRun(root=ROOT), StandIn("mailer")
    with running(run):
        async with mailer.pool.acquire() as connection:
            answer = await connection.send("jenny", idempotency_key="k")
            assert [item async for item in answer.attachments()] == []
        assert list(mailer.list_messages()) == []
    assert f"{answer}" == "mailer.pool.acquire.send"
    assert orjson.dumps({"id": answer}) == b'{"id":"mailer.pool.acquire.send"}'
    assert [(call.text, call.is_write, call.key) for call in run.calls] == [
        ("ctx.resources.mailer.pool.acquire(...)", False, None),
        ("ctx.resources.mailer.pool.acquire.send(...)", True, "k"),
        ("ctx.resources.mailer.pool.acquire.send.attachments(...)", True, None),
        ("ctx.resources.mailer.list_messages(...)", False, None),
    ]
    assert run.calls[1].content == "'jenny', idempotency_key='k'"
    assert run.calls[1].place == f"tests/unit/test_rehearse.py:{_line('connection.send(')}"


async def test_a_stand_in_for_a_client_is_asked_and_written_to() -> None:
    run, crm = RehearsedRun(root=ROOT), StandIn("crm")
    with running(run):
        answer = await crm.get("/contacts/1")
        answer.raise_for_status()
        assert answer.status_code < 400
        assert answer.json()["name"]
        await crm.post("/contacts", json={}, headers={"Idempotency-Key": "k"})
    writes = [(call.text, call.key) for call in run.calls if call.is_write]
    assert writes == [("ctx.resources.crm.post(...)", "k")]


async def _client() -> AsyncIterator[httpx.AsyncClient]:
    yield httpx.AsyncClient()


async def _blocking_client() -> AsyncIterator[httpx.Client]:
    yield httpx.Client()


async def _text() -> AsyncIterator[str]:
    yield "a text"


async def _for_type_checkers() -> AsyncIterator["NotImported"]:  # type: ignore[name-defined]  # noqa: F821
    yield None


@pytest.mark.parametrize(
    ("function", "ways"),
    [
        (_client, HTTP),
        (_blocking_client, HTTP),
        (_text, RESOURCE),
        (_for_type_checkers, RESOURCE),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_calls_of_an_http_client_fail_like_requests(
    function: ResourceFunction, ways: tuple[Outage, ...]
) -> None:
    run, crm = RehearsedRun(root=ROOT), make_stand_in("crm", function)
    with running(run):
        crm.post("/contacts", json={})
        crm.request("PATCH", "/contacts/1")
    assert [step.outages for step in run.steps] == [ways, ways]


@pytest.mark.parametrize("method", ["post", "request"])
async def test_a_client_returns_an_error_response_that_once_understands(method: str) -> None:
    outage = Outage(words="answered 401", status=401)
    run = RehearsedRun(root=ROOT, failing=Failing(step=0, outage=outage))
    crm = make_stand_in("crm", _client)
    arguments = ("POST", "/contacts") if method == "request" else ("/contacts",)
    with running(run), counting_requests() as made:
        response = await getattr(crm, method)(*arguments)
        assert (response.status_code, response.is_error) == (401, True)
        with pytest.raises(httpx.HTTPStatusError) as refused:
            response.raise_for_status()
    assert classify(refused.value, made) is CallOutcome.NOT_DONE
    assert run.has_seen_status


def _line(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_mail_of_the_standard_library_is_recorded_and_not_sent() -> None:
    run, message = RehearsedRun(root=ROOT), EmailMessage()
    message["To"], message["From"] = "jenny@example.com, ben@example.com", "shop@example.com"
    original = smtplib.SMTP.sendmail
    with running(run), recorded_mail(), smtplib.SMTP_SSL("mail.invalid") as server:
        server.login("shop", "secret")
        assert server.send_message(message) == {}
    assert smtplib.SMTP.sendmail is original
    assert [call.text for call in run.calls] == ["e-mail to jenny@example.com, ben@example.com"]
    assert "secret" not in run.calls[0].content


async def test_what_is_secret_in_a_call_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAT_TOKEN", "T0p5ecret/abc")
    run = RehearsedRun(root=ROOT)
    client = httpx.AsyncClient(transport=RecordingTransport(Answers(NOW)), trust_env=False)
    with running(run):
        await client.post(
            "https://me:pass@chat.test/T0p5ecret/abc?key=k1", json={"t": "T0p5ecret/abc"}
        )
    [call] = run.calls
    assert call.text == "POST https://chat.test/$CHAT_TOKEN?..."
    assert call.content == '{"t":"$CHAT_TOKEN"}'
    assert run.steps[0].text == call.text


def _connect_by_socket() -> None:
    with socket.socket() as probe:
        probe.connect(("192.0.2.1", 8080))


def _send_a_datagram() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.sendto(b"x", ("192.0.2.1", 8125))


def _look_up() -> None:
    socket.getaddrinfo("host.invalid", 443)


def _connect_to_another_socket() -> None:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect("/run/other/.s.PGSQL.5432")


def _start_a_program() -> None:
    subprocess.run(["true"], check=True)


@pytest.mark.parametrize(
    ("reach", "target"),
    [
        (_connect_by_socket, "192.0.2.1:8080"),
        (_send_a_datagram, "192.0.2.1:8125"),
        (_look_up, "host.invalid:443"),
        (_connect_to_another_socket, "/run/other/.s.PGSQL.5432"),
        (_start_a_program, "true"),
    ],
)
def test_every_way_out_is_refused_and_told_with_its_line(
    reach: Callable[[], None], target: str
) -> None:
    guard = RehearsalGuard(ROOT)

    async def rehearse() -> None:
        with (
            rehearsing(guard),
            running(RehearsedRun(root=ROOT)),
            pytest.raises(ConnectionRefusedError),
        ):
            reach()
        with (
            rehearsing(guard),
            running(RehearsedRun(root=ROOT)),
            pytest.raises(ConnectionRefusedError),
        ):
            await asyncio.to_thread(reach)

    with asyncio.Runner(loop_factory=RehearsalLoop) as runner:
        runner.run(rehearse())
    [escape] = guard.escapes.values()
    assert escape.target == target
    assert (escape.place or "").startswith("tests/unit/test_rehearse.py:")


def test_an_event_loop_reaches_nothing_either() -> None:
    guard = RehearsalGuard(ROOT)

    async def rehearse() -> None:
        with rehearsing(guard), running(RehearsedRun(root=ROOT)):
            async with httpx.AsyncClient(trust_env=False) as client:
                with pytest.raises(httpx.ConnectError):
                    await client.get("http://host.invalid/x")
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("192.0.2.1", 25)

    with asyncio.Runner(loop_factory=RehearsalLoop) as runner:
        runner.run(rehearse())
    assert list(guard.escapes) == ["host.invalid:80", "192.0.2.1:25"]
    assert all(escape.place for escape in guard.escapes.values())


def test_without_a_guard_everything_is_as_ever() -> None:
    guard = RehearsalGuard(ROOT)

    async def rehearse() -> None:
        with rehearsing(guard):
            pass
        subprocess.run(["true"], check=True)  # noqa: ASYNC221 (ends at once)

    with asyncio.Runner(loop_factory=RehearsalLoop) as runner:
        runner.run(rehearse())
    assert not guard.escapes


def test_the_object_of_the_event_is_what_a_request_for_it_is_answered_with() -> None:
    answers = Answers(NOW)
    payload = {"data": {"object": {"id": "sub_1", "status": "active"}}, "url": "https://x.test/y"}
    own = httpx.Request("GET", "https://api.stripe.com/v1/subscriptions/sub_1?expand=items")
    assert answers.answer(own, payload)["status"] == "active"
    assert answers.answer(httpx.Request("GET", "https://x.test/y"), payload) == payload
    other = httpx.Request("GET", "https://api.stripe.com/v1/customers/cus_1")
    assert answers.answer(other, payload)["id"] == "cus_1"
    assert answers.answer(other, payload)["email"]
    assert answers.answer(other, payload) == answers.answer(other, payload)
    assert answers.answer(httpx.Request("GET", "https://x.test/z"), payload) == {}
    created = httpx.Request("POST", "https://api.stripe.com/v1/refunds")
    assert answers.answer(created, payload)["object"] == "refund"
    listed = httpx.Request("GET", "https://api.stripe.com/v1/refunds")
    assert answers.answer(listed, payload)["data"] == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[", "found no JSON"),
        ("{}", "found dict; expected a JSON list of"),
        ('[{"method": "GET"}]', "answer 1: found no url"),
        ('[{"url": "x"}, {"url": "x", "body": 1}]', "answer 2: found body; expected"),
        ('[{"url": "x", "status": 99}]', "status 99; expected a method such as POST"),
        ('[{"url": "x", "status": "ok"}]', "status 'ok'; expected a method such as POST"),
    ],
)
def test_answers_that_are_none_are_refused(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "answers.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(CommandFailed, match=r"answers\.json: ") as refused:
        load_answers(file)
    assert told in str(refused.value)


async def test_a_request_is_answered_as_was_said_last_and_may_only_read(tmp_path: Path) -> None:
    file = tmp_path / "answers.json"
    file.write_text('[{"url": "https://x.test/*"}, {"url": "https://x.test/y", "status": 404}]')
    wire = RecordingTransport(Answers(NOW, load_answers(file)), reads=["https://x.test/y*"])
    run = RehearsedRun(root=ROOT)
    async with httpx.AsyncClient(transport=wire, trust_env=False) as client:
        with running(run):
            answers = [await client.post(f"https://x.test/{name}") for name in ("y", "z")]
            await client.post("https://other.test/")
    assert [(answer.status_code, answer.json()) for answer in answers] == [(404, {}), (200, {})]
    assert [call.is_write for call in run.calls] == [False, True, True]
    assert run.invented == ["POST https://other.test/"]


def test_the_newest_state_that_is_known_is_the_answer() -> None:
    newer, older = [{"data": {"object": {"id": "sub_1", "n": n}}} for n in (2, 1)]
    request = httpx.Request("GET", "https://api.stripe.com/v1/subscriptions/sub_1")
    assert Answers(NOW).answer(request, [newer, older])["n"] == 2


def test_a_handler_is_tried_on_the_samples_of_its_types(route: Route) -> None:
    occasions = find_occasions(subscription("invoice.p*"), route, {}, NOW)
    types = [occasion.label for occasion in occasions]
    assert types == ["invoice.paid", "invoice.payment_failed", "invoice.payment_succeeded"]
    live = find_occasions(subscription("invoice.paid"), replace(route, livemode=True), {}, NOW)
    assert [occasion.envelope.livemode for occasion in live] == [True]
    unwanted = replace(route, types=("charge.*",))
    assert not find_occasions(subscription("invoice.paid"), unwanted, {}, NOW)


def test_a_named_type_without_a_sample_is_tried_with_the_object_of_other_types(
    route: Route,
) -> None:
    handler = subscription(
        "invoice.voided", "charge.dispute.closed", "invoice.pai?", "file.created"
    )
    occasions = find_occasions(handler, route, {}, NOW)
    assert [occasion.label for occasion in occasions] == [
        "invoice.paid",
        "invoice.voided (with the invoice of other events)",
        "charge.dispute.closed (with the dispute of other events)",
    ]
    voided = occasions[1]
    assert voided.envelope.type == voided.payload["type"] == "invoice.voided"
    invoice = voided.payload["data"]["object"]
    assert (invoice["object"], invoice["id"][:3]) == ("invoice", "in_")
    assert find_pairs(handler, occasions, NOW)
    row = MadeUp(table="invoices", sql="", arguments=())
    with_row = voided.with_row(row)
    assert with_row is not None
    assert with_row.label == f"{voided.label}, with a row made up in invoices"
    assert without_sample(handler, occasions) == ["file.created"]
    assert not find_occasions(subscription("invoice.v*"), route, {}, NOW)  # no type is named


def test_recorded_events_take_the_place_of_samples(route: Route) -> None:
    sample = make_sample("stripe", "file.created", now=NOW)
    recorded = Recorded(
        provider="stripe", type=sample.type, id=sample.id, headers={}, body=sample.body
    )
    files = {"file.json": recorded, "other.json": replace(recorded, provider="github")}
    occasions = find_occasions(subscription("file.*", "invoice.*"), route, files, NOW)
    assert [occasion.label for occasion in occasions] == ["file.created (file.json)"]
    assert occasions[0].envelope.id == sample.id


def test_pairs_are_of_one_object_and_go_the_way_of_its_life(route: Route) -> None:
    handler = subscription("customer.created", "customer.updated", "customer.deleted")
    occasions = find_occasions(handler, route, {}, NOW)
    pairs = find_pairs(handler, occasions, NOW)
    ways = {(pair.older.envelope.type, pair.newer.envelope.type) for pair in pairs}
    assert ways == {
        ("customer.updated", "customer.updated"),
        ("customer.created", "customer.updated"),
        ("customer.created", "customer.deleted"),
        ("customer.updated", "customer.deleted"),
    }
    for pair in pairs:
        older, newer = pair.older, pair.newer
        assert older.payload["data"]["object"]["id"] == newer.payload["data"]["object"]["id"]
        assert older.envelope.id != newer.envelope.id
        assert older.payload["created"] < newer.payload["created"]


def test_of_two_ends_only_one_can_come(route: Route) -> None:
    handler = subscription("payment_intent.succeeded", "payment_intent.canceled")
    pairs = find_pairs(handler, find_occasions(handler, route, {}, NOW), NOW)
    ways = [(p.older.envelope.type, p.newer.envelope.type, p.is_one_time) for p in pairs]
    assert ways == [("payment_intent.succeeded", "payment_intent.succeeded", True)]


def test_what_happens_once_per_key_is_not_tried_in_pairs_of_that_key(route: Route) -> None:
    by_object = subscription("customer.updated", once_per="data.object.id")
    occasions = find_occasions(by_object, route, {}, NOW)
    assert not find_pairs(by_object, occasions, NOW)
    by_event = subscription("customer.updated", once_per="id")
    assert find_pairs(by_event, occasions, NOW)


def test_what_is_too_much_is_thinned_out_evenly() -> None:
    assert evenly(range(10), 20) == list(range(10))
    assert evenly(range(10), 4) == [0, 3, 6, 9]


def test_relatives_are_the_same_change_and_other_objects_of_the_customer(route: Route) -> None:
    handler = subscription("checkout.session.completed")
    [occasion] = find_occasions(handler, route, {}, NOW)
    repeat, sibling, later = find_relatives(occasion)
    assert (repeat.relation, sibling.relation) == (Relation.REPEAT, Relation.SIBLING)
    assert repeat.words == "two events of one change"
    assert sibling.words == "two objects of one customer"
    assert later.words == "two more objects of one customer"
    own = occasion.payload["data"]["object"]
    assert repeat.newer.envelope.id == repeat.newer.payload["id"] != occasion.envelope.id
    assert repeat.newer.payload["data"]["object"] == own
    other = sibling.newer.payload["data"]["object"]
    assert {n for n in own if other[n] != own[n]} == {
        "id",
        "payment_intent",
        "client_reference_id",
        "metadata",
    }
    assert later.before is not None
    ids = {o.envelope.id for o in (later.older, later.newer, later.before)}
    assert len(ids) == 3


def test_relatives_on_github_are_of_one_repository() -> None:
    routes = load_config(ROOT / "config/routes.yaml").routes
    route = next(route for route in routes if route.provider.name == "github")
    handler = subscription("issues.opened")
    [occasion] = find_occasions(handler, route, {}, NOW)
    sibling, _ = find_relatives(occasion)
    assert sibling.words == "two objects of one repository"
    one, other = occasion.payload, sibling.newer.payload
    assert one["repository"] == other["repository"]
    assert one["issue"]["number"] != other["issue"]["number"]
    assert other["issue"]["html_url"].endswith(f"/{other['issue']['number']}")
    assert sibling.newer.headers["x-github-delivery"] == sibling.newer.envelope.id


@pytest.mark.parametrize(
    ("options", "repeat", "sibling"),
    [
        ({}, False, False),
        ({"order_by": "data.object.customer"}, True, True),
        ({"order_by": "data.object.id"}, True, False),
        ({"order_by": "no.such.field"}, False, False),
        ({"once_per": "id"}, False, False),
        ({"concurrency": 1}, True, True),
        ({"concurrency": 2}, False, False),
    ],
)
def test_what_the_gateway_runs_one_at_a_time_takes_turns(
    route: Route, options: dict[str, Any], repeat: bool, sibling: bool
) -> None:
    handler = subscription("payment_intent.succeeded", **options)
    [occasion] = find_occasions(handler, route, {}, NOW)
    pairs = find_relatives(occasion)
    found = {pair.relation: run_in_turn(handler, pair.older, pair.newer) for pair in pairs}
    assert found == {Relation.REPEAT: repeat, Relation.SIBLING: sibling}


def test_a_payment_that_comes_later_belongs_to_a_session_that_is_not_paid_yet(route: Route) -> None:
    handler = subscription("checkout.session.completed", "checkout.session.async_payment_succeeded")
    pairs = find_pairs(handler, find_occasions(handler, route, {}, NOW), NOW)
    [mixed] = [pair for pair in pairs if pair.is_one_fact]
    assert mixed.label == "checkout.session.completed and checkout.session.async_payment_succeeded"
    states = [o.payload["data"]["object"]["payment_status"] for o in (mixed.older, mixed.newer)]
    assert states == ["unpaid", "paid"]


async def _answered(outage: Outage) -> tuple[RehearsedRun, httpx.Response]:
    run = RehearsedRun(root=ROOT, failing=Failing(step=0, outage=outage))
    async with httpx.AsyncClient(transport=RecordingTransport(Answers(NOW))) as client:
        with running(run):
            return run, await client.post("https://mail.example/send")


@pytest.mark.parametrize("outage", services.HTTP, ids=lambda outage: outage.words)
async def test_every_request_to_a_failing_callee_fails_and_others_do_not(outage: Outage) -> None:
    run = RehearsedRun(root=ROOT, failing=Failing(step=1, outage=outage))
    async with httpx.AsyncClient(transport=RecordingTransport(Answers(NOW))) as client:
        with running(run):
            assert (await client.get("https://mail.example/send")).is_success
            for _ in range(2):
                if outage.status is None:
                    with pytest.raises(httpx.TransportError):
                        await client.post("https://mail.example/send")
                else:
                    answer = await client.post("https://mail.example/send")
                    assert answer.status_code == outage.status
            assert (await client.post("https://other.example/send")).is_success
    assert [call.outage for call in run.calls] == [None, outage, outage, None]
    assert [c.is_received for c in run.calls] == [True, *[outage.is_received] * 2, True]


async def test_a_failed_answer_notes_who_looks_at_its_status() -> None:
    run, answer = await _answered(services.HTTP[0])
    assert answer.json()["error"]["code"] == "rehearsed_500"
    assert answer.headers["content-type"] == "application/json"
    assert not run.has_seen_status
    with pytest.raises(httpx.HTTPStatusError):
        answer.raise_for_status()
    assert run.has_seen_status
    for look in ("status_code", "is_success", "is_error"):
        run, answer = await _answered(services.HTTP[0])
        assert getattr(answer, look) is not None
        assert run.has_seen_status


@pytest.mark.parametrize("outage", services.MAIL, ids=lambda outage: outage.words)
def test_mail_to_a_failing_server_raises_what_smtplib_would(outage: Outage) -> None:
    run = RehearsedRun(root=ROOT, failing=Failing(step=0, outage=outage))
    refused = pytest.raises((smtplib.SMTPException, ConnectionRefusedError))
    with recorded_mail(), running(run), smtplib.SMTP("mail.example") as server, refused:
        server.sendmail("a@example.com", "b@example.com", "hello")
    [call] = run.calls
    assert call.is_received is outage.is_received


async def test_a_resource_fails_at_what_it_is_to_do_and_not_at_what_it_only_asks() -> None:
    run = RehearsedRun(root=ROOT)
    with running(run):
        StandIn("mailer").send("x")
        StandIn("mailer").get_template("x")
    assert [step.outages for step in run.steps] == [services.RESOURCE, ()]
    failing = RehearsedRun(root=ROOT, failing=Failing(step=0, outage=services.RESOURCE[0]))
    with running(failing), pytest.raises(ConnectionRefusedError):
        StandIn("mailer").send("x")


async def test_runs_in_a_failing_world_do_not_wait_between_their_own_retries() -> None:
    run = RehearsedRun(root=ROOT, failing=Failing(step=0, outage=services.HTTP[0]))
    with quick_sleeps(), running(run):
        async with asyncio.timeout(5):
            await asyncio.sleep(3600)
    with quick_sleeps(), running(RehearsedRun(root=ROOT)), pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.sleep(3600)
