"""Successors: a later event of the same object, in a state that the provider has."""

import json
from datetime import UTC, datetime, timedelta
from itertools import product
from operator import attrgetter
from typing import Any

import pytest
import stripe

from gateway.providers import PROVIDERS, Incoming
from gateway.providers.samples import Sample, make_sample, make_successor, sample_types
from gateway.providers.samples.changes import STRIPE_STATUSES
from gateway.providers.samples.sample import find_template
from tests.support.stripe_shapes import shape_problems

NOW = datetime(2026, 11, 16, 12, 0, 7, 250_000, tzinfo=UTC)
ALL = [(name, type) for name in ("stripe", "github") for type in sample_types(name)]
CLIENT = stripe.StripeClient("sk_test_unused")
SNAPSHOTS = [type for type in sample_types("stripe") if not type.startswith("v1.")]


def kind(type: str) -> str:
    return str(find_template("stripe", type)["data"]["object"]["object"])


PAIRS = [(a, b) for a, b in product(SNAPSHOTS, SNAPSHOTS) if a != b and kind(a) == kind(b)]


def state(sample: Sample) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sample.body)["data"]["object"]
    return found


def pair(provider: str, type: str, then: str | None = None) -> tuple[Any, Any]:
    first = make_sample(provider, type, now=NOW)
    second = make_successor(provider, first, now=NOW, type=then)
    return json.loads(first.body), json.loads(second.body)


@pytest.mark.parametrize(("provider", "type"), ALL)
def test_every_sample_has_a_successor_that_passes_its_provider(provider: str, type: str) -> None:
    first = make_sample(provider, type, now=NOW)
    second = make_successor(provider, first, now=NOW)
    scheme = PROVIDERS[provider]
    sent = scheme.sign(second.body, secret=b"s", id=second.id, type=second.type, now=NOW)
    envelope = scheme.read(Incoming(sent.headers, sent.body))
    assert (envelope.id, envelope.type) == (second.id, type)
    assert first.id != second.id
    if type == "ping":
        return  # a ping is about a hook, which is as it was
    assert json.loads(first.body) != json.loads(second.body)


@pytest.mark.parametrize("type", SNAPSHOTS)
def test_the_successor_of_a_snapshot_is_later_about_the_same_object_and_changed(type: str) -> None:
    first, second = pair("stripe", type)
    before, after = first["data"]["object"], second["data"]["object"]
    assert second["created"] >= first["created"] + 60
    assert (before["id"], before["object"]) == (after["id"], after["object"])
    assert before.get("created") == after.get("created")
    assert before != after


@pytest.mark.parametrize(("type", "then"), [*((type, None) for type in SNAPSHOTS), *PAIRS])
def test_a_successor_has_the_shape_that_stripe_declares(type: str, then: str | None) -> None:
    first = make_sample("stripe", type, now=NOW)
    second = make_successor("stripe", first, now=NOW, type=then)
    declared = CLIENT.construct_event_without_verification(second.body).data.object.__class__
    assert list(shape_problems(state(second), declared, "")) == []
    assert state(second)["id"] == state(first)["id"]


def test_the_statuses_of_the_table_are_those_of_stripe() -> None:
    names = "Charge Dispute Invoice PaymentIntent Payout Quote Refund SetupIntent Subscription"
    names += " SubscriptionSchedule checkout.Session"
    classes = [attrgetter(name)(stripe) for name in names.split()]
    declared = {cls.OBJECT_NAME: cls for cls in classes}

    def invalid(name: str, statuses: set[str]) -> list[str]:
        found = [p for s in statuses for p in shape_problems({"status": s}, declared[name], "")]
        return [problem for problem in found if problem.startswith(".status: ")]

    for name, steps in STRIPE_STATUSES.items():
        assert invalid(name, {*steps, *steps.values()}) == []
    checked = {name for name in STRIPE_STATUSES if invalid(name, {"wishful"})}
    # Payouts and refunds have a status that the library declares as any text.
    assert checked >= {"dispute", "invoice", "payment_intent", "setup_intent", "subscription"}


