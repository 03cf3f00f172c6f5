"""List the deliveries of a GitHub webhook, and request redeliveries."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import parse_qs, urlsplit

import httpx
from pydantic import BaseModel, Field, TypeAdapter

from gateway.base.errors import ProviderFailed
from gateway.base.model import Envelope
from gateway.base.times import UtcTime
from gateway.config.routes import Route
from gateway.config.routes.reconcile import APP, GITHUB_API
from gateway.ledger.reconciliations import Missing
from gateway.operations.reconcile.api import Api, ApiRefused, ListedEvent, ProviderPage
from gateway.providers.payload import is_text

PAGE: Final = 100
KEPT: Final = timedelta(days=3)
KEPT_BY_SERVER: Final = timedelta(days=7)
"""GitHub Enterprise Server.
https://docs.github.com/en/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks
"""
GONE: Final = frozenset({400, 404, 410, 422})
LONGEST_STATUS: Final = 100


class Delivery(BaseModel):
    """One attempt to deliver an event. All attempts of an event share its guid."""

    id: int = Field(ge=0, lt=2**63)
    guid: str
    delivered_at: UtcTime
    redelivery: bool = False
    status: str = ""
    status_code: int = 0
    event: str
    action: str | None = None

    @property
    def type(self) -> str:
        return self.event if self.action is None else f"{self.event}.{self.action}"

    @property
    def recorded(self) -> str:
        text = "".join(c if c.isprintable() else " " for c in self.status)
        return f"{self.status_code} {text}".strip()[:LONGEST_STATUS]


DELIVERIES: Final = TypeAdapter(list[Delivery])


def kept_by(api_url: str) -> timedelta:
    """Return how long GitHub keeps deliveries, and can redeliver them."""
    return KEPT if api_url == GITHUB_API else KEPT_BY_SERVER


@dataclass(frozen=True, slots=True, kw_only=True)
class GithubDeliveries:
    """The deliveries of a webhook from `since` until `until`, newest first."""

    api: Api
    route: Route
    hook: str
    since: datetime
    until: datetime

    async def pages(self, cursor: str | None) -> AsyncIterator[ProviderPage]:
        """List from a cursor on, or from the newest delivery if GitHub no
        longer knows the cursor.
        """
        is_resumed = cursor is not None
        while True:
            try:
                answer = await self._list(cursor)
            except ApiRefused as refusal:
                if not is_resumed or refusal.status not in GONE:
                    raise
                cursor, is_resumed = None, False
                continue
            is_resumed = False
            deliveries = self.api.read(DELIVERIES, answer)
            cursor = _further(_next(answer), cursor)
            yield ProviderPage(
                count=len(deliveries), events=self._events(deliveries), cursor=cursor
            )
            is_past = all(d.delivered_at < self.since for d in deliveries)
            if cursor is None or is_past:
                return

    async def redeliver(self, delivery_id: str) -> None:
        """Request a redelivery, which arrives as a webhook. Raises Refused."""
        await self.api.ask("POST", f"{self._path}/{delivery_id}/attempts")

    @property
    def _path(self) -> str:
        return f"{'app/hook' if self.hook == APP else self.hook}/deliveries"

    async def _list(self, cursor: str | None) -> httpx.Response:
        params = {"per_page": str(PAGE), **({} if cursor is None else {"cursor": cursor})}
        return await self.api.ask("GET", self._path, params)

    def _events(self, deliveries: Sequence[Delivery]) -> list[ListedEvent]:
        """Return each guid once, with the outcome of its newest delivery and
        the time of its first one.
        """
        found: dict[str, Missing] = {}
        for delivery in deliveries:
            if not self._is_meant(delivery):
                continue
            this = _missing(delivery)
            newer = found.get(this.event_id)
            found[this.event_id] = this if newer is None else _merged(newer, this)
        return [ListedEvent(missing=missing) for missing in found.values()]

    def _is_meant(self, delivery: Delivery) -> bool:
        if not is_text(delivery.guid) or not is_text(delivery.type):
            raise ProviderFailed("GitHub listed a delivery whose guid or event cannot be read")
        if delivery.delivered_at < self.since:
            return False
        if delivery.delivered_at > self.until and not delivery.redelivery:
            return False  # it may still arrive
        return self.route.wants(Envelope(id=delivery.guid, type=delivery.type))


def _missing(delivery: Delivery) -> Missing:
    return Missing(
        event_id=delivery.guid,
        type=delivery.type,
        handle=str(delivery.id),
        handled_at=delivery.delivered_at,
        occurred_at=delivery.delivered_at,
        is_first=not delivery.redelivery,
        recorded=delivery.recorded,
    )


def _merged(one: Missing, other: Missing) -> Missing:
    newer, older = (one, other) if one.handled_at >= other.handled_at else (other, one)
    return replace(
        newer,
        occurred_at=min(newer.occurred_at, older.occurred_at),
        is_first=newer.is_first or older.is_first,
    )


def _further(cursor: str | None, than: str | None) -> str | None:
    """Check that the cursor advances: otherwise the listing would never end."""
    if cursor is not None and cursor == than:
        raise ProviderFailed("GitHub's listing does not go on: its next page is the same again")
    return cursor


def _next(answer: httpx.Response) -> str | None:
    """Read the cursor from the Link header.

    Following the link itself could send the token elsewhere.
    """
    if "next" not in answer.links:
        return None
    try:
        values = parse_qs(urlsplit(answer.links["next"].get("url", "")).query).get("cursor", [])
    except ValueError:
        values = []
    if len(values) != 1 or not is_text(values[0]):
        raise ProviderFailed("GitHub's Link header has no cursor that can be read")
    return values[0]
