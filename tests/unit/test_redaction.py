"""Redaction: what is named is gone, everywhere; the shape stays; a typo leaks nothing."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.base.errors import CommandFailed
from gateway.operations.redaction import redact
from gateway.providers.samples import make_sample, sample_types

NOW = datetime(2026, 11, 16, 12, 0, 7, tzinfo=UTC)
PRIVATE = (
    "mira.okafor",
    "Mira Okafor",
    "mira-okafor",
    "Alder Street,",
    "1820 NE",
    '"97232"',
    "+15035550142",
    "203.0.113.24",
    '"4242"',
    "https://pay.stripe.com",
    "https://invoice.stripe.com",
)


def sample(provider: str, type: str) -> Any:
    return json.loads(make_sample(provider, type, now=NOW).body)


def test_a_path_is_replaced_and_nothing_else() -> None:
    document = sample("stripe", "charge.succeeded")
    redacted, count = redact(document, ["data.object.receipt_email"])
    charge = redacted["data"]["object"]
    assert charge.pop("receipt_email") == "person1@example.com"
    # The same address stands in the billing details too: it is the same person.
    assert charge["billing_details"]["email"] == "person1@example.com"
    charge["billing_details"]["email"] = "mira.okafor@example.com"
    original = document["data"]["object"]
    del original["receipt_email"]
    assert charge == original
    assert count == 1


def test_a_star_stands_for_one_key_or_place_in_a_list() -> None:
    document = {"a": [{"email": "x@y.org", "id": "1"}, {"email": "z@y.org"}], "b": {"email": None}}
    redacted, count = redact(document, ["a.*.email", "*.email"])
    assert redacted["a"][0] == {"email": "person1@example.com", "id": "1"}
    assert redacted["a"][1] == {"email": "person2@example.com"}
    assert redacted["b"] == {"email": None}
    assert count == 2
    assert redact(document, ["a.1.email"])[0]["a"][0]["email"] == "x@y.org"


def test_a_path_to_an_object_takes_all_of_it_but_ids() -> None:
    document = {"card": {"id": "card_123", "object": "card", "name": "Eve Adams", "exp": [7, True]}}
    redacted, _ = redact(document, ["card"])
    assert redacted["card"] == {
        "id": "card_123",
        "object": "card",
        "name": "Person 1",
        "exp": [2, True],
    }


@pytest.mark.parametrize("path", ["data.object.custmer_email", "nothing", "id.x", "", "*.*.*.*.*"])
def test_a_path_that_matches_nothing_is_refused(path: str) -> None:
    with pytest.raises(CommandFailed, match="the event has no such field; nothing was saved"):
        redact({"id": "evt_1", "data": {"object": {"customer_email": "x@y.org"}}}, ["id", path])


@pytest.mark.parametrize(
    ("key", "value", "fake"),
    [
        ("x", "eve@adams.example.org", "person1@example.com"),
        ("x", "+1 (503) 555-0142", "+0 (000) 000-0001"),
        ("x", "97232", "00001"),
        ("x", "198.51.100.7", "192.0.2.1"),
        ("x", "2001:db8:85a3::8a2e", "2001:db8::1"),
        ("x", "https://pay.stripe.com/x", "https://example.com/redacted/1"),
        ("x", "2026-11-16T12:00:07Z", "2000-01-02T12:00:07Z"),
        ("x", "cus_NffrFeUfNV2Hib", "cus_00000000000001"),
        ("x", "pi_3MtwBwLkdIwHu7ix_secret_YrKJUKrib", "pi_3MtwBwLkdIwHu7ix_secret_000000001"),
        ("x", "Xt5EWLLDS7FJjR1c", "0000000000000001"),
        ("x", "OR", "XX"),
        ("line1", "1820 NE Alder Street", "1 Example Street"),
        ("customer_name", "Eve Adams", "Person 1"),
        ("login", "eve-adams", "person-1"),
        ("note", "call her back", "redacted 1"),
        ("x", 4217, 1001),
        ("x", 2.5, 1.0),
        ("x", None, None),
        ("x", "", ""),
        ("x", False, False),
    ],
)
def test_a_fake_has_the_shape_of_what_it_stands_for(key: str, value: Any, fake: Any) -> None:
    assert redact({key: value}, [key])[0] == {key: fake}


def test_the_same_value_has_the_same_fake_and_two_values_have_two() -> None:
    document = {"a": ["x@y.org", "z@y.org", "x@y.org"], "b": "x@y.org"}
    assert redact(document, ["a.*"])[0] == {
        "a": ["person1@example.com", "person2@example.com", "person1@example.com"],
        "b": "person1@example.com",
    }


def test_what_was_redacted_is_gone_from_longer_texts_but_not_from_words() -> None:
    document = {
        "login": "annab",
        "url": "https://api/users/annab/orgs",
        "x": "annabel",
        "id": "annab",
    }
    assert redact(document, ["login"])[0] == {
        "login": "person-1",
        "url": "https://api/users/person-1/orgs",
        "x": "annabel",
        "id": "annab",
    }


def test_a_fake_that_looks_like_a_real_value_is_not_replaced_again() -> None:
    document = {"a": "real@y.org", "b": "person1@example.com"}
    assert redact(document, ["a", "b"])[0] == {
        "a": "person1@example.com",
        "b": "person2@example.com",
    }


@pytest.mark.parametrize(
    ("provider", "type"),
    [(name, type) for name in ("stripe", "github") for type in sample_types(name)],
)
def test_pii_leaves_nothing_of_a_person_in_any_sample(provider: str, type: str) -> None:
    document = sample(provider, type)
    redacted, _ = redact(document, ["pii"])
    text = json.dumps(redacted)
    assert [word for word in PRIVATE if word in text] == []
    assert redact(document, ["pii"]) == redact(document, ["pii"])
    assert ids(redacted) == ids(document)


def ids(node: Any) -> list[Any]:
    if isinstance(node, list):
        return [found for item in node for found in ids(item)]
    if not isinstance(node, dict):
        return []
    kept = ("id", "node_id", "object", "type", "customer", "payment_intent", "number", "amount")
    own = [node[key] for key in kept if isinstance(node.get(key), str | int)]
    return own + [found for value in node.values() for found in ids(value)]


def test_pii_knows_a_person_from_a_product_and_an_organization() -> None:
    product = sample("stripe", "product.updated")
    assert redact(product, ["pii"]) == (product, 0)
    push, _ = redact(sample("github", "push"), ["pii"])
    assert push["repository"]["full_name"] == "northwind-labs/checkout-service"
    assert push["repository"]["ssh_url"].startswith("git@github.com:")
    assert push["organization"]["login"] == "northwind-labs"
    assert push["commits"][0]["committer"]["name"] == "GitHub"


def test_pii_takes_the_secret_of_a_payment() -> None:
    intent = redact(sample("stripe", "payment_intent.succeeded"), ["pii"])[0]["data"]["object"]
    assert intent["client_secret"] == f"{intent['id']}_secret_{1:024}"


def test_pii_finds_an_address_within_a_text() -> None:
    document = {"message": "Fix it\n\nCo-authored-by: Eve <eve@adams.example.org>"}
    redacted, count = redact(document, ["pii"])
    assert redacted["message"] == "Fix it\n\nCo-authored-by: Eve <person1@example.com>"
    assert count == 1


@pytest.mark.parametrize(
    "part", ["previous_attributes", "shipping", "billing_details", "customer_details"]
)
def test_pii_takes_a_name_that_stands_alone_where_only_persons_have_one(part: str) -> None:
    document = {"object": {"name": "Mug", part: {"name": "Mira Okafor", "carrier": "post"}}}
    assert redact(document, ["pii"])[0] == {
        "object": {"name": "Mug", part: {"name": "Person 1", "carrier": "post"}}
    }


def test_pii_takes_the_former_name_of_what_was_below_another_field() -> None:
    document = {"data": {"previous_attributes": {"owner": {"name": "Mira Okafor"}}}}
    redacted, _ = redact(document, ["pii"])
    assert redacted["data"]["previous_attributes"]["owner"]["name"] == "Person 1"


@pytest.mark.parametrize(
    ("key", "before", "after"),
    [
        ("html_url", "https://github.com/bob", "https://github.com/person-1"),
        ("url", "https://api.x/users/bob/gists{/id}", "https://api.x/users/person-1/gists{/id}"),
        ("url", "https://api.x/users/bob{/id}", "https://api.x/users/person-1{/id}"),
        ("ssh_url", "git@github.com:bob/site.git", "git@github.com:person-1/site.git"),
        ("git_url", "git://github.com/bob/bob.git", "git://github.com/person-1/person-1.git"),
        ("full_name", "bob/site", "person-1/site"),
        ("label", "bob:main", "person-1:main"),
        ("body", "bob, see https://x.example/bob.", "bob, see https://x.example/person-1."),
        ("url", "https://bob/a/bobby/x-bob/bob-x", "https://bob/a/bobby/x-bob/bob-x"),
        ("full_name", "acme/bob.js", "acme/bob.js"),
        ("title", "either/bob", "either/bob"),
    ],
)
def test_a_short_login_is_gone_where_it_is_a_whole_part_of_a_url_or_full_name(
    key: str, before: str, after: str
) -> None:
    document = {"sender": {"login": "bob", "type": "User"}, "there": {key: before}}
    redacted, _ = redact(document, ["pii"])
    assert redacted["sender"]["login"] == "person-1"
    assert redacted["there"] == {key: after}


def test_an_address_that_is_a_key_is_replaced_as_elsewhere() -> None:
    document = {"metadata": {"mira@x.example": "vip", "eve@x.example": 1}, "to": "eve@x.example"}
    assert redact(document, ["pii"])[0] == {
        "metadata": {"person2@example.com": "vip", "person1@example.com": 1},
        "to": "person1@example.com",
    }


def test_a_field_keeps_its_name_where_a_login_is_the_same_word() -> None:
    document = {"login": "title", "title": "x", "metadata": {"title": "y"}, "a title": "z"}
    assert redact(document, ["login"])[0] == {
        "login": "person-1",
        "title": "x",
        "metadata": {"person-1": "y"},
        "a person-1": "z",
    }


def test_two_keys_never_become_one() -> None:
    document = {"email": "a@x.example", "m": {"a@x.example": 1, "person1@example.com": 2}}
    redacted, _ = redact(document, ["email"])
    assert list(redacted["m"].values()) == [1, 2]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("https://s.example/?e=mira%40x.example", "https://s.example/?e=person1%40example.com"),
        ("?to=%2Fa%3fe%3dmira%40x.example%26b", "?to=%2Fa%3fe%3dperson1%40example.com%26b"),
        ("?n=%c3%96mer+Sen&x", "?n=Person%201&x"),
        ("?n=%C3%96mer%20Sen", "?n=Person%201"),
        ("?n=Ömer%20Sen", "?n=Person%201"),
        ("mira@x.example", "person1@example.com"),
        ("mira%40x.examples", "person2%40example.com"),
    ],
)
def test_what_was_redacted_is_gone_in_its_percent_encoded_form_too(before: str, after: str) -> None:
    document = {"email": "mira@x.example", "name": "Ömer Sen", "link": before}
    assert redact(document, ["pii"])[0]["link"] == after


def test_pii_finds_an_address_that_stands_only_percent_encoded() -> None:
    document = {"success_url": "https://s.example/?e=mira%2Bshop%40x.example"}
    assert redact(document, ["pii"]) == (
        {"success_url": "https://s.example/?e=person1%40example.com"},
        1,
    )
