"""The events on which a handler is rehearsed: samples, recorded ones, and later ones of theirs."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Final, TypeVar

import orjson

from gateway.errors import BadPayload
from gateway.ledger.claims import Claim
from gateway.model import Envelope, Event
from gateway.registry import Subscription
from gateway.routes import Route
from gateway.samples import (
    Recorded,
    Sample,
    make_sample,
    make_successor,
    receive_alone,
    sample_types,
)
from gateway.testing.rehearse.made_up import MadeUp

T = TypeVar("T")

AGE: Final = timedelta(days=3)
LATER: Final = timedelta(days=1)
"""How old events are, and how much later the second one of an object is: both so that nothing in
them can be taken for a time of the rehearsal itself."""

MOST_EVENTS: Final = 12
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
"""Of GitHub: what is closed is reopened, what has run is run again under the same id, and each star
tells the number of all."""

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
"""Of Stripe: what happens to an object once. Two events may tell of it, and never differently."""

EITHER_OR: Final = (
    frozenset({"charge.succeeded", "charge.failed"}),
    frozenset({"checkout.session.completed", "checkout.session.expired"}),
    frozenset({"checkout.session.async_payment_succeeded", "checkout.session.expired"}),
    frozenset({"payment_intent.succeeded", "payment_intent.canceled"}),
    frozenset({"setup_intent.succeeded", "setup_intent.canceled"}),
)
"""Ends of an object of which only one can come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """One event, and how it comes in."""

    route: Route
    envelope: Envelope
    headers: Mapping[str, str]
    body: bytes
    label: str
    """Its type, and the file that it was recorded in."""
    rows: tuple[MadeUp, ...] = ()
    """What is in the user's tables before."""

    @property
    def payload(self) -> Any:
        return orjson.loads(self.body)

    def with_row(self, row: MadeUp) -> "Occasion | None":
        """The same event where one more row is there; None where the table has got one already."""
        if any(row.table == other.table for other in self.rows):
            return None
        rows = (*self.rows, row)
        tables = ", ".join(other.table for other in rows)
        label = f"{self.envelope.type}, with a row made up in {tables}"
        return replace(self, rows=rows, label=label)

    def claim(self, handler: str, received_at: datetime) -> Claim:
        """As the endpoint would make it, for one handler."""
        return Claim(
            route=self.route.name,
            provider=self.route.provider.name,
            envelope=self.envelope,
            received_at=received_at,
            digest=hashlib.sha256(self.body).digest(),
            headers=self.headers,
            body=self.body,
            replay=None,
            handlers=(handler,),
        )

    def event(self, received_at: datetime) -> Event:
        """As the handler sees it."""
        return Event(
            id=self.envelope.id,
            type=self.envelope.type,
            route=self.route.name,
            provider=self.route.provider.name,
            account=self.envelope.account,
            livemode=self.envelope.livemode,
            occurred_at=self.envelope.occurred_at,
            received_at=received_at,
            headers=self.headers,
            body=self.body,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two events of one object, the first of them older."""

    older: Occasion
    newer: Occasion

    @property
    def is_one_time(self) -> bool:
        """Whether both tell of something that happens once: which of them is kept is all one, if
        only it is not changed by the other."""
        return self.older.envelope.type == self.newer.envelope.type in ONE_TIME


def find_occasions(
    subscription: Subscription, route: Route, recorded: Mapping[str, Recorded], now: datetime
) -> list[Occasion]:
    """The recorded events that the handler takes; where there are none, samples of its types."""
    own = [
        make_occasion(route, item.sample, item.headers, now, f"{item.type} ({file})")
        for file, item in recorded.items()
        if item.provider == route.provider.name and takes(subscription, item.type)
    ]
    if own or route.provider.is_queue:
        return own
    samples = (
        make_sample(route.provider.name, type, now=now - AGE, livemode=bool(route.livemode))
        for type in sample_types(route.provider.name)
        if takes(subscription, type)
    )
    occasions = [make_occasion(route, sample, {}, now, sample.type) for sample in samples]
    return [occasion for occasion in occasions if route.wants(occasion.envelope)]


def takes(subscription: Subscription, type: str) -> bool:
    """Whether the handler takes events of this type."""
    return any(fnmatchcase(type, glob) for glob in subscription.types)


def make_occasion(
    route: Route, sample: Sample, headers: Mapping[str, str], now: datetime, label: str
) -> Occasion:
    """The event as it would come in on the route."""
    sent = receive_alone(route.provider, sample, now=now, headers=headers)
    hidden = route.provider.credentials
    return Occasion(
        route=route,
        envelope=route.provider.read(sent),
        headers={name: value for name, value in sent.headers.items() if name not in hidden},
        body=sent.body,
        label=label,
    )


def make_job(route: Route, id: str, type: str, payload: Any, occurred_at: datetime) -> Occasion:
    """A job that another handler published, as its queue's handlers get it."""
    return Occasion(
        route=route,
        envelope=Envelope(id=id, type=type, occurred_at=occurred_at),
        headers={},
        body=orjson.dumps(payload),
        label=type,
    )


def find_pairs(
    subscription: Subscription, occasions: Sequence[Occasion], now: datetime
) -> list[Pair]:
    """Each event with a later one of its object: of its own type, and of the handler's others."""
    alike: list[Pair] = []
    mixed: list[Pair] = []
    types = dict.fromkeys(occasion.envelope.type for occasion in occasions)
    for older in occasions:
        for type in types:
            if _can_follow(older.envelope.type, type):
                (alike if type == older.envelope.type else mixed).extend(_pair(older, type, now))
    pairs = [*alike, *evenly(mixed, MOST_MIXED_PAIRS)]
    return [pair for pair in pairs if not _is_once(subscription, pair)]


def without_pair(
    subscription: Subscription, occasions: Sequence[Occasion], pairs: Sequence[Pair]
) -> list[str]:
    """The types that no pair has, where the order of two could matter."""
    if subscription.once_per is not None:
        return []
    paired = {o.envelope.type for pair in pairs for o in (pair.older, pair.newer)}
    types = dict.fromkeys(occasion.envelope.type for occasion in occasions)
    return [type for type in types if type not in paired]


def without_sample(subscription: Subscription, occasions: Sequence[Occasion]) -> list[str]:
    """The types that the handler names and on which it is not tried."""
    tried = {occasion.envelope.type for occasion in occasions}
    return [t for t in subscription.types if t not in tried and not set("*?[") & set(t)]


def _pair(older: Occasion, type: str, now: datetime) -> list[Pair]:
    sample = Sample(id=older.envelope.id, type=older.envelope.type, body=older.body)
    provider = older.route.provider.name
    other = None if type == sample.type else type
    try:
        later = make_successor(provider, sample, now=now - AGE + LATER, type=other)
        headers = {n: v for n, v in older.headers.items() if not _tells_id(n)}
        newer = make_occasion(older.route, later, headers, now, type)
    except (ValueError, LookupError, BadPayload):
        return []  # of another kind of object, or of a provider without samples
    return [Pair(older=older, newer=newer)]


def _tells_id(header: str) -> bool:
    """GitHub writes an event's id and type into headers; those of the later one are its own."""
    return header in {"x-github-delivery", "x-github-event"}


def _can_follow(type: str, next_type: str) -> bool:
    """Whether an object's event of one type can come after one of another.

    An object is created once and deleted once: the other way round ends differently with reason.
    """
    if type == next_type and type in REPEATED:
        return True
    if {type, next_type} in EITHER_OR:
        return False
    stage, next_stage = _stage(type), _stage(next_type)
    return stage <= next_stage if stage == 1 else stage < next_stage


def _stage(type: str) -> int:
    word = type.rpartition(".")[2]
    return 0 if word in FIRST else 2 if word in LAST else 1


def _is_once(subscription: Subscription, pair: Pair) -> bool:
    """Of two events with one `once_per` key, the gateway runs only the first to come."""
    path = subscription.once_per
    return path is not None and path.key(pair.older.payload) == path.key(pair.newer.payload)


def evenly(items: Sequence[T], most: int) -> list[T]:
    """At most so many of them, spread over all."""
    if len(items) <= most:
        return list(items)
    return [items[round(n * (len(items) - 1) / (most - 1))] for n in range(most)]
