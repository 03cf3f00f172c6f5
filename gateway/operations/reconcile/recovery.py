"""Recover missing events: claim them from a listing (Stripe), or request a redelivery (GitHub)."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from gateway.base.errors import BadPayload, ProviderFailed, RateLimited
from gateway.base.model import Rate
from gateway.config.registry import Registry
from gateway.config.routes import Route
from gateway.ledger.claims import Claimer
from gateway.ledger.connection import Connection
from gateway.ledger.make_claim import make_claim
from gateway.ledger.reconciliations import Gap, ask_gap, close_gaps, explain_gap, give_up, next_gaps
from gateway.ledger.walk import Pace
from gateway.operations.reconcile.api import ApiRefused, ListedEvent, Rest
from gateway.operations.reconcile.github import GONE, GithubDeliveries
from gateway.operations.reconcile.stripe import HEADERS, StripeEvents
from gateway.providers import Incoming

BATCH: Final = 100
MOST_ASKS: Final = 3
"""Maximum number of redelivery requests for an event, over several runs."""

UNDER_WAY: Final = timedelta(minutes=5)
"""How long to wait for a requested redelivery before requesting another one."""

MOST_FAILURES: Final = 3
"""Maximum number of consecutive failures. A single delivery that GitHub cannot process
does not block the others.
"""

POLL_S: Final = (0.1, 2.0)


class Recovery(Protocol):
    """Strategy to get missing events into the ledger."""

    async def take(self, missing: Sequence[ListedEvent]) -> None:
        """Process the missing events of one page. Their gaps are already recorded."""

    async def finish(self) -> None:
        """Process the gaps that are still open after the listing."""

    async def wait(self) -> None:
        """Wait until the events have arrived, or until a timeout."""


@dataclass(slots=True, kw_only=True)
class Work:
    """The part of a run that a recovery needs."""

    connection: Connection
    run_id: int
    route: Route
    until: datetime
    rest: Rest
    beat: Callable[[], Awaitable[None]]
    """Updates the counts of the run."""

    async def next_gaps(self, *, pause: timedelta) -> list[Gap]:
        return await next_gaps(
            self.connection, self.run_id, pause=pause, until=self.until, limit=BATCH
        )

    async def ask(self, gap: Gap) -> bool:
        """Record a redelivery request. Return False if the event has arrived meanwhile."""
        return await ask_gap(
            self.connection, self.route.name, self.run_id, gap.event_id, self.route.refused_types
        )

    async def close(self) -> int:
        return await close_gaps(self.connection, self.run_id, self.route.refused_types)

    async def give_up(self, reasons: Mapping[str, str]) -> None:
        await give_up(self.connection, self.route.name, reasons)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """Recovery for Stripe: events from the API are claimed like received
    ones, under the same id.
    """

    work: Work
    events: StripeEvents
    claimer: Claimer
    registry: Registry
    accepted: list[int]
    """Deliveries that the claimer has created since the last wake-up."""
    wake: Callable[[Sequence[int]], Awaitable[None]]

    async def take(self, missing: Sequence[ListedEvent]) -> None:
        reasons = {e.missing.event_id: e.problem for e in missing if e.problem is not None}
        bodies = [e.body for e in missing if e.problem is None and e.body is not None]
        refused = await asyncio.gather(*(self._claim(body) for body in bodies))
        await self.work.give_up(reasons | {id: why for id, why in refused if why is not None})
        await self.work.close()
        ids, self.accepted[:] = list(self.accepted), []
        await self.wake(ids)

    async def finish(self) -> None:
        """Fetch the events that earlier runs found and could not claim, one by one."""
        work = self.work
        while gaps := await work.next_gaps(pause=timedelta(0)):
            for gap in gaps:
                if await work.ask(gap):
                    await self._fetch(gap)
                await work.beat()
            await work.close()

    async def wait(self) -> None:
        """No-op: a claim is durable when `claim` returns."""

    async def _fetch(self, gap: Gap) -> None:
        event = await self.events.fetch(gap.event_id, gap.handle)
        if event is None or event.missing.event_id != gap.event_id:
            await self.work.give_up({gap.event_id: "Stripe has no such event for this route"})
        else:
            await self.take([event])

    async def _claim(self, body: bytes) -> tuple[str, str | None]:
        """Claim an event. Return its id, and the reason if it cannot be claimed."""
        route = self.work.route
        envelope = route.provider.read(Incoming(HEADERS, body))
        try:
            claim = make_claim(
                route,
                self.registry,
                envelope,
                headers=HEADERS,
                body=body,
                digest=hashlib.sha256(body).digest(),
                received_at=datetime.now(UTC),
                reconciled=True,
            )
        except (BadPayload, ValueError) as error:
            return envelope.id, f"cannot be read: {error}"
        await self.claimer.claim(claim)
        return envelope.id, None


@dataclass(slots=True, kw_only=True)
class Redeliveries:
    """Recovery for GitHub: a requested redelivery arrives as a normal, signed webhook."""

    work: Work
    deliveries: GithubDeliveries
    rate: Rate
    patience: timedelta
    _failures: int = field(default=0)
    _pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        self._pace = Pace(self.work.rest, catch_up_s=0)

    async def take(self, missing: Sequence[ListedEvent]) -> None:
        """No-op: the first delivery of a guid may be on a later page."""

    async def finish(self) -> None:
        """Request a redelivery of each open gap, oldest first."""
        work = self.work
        await work.close()
        while gaps := await work.next_gaps(pause=UNDER_WAY):
            for gap in gaps:
                await self._pace.wait()
                self._pace.spend(1, self.rate.count / self.rate.period.total_seconds())
                if await work.ask(gap):
                    await self._ask(gap)
                await work.beat()
            await work.close()

    async def wait(self) -> None:
        deadline = time.monotonic() + self.patience.total_seconds()
        pause_s = POLL_S[0]
        while await self.work.close() and time.monotonic() < deadline:
            await self.work.beat()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, POLL_S[1])

    async def _ask(self, gap: Gap) -> None:
        try:
            await self.deliveries.redeliver(gap.handle)
        except (RateLimited, ApiRefused) as refusal:
            if not isinstance(refusal, ApiRefused) or refusal.status not in GONE:
                await self._explain(gap, refusal, was_asked=False)
                raise
            await self.work.give_up({gap.event_id: str(refusal)})
        except ProviderFailed as failure:
            await self._explain(gap, failure, was_asked=True)
            self._failures += 1
            if self._failures == MOST_FAILURES:
                raise
        else:
            self._failures = 0

    async def _explain(self, gap: Gap, why: ProviderFailed, *, was_asked: bool) -> None:
        """Record why a request failed. If its outcome is unknown, it counts as sent."""
        work = self.work
        await explain_gap(
            work.connection, work.route.name, gap.event_id, str(why), was_asked=was_asked
        )
