"""Events for tests: samples with some fields changed, recorded ones, or whole payloads."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import orjson

from gateway.base.model import Envelope, Event, read_payload
from gateway.base.problems import one_of
from gateway.config.routes import Config, Route
from gateway.ledger.claims import Claim
from gateway.providers.samples import Sample, load_recorded, make_sample, receive_alone
from gateway.providers.samples.sample import lay_out


def override(payload: Any, steps: Sequence[str], value: Any) -> None:
    """Set the field at the path. A step into a list is an index."""
    __tracebackhide__ = True
    name, node = ".".join(steps), payload
    for step in steps[:-1]:
        node = node[_key(node, step, name)]
    node[_key(node, steps[-1], name)] = value


def _key(node: Any, step: str, name: str) -> str | int:
    __tracebackhide__ = True
    if isinstance(node, dict):
        if step in node:
            return step
        raise ValueError(f"{name}: the event has no field {step!r}{_hint(node, step)}")
    if isinstance(node, list):
        if step.isdecimal() and int(step) < len(node):
            return int(step)
        raise ValueError(f"{name}: found {step!r} for a place in a list of {len(node)}")
    raise ValueError(f"{name}: there is nothing under {step!r}: it stands in {node!r}")


def _hint(node: dict[str, Any], step: str) -> str:
    if not node:
        return ": there is none, so set it as a whole"
    close = get_close_matches(step, node)
    return f"; did you mean {' or '.join(close)}?" if close else f"; it has {', '.join(node)}"


BASES: Final = {"stripe": ("data", "object")}
"""The path of the object whose fields a test names: in Stripe's events, `data.object`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """The parts from which an event is built."""

    id: str
    type: str
    payload: Any


class MakeEvent:
    """Creates events as the project's routes would receive them."""

    def __init__(self, config: Config, directory: Path) -> None:
        self._config = config
        self._directory = directory

    def __call__(
        self,
        route: str,
        type: str | None = None,
        changes: Mapping[str, Any] | None = None,
        /,
        *,
        file: str | Path | None = None,
        payload: Any = None,
        event_id: str | None = None,
        occurred_at: datetime | None = None,
        account: str | None = None,
        livemode: bool | None = None,
        **fields: Any,
    ) -> Event:
        """Create an event of a route (or of the only route of a provider).

        It is the sample of its type, a recorded `file` (relative to the project's directory), or a
        `payload` of your own.

        `fields` are changed in Stripe's object, or else in the payload; `__` leads to a nested
        field. `changes` has paths from the top of the payload: `data.object.customer`.
        `occurred_at` is the time of the event: all times of a sample are derived from it.
        """
        __tracebackhide__ = True
        place = self._route(route)
        now = occurred_at or datetime.now(UTC)
        if livemode is not None and (file is not None or payload is not None):
            raise ValueError("make_event: livemode= is for samples; this event says its own")
        if file is not None:
            draft = self._recorded(place, type, file)
        elif payload is not None:
            draft = _own(place, type, payload)
        else:
            draft = _sample(place, type, now, livemode or False)
        base = BASES.get(place.provider.name, ())
        for path, value in (changes or {}).items():
            override(draft.payload, path.split("."), value)
        for name, value in fields.items():
            override(draft.payload, [*base, *name.split("__")], value)
        if account is not None or occurred_at is not None:
            _set_stripes_own(place, draft.payload, account, occurred_at)
        return _event(place, draft, event_id)

    def _route(self, name: str) -> Route:
        __tracebackhide__ = True
        routes = {route.name: route for route in self._config.routes}
        if name in routes:
            return routes[name]
        found = [route for route in self._config.routes if route.provider.name == name]
        if len(found) == 1:
            return found[0]
        if found:
            raise ValueError(
                f"make_event: {name} has several routes; expected "
                + one_of(route.name for route in found)
            )
        raise ValueError(
            f"make_event: {self._config.file} has no route {name!r}; expected "
            + one_of(routes, like=name)
        )

    def _recorded(self, route: Route, type: str | None, file: str | Path) -> _Draft:
        recorded = load_recorded(self._directory / file, provider=route.provider.name, type=type)
        return _Draft(id=recorded.id, type=recorded.type, payload=orjson.loads(recorded.body))


