"""`event.stripe()` and `event.github()`: what the providers' own libraries make of a body."""

import importlib
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote_plus

import httpx
import orjson
import pytest
import respx
import stripe
from pydantic import BaseModel
from stripe.events import V1BillingMeterErrorReportTriggeredEventNotification

from gateway import Event
from gateway.base.model import FORM
from gateway.base.typed import SHOWN
from gateway.providers.samples import make_sample, sample_types
from gateway.worker.stripe_client import make_stripe_client

NOW: Final = datetime(2026, 11, 16, 12, tzinfo=UTC)
SAMPLES: Final = Path(__file__).parents[1] / "samples"
NAMED_OTHERWISE: Final = {
    "pull_request.review_requested": "WebhookPullRequestReviewRequestedOneof0",
    "repository_dispatch.deploy": "WebhookRepositoryDispatchSample",
}


class Opened(BaseModel):
    """What a handler needs of it, and no more."""

    class Issue(BaseModel):
        number: int
        title: str

    action: Literal["opened"]
    issue: Issue


def make_event(provider: str, body: bytes, headers: dict[str, str] | None = None) -> Event:
    return Event(
        id="evt_1",
        type="of no account here",
        route="in",
        provider=provider,
        account=None,
        livemode=None,
        occurred_at=None,
        received_at=NOW,
        headers=headers or {},
        body=body,
    )


def githubkit_model(type: str) -> Any:
    """By its name, since a type checker that follows the import needs a minute for its models."""
    words = type.replace(".", "_").split("_")
    name = NAMED_OTHERWISE.get(type, "Webhook" + "".join(map(str.capitalize, words)))
    return getattr(importlib.import_module("githubkit_schemas.latest.models"), name)


def sample_event(provider: str, type: str) -> Event:
    return make_event(provider, make_sample(provider, type, now=NOW).body)


def recorded(provider: str, case: str) -> Event:
    return make_event(provider, (SAMPLES / provider / case / "body").read_bytes())


