"""Make pairs of events of one subject.

The second event is a later one of the same object, a repeat of the same change, or one of another
object of the same customer.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import orjson

from gateway.base.errors import BadPayload
from gateway.config.registry import Subscription
from gateway.providers.samples import Sample, make_successor
from gateway.testing.events import receive_event
from gateway.testing.rehearse.events import AGE, RehearsedEvent, evenly

LATER: Final = timedelta(days=1)
"""How much later the second event of an object is. It is still long before the rehearsal."""

MOST_MIXED_PAIRS: Final = 12

FIRST: Final = frozenset({"created", "opened"})
LAST: Final = frozenset({"deleted", "closed", "canceled", "expired", "voided", "completed"})

REPEATED: Final = frozenset(
    {
        "issues.closed",
        "pull_request.closed",
        "workflow_run.completed",
        "check_run.completed",
        "check_suite.completed",
        "star.created",
        "star.deleted",
    }
)
"""GitHub's types that can repeat for one object.

A closed issue can be reopened, a finished run can be run again under the same id, and each star
event has the total number of stars.
"""

ONE_TIME: Final = frozenset(
    {
        "charge.captured",
        "charge.failed",
        "charge.succeeded",
        "checkout.session.async_payment_failed",
        "checkout.session.async_payment_succeeded",
        "invoice.finalized",
        "invoice.paid",
        "invoice.payment_succeeded",
        "payment_intent.succeeded",
        "payment_method.attached",
        "payout.failed",
        "payout.paid",
        "setup_intent.succeeded",
    }
)
"""Stripe's types that occur once for an object.

Two events may report it, but never with different content.
"""

EITHER_OR: Final = (
    frozenset({"charge.succeeded", "charge.failed"}),
    frozenset({"checkout.session.completed", "checkout.session.expired"}),
    frozenset({"checkout.session.async_payment_succeeded", "checkout.session.expired"}),
    frozenset({"payment_intent.succeeded", "payment_intent.canceled"}),
    frozenset({"setup_intent.succeeded", "setup_intent.canceled"}),
)
"""Pairs of final types of an object. Only one of the two can occur."""

ONE_FACT: Final = (
    frozenset({"checkout.session.completed", "checkout.session.async_payment_succeeded"}),
    frozenset({"invoice.paid", "invoice.payment_succeeded"}),
)
"""Pairs of Stripe's event types that are both sent for one payment of one object.

https://docs.stripe.com/checkout/fulfillment, https://docs.stripe.com/billing/subscriptions/webhooks
"""

_PAID_LATER: Final = "checkout.session.async_payment_"
"""Sent only for a session whose `checkout.session.completed` said that it was not paid yet."""

_OWN_ID: Final = re.compile(
    r"(?:ch|cs|dp|evt|ii|il|in|pi|po|py|re|seti|si|txn)_(?:test_|live_)?[A-Za-z0-9]{8,}"
)
"""Ids that belong to one payment of a customer.

