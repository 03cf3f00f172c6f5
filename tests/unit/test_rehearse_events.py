"""The events and rows on which handlers are rehearsed, and the comparison of states."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.base.model import RetryPolicy
from gateway.config.registry import Subscription
from gateway.config.registry.key_path import KeyPath
from gateway.config.routes import Route, load_config
from gateway.providers.samples import Recorded, make_sample
from gateway.testing.rehearse.database import Column, InventedRow, Table, compare, is_recent, learn
from gateway.testing.rehearse.events import evenly, find_events, invent_rows, without_sample
from gateway.testing.rehearse.pairs import Relation, find_pairs, find_relatives, run_in_turn
from gateway.testing.rehearse.trace import (
    Step,
    StepKind,
)

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
    [row] = invent_rows([step("UPDATE orders o SET status = $2 WHERE o.id = $1", "a", 1)], [ORDERS])
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
    assert not list(invent_rows([found], [ORDERS]))


def test_a_handler_is_tried_on_the_samples_of_its_types(route: Route) -> None:
    events = find_events(subscription("invoice.p*"), route, {}, NOW)
    types = [event.label for event in events]
    assert types == ["invoice.paid", "invoice.payment_failed", "invoice.payment_succeeded"]
    live = find_events(subscription("invoice.paid"), replace(route, livemode=True), {}, NOW)
    assert [event.received.livemode for event in live] == [True]
    unwanted = replace(route, types=("charge.*",))
    assert not find_events(subscription("invoice.paid"), unwanted, {}, NOW)


def test_a_named_type_without_a_sample_is_tried_with_the_object_of_other_types(
    route: Route,
) -> None:
    handler = subscription(
        "invoice.voided", "charge.dispute.closed", "invoice.pai?", "file.created"
    )
    events = find_events(handler, route, {}, NOW)
    assert [event.label for event in events] == [
        "invoice.paid",
        "invoice.voided (with the invoice of other events)",
        "charge.dispute.closed (with the dispute of other events)",
    ]
    voided = events[1]
    assert voided.received.type == voided.payload["type"] == "invoice.voided"
    invoice = voided.payload["data"]["object"]
    assert (invoice["object"], invoice["id"][:3]) == ("invoice", "in_")
    assert find_pairs(handler, events, NOW)
    row = InventedRow(table="invoices", sql="", arguments=())
    with_row = voided.with_row(row)
    assert with_row is not None
    assert with_row.label == f"{voided.label}, with a row made up in invoices"
    assert without_sample(handler, events) == ["file.created"]
    assert not find_events(subscription("invoice.v*"), route, {}, NOW)  # no type is named


def test_recorded_events_take_the_place_of_samples(route: Route) -> None:
    sample = make_sample("stripe", "file.created", now=NOW)
    recorded = Recorded(
        provider="stripe", type=sample.type, id=sample.id, headers={}, body=sample.body
    )
    files = {"file.json": recorded, "other.json": replace(recorded, provider="github")}
    events = find_events(subscription("file.*", "invoice.*"), route, files, NOW)
    assert [event.label for event in events] == ["file.created (file.json)"]
    assert events[0].received.id == sample.id


def test_pairs_are_of_one_object_and_go_the_way_of_its_life(route: Route) -> None:
    handler = subscription("customer.created", "customer.updated", "customer.deleted")
    events = find_events(handler, route, {}, NOW)
    pairs = find_pairs(handler, events, NOW)
    ways = {(pair.older.received.type, pair.newer.received.type) for pair in pairs}
    assert ways == {
        ("customer.updated", "customer.updated"),
        ("customer.created", "customer.updated"),
        ("customer.created", "customer.deleted"),
        ("customer.updated", "customer.deleted"),
    }
    for pair in pairs:
        older, newer = pair.older, pair.newer
        assert older.payload["data"]["object"]["id"] == newer.payload["data"]["object"]["id"]
        assert older.received.id != newer.received.id
        assert older.payload["created"] < newer.payload["created"]


def test_of_two_ends_only_one_can_come(route: Route) -> None:
    handler = subscription("payment_intent.succeeded", "payment_intent.canceled")
    pairs = find_pairs(handler, find_events(handler, route, {}, NOW), NOW)
    ways = [(p.older.received.type, p.newer.received.type, p.is_one_time) for p in pairs]
    assert ways == [("payment_intent.succeeded", "payment_intent.succeeded", True)]


def test_what_happens_once_per_key_is_not_tried_in_pairs_of_that_key(route: Route) -> None:
    by_object = subscription("customer.updated", once_per="data.object.id")
    events = find_events(by_object, route, {}, NOW)
    assert not find_pairs(by_object, events, NOW)
    by_event = subscription("customer.updated", once_per="id")
    assert find_pairs(by_event, events, NOW)


def test_what_is_too_much_is_thinned_out_evenly() -> None:
    assert evenly(range(10), 20) == list(range(10))
    assert evenly(range(10), 4) == [0, 3, 6, 9]


def test_relatives_are_the_same_change_and_other_objects_of_the_customer(route: Route) -> None:
    handler = subscription("checkout.session.completed")
    [event] = find_events(handler, route, {}, NOW)
    repeat, sibling, later = find_relatives(event)
    assert (repeat.relation, sibling.relation) == (Relation.REPEAT, Relation.SIBLING)
    assert repeat.words == "two events of one change"
    assert sibling.words == "two objects of one customer"
    assert later.words == "two more objects of one customer"
    own = event.payload["data"]["object"]
    assert repeat.newer.received.id == repeat.newer.payload["id"] != event.received.id
    assert repeat.newer.payload["data"]["object"] == own
    other = sibling.newer.payload["data"]["object"]
    assert {n for n in own if other[n] != own[n]} == {
        "id",
        "payment_intent",
        "client_reference_id",
        "metadata",
    }
    assert later.before is not None
    ids = {o.received.id for o in (later.older, later.newer, later.before)}
    assert len(ids) == 3


def test_relatives_on_github_are_of_one_repository() -> None:
    routes = load_config(ROOT / "config/routes.yaml").routes
    route = next(route for route in routes if route.provider.name == "github")
    handler = subscription("issues.opened")
    [event] = find_events(handler, route, {}, NOW)
    sibling, _ = find_relatives(event)
    assert sibling.words == "two objects of one repository"
    one, other = event.payload, sibling.newer.payload
    assert one["repository"] == other["repository"]
    assert one["issue"]["number"] != other["issue"]["number"]
    assert other["issue"]["html_url"].endswith(f"/{other['issue']['number']}")
    assert sibling.newer.received.headers["x-github-delivery"] == sibling.newer.received.id


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
    [event] = find_events(handler, route, {}, NOW)
    pairs = find_relatives(event)
    found = {pair.relation: run_in_turn(handler, pair.older, pair.newer) for pair in pairs}
    assert found == {Relation.REPEAT: repeat, Relation.SIBLING: sibling}


def test_a_payment_that_comes_later_belongs_to_a_session_that_is_not_paid_yet(route: Route) -> None:
    handler = subscription("checkout.session.completed", "checkout.session.async_payment_succeeded")
    pairs = find_pairs(handler, find_events(handler, route, {}, NOW), NOW)
    [mixed] = [pair for pair in pairs if pair.is_one_fact]
    assert mixed.label == "checkout.session.completed and checkout.session.async_payment_succeeded"
    states = [o.payload["data"]["object"]["payment_status"] for o in (mixed.older, mixed.newer)]
    assert states == ["unpaid", "paid"]
