"""The domain types: event, delivery, attempt, and the transitions between states."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes
from uuid import UUID

import orjson

if TYPE_CHECKING:  # for editors: at run time these libraries are imported only on demand
    import builtins

    from stripe import StripeClient

    from gateway.base.typed import Model, StripeEvent

FORM: Final = "application/x-www-form-urlencoded"
FORM_FIELDS: Final = 64
FORM_PARTS: Final = 256
"""The limit for a form that contains no JSON."""
_JSON: Final = re.compile(rb"[ \t\r\n]*[{\[]")
_ENCODED: Final = re.compile(rb"(?:%[0-9A-Fa-f]{2})+")


class Status(StrEnum):
    """The state of a delivery."""

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
    """The outcome of an attempt. Only `done`, `retry` and `dead` burn an attempt."""

    DONE = "done"
    RETRY = "retry"
    DEAD = "dead"
    DEFERRED = "deferred"
    LOST = "lost"
    RELEASED = "released"
    SKIPPED = "skipped"


class RepeatPolicy(StrEnum):
    """How a repeated body is treated: the same signed bytes under a new delivery id."""

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


class OnDead(StrEnum):
    """Whether a dead delivery lets the next one of its ordering key run."""

    PASS = "pass"  # noqa: S105 (no password)
    BLOCK = "block"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A rate limit: at most `count` starts in any period."""

    count: int
    period: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a failed delivery runs again."""

    attempts: int = 12
    backoff: Backoff = Backoff.EXPONENTIAL
    base: timedelta = timedelta(seconds=5)
    cap: timedelta = timedelta(hours=6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long a route keeps its data. Ages count from the end of the last delivery."""

    key: timedelta
    payload: timedelta
    dead: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The fields that a provider reads from a verified request."""

    id: str
    type: str
    account: str | None = None
    livemode: bool | None = None
    occurred_at: datetime | None = None
    object_id: str | None = None
    """The object that the event is about, for searches: an invoice, a pull request."""


_UNREAD: Final = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A verified request, as a handler sees it."""

    id: str
    """The provider's id of the event: unique within the route."""
    type: str
    """The type of the event, as the provider names it: `invoice.paid`, `pull_request.opened`."""
    route: str
    """The route of `routes.yaml` on which it was received."""
    provider: str
    """The provider: `stripe`, `github`."""
    account: str | None
    """Stripe: the connected account. GitHub: the organization or owner. Or None."""
    livemode: bool | None
    """Stripe: live data or test data. None if the provider does not send it."""
    occurred_at: datetime | None
    """When it happened, by the provider's clock. None if the provider does not send it (GitHub)."""
    received_at: datetime
    """When the gateway received it."""
    headers: Mapping[str, str]
    """Names are in lower case. Credentials are not stored."""
    body: bytes
    """The signed bytes, unchanged except for fields that the route redacts before storage."""
    _payload: Any = field(default=_UNREAD, init=False, repr=False, compare=False)

    @property
    def payload(self) -> Any:
        """The JSON of the body, parsed on first use.

        For a form it is the JSON of the `payload` field, or all fields if there is no such field.
        """
        if self._payload is _UNREAD:
            object.__setattr__(self, "_payload", read_payload(self.headers, self.body))
        return self._payload

    def stripe(self, client: "StripeClient | None" = None) -> "StripeEvent":
        """Return the stripe library's typed object: a snapshot, or a thin notification.

        Its methods `fetch_event_async()` and `fetch_related_object_async()` use the client:
        `event.stripe(ctx.stripe)`. It is much slower than `payload`.
        """
        from gateway.base.typed import read_stripe_event  # 0.2 s and 30 MB

        self._require_provider("stripe")
        return read_stripe_event(self.body, str(self.payload.get("object")), client)

    def github(self, model: "builtins.type[Model]") -> "Model":
        """Return the payload as a pydantic model: one of githubkit's, or your own with some fields.

        githubkit comes with the extra `webhook-gateway-server[github]`. Raises ValueError if the
        payload does not fit.
        """
        from gateway.base.typed import read_github_payload

        self._require_provider("github")
        return read_github_payload(model, self.payload)

    def _require_provider(self, name: str) -> None:
        if self.provider != name:
            raise ValueError(
                f"event.{name}() is for events of provider {name}; "
                f"{self.id!r} on route {self.route!r} is one of provider {self.provider}"
            )


def read_payload(headers: Mapping[str, str], body: bytes) -> Any:
    """Return the JSON of a body, or the fields of a form without JSON (last value per name)."""
    try:
        document = payload_bytes(headers, body)
    except ValueError:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FORM_PARTS)
        if not fields or "payload" in dict(fields):
            raise
        return dict(fields)
    return orjson.loads(document)


def is_form(headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether a body is a form: its header says so, and it does not begin like JSON.

    The header is not signed: with another header, a text within signed JSON could be passed off as
    the `payload` of a form.
    """
    if headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        return False
    return _JSON.match(body) is None


def payload_bytes(headers: Mapping[str, str], body: bytes) -> bytes:
    """Return the JSON document in a body.

    Raises ValueError if a form does not have exactly one `payload` field.
    """
    if not is_form(headers, body):
        return body
    fields = body.split(b"&", FORM_FIELDS)
    if not body.isascii() or len(fields) > FORM_FIELDS or not all(b"=" in f for f in fields):
        raise ValueError(f"not a form of at most {FORM_FIELDS} fields")
    values = [field[8:] for field in fields if field.startswith(b"payload=")]
    if len(values) != 1:
        raise ValueError(f"{len(values)} `payload` fields in the form")
    return _unquoted(values[0].replace(b"+", b" "))


def _unquoted(text: bytes) -> bytes:
    """Percent-decode the text, run by run if nearly all of a large body is encoded."""
    if text.count(b"%") * 6 < len(text):
        return unquote_to_bytes(text)
    return _ENCODED.sub(lambda run: bytes.fromhex(run[0].replace(b"%", b"").decode()), text)


HandlerKey = tuple[str, str]
"""The identity of a handler: its route and its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to run one delivery until it expires, fenced by a random token."""

    delivery_id: int
    token: UUID
    handler: str
    attempt: int
    event: Event
    run: int = 1
    """The number of this run, among all runs of the delivery."""
    sealed: bytes | None = None
    """The encrypted headers and body. The event has none until they are decrypted."""
    body_bytes: int = 0
    """Size of the stored body, encrypted or not."""
    trace: str | None = None
    """The trace context of the receiving span, as a `traceparent`. None if tracing was off."""
    payload_kept: bool = True
    """False if the payload was deleted: the event has no headers and no body."""
    order_key: str | None = None
    """The delivery's ordering key, whose next delivery may run once this one has ended."""
    conflicts: int = 0
    """How many runs in a row ended in a conflict before this one."""

    @property
    def handler_key(self) -> HandlerKey:
        return self.event.route, self.handler