Others (customer, subscription, price, payment method) are shared by several payments.
"""


class Relation(StrEnum):
    """The relation between the two events of a pair."""

    SUCCESSOR = "successor"
    """One object, which has changed in between."""
    REPEAT = "repeat"
    """One change of one object, under two event ids.

    Stripe sometimes sends such events: https://docs.stripe.com/webhooks#handle-duplicate-events
    """
    SIBLING = "sibling"
    """Two objects of one customer, account or repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two events of one subject, the first of them older."""

    older: RehearsedEvent
    newer: RehearsedEvent
    relation: Relation = Relation.SUCCESSOR
    before: RehearsedEvent | None = None
    """A third event that is delivered before both, so that there may be rows to change."""

    @property
    def is_one_time(self) -> bool:
        """Whether both events report something that happens once.

        Then either of them may be kept, as long as the other one does not change it.
        """
        return self._types == (self.older.received.type,) * 2 and self._types[0] in ONE_TIME

    @property
    def is_repeat(self) -> bool:
        """Whether the sender may have sent the same change twice."""
        is_stripe = self.older.route.provider.name == "stripe"
        return self.relation is Relation.REPEAT and is_stripe

    @property
    def is_one_fact(self) -> bool:
        """Whether both events report one payment, by types that always or often come together."""
        return frozenset(self._types) in ONE_FACT

    @property
    def label(self) -> str:
        """The types of the two events."""
        return " and ".join(dict.fromkeys(self._types))

    @property
    def words(self) -> str:
        """The description of the pair for the report."""
        match self.relation:
            case Relation.SUCCESSOR:
                return "two events of one object"
            case Relation.REPEAT:
                return f"two {self._more}events of one change"
        return f"two {self._more}objects of one {_shared(self.older)}"

    def is_once(self, subscription: Subscription) -> bool:
        """Return whether the gateway runs only the first event to arrive, because of `once_per`."""
        path = subscription.once_per
        return path is not None and path.key(self.older.payload) == path.key(self.newer.payload)

    @property
    def _more(self) -> str:
        return "" if self.before is None else "more "

    @property
    def _types(self) -> tuple[str, str]:
        return self.older.received.type, self.newer.received.type


def run_in_turn(subscription: Subscription, *events: RehearsedEvent) -> bool:
    """Return whether the gateway never runs deliveries of these events at the same time."""
    path = subscription.turns
    keys = set() if path is None else {path.key(event.payload) for event in events}
    return (len(keys) == 1 and None not in keys) or subscription.concurrency == 1


def find_pairs(
    subscription: Subscription, events: Sequence[RehearsedEvent], now: datetime
) -> list[Pair]:
    """Pair each event with later ones of its object, of its own type and of other types."""
    alike: list[Pair] = []
    mixed: list[Pair] = []
    types = dict.fromkeys(event.received.type for event in events)
    for older in events:
        for type in types:
            if _can_follow(older.received.type, type):
                (alike if type == older.received.type else mixed).extend(_pair(older, type, now))
    pairs = [*alike, *evenly(mixed, MOST_MIXED_PAIRS)]
    return [pair for pair in pairs if not pair.is_once(subscription)]


def find_relatives(event: RehearsedEvent) -> list[Pair]:
    """Pair the event with a repeat of the same change, and with an event of another object.

    The last of these pairs also exists in a variant with a third event before it, so that rows
    already exist.
    """
    pairs = [*_repeat(event), *_sibling(event)]
    for last in pairs[-1:]:
        [third] = (_repeat if last.relation is Relation.REPEAT else _sibling)(last.newer)
        pairs.append(replace(last, before=third.newer))
    return pairs


def without_pair(
    subscription: Subscription, events: Sequence[RehearsedEvent], pairs: Sequence[Pair]
) -> list[str]:
    """Return the types that are in no pair, although the order of two events could matter."""
    if subscription.once_per is not None:
        return []
    paired = {o.received.type for pair in pairs for o in (pair.older, pair.newer)}
    types = dict.fromkeys(event.received.type for event in events)
    return [type for type in types if type not in paired]


def _pair(older: RehearsedEvent, type: str, now: datetime) -> list[Pair]:
    sample = Sample(id=older.received.id, type=older.received.type, body=older.received.body)
    provider = older.route.provider.name
    other = None if type == sample.type else type
    try:
        later = make_successor(provider, sample, now=now - AGE + LATER, type=other)
        headers = {n: v for n, v in older.received.headers.items() if not _tells_id(n)}
        received = receive_event(older.route, later, now=now, headers=headers)
    except (ValueError, LookupError, BadPayload):
        return []  # another kind of object, or a provider without samples
    if type.startswith(_PAID_LATER):
        older = _unpaid(older)
    newer = RehearsedEvent(route=older.route, received=received, name=type)
    return [Pair(older=older, newer=newer)]


def _unpaid(event: RehearsedEvent) -> RehearsedEvent:
    payload = orjson.loads(event.received.body)
    payload["data"]["object"]["payment_status"] = "unpaid"
    return event.changed(body=orjson.dumps(payload))


def _tells_id(header: str) -> bool:
    """Return whether GitHub puts the event's id or type into this header.

    The later event has its own id and type.
    """
    return header in {"x-github-delivery", "x-github-event"}


def _can_follow(type: str, next_type: str) -> bool:
    """Return whether an event of one type can follow an event of another type of the same object.

    An object is created once and deleted once, so the reverse order may end differently.
    """
    if type == next_type and type in REPEATED:
        return True
    if {type, next_type} in EITHER_OR:
        return False
    if type.startswith(_PAID_LATER) != next_type.startswith(_PAID_LATER):
        return next_type.startswith(_PAID_LATER)
    phase, next_phase = _phase(type), _phase(next_type)
    return phase <= next_phase if phase == 1 else phase < next_phase


def _phase(type: str) -> int:
    word = type.rpartition(".")[2]
    return 0 if word in FIRST else 2 if word in LAST else 1


def _repeat(event: RehearsedEvent) -> list[Pair]:
    """Return the pair of the event and its repeat.

    Not for GitHub, which has one delivery id for each change, and for which `repeats:` handles the
    same body under another id.
    """
    if event.route.provider.name == "github":
        return []
    return [Pair(older=event, newer=_with_another_id(event), relation=Relation.REPEAT)]


def _sibling(event: RehearsedEvent) -> list[Pair]:
    payload = event.payload
    match event.route.provider.name:
        case "stripe":
            change = _stripe_change(payload)
        case "github":
            change = _github_change(payload, event.received.type)
        case _:
            change = None
    if change is None:
        return []
    body = orjson.dumps(_mapped(payload, change))
    newer = _with_another_id(event.changed(body=body))
    return [Pair(older=event, newer=newer, relation=Relation.SIBLING)]


def _with_another_id(event: RehearsedEvent) -> RehearsedEvent:
    """Return the same event under another event id."""
    old = event.received.id
    new = _another(old)
    received, payload = event.received, event.payload
    headers = {name: new if value == old else value for name, value in received.headers.items()}
    body = received.body
    if isinstance(payload, dict) and old in payload.values():
        body = orjson.dumps({k: new if v == old else v for k, v in payload.items()})
    return event.changed(id=new, headers=headers, body=body)


def _another(id: str) -> str:
    """Return another id of the same shape."""
    prefix, bar, tail = id.rpartition("_")
    digest = hashlib.sha256(id.encode()).hexdigest()
    return f"{prefix}{bar}{digest[: max(len(tail), 8)]}"


def _stripe_change(payload: Any) -> Callable[[str | int], str | int] | None:
    """Return a function that maps the event's ids to those of another object of the customer."""
    found = _stripe_object(payload)
    if found is None or not isinstance(found.get("id"), str):
        return None
    own, number, metadata = found["id"], found.get("number"), found.get("metadata")
    orders = {
        value
        for name, value in (metadata.items() if isinstance(metadata, dict) else ())
        if "order" in name and isinstance(value, str)
    }

    def change(value: str | int) -> str | int:
        if isinstance(value, int):
            return value
        if value in orders or (value == number and value):
            return f"{value}-2"
        return _OWN_ID.sub(lambda m: _another(m[0]), value.replace(own, _another(own)))

    return change


