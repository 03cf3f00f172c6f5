"""Columns of an event that are read from redacted fields are not stored."""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from gateway.base.errors import BadPayload, RequestRejected
from gateway.base.model import Envelope, payload_bytes
from gateway.base.secrets import Secret
from gateway.config.registry import Registry
from gateway.ledger.reloads import SecretUses
from gateway.privacy.redaction import FieldPath, RedactAt, Redaction
from gateway.providers import PROVIDERS, Incoming, Provider
from gateway.providers.samples import make_sample
from gateway.receive.keyring import Keyring
from gateway.receive.reading import Reading
from tests.support.octokit import examples
from tests.support.workers import make_route
from tests.unit.test_catalogue import SIGNED, load, name_of

MOST_FIELDS = 200
THIN = {
    "object": "v2.core.event",
    "id": "evt_1",
    "type": "v2.core.account.updated",
    "context": "acct_1",
    "livemode": True,
    "created": "2026-11-18T11:00:00.000Z",
    "related_object": {"id": "acct_2", "type": "account", "url": "/v2/core/accounts/acct_2"},
}


def requests() -> Iterator[tuple[str, Provider, Incoming]]:
    for path in SIGNED:
        vector = load(path)
        if vector.events is not None:
            for item in vector.items():
                yield name_of(path), vector.provider, item
    stripe, github = PROVIDERS["stripe"], PROVIDERS["github"]
    yield "stripe/thin", stripe, Incoming({}, orjson.dumps(THIN))
    for type in ("invoice.paid", "charge.failed", "account.updated"):
        sample = make_sample("stripe", type, now=datetime.now(UTC))
        yield f"stripe/{type}", stripe, Incoming({}, sample.body)
    for example in {one.event: one for one in examples()}.values():
        headers = {"x-github-delivery": "guid", "x-github-event": example.event}
        yield f"github/{example.type}", github, Incoming(headers, example.body)


def fields(value: Any, steps: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The steps to every value in a document."""
    if not isinstance(value, dict | list):
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*steps, str(key))
        yield from fields(inner, (*steps, str(key)))


def changed(provider: Provider, incoming: Incoming, steps: tuple[str, ...]) -> set[str]:
    """Return the columns that are another once the field is redacted; all, if there is no event."""
    whole = asdict(provider.read(incoming))
    if whole["id"] == hashlib.sha256(incoming.body).hexdigest():
        del whole["id"]  # which is another whatever is redacted, and shows nothing of it
    body = Redaction((FieldPath(steps),)).apply(incoming.headers, incoming.body).body
    try:
        cut = asdict(provider.read(incoming._replace(body=body)))
    except RequestRejected:
        return set()
    return {column for column, value in whole.items() if cut[column] != value}


def test_every_provider_says_where_its_columns_are_read() -> None:
    """By each field of each sample: what it changes must be declared."""
    unsaid = set()
    for name, provider, incoming in requests():
        try:
            document = orjson.loads(payload_bytes(incoming.headers, incoming.body))
        except ValueError:
            continue
        for _, steps in zip(range(MOST_FIELDS), fields(document), strict=False):
            path = FieldPath(steps)
            for column in changed(provider, incoming, steps):
                if not any(map(path.covers, provider.columns.get(column, ()))):
                    unsaid.add((name, column, str(path)))
    assert not unsaid


FULL = Envelope(
    id="evt_1",
    type="invoice.paid",
    account="acct_1",
    livemode=True,
    occurred_at=datetime.now(UTC),
    object_id="in_1",
)


@pytest.mark.parametrize(
    ("at", "path", "left_out"),
    [
        (RedactAt.STORE, "data.object.id", {"object_id"}),
        (RedactAt.STORE, "data.object", {"object_id"}),
        (RedactAt.STORE, "data.*.id", {"object_id"}),
        (RedactAt.STORE, "related_object", {"object_id"}),
        (RedactAt.STORE, "account", {"account"}),
        (RedactAt.STORE, "created", {"occurred_at"}),
        (RedactAt.STORE, "*", {"account", "livemode", "occurred_at", "object_id"}),
        (RedactAt.STORE, "data.object.email", set()),
        (RedactAt.STORE, "data.object.id.inner", set()),
        (RedactAt.SHOW, "data.object.id", {"object_id"}),
        (RedactAt.SHOW, "account", set()),
    ],
)
def test_a_column_of_a_redacted_field_is_left_out(
    at: RedactAt, path: str, left_out: set[str]
) -> None:
    route = make_route(redaction=Redaction((FieldPath.parse(path),), at))
    stored = asdict(route.stored(FULL))
    assert {column for column, value in asdict(FULL).items() if stored[column] != value} == left_out
    assert not [stored[column] for column in left_out if stored[column] is not None]


def test_without_redaction_the_envelope_is_the_same_object() -> None:
    assert make_route().stored(FULL) is FULL


@pytest.mark.parametrize(
    ("changes", "is_quoted"),
    [
        ({}, True),
        ({"encrypt": True}, False),
        ({"redaction": Redaction((FieldPath.parse("account"),), RedactAt.SHOW)}, False),
    ],
)
def test_a_confidential_route_does_not_say_what_is_wrong_with_a_payload(
    changes: dict[str, Any], is_quoted: bool
) -> None:
    route, secret = make_route(**changes), Secret(b"whsec_of_the_test")
    keyring = Keyring(route, [secret], SecretUses())
    body = orjson.dumps(THIN | {"context": "somebody\n"})
    now = datetime.now(UTC)
    sent = route.provider.sign(body, secret=secret.reveal(), id="", type="", now=now)
    reading = Reading(route, Registry(()), keyring)
    with pytest.raises(BadPayload) as rejected:
        reading.read(Incoming(sent.headers, body), now)
    assert ("somebody" in rejected.value.reason) is is_quoted