@pytest.fixture(autouse=True)
def no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would write an id of this machine into the home directory."""
    monkeypatch.setattr(stripe, "enable_telemetry", False)


@pytest.mark.parametrize("type", sample_types("stripe"))
def test_every_stripe_sample_is_a_typed_event(type: str) -> None:
    event = sample_event("stripe", type)
    typed = event.stripe()
    assert (typed.id, typed.type) == (event.payload["id"], type)
    assert isinstance(typed, stripe.Event) == (event.payload["object"] == "event")


def test_the_object_of_a_snapshot_is_typed() -> None:
    event = sample_event("stripe", "invoice.paid")
    snapshot = event.stripe()
    assert isinstance(snapshot, stripe.Event)
    assert isinstance(snapshot.data.object, stripe.Invoice)
    assert snapshot.data.object.id == event.payload["data"]["object"]["id"]


def test_a_thin_event_is_the_notification_of_its_type() -> None:
    notification = recorded("stripe", "thin").stripe()
    assert isinstance(notification, V1BillingMeterErrorReportTriggeredEventNotification)
    assert notification.related_object.type == "billing.meter"


async def test_what_has_no_client_says_how_to_give_it_one() -> None:
    notification = recorded("stripe", "thin").stripe()
    assert isinstance(notification, V1BillingMeterErrorReportTriggeredEventNotification)
    snapshot = sample_event("stripe", "invoice.paid").stripe()
    assert isinstance(snapshot, stripe.Event)
    assert isinstance(snapshot.data.object, stripe.Invoice)
    for fetch in (
        notification.fetch_event_async,
        notification.fetch_related_object_async,
        snapshot.data.object.refresh_async,
    ):
        with pytest.raises(RuntimeError, match=r"use event\.stripe\(ctx\.stripe\)"):
            await fetch()
    for fetch_now in (notification.fetch_event, notification.fetch_related_object):
        with pytest.raises(RuntimeError, match=r"use event\.stripe\(ctx\.stripe\)"):
            fetch_now()


async def test_with_a_client_the_full_objects_are_fetched_through_it() -> None:
    api = respx.MockRouter(base_url="https://api.stripe.com")
    thin, snapshot = recorded("stripe", "thin"), sample_event("stripe", "invoice.paid")
    related, invoice = thin.payload["related_object"], snapshot.payload["data"]["object"]
    api.get(f"/v2/core/events/{thin.payload['id']}").respond(
        200, json={**thin.payload, "data": {"developer_message_summary": "two are wrong"}}
    )
    api.get(related["url"]).respond(200, json={"id": related["id"], "object": "billing.meter"})
    api.get(f"/v1/invoices/{invoice['id']}").respond(200, json={**invoice, "status": "void"})

    async with httpx.AsyncClient(transport=httpx.MockTransport(api.async_handler)) as http:
        client = make_stripe_client("sk_test_1", http, str)
        notification = thin.stripe(client)
        assert isinstance(notification, V1BillingMeterErrorReportTriggeredEventNotification)
        event = await notification.fetch_event_async()
        assert event.data.developer_message_summary == "two are wrong"
        assert (await notification.fetch_related_object_async()).id == related["id"]
        typed = snapshot.stripe(client)
        assert isinstance(typed, stripe.Event)
        assert isinstance(typed.data.object, stripe.Invoice)
        assert typed.data.object.status == "paid"
        assert (await typed.data.object.refresh_async()).status == "void"


async def test_a_thin_event_of_another_account_is_fetched_in_its_context() -> None:
    seen: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("stripe-context"))
        return httpx.Response(200, json={"id": "mtr_1", "object": "billing.meter"})

    payload = {**recorded("stripe", "thin").payload, "context": "acct_7"}
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        client = make_stripe_client("sk_test_1", http, str)
        notification = make_event("stripe", orjson.dumps(payload)).stripe(client)
        assert isinstance(notification, V1BillingMeterErrorReportTriggeredEventNotification)
        await notification.fetch_related_object_async()
    assert seen == ["acct_7"]


def test_a_stranger_among_thin_events_is_typed_as_unknown() -> None:
    payload = {**recorded("stripe", "thin").payload, "type": "v2.not.there.yet"}
    typed = make_event("stripe", orjson.dumps(payload)).stripe()
    assert type(typed).__name__ == "UnknownEventNotification"
    assert str(typed.type) == "v2.not.there.yet"


def test_an_event_of_another_provider_is_refused_by_name() -> None:
    body = b'{"object": "event"}'
    with pytest.raises(
        ValueError, match=r"event\.stripe\(\) is for .*'evt_1' on route 'in'.* githu"
    ):
        make_event("github", body).stripe()
    with pytest.raises(ValueError, match=r"event\.github\(\) is for .* provider stripe"):
        make_event("stripe", body).github(Opened)


@pytest.mark.parametrize("type", sample_types("github"))
def test_every_github_sample_fits_the_model_that_githubkit_has_of_its_type(type: str) -> None:
    event = sample_event("github", type)
    typed = event.github(githubkit_model(type))
    assert typed.sender.login == event.payload["sender"]["login"]


def test_a_github_payload_is_typed_down_to_its_times() -> None:
    event = recorded("github", "json")
    opened = event.github(githubkit_model("issues.opened"))
    assert opened.issue.number == event.payload["issue"]["number"]
    assert isinstance(opened.issue.created_at, datetime)


def test_a_model_of_ones_own_is_as_good_and_a_form_is_read_too() -> None:
    issue = {"number": 7, "title": "It does not start"}
    document = orjson.dumps({"action": "opened", "issue": issue})
    form = f"payload={quote_plus(document)}".encode()
    opened = make_event("github", form, {"content-type": FORM}).github(Opened)
    assert opened.issue.title == "It does not start"


def test_a_payload_that_does_not_fit_is_named_field_by_field_and_not_quoted() -> None:
    document = {"action": "closed", "issue": {"number": "a secret of the sender"}}
    with pytest.raises(ValueError, match="the payload is no Opened: ") as caught:
        make_event("github", orjson.dumps(document)).github(Opened)
    text = str(caught.value)
    assert "action: Input should be 'opened'" in text
    assert "issue.number: " in text
    assert "issue.title: Field required" in text
    assert "secret" not in text
    assert caught.value.__suppress_context__
    assert caught.value.__cause__ is None


def test_many_misfits_are_cut_short() -> None:
    with pytest.raises(ValueError, match=r"Field required, and \d+ more$") as caught:
        make_event("github", b"{}").github(githubkit_model("push"))
    assert str(caught.value).count("Field required") == SHOWN


def test_neither_library_is_imported_before_it_is_asked_for() -> None:
    code = "import sys, gateway, gateway.worker; print({'stripe', 'githubkit'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
