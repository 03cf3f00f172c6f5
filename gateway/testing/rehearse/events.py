"""The events on which a handler is rehearsed: samples, recorded events, and later ones."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Final, TypeVar

import orjson

from gateway.base.model import Envelope, Event
from gateway.config.registry import Subscription
from gateway.config.routes import Route
from gateway.ledger.claims import Claim
from gateway.providers.samples import (
    Recorded,
    Sample,
    make_sample,
    receive_alone,
    sample_types,
    shared_object,
)
from gateway.testing.rehearse.made_up import MadeUp

T = TypeVar("T")

AGE: Final = timedelta(days=3)
"""The age of events, so that no time in them is mistaken for one taken by the rehearsal itself."""

MOST_EVENTS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedEvent:
    """One event, and its request."""

    route: Route
    envelope: Envelope
    headers: Mapping[str, str]
    body: bytes
    name: str
    """The event's type, and its origin if it is no sample of that type."""
    rows: tuple[MadeUp, ...] = ()
    """The rows to insert into the user's tables before the run."""

    @property
    def payload(self) -> Any:
        return orjson.loads(self.body)

    @property
    def label(self) -> str:
        tables = ", ".join(row.table for row in self.rows)
        return f"{self.name}, with a row made up in {tables}" if tables else self.name

    def with_row(self, row: MadeUp) -> "RehearsedEvent | None":
        """Return the event with one more row, or None if its table already has an invented row."""
        if any(row.table == other.table for other in self.rows):
            return None
        return replace(self, rows=(*self.rows, row))

    def claim(self, handler: str, received_at: datetime) -> Claim:
        """Return the claim that the endpoint would make, for one handler."""
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
        """Return the event that the handler receives."""
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


def find_occasions(
    subscription: Subscription, route: Route, recorded: Mapping[str, Recorded], now: datetime
) -> list[RehearsedEvent]:
    """Return the recorded events that the handler takes, or else samples of its types.

    A type that the handler names, and that has no template, is tried with the object of other types
    if there is one. It may not be in the state in which that type is sent.
    """
    own = [
        make_occasion(route, item.sample, item.headers, now, f"{item.type} ({file})")
        for file, item in recorded.items()
        if item.provider == route.provider.name and takes(subscription, item.type)
    ]
    if own or route.provider.is_queue:
        return own
    provider = route.provider.name
    names = {type: type for type in sample_types(provider) if takes(subscription, type)}
    for type in subscription.types:
        if (kind := shared_object(provider, type)) is not None:
            names[type] = f"{type} (with the {kind} of other events)"
    samples = (
        make_sample(provider, type, now=now - AGE, livemode=bool(route.livemode)) for type in names
    )
    occasions = [make_occasion(route, sample, {}, now, names[sample.type]) for sample in samples]
    return [occasion for occasion in occasions if route.wants(occasion.envelope)]


def takes(subscription: Subscription, type: str) -> bool:
    """Return whether the handler takes events of this type."""
    return any(fnmatchcase(type, glob) for glob in subscription.types)


def make_occasion(
    route: Route, sample: Sample, headers: Mapping[str, str], now: datetime, name: str
) -> RehearsedEvent:
    """Return the event as the route would receive it."""
    sent = receive_alone(route.provider, sample, now=now, headers=headers)
    hidden = route.provider.credentials
    return RehearsedEvent(
        route=route,
        envelope=route.provider.read(sent),
        headers={name: value for name, value in sent.headers.items() if name not in hidden},
        body=sent.body,
        name=name,
    )


def make_job(
    route: Route, id: str, type: str, payload: Any, occurred_at: datetime
) -> RehearsedEvent:
    """Return a job that another handler published, as the handlers of its queue receive it."""
    return RehearsedEvent(
        route=route,
        envelope=Envelope(id=id, type=type, occurred_at=occurred_at),
        headers={},
        body=orjson.dumps(payload),
        name=type,
    )


def without_sample(subscription: Subscription, occasions: Sequence[RehearsedEvent]) -> list[str]:
    """Return the types that the handler names and on which it is not tried."""
    tried = {occasion.envelope.type for occasion in occasions}
    return [t for t in subscription.types if t not in tried and not set("*?[") & set(t)]


def evenly(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` of the items, spread evenly over all."""
    if len(items) <= most:
        return list(items)
    return [items[round(n * (len(items) - 1) / (most - 1))] for n in range(most)]
