"""List Stripe's events in chronological order."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import orjson
from pydantic import BaseModel, TypeAdapter

from gateway.base.errors import BadPayload, ProviderFailed
from gateway.base.model import Envelope
from gateway.config.routes import Route
from gateway.ledger.reconciliations import Missing
from gateway.operations.reconcile.api import Api, ApiRefused, ListedEvent, ProviderPage
from gateway.providers import Incoming
from gateway.providers.payload import is_text
from gateway.providers.stripe import STRIPE

PAGE: Final = 100
"""The maximum page size of the API. https://docs.stripe.com/api/events/list"""
MOST_TYPES: Final = 20
KEPT: Final = timedelta(days=30)
HEADERS: Final = {"content-type": "application/json"}
NOT_FOUND: Final = frozenset({400, 404})
OWN: Final = ""
"""The account that owns the key, without its connected accounts."""


class _List(BaseModel):
    data: list[dict[str, Any]]
    has_more: bool


LIST: Final = TypeAdapter(_List)
EVENT: Final = TypeAdapter(dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class StripeEvents:
    """The events of an account, or of connected accounts, from `since` until `until`."""

    api: Api
    route: Route
    since: datetime
    until: datetime
    handled: Callable[[str], bool]
    """Whether a handler accepts the type."""
    accounts: Sequence[str] = ()

    async def pages(self, cursor: str | None) -> AsyncIterator[ProviderPage]:
        """List one account after the other, each from its oldest event to its newest."""
        at, _, after = (cursor or "").partition(" ")
        if after and not await self._knows(after, at):
            after = ""
        accounts = list(self.accounts or (OWN,))
        for account in accounts[accounts.index(at) if at in accounts else 0 :]:
            async for page in self._of_account(account, after if account == at else ""):
                yield page

    async def fetch(self, event_id: str, account: str) -> ListedEvent | None:
        """Return an event by its id, or None if Stripe no longer has it."""
        event = await self._retrieve(event_id, account)
        return None if event is None else self._listed(event, account)

    async def _knows(self, event_id: str, account: str) -> bool:
        return await self._retrieve(event_id, account) is not None

    async def _retrieve(self, event_id: str, account: str) -> dict[str, Any] | None:
        path = f"v1/events/{quote(event_id, safe='')}"
        try:
            answer = await self.api.ask("GET", path, headers=_as(account))
        except ApiRefused as refusal:
            if refusal.status in NOT_FOUND:
                return None
            raise
        return self.api.read(EVENT, answer)

    async def _of_account(self, account: str, after: str) -> AsyncIterator[ProviderPage]:
        if not after:
            after, oldest = await self._before_since(account)
            if oldest is not None:
                yield self._page([oldest], account)
        while after:
            found = await self._list(account, {**self._filter, "ending_before": after})
            if found.data:
                after = _further(_id(found.data[0]), after)
                yield self._page(found.data[::-1], account)
            if not found.data or not found.has_more:
                return

    async def _before_since(self, account: str) -> tuple[str, dict[str, Any] | None]:
        """Return the last event before `since`, to list the newer ones from there.

        The API lists from newer to older events, unless it gets an event after which to list the
        newer ones. If there is no event before `since`, the oldest event after it is returned too,
        because it belongs to the listing.
        """
        before = {**self._types, "limit": 1, "created[lt]": int(self.since.timestamp())}
        found = await self._list(account, before)
        if found.data:
            return _id(found.data[0]), None
        oldest: dict[str, Any] | None = None
        filter = {**self._filter, "created[gte]": int(self.since.timestamp())}
        while True:
            further = {} if oldest is None else {"starting_after": _id(oldest)}
            found = await self._list(account, {**filter, **further})
            if found.data:
                at = None if oldest is None else _id(oldest)
                oldest = found.data[-1]
                _further(_id(oldest), at)
            if not found.data or not found.has_more:
                return ("", None) if oldest is None else (_id(oldest), oldest)

    @property
    def _filter(self) -> dict[str, Any]:
        return {**self._types, "limit": PAGE, "created[lte]": int(self.until.timestamp())}

    @property
    def _types(self) -> dict[str, Any]:
        """Return the types that Stripe can filter: names without globs.

        Other types are filtered here.
        """
        types = self.route.types or ()
        has_globs = any(set(type) & set("*?[") for type in types)
        return {} if has_globs or not 0 < len(types) <= MOST_TYPES else {"types[]": list(types)}

    async def _list(self, account: str, params: dict[str, Any]) -> _List:
        answer = await self.api.ask("GET", "v1/events", params, headers=_as(account))
        return self.api.read(LIST, answer)

    def _page(self, data: Sequence[dict[str, Any]], account: str) -> ProviderPage:
        """Make a page of events that are in chronological order."""
        listed = [self._listed(event, account) for event in data]
        return ProviderPage(
            count=len(data),
            events=[event for event in listed if event is not None],
            cursor=f"{account} {_id(data[-1])}",
        )

    def _listed(self, event: dict[str, Any], account: str) -> ListedEvent | None:
        """Return the event, or None if the route does not accept it.

        A listing contains all types of the account, including those that are
        not sent to the endpoint.
        """
        if account and event.get("account") is None:
            event = {**event, "account": account}  # as in the webhook that the endpoint receives
        try:
            body = orjson.dumps(event)
            envelope = STRIPE.read(Incoming(HEADERS, body))
        except BadPayload as error:
            return self._unreadable(event, account, error.reason)
        except orjson.JSONEncodeError as error:  # a number beyond 64 bits
            return self._unreadable(event, account, str(error))
        if not self._wants(envelope):
            return None
        too_large = len(body) > self.route.max_body
        problem = f"{len(body)} bytes, over max_body" if too_large else None
        occurred_at = envelope.occurred_at or self.until
        return ListedEvent(
            missing=Missing(
                event_id=envelope.id,
                type=envelope.type,
                handle=account,
                handled_at=occurred_at,
                occurred_at=occurred_at,
            ),
            body=body,
            problem=problem,
        )

    def _wants(self, envelope: Envelope) -> bool:
        if not self.route.wants(envelope):
            return False
        return self.route.types is not None or self.handled(envelope.type)

    def _unreadable(self, event: dict[str, Any], account: str, why: str) -> ListedEvent:
        missing = Missing(
            event_id=_id(event),
            type=str(event.get("type")) if is_text(event.get("type")) else "unknown",
            handle=account,
            handled_at=self.until,
            occurred_at=self.until,
        )
        return ListedEvent(missing=missing, problem=f"cannot be read: {why}")


def _id(event: dict[str, Any]) -> str:
    id = event.get("id")
    if not is_text(id):
        raise ProviderFailed("Stripe listed an event without an id")
    return id


def _further(id: str, than: str | None) -> str:
    """Check that the listing advances: otherwise it would never end."""
    if id == than:
        raise ProviderFailed(f"Stripe's listing does not go on: it ends with {id} again")
    return id


def _as(account: str) -> dict[str, str]:
    # https://docs.stripe.com/connect/authentication
    return {"stripe-account": account} if account else {}
