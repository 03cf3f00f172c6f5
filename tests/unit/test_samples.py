"""Samples: every type can be made, passes its provider, and is new each time."""

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import pytest
import stripe

from gateway.base.model import Envelope
from gateway.providers import PROVIDERS, Incoming
from gateway.providers.samples import Sample, make_sample, sample_types
from gateway.providers.samples.template import Blanks, bind, load_template
from tests.support.stripe_shapes import shape_problems

NOW = datetime(2026, 11, 16, 12, 0, 7, 250_000, tzinfo=UTC)
TEMPLATES = [(name, type) for name in ("stripe", "github") for type in sample_types(name)]
STRIPE_SNAPSHOTS = [type for type in sample_types("stripe") if not type.startswith("v1.")]
OTHERS = [
    ("stripe", "topup.succeeded"),
    ("stripe", "invoice.voided"),
    ("stripe", "charge.dispute.updated"),
    ("stripe", "issuing_card.created"),
    ("stripe", "card.updated"),
    ("stripe", "v1.customer.created"),
    ("stripe", "v2.core.account[configuration.merchant].capability_status_updated"),
    ("github", "milestone.created"),
    ("github", "gollum"),
    ("github", "repository_dispatch.Deploy now! ../../x"),
]


def receive(provider: str, sample: Sample) -> Envelope:
    scheme = PROVIDERS[provider]
    sent = scheme.sign(sample.body, secret=b"s3", id=sample.id, type=sample.type, now=NOW)
    incoming = Incoming(sent.headers, sent.body)
    scheme.verify(incoming, keys=[b"s3"], now=NOW, tolerance=scheme.tolerance)
    return scheme.read(incoming)


