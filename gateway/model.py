"""The words of the product as values: event, delivery, attempt and the moves between states."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from urllib.parse import unquote_to_bytes
from uuid import UUID

import orjson

FORM: Final = "application/x-www-form-urlencoded"
FORM_FIELDS: Final = 64
_ENCODED: Final = re.compile(rb"(?:%[0-9A-Fa-f]{2})+")


class Status(StrEnum):
    """Where a delivery stands."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"
    DISCARDED = "discarded"


MOVES: Final[Mapping[Status, frozenset[Status]]] = {
    Status.PENDING: frozenset({Status.RUNNING, Status.PENDING, Status.DISCARDED}),
    Status.RUNNING: frozenset({Status.DONE, Status.PENDING, Status.DEAD}),
    Status.DONE: frozenset({Status.PENDING}),
    Status.DEAD: frozenset({Status.PENDING, Status.DISCARDED}),
    Status.DISCARDED: frozenset({Status.PENDING}),
}


class Outcome(StrEnum):
    """How an attempt ended. Only `done`, `retry` and `dead` burn an attempt."""

    DONE = "done"
    RETRY = "retry"
    DEAD = "dead"
    DEFERRED = "deferred"
    LOST = "lost"
    RELEASED = "released"


class ReplayPolicy(StrEnum):
    """What becomes of the same signed bytes under a fresh delivery id."""

    REFUSE = "refuse"
    FLAG = "flag"


class Spooling(StrEnum):
    """Whether a route's events are acknowledged from the local disk while the ledger is away."""

    ALWAYS = "always"
    NEVER = "never"


class Backoff(StrEnum):
    """How the wait between attempts grows."""

    EXPONENTIAL = "exponential"
    FIXED = "fixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a failed delivery runs again."""

    attempts: int = 12
    backoff: Backoff = Backoff.EXPONENTIAL
    base: timedelta = timedelta(seconds=5)
    cap: timedelta = timedelta(hours=6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long a route keeps what it has: ages count from the end of the last delivery."""

    key: timedelta
    payload: timedelta
    dead: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What a provider reads from a verified request."""

    id: str
    type: str
    account: str | None = None
    livemode: bool | None = None
    occurred_at: datetime | None = None


_UNREAD: Final = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A verified request, as a handler sees it."""

    id: str
    """The provider's id of the event: unique within the route."""
    type: str
    """What happened, in the provider's words: `invoice.paid`, `pull_request.opened`."""
    route: str
    provider: str
    account: str | None
    """The connected account (Stripe) that the event belongs to."""
    livemode: bool | None
    """Stripe: live data or test data. None where the provider does not say."""
    occurred_at: datetime | None
    """When it happened, by the provider's clock. None where the provider does not say (GitHub)."""
    received_at: datetime
    headers: Mapping[str, str]
    """Names in lower case; credentials are not kept."""
    body: bytes
    """The bytes that were signed, untouched."""
    _payload: Any = field(default=_UNREAD, init=False, repr=False, compare=False)

    @property
    def payload(self) -> Any:
        """The JSON of the body, parsed at first use (the `payload` field of a form)."""
        if self._payload is _UNREAD:
            document = payload_bytes(self.headers, self.body)
            object.__setattr__(self, "_payload", orjson.loads(document))
        return self._payload

    def stripe(self) -> Any:
        """The stripe library's typed object, snapshot or thin. Costs far more than `payload`."""
        import stripe  # 0.2 s and 30 MB: only for handlers that ask for it

        client = stripe.StripeClient("unused: parsing needs no key")
        if self.payload.get("object") == "v2.core.event":
            return client.parse_event_notification_without_verification(self.body)
        return client.construct_event_without_verification(self.body)


def payload_bytes(headers: Mapping[str, str], body: bytes) -> bytes:
    """The JSON document in a body. Raises ValueError where a form has no single `payload` field."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        return body
    fields = body.split(b"&", FORM_FIELDS)
    if not body.isascii() or len(fields) > FORM_FIELDS or not all(b"=" in f for f in fields):
        raise ValueError(f"not a form of at most {FORM_FIELDS} fields")
    values = [field[8:] for field in fields if field.startswith(b"payload=")]
    if len(values) != 1:
        raise ValueError(f"{len(values)} `payload` fields in the form")
    return _unquoted(values[0].replace(b"+", b" "))


def _unquoted(text: bytes) -> bytes:
    """Percent-decoding, by runs where nearly all of a large body is encoded."""
    if text.count(b"%") * 6 < len(text):
        return unquote_to_bytes(text)
    return _ENCODED.sub(lambda run: bytes.fromhex(run[0].replace(b"%", b"").decode()), text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to run one delivery until it expires, fenced by a random token."""

    delivery_id: int
    token: UUID
    handler: str
    attempt: int
    event: Event
