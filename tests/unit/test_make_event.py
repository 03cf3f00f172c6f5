"""Events as `make_event` makes them for tests."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.config.routes import load_config
from gateway.providers.samples import Recorded, dump_recorded
from gateway.testing.events import MakeEvent

ROUTES = """
routes:
  stripe: {provider: stripe, secrets: [env:A]}
  eu: {provider: github, secrets: [env:A]}
  us: {provider: github, secrets: [env:A]}
  mails: {provider: publish}
"""
THEN = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def make(tmp_path: Path) -> MakeEvent:
    (tmp_path / "routes.yaml").write_text(ROUTES)
    return MakeEvent(load_config(tmp_path / "routes.yaml"), tmp_path)


def test_fields_of_stripes_object_are_set_by_name_and_by_path(make: MakeEvent) -> None:
    event = make(
        "stripe",
        "invoice.paid",
        {"data.object.customer": "cus_1", "api_version": "2020-01-01"},
        id="in_1",
        metadata={"order": "7"},
        lines__data__0__amount=500,
    )
    invoice = event.payload["data"]["object"]
    assert (invoice["id"], invoice["metadata"]) == ("in_1", {"order": "7"})
    assert (invoice["lines"]["data"][0]["amount"], invoice["customer"]) == (500, "cus_1")
    assert (event.route, event.provider, event.type) == ("stripe", "stripe", "invoice.paid")
    assert event.id == event.payload["id"] != "in_1"
    assert event.payload["api_version"] == "2020-01-01"


def test_what_stripe_says_beside_the_object_can_be_set(make: MakeEvent) -> None:
    event = make(
        "stripe",
        "invoice.paid",
        event_id="evt_1",
        occurred_at=THEN,
        account="acct_1",
        livemode=True,
    )
    assert (event.id, event.account, event.livemode) == ("evt_1", "acct_1", True)
    assert event.occurred_at == THEN
    assert event.payload["data"]["object"]["created"] <= THEN.timestamp()


def test_fields_of_other_payloads_are_set_from_the_top(make: MakeEvent) -> None:
    event = make("eu", "issues.opened", event_id="guid-1", issue__title="It breaks")
    assert event.payload["issue"]["title"] == "It breaks"
    assert (event.id, event.type, event.route) == ("guid-1", "issues.opened", "eu")


@pytest.mark.parametrize(
    ("path", "refusal"),
    [
        ("data.object.amont_paid", r"has no field 'amont_paid'; did you mean amount_paid"),
        ("data.object.zzz", r"no field 'zzz'; it has id, object, "),
        ("data.object.metadata.order", r"no field 'order': there is none, so set it as a whole"),
        ("data.object.lines.data.9.amount", r"found '9' for a place in a list of 1"),
        ("data.object.customer.name", r"there is nothing under 'name'"),
        ("data.objekt.id", r"data\.objekt\.id: .* did you mean object\?"),
    ],
)
def test_a_field_that_the_event_does_not_have_is_refused(
    make: MakeEvent, path: str, refusal: str
) -> None:
    with pytest.raises(ValueError, match=refusal):
        make("stripe", "invoice.paid", {path: "x"})


def test_a_wrong_name_is_refused_as_a_wrong_path_is(make: MakeEvent) -> None:
    with pytest.raises(ValueError, match=r"data\.object\.custmer: .* did you mean customer"):
        make("stripe", "invoice.paid", custmer="cus_1")


def test_a_provider_stands_for_its_only_route(make: MakeEvent) -> None:
    with pytest.raises(ValueError, match="github has several routes; expected one of eu, us"):
        make("github", "push")
    with pytest.raises(ValueError, match=r"no route 'strip'; .*did you mean stripe\?"):
        make("strip", "invoice.paid")
    with pytest.raises(ValueError, match="which type"):
        make("stripe")
    with pytest.raises(ValueError, match="account= is Stripe's"):
        make("eu", "push", account="acct_1")


def test_a_queue_gets_a_job_of_ones_own(make: MakeEvent) -> None:
    job = make("mails", payload={"to": "ann@example.com"}, to="bob@example.com")
    assert (job.type, job.provider, job.payload) == ("mails", "publish", {"to": "bob@example.com"})
    assert make("mails", "welcome", payload={}, event_id="key-1").id == "key-1"
    with pytest.raises(ValueError, match="mails is a queue: give the job's payload"):
        make("mails")


def test_a_payload_of_ones_own_is_read_as_the_provider_would(make: MakeEvent) -> None:
    payload = {"id": "evt_1", "type": "x.happened", "created": 1769860800, "livemode": False}
    event = make("stripe", payload={"object": "event", **payload})
    assert (event.id, event.type, event.occurred_at) == ("evt_1", "x.happened", THEN)
    with pytest.raises(ValueError, match="livemode= is for samples"):
        make("stripe", payload=payload, livemode=True)


def test_a_recorded_event_can_be_changed_too(make: MakeEvent, tmp_path: Path) -> None:
    sample = make("stripe", "invoice.paid")
    recorded = Recorded(
        provider="stripe", type=sample.type, id=sample.id, headers={}, body=sample.body
    )
    (tmp_path / "paid.json").write_bytes(dump_recorded(recorded))
    event = make("stripe", file="paid.json", customer="cus_9", occurred_at=THEN)
    assert (event.id, event.type, event.occurred_at) == (sample.id, "invoice.paid", THEN)
    assert event.payload["data"]["object"]["customer"] == "cus_9"