def data_object(type: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(make_sample("stripe", type, now=NOW).body)
    found: dict[str, Any] = document["data"]["object"]
    return found


@pytest.mark.parametrize(("provider", "type"), TEMPLATES + OTHERS)
def test_every_sample_passes_its_provider(provider: str, type: str) -> None:
    sample = make_sample(provider, type, now=NOW)
    envelope = receive(provider, sample)
    assert sample.type == type
    assert (envelope.id, envelope.type) == (sample.id, type)
    assert b"{{" not in sample.body


@pytest.mark.parametrize(("provider", "type"), TEMPLATES + OTHERS)
def test_every_sample_is_new(provider: str, type: str) -> None:
    first, second = (make_sample(provider, type, now=NOW) for _ in range(2))
    assert first.id != second.id


@pytest.mark.parametrize(("provider", "type"), TEMPLATES)
def test_a_sample_has_about_the_size_of_a_real_event(provider: str, type: str) -> None:
    size = len(make_sample(provider, type, now=NOW).body)
    if type.startswith("v1."):
        assert 300 <= size <= 600
    elif provider == "stripe":
        assert 1_000 <= size <= 6_000
    elif type.startswith("pull_request"):
        assert 24_000 <= size <= 28_000
    else:
        assert 3_000 <= size <= 22_000


def test_the_promised_types_have_templates() -> None:
    assert set(sample_types("stripe")) >= {
        "account.updated",
        "charge.dispute.created",
        "charge.failed",
        "charge.refunded",
        "charge.succeeded",
        "checkout.session.async_payment_succeeded",
        "checkout.session.completed",
        "checkout.session.expired",
        "customer.created",
        "customer.deleted",
        "customer.subscription.created",
        "customer.subscription.deleted",
        "customer.subscription.trial_will_end",
        "customer.subscription.updated",
        "customer.updated",
        "invoice.created",
        "invoice.finalized",
        "invoice.paid",
        "invoice.payment_failed",
        "invoice.payment_succeeded",
        "invoice.upcoming",
        "payment_intent.canceled",
        "payment_intent.created",
        "payment_intent.payment_failed",
        "payment_intent.succeeded",
        "payment_method.attached",
        "payout.failed",
        "payout.paid",
        "price.updated",
        "product.updated",
        "refund.created",
        "refund.updated",
        "setup_intent.succeeded",
        "v1.billing.meter.error_report_triggered",
    }
    assert set(sample_types("github")) >= {
        "check_run.completed",
        "check_suite.completed",
        "create",
        "delete",
        "dependabot_alert.created",
        "deployment.created",
        "deployment_status.created",
        "discussion.created",
        "fork",
        "installation.created",
        "issue_comment.created",
        "issue_comment.edited",
        "issues.assigned",
        "issues.closed",
        "issues.labeled",
        "issues.opened",
        "issues.reopened",
        "label.created",
        "member.added",
        "ping",
        "pull_request.closed",
        "pull_request.labeled",
        "pull_request.opened",
        "pull_request.reopened",
        "pull_request.review_requested",
        "pull_request.synchronize",
        "pull_request_review.submitted",
        "pull_request_review_comment.created",
        "push",
        "release.published",
        "repository.created",
        "repository_dispatch.deploy",
        "star.created",
        "status",
        "watch.started",
        "workflow_dispatch",
        "workflow_job.completed",
        "workflow_run.completed",
    }


def test_the_types_are_listed_for_people() -> None:
    page = Path(__file__).parents[2] / "docs/commands.md"
    section = page.read_text().partition("There are samples of these")[2].partition("\n## ")[0]
    listed = re.findall(r"`([a-z0-9_.]+)`", section)
    assert listed == [*sample_types("stripe"), *sample_types("github")]


@pytest.mark.parametrize(("provider", "type"), [*TEMPLATES, ("stripe", "topup.succeeded")])
def test_livemode_is_false_unless_asked_for(provider: str, type: str) -> None:
    test, live = (
        receive(provider, make_sample(provider, type, now=NOW, livemode=livemode))
        for livemode in (False, True)
    )
    expected = (False, True) if provider == "stripe" else (None, None)
    assert (test.livemode, live.livemode) == expected


def test_the_object_of_an_event_has_the_same_livemode() -> None:
    for livemode in (False, True):
        sample = make_sample("stripe", "payment_intent.succeeded", now=NOW, livemode=livemode)
        assert json.loads(sample.body)["data"]["object"]["livemode"] is livemode


def test_a_sample_happened_now() -> None:
    elsewhere = NOW.astimezone(timezone(timedelta(hours=9)))
    for now in (NOW, elsewhere):
        snapshot = receive("stripe", make_sample("stripe", "invoice.paid", now=now))
        assert snapshot.occurred_at == NOW.replace(microsecond=0)
        thin = make_sample("stripe", "v1.billing.meter.error_report_triggered", now=now)
        assert receive("stripe", thin).occurred_at == NOW
        issue = json.loads(make_sample("github", "issues.opened", now=now).body)["issue"]
        assert issue["created_at"] == "2026-11-16T12:00:07Z"


@pytest.mark.parametrize("type", STRIPE_SNAPSHOTS)
def test_the_stripe_library_reads_the_snapshots(type: str) -> None:
    client = stripe.StripeClient("sk_test_unused")
    sample = make_sample("stripe", type, now=NOW)
    event = client.construct_event_without_verification(sample.body)
    assert (event.id, event.type) == (sample.id, type)
    assert event.data.object["object"] in type


@pytest.mark.parametrize("type", STRIPE_SNAPSHOTS)
def test_the_objects_have_every_field_that_stripe_declares_and_no_other(type: str) -> None:
    client = stripe.StripeClient("sk_test_unused")
    sample = make_sample("stripe", type, now=NOW)
    declared = client.construct_event_without_verification(sample.body).data.object.__class__
    assert declared is not stripe.StripeObject
    assert list(shape_problems(json.loads(sample.body)["data"]["object"], declared, "")) == []


def test_a_wrong_shape_is_seen() -> None:
    charge = data_object("charge.succeeded")
    del charge["billing_details"]["address"]["city"], charge["paid"]
    charge |= {"amount": "12", "statuz": "succeeded"}
    charge["status"] = charge["payment_method_details"]["card"]["funding"] = "wishful"
    problems = "\n".join(shape_problems(charge, stripe.Charge, "charge"))
    assert "charge.paid: missing" in problems
    assert "charge.statuz: the library knows no such field" in problems
    assert "charge.amount: found '12'" in problems
    assert "charge.status: found 'wishful'; expected one of" in problems
    assert len(problems.splitlines()) == 4  # Stripe may leave out a city, and adds ways of funding


def test_the_stripe_library_reads_the_thin_event() -> None:
    client = stripe.StripeClient("sk_test_unused")
    sample = make_sample("stripe", "v1.billing.meter.error_report_triggered", now=NOW)
    notification = client.parse_event_notification_without_verification(sample.body)
    assert isinstance(
        notification, stripe.events.V1BillingMeterErrorReportTriggeredEventNotification
    )
    assert notification.related_object.id.startswith("mtr_")


@pytest.mark.parametrize(
    ("type", "kind"),
    [
        ("topup.created", "topup"),
        ("charge.dispute.updated", "dispute"),
        ("customer.source.expiring", "source"),
        ("billing_portal.session.created", "billing_portal.session"),
        ("invoice.voided", "invoice"),
        ("customer.subscription.paused", "subscription"),
        ("card.updated", "card"),
    ],
)
def test_an_event_without_a_template_holds_an_object_of_its_kind(type: str, kind: str) -> None:
    found = data_object(type)
    assert found["object"] == kind
    assert found["id"]


def test_the_parts_of_one_sample_name_each_other() -> None:
    intent = data_object("payment_intent.succeeded")
    assert intent["client_secret"].startswith(intent["id"] + "_secret_")
    assert intent["amount"] == intent["amount_received"] > 0
    push = json.loads(make_sample("github", "push", now=NOW).body)
    assert push["after"] == push["head_commit"]["id"] == push["commits"][-1]["id"]
    assert push["before"] != push["after"]


@pytest.mark.parametrize(("type", "action"), [("gollum", None), ("milestone.created", "created")])
def test_a_github_event_without_a_template_has_a_repository_and_a_sender(
    type: str, action: str | None
) -> None:
    payload = json.loads(make_sample("github", type, now=NOW).body)
    assert payload.get("action") == action
    assert payload["repository"]["full_name"] == "northwind-labs/checkout-service"
    assert payload["sender"]["login"]


@pytest.mark.parametrize(
    "type", ["", "invoice", "Invoice.paid", "invoice.", ".paid", "a..b", "a b.c"]
)
def test_an_invalid_stripe_type_is_a_value_error(type: str) -> None:
    with pytest.raises(ValueError, match="type: found"):
        make_sample("stripe", type, now=NOW)


@pytest.mark.parametrize("type", ["", "Push", "push.", ".opened", "../x", "a.\x00", "a.\n", "é"])
def test_an_invalid_github_type_is_a_value_error(type: str) -> None:
    with pytest.raises(ValueError, match="type: found"):
        make_sample("github", type, now=NOW)


@pytest.mark.parametrize("provider", ["stripe", "github"])
def test_a_type_that_is_too_long_is_a_value_error(provider: str) -> None:
    with pytest.raises(ValueError, match="type: found"):
        make_sample(provider, "a." + "b" * 300, now=NOW)


@pytest.mark.parametrize("provider", ["", "paypal", "../github"])
def test_an_unknown_provider_is_a_value_error(provider: str) -> None:
    with pytest.raises(ValueError, match=r"provider: found .*; expected one of stripe, github"):
        make_sample(provider, "invoice.paid", now=NOW)
    with pytest.raises(ValueError, match="provider: found"):
        sample_types(provider)


def test_a_placeholder_that_does_not_exist_is_a_value_error() -> None:
    for text in ("{{nothing}}", "{{id}}", "{{now:label}}", "{{int-5:x}}", "a {{typo:x}} b"):
        with pytest.raises(ValueError, match="no such placeholder"):
            Blanks({}, now=NOW).fill(text)


def test_a_placeholder_keeps_its_type_alone_and_is_text_within_text() -> None:
    blanks = Blanks({"livemode": True}, now=NOW)
    assert blanks.fill("{{livemode}}") is True
    assert blanks.fill("{{now-7}}") == int(NOW.timestamp()) - 7
    assert blanks.fill("at {{now+3}}") == f"at {int(NOW.timestamp()) + 3}"
    assert blanks.fill(["{{int:a}}", "{{int:a}}"])[0] == blanks.fill("{{int:a}}")
    assert blanks.fill("{{sha:a}}") != blanks.fill("{{sha:b}}")


def test_binding_a_template_to_its_sample_finds_what_the_placeholders_stand_for() -> None:
    template = {"id": "{{id:pi}}", "at": "{{now}}", "parts": [{"n": "{{int:n}}"}], "text": "a"}
    document = Blanks({}, now=NOW).fill(template)
    bound = bind(template, document | {"more": 1})
    assert bound == {"id:pi": document["id"], "int:n": document["parts"][0]["n"]}
    assert Blanks(bound, now=NOW).fill(template) == document
    assert bind(template, {"id": None, "parts": "text"}) == {}


def test_an_include_is_overridden_by_the_keys_beside_it() -> None:
    part = load_template("github/parts/issue")
    closed = load_template("github/issues.closed")["issue"]
    assert (part["state"], closed["state"]) == ("open", "closed")
    assert list(part) == list(closed)


def every_file(folder: Traversable) -> list[Traversable]:
    nested = [every_file(entry) for entry in folder.iterdir() if entry.is_dir()]
    own = [entry for entry in folder.iterdir() if entry.name.endswith(".json")]
    return own + [file for group in nested for file in group]


@pytest.mark.parametrize("provider", ["stripe", "github"])
def test_every_part_is_used(provider: str) -> None:
    texts = [
        file.read_text()
        for file in every_file(files("gateway.providers.samples").joinpath(provider))
    ]
    made_in_code = {"stripe": {"event", "thin"}, "github": {"event"}}[provider]
    for part in files("gateway.providers.samples").joinpath(provider, "parts").iterdir():
        name = part.name.removesuffix(".json")
        assert name in made_in_code or any(f'"parts/{name}"' in text for text in texts)
