"""GitHub: a signature over the body alone; id and event name in unsigned headers."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from gateway.errors import BadPayload, BadSignature
from gateway.model import Envelope, payload_bytes
from gateway.providers.github_types import UNIQUE
from gateway.providers.payload import (
    MAX_TEXT_CHARS,
    check_text,
    describe,
    parse_object,
    require_text,
    text_at,
)
from gateway.providers.provider import (
    Facts,
    Headers,
    Incoming,
    Key,
    Provider,
    Repeats,
    Signed,
    Verified,
)
from gateway.providers.signature import hexdigest, match_hmac

_SIGNATURE: Final = "x-hub-signature-256"
_SCHEME: Final = "sha256="
_DELIVERY: Final = "x-github-delivery"
_EVENT: Final = "x-github-event"
_EVENT_NAME: Final = re.compile("[a-z0-9_]{1,100}")
_DELIVERY_ID: Final = re.compile(f"[!-~]{{1,{MAX_TEXT_CHARS}}}")

_ACCOUNTS: Final = (
    ("organization", "login"),
    ("repository", "owner", "login"),
    ("installation", "account", "login"),
)
_NUMBERED: Final = ("pull_request", "issue", "discussion")


def verify(
    incoming: Incoming, *, keys: Sequence[Key], now: datetime, tolerance: timedelta | None
) -> Verified:
    """Refuses a forged request; `now` and `tolerance` have no use, since GitHub signs no time."""
    # The SHA-1 header `x-hub-signature` is legacy, and never enough.
    # https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
    header = incoming.headers.get(_SIGNATURE)
    if header is None:
        raise BadSignature(f"no {_SIGNATURE} header")
    if not header.startswith(_SCHEME) or not header.isascii():
        raise BadSignature(f"{_SIGNATURE}: expected {_SCHEME} and hex")
    # In a form, too, it is the raw body that is signed, not the `payload` field.
    return Verified(match_hmac(incoming.body, [header[len(_SCHEME) :].encode("ascii")], keys))


def read(incoming: Incoming) -> Envelope:
    """Reads the id and the event from the headers, the action and the account from the body."""
    # https://docs.github.com/en/webhooks/webhook-events-and-payloads#delivery-headers
    headers = incoming.headers
    delivery = _require_header(headers, _DELIVERY, _DELIVERY_ID, "1 to 255 visible characters")
    event = _require_header(headers, _EVENT, _EVENT_NAME, "1 to 100 of a-z, 0-9 and _")
    payload = parse_object(_document(headers, incoming.body))
    return Envelope(
        id=delivery,
        type=_type(event, payload),
        account=_account(payload),
        object_id=_object_id(payload),
    )


def _require_header(headers: Headers, name: str, pattern: re.Pattern[str], expected: str) -> str:
    value = headers.get(name)
    if value is None or not pattern.fullmatch(value):
        raise BadPayload(f"{name}: found {describe(value)}; expected {expected}")
    return value


def _document(headers: Headers, body: bytes) -> bytes:
    # JSON, or a form with the JSON in its `payload` field, as the hook's content type says.
    # https://docs.github.com/en/webhooks/using-webhooks/creating-webhooks
    try:
        return payload_bytes(headers, body)
    except ValueError:  # its text may quote megabytes of the form
        raise BadPayload("the form has no single, readable `payload` field") from None


def _type(event: str, payload: dict[str, Any]) -> str:
    # Most events have an action, some (push, workflow_dispatch) have none. That of
    # repository_dispatch is chosen by the caller of the API, so that its text is free.
    # https://docs.github.com/en/webhooks/webhook-events-and-payloads#repository_dispatch
    if payload.get("action") is None:
        return event
    return check_text(f"{event}.{require_text(payload, 'action')}", "type")


def _account(payload: dict[str, Any]) -> str | None:
    """Whose event it is: the organization, or the repository's owner, or the App's installer."""
    for path in _ACCOUNTS:
        login = text_at(payload, *path)
        if login is not None:
            return login
    return None


def _object_id(payload: dict[str, Any]) -> str | None:
    """As people write it: acme/shop#42 for issues and pull requests, else the repository."""
    repository = text_at(payload, "repository", "full_name")
    for name in _NUMBERED:
        thing = payload.get(name)
        number = thing.get("number") if isinstance(thing, dict) else None
        if repository is not None and isinstance(number, int) and number < 2**63:
            return f"{repository}#{number}"
    return repository


def sign(body: bytes, *, secret: bytes, id: str, type: str, now: datetime, url: str = "") -> Signed:
    """The headers of GitHub's own request; the action stands in the body."""
    headers = {
        "content-type": "application/json",
        "user-agent": "GitHub-Hookshot/7d3a1f0",
        _DELIVERY: id,
        _EVENT: type.partition(".")[0],
        _SIGNATURE: _SCHEME + hexdigest(secret, body).decode(),
    }
    return Signed(headers, body, url)


GITHUB: Final = Provider(
    name="github",
    verify=verify,
    read=read,
    sign=sign,
    # Deliveries of the past 3 days can be redelivered; Enterprise Server: 7 days, so that a route
    # for one needs a key retention of at least 8.
    # https://docs.github.com/en/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks
    redelivery=timedelta(days=3),
    # "GitHub does not automatically redeliver failed deliveries."
    # https://docs.github.com/en/webhooks/using-webhooks/handling-failed-webhook-deliveries
    retries=False,
    # https://docs.github.com/en/webhooks/webhook-events-and-payloads#payload-cap
    max_body=25 * 1024**2,
    tolerance=None,
    columns={
        "type": (("action",),),
        "account": _ACCOUNTS,
        "object_id": (
            ("repository", "full_name"),
            *((name, "number") for name in _NUMBERED),
        ),
    },
    repeats=Repeats(unique=frozenset(UNIQUE), has_one_type=True),
    facts=Facts(
        title="GitHub",
        scheme="HMAC-SHA256 hex over {body}, header x-hub-signature-256",
        docs=("https://docs.github.com/en/webhooks",),
        id="header.x-github-delivery",
        type="header.x-github-event and json.action",
        unsigned=("id", "type"),
        vector="GitHub's documentation, and npm @octokit/webhooks-methods 6.0.0",
        notes=("Never comes back by itself. No time is signed: the replay guard is on.",),
    ),
)