def test_a_status_moves_only_where_the_type_leaves_it_open() -> None:
    before, after = (e["data"]["object"] for e in pair("stripe", "customer.subscription.updated"))
    assert (before["status"], after["status"]) == ("active", "past_due")
    for type in ("invoice.payment_failed", "customer.subscription.deleted", "payout.paid"):
        first, second = pair("stripe", type)
        assert first["data"]["object"]["status"] == second["data"]["object"]["status"]


def test_an_update_says_what_was_before() -> None:
    first, second = pair("stripe", "customer.subscription.updated")
    previous = second["data"]["previous_attributes"]
    before = first["data"]["object"]
    assert previous["status"] == "active"
    assert previous == {key: before[key] for key in previous}


def test_what_was_equal_stays_equal() -> None:
    first, second = pair("stripe", "invoice.paid")
    before, after = first["data"]["object"], second["data"]["object"]
    for name in ("amount_due", "amount_paid", "total", "subtotal"):
        assert after[name] == before["total"] + 250
    assert after["lines"]["data"][0]["pricing"]["unit_amount_decimal"] == f"{after['total']}.0"
    assert after["amount_shipping"] == 0
    assert after["attempt_count"] == before["attempt_count"] + 1


def test_a_type_of_the_same_kind_gives_its_state_with_the_ids_of_the_first() -> None:
    first, second = pair("stripe", "invoice.created", "invoice.paid")
    before, after = first["data"]["object"], second["data"]["object"]
    assert (before["status"], after["status"]) == ("draft", "paid")
    assert after["amount_paid"] == after["amount_due"] == before["amount_due"]
    for name in ("id", "customer", "created", "lines", "parent"):
        assert before[name] == after[name]
    assert second["type"] == "invoice.paid"


def test_a_recorded_body_keeps_what_the_template_does_not_know() -> None:
    document = json.loads(make_sample("stripe", "customer.subscription.created", now=NOW).body)
    document["data"]["object"] |= {"metadata": {"tenant": "t1"}, "brand_new_field": [1]}
    del document["data"]["object"]["description"]
    first = Sample(id=document["id"], type=document["type"], body=json.dumps(document).encode())
    deleted = make_successor("stripe", first, now=NOW, type="customer.subscription.deleted")
    assert state(deleted)["status"] == "canceled"
    assert state(deleted)["metadata"] == {"tenant": "t1", "revision": "2"}
    assert state(deleted)["brand_new_field"] == [1]
    third = make_successor("stripe", deleted, now=NOW)
    assert state(third)["metadata"]["revision"] == "3"


@pytest.mark.parametrize(
    ("like", "type", "then", "status"),
    [
        ("invoice.created", "invoice.sent", "invoice.paid", "paid"),
        ("invoice.finalized", "invoice.created", "invoice.overdue", "open"),
        ("refund.created", "charge.refund.updated", "refund.updated", "succeeded"),
        ("refund.created", "refund.created", "charge.refund.updated", "failed"),
        ("product.updated", "product.created", "product.updated", None),
    ],
)
def test_a_type_without_a_template_is_the_same_object_too(
    like: str, type: str, then: str, status: str | None
) -> None:
    sample = make_sample("stripe", like, now=NOW)
    body = sample.body.replace(like.encode(), type.encode())
    first = Sample(id=sample.id, type=type, body=body)
    second = make_successor("stripe", first, now=NOW, type=then)
    for name in ("id", "customer", "currency", "object"):
        assert state(second).get(name) == state(first).get(name)
    assert state(second).get("status") == status
    assert state(second).keys() == state(first).keys()


@pytest.mark.parametrize("then", ["issues.closed", "issues.pinned"])
def test_an_action_without_a_template_is_of_the_same_issue_too(then: str) -> None:
    document = json.loads(make_sample("github", "issues.opened", now=NOW).body)
    document["action"] = "milestoned"
    first = Sample(id="x", type="issues.milestoned", body=json.dumps(document).encode())
    second = json.loads(make_successor("github", first, now=NOW, type=then).body)
    assert second["issue"]["number"] == document["issue"]["number"]
    assert second["issue"]["url"] == document["issue"]["url"]
    assert second["action"] == then.removeprefix("issues.")
    assert second["issue"] != document["issue"]