def _github_change(payload: Any, type: str) -> Callable[[str | int], str | int] | None:
    """Return a function that maps the ids of the issue, pull request etc. to another one's.

    The other object belongs to the same repository.
    """
    kind = type.partition(".")[0]
    names = (kind, kind.removesuffix("s"), kind.rpartition("_")[2])
    found = next((payload[n] for n in names if isinstance(payload.get(n), dict)), None)
    if found is None or not isinstance(found.get("id"), int):
        return None
    own, node, number = found["id"], found.get("node_id"), found.get("number")
    path = re.compile(rf"/(?:{own}|{number})\b")

    def change(value: str | int) -> str | int:
        if isinstance(value, str):
            return f"{value}2" if value == node else path.sub(lambda m: f"{m[0]}2", value)
        is_own = not isinstance(value, bool) and value in {own, number}
        return value * 10 + 2 if is_own else value

    return change


def _mapped(node: Any, change: Callable[[str | int], str | int]) -> Any:
    match node:
        case dict():
            return {name: _mapped(part, change) for name, part in node.items()}
        case list():
            return [_mapped(part, change) for part in node]
        case str() | int():
            return change(node)
    return node


def _shared(event: RehearsedEvent) -> str:
    if event.route.provider.name == "github":
        return "repository"
    found = _stripe_object(event.payload)
    return "customer" if found is not None and found.get("customer") else "account"


def _stripe_object(payload: Any) -> dict[str, Any] | None:
    data = payload.get("data") if isinstance(payload, dict) else None
    found = data.get("object") if isinstance(data, dict) else None
    return found if isinstance(found, dict) else None