def _sample(route: Route, type: str | None, now: datetime, livemode: bool) -> _Draft:
    __tracebackhide__ = True
    if route.provider.is_queue:
        raise ValueError(f"make_event: {route.name} is a queue: give the job's payload=...")
    if type is None:
        raise ValueError("make_event: which type? Say make_event('stripe', 'invoice.paid')")
    sample = make_sample(route.provider, type, now=now, livemode=livemode)
    item = receive_alone(route.provider, sample, now=now)
    payload = read_payload(item.headers, item.body)
    return _Draft(id=sample.id, type=sample.type, payload=payload)


def _own(route: Route, type: str | None, payload: Any) -> _Draft:
    own = orjson.loads(
        orjson.dumps(payload)
    )  # a copy; also raises if the payload is not valid JSON
    is_queue = route.provider.is_queue
    return _Draft(id=str(uuid4()), type=type or (route.name if is_queue else ""), payload=own)


def _set_stripes_own(
    route: Route, payload: Any, account: str | None, occurred_at: datetime | None
) -> None:
    """Set the fields of Stripe's event outside its object."""
    if account is not None:
        if route.provider.name != "stripe":
            raise ValueError(
                "make_event: account= is Stripe's; GitHub's is the login of the organization or "
                "of the repository's owner"
            )
        payload["account"] = account
    if occurred_at is not None and route.provider.name == "stripe":
        is_thin = isinstance(payload.get("created"), str)
        seconds = int(occurred_at.timestamp())
        payload["created"] = occurred_at.isoformat() if is_thin else seconds


def _event(route: Route, draft: _Draft, event_id: str | None) -> Event:
    __tracebackhide__ = True
    provider, now = route.provider, datetime.now(UTC)
    if event_id is not None and provider.name == "stripe":
        draft.payload["id"] = event_id
    is_form = provider.drafts is not None and provider.drafts.is_form
    body = lay_out(provider.name, draft.payload, is_form=is_form)
    sample = Sample(id=event_id or draft.id, type=draft.type, body=body)
    if provider.is_queue:
        envelope = Envelope(id=sample.id, type=sample.type)
        return build_event(route, envelope, {"content-type": "application/json"}, body, now)
    return receive_event(route, sample, now=now)


def receive_event(
    route: Route, sample: Sample, *, now: datetime, headers: Mapping[str, str] | None = None
) -> Event:
    """Return the event that the route makes of a sample when it receives it."""
    signed = receive_alone(route.provider, sample, now=now, headers=headers)
    return build_event(route, route.provider.read(signed), signed.headers, signed.body, now)


def build_event(
    route: Route,
    envelope: Envelope,
    headers: Mapping[str, str],
    body: bytes,
    received_at: datetime,
) -> Event:
    """Return the event as a handler of the route sees it."""
    return Event(
        id=envelope.id,
        type=envelope.type,
        route=route.name,
        provider=route.provider.name,
        account=envelope.account,
        livemode=envelope.livemode,
        occurred_at=envelope.occurred_at,
        received_at=received_at,
        headers={n: v for n, v in headers.items() if n not in route.provider.credentials},
        body=body,
    )


def envelope_of(event: Event) -> Envelope:
    """Return what the provider reads from the request of an event."""
    return Envelope(
        id=event.id,
        type=event.type,
        account=event.account,
        livemode=event.livemode,
        occurred_at=event.occurred_at,
    )


def claim_of(event: Event, handlers: tuple[str, ...]) -> Claim:
    """Return the claim that the endpoint makes of an event, for some handlers."""
    return Claim(
        route=event.route,
        provider=event.provider,
        envelope=envelope_of(event),
        received_at=event.received_at,
        digest=hashlib.sha256(event.body).digest(),
        headers=event.headers,
        body=event.body,
        repeats=None,
        handlers=handlers,
    )