def test_a_thin_event_is_about_the_same_object_later() -> None:
    first, second = pair("stripe", "v1.billing.meter.error_report_triggered")
    assert first["related_object"] == second["related_object"]
    assert second["created"] == "2026-11-16T12:01:07.250Z"


def test_a_later_push_follows_the_first() -> None:
    first, second = pair("github", "push")
    assert second["before"] == first["after"]
    assert second["after"] == second["head_commit"]["id"] == second["commits"][-1]["id"]
    assert second["after"] not in (first["before"], first["after"])
    assert second["repository"]["pushed_at"] >= first["repository"]["pushed_at"] + 60
    assert second["ref"] == first["ref"]


def test_a_pull_request_goes_on_and_is_closed() -> None:
    first, second = pair("github", "pull_request.opened")
    before, after = first["pull_request"], second["pull_request"]
    assert (before["number"], before["id"]) == (after["number"], after["id"])
    assert before["title"] != after["title"]
    assert before["head"]["sha"] != after["head"]["sha"]
    assert after["head"]["sha"] in after["statuses_url"]
    assert after["updated_at"] == "2026-11-16T12:01:07Z"
    first, closed = pair("github", "pull_request.opened", "pull_request.closed")
    assert (closed["action"], closed["pull_request"]["state"]) == ("closed", "closed")
    assert closed["pull_request"]["merged_at"] == "2026-11-16T12:01:07Z"
    assert closed["pull_request"]["created_at"] == first["pull_request"]["created_at"]
    assert closed["number"] == first["number"]


def test_the_label_of_an_event_is_gone_from_the_next_of_another_type() -> None:
    labeled, closed = pair("github", "issues.labeled", "issues.closed")
    assert "label" in labeled
    assert "label" not in closed
    assert closed["repository"]["id"] == labeled["repository"]["id"]


def test_a_successor_is_never_before_now() -> None:
    first = make_sample("stripe", "invoice.paid", now=NOW)
    later = NOW + timedelta(days=3)
    second = json.loads(make_successor("stripe", first, now=later).body)
    assert second["created"] == int(later.timestamp())


@pytest.mark.parametrize(
    ("provider", "type", "then", "problem"),
    [
        ("stripe", "invoice.paid", "charge.refunded", "of the kind charge; expected one of inv"),
        ("stripe", "invoice.paid", "v1.billing.meter.x", "expected one of the same kind"),
        ("stripe", "v1.billing.meter.x", "invoice.paid", "expected one of the same kind"),
        ("stripe", "invoice.paid", "Invoice", "type: found"),
        ("github", "issues.opened", "push", "of the kind push; expected one of issues"),
    ],
)
def test_a_type_of_another_kind_is_a_value_error(
    provider: str, type: str, then: str, problem: str
) -> None:
    first = make_sample(provider, type, now=NOW)
    with pytest.raises(ValueError, match=problem):
        make_successor(provider, first, now=NOW, type=then)


@pytest.mark.parametrize(
    ("provider", "body"),
    [
        ("stripe", b"[]"),
        ("stripe", b"{}"),
        ("stripe", b"not JSON"),
        ("stripe", b'{"object": "event", "data": {"object": 7}}'),
        ("github", b"null"),
        ("paypal", b"{}"),
    ],
)
def test_a_body_that_is_no_event_is_a_value_error(provider: str, body: bytes) -> None:
    with pytest.raises(ValueError, match=r"expected|data\.object|unexpected"):
        make_successor(provider, Sample(id="x", type="a.b", body=body), now=NOW)


@pytest.mark.parametrize(
    "body",
    [
        {"pull_request": None, "repository": "text"},
        {"pull_request": {"head": 7, "updated_at": 9e99}, "after": 4},
        {"pull_request": {"head": {"sha": "0" * 40}, "updated_at": "yesterday"}},
    ],
)
def test_odd_parts_of_a_recorded_body_are_left_alone(body: dict[str, Any]) -> None:
    first = Sample(id="x", type="pull_request.opened", body=json.dumps(body).encode())
    second = make_successor("github", first, now=NOW, type="pull_request.closed")
    assert json.loads(second.body)["action"] == "closed"
    make_successor("github", first, now=NOW)
