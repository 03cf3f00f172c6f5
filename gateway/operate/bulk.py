"""Carries out orders for everything that matches: counted first, step by step, at a pace."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import structlog

from gateway.errors import CommandFailed, NotFound
from gateway.ledger.bulk import Action, Order, OrderStatus
from gateway.ledger.connection import CONTENDED, LOST, Executor, describe
from gateway.ledger.deliveries import NO_EFFECTS, KnownEffects
from gateway.ledger.filter import Filter
from gateway.ledger.queries import QUERIES
from gateway.ledger.steps import RESOLVE, Means, Session, Stepped, routes_of, step
from gateway.notation.problems import one_of
from gateway.notation.quantities import format_count
from gateway.registry import Registry

MOST_GROUPS: Final = 100
TRIES: Final = 20
"""Of a step that got in the way of others."""

AWAY_S: Final = 1.0

log = structlog.get_logger("gateway.orders")


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What matches."""

    total: int = 0
    without_payload: int = 0
    groups: Sequence[Any] = ()
    """The largest."""
    effects: KnownEffects = NO_EFFECTS
    """Of a replay: those of the deliveries that match."""
    is_whole: bool = True
    """Whether all were looked at: where not, there may be more."""


async def count_dead(
    ledger: Executor, filter: Filter, as_of: datetime, limit: int, *, look_at: int | None = None
) -> Count:
    """Dead letters, by route, handler and what their errors have in common; of many the newest
    only, where it is said at how many to look."""
    rows = await ledger.fetch(
        QUERIES["group_dead"], *filter.of_dead, as_of, limit, filter.cause, look_at
    )
    beyond = look_at is not None and await ledger.fetchval(
        QUERIES["has_dead_beyond"], filter.since, filter.until, as_of, look_at
    )
    return Count(
        is_whole=not beyond,
        total=rows[0]["total"] if rows else 0,
        without_payload=rows[0]["without_payload"] if rows else 0,
        groups=[_group(row) for row in rows],
    )


async def count_dead_effects(ledger: Executor, filter: Filter, as_of: datetime) -> KnownEffects:
    """Count the effects of dead letters that match."""
    [row] = await ledger.fetch(QUERIES["count_dead_effects"], *filter.of_dead, as_of, filter.cause)
    return KnownEffects(row["kept"], row["unknown"])


async def count_unknown_effects(
    ledger: Executor, filter: Filter, as_of: datetime, limit: int
) -> Count:
    """Effects of unknown outcome, by route, handler, name and how the call ended."""
    rows = await ledger.fetch(QUERIES["group_unknown_effects"], *filter.of_effects, as_of, limit)
    return Count(
        total=rows[0]["total"] if rows else 0,
        without_payload=rows[0]["without_payload"] if rows else 0,
        groups=[_group(row) for row in rows],
    )


async def count_undelivered(
    ledger: Executor, filter: Filter, as_of: datetime, registry: Registry
) -> Count:
    """Events that a handler would take and has no delivery of, by route and type."""
    routes, handler = _subscribed(filter, registry)
    rows = await ledger.fetch(
        QUERIES["count_undelivered"],
        routes,
        handler,
        filter.since,
        filter.until,
        as_of,
        filter.type_pattern,
        filter.account,
    )
    taken = [row for row in rows if handler in registry.for_event(row["route"], row["type"])]
    return Count(
        total=sum(row["count"] for row in taken),
        without_payload=sum(row["without_payload"] for row in taken),
        groups=[_group(row) for row in taken[:MOST_GROUPS]],
    )


GROUP: Final = (
    "count", "route", "handler", "type", "error", "first_at", "last_at", "delivery_id",
)  # fmt: skip


def _group(row: Any) -> dict[str, Any]:
    return {name: row[name] for name in GROUP} | {"effect": row.get("effect")}


def _subscribed(filter: Filter, registry: Registry) -> tuple[list[str], str]:
    """On which routes which handler is. Raises NotFound where there is no such handler."""
    handler = filter.handler or ""
    routes = routes_of(registry, handler, filter.route)
    if not routes:
        where = "no route has" if filter.route is None else f"route {filter.route!r} has not"
        known = one_of({item.handler for item in registry.subscriptions}, like=handler)
        raise NotFound(f"{where} the handler {handler!r}; expected {known}")
    return routes, handler


async def count_matching(
    ledger: Executor,
    action: Action,
    filter: Filter,
    as_of: datetime,
    registry: Callable[[], Registry],
) -> Count:
    """How much an order would be about."""
    if action is Action.DELIVER:
        return await count_undelivered(ledger, filter, as_of, registry())
    if action in RESOLVE:
        return await count_unknown_effects(ledger, filter, as_of, MOST_GROUPS)
    count = await count_dead(ledger, filter, as_of, MOST_GROUPS)
    if action is not Action.REPLAY or not count.total:
        return count
    return replace(count, effects=await count_dead_effects(ledger, filter, as_of))


def effects_ahead(effects: str, kept: int, unknown: int) -> str | None:
    """Say what a replay is about to do about outside effects; None if there are none."""
    parts = []
    if kept:
        done = format_count(kept, "effect that was done is", "effects that were done are")
        parts.append(f"{done} not made again")
    if unknown and effects == "retry":
        parts.append(f"{_unknown(unknown)} will be made again")
    elif unknown:
        parts.append(
            f"{_unknown(unknown)} will not be made again if the handler says"
            ' unknown="skip" (--effects retry makes them again)'
        )
    return "; ".join(parts) or None


def effects_report(effects: str, kept: int, unknown: int) -> str:
    """Say what a replay did about outside effects: the end of a sentence."""
    parts = []
    if kept:
        parts.append(f"{format_count(kept, 'effect')} done before: not made again")
    if unknown:
        fate = "to be made again" if effects == "retry" else "left to the handler"
        parts.append(f"{_unknown(unknown)}: {fate}")
    return "".join(f"; {part}" for part in parts)


def _unknown(count: int) -> str:
    return format_count(count, "effect of unknown outcome", "effects of unknown outcome")


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """Whoever carries an order out: a command, or a `serve` in its background."""

    session: Callable[[], AbstractAsyncContextManager[Session]]
    wake: Callable[[Sequence[int]], Awaitable[None]]
    means: Means

    async def carry_out(self, order_id: int, resumed: int) -> AsyncGenerator[Order, None]:
        """Goes on until it is done or stopped; tells how it stands after each step.

        Raises CommandFailed where another has resumed it since.
        """
        pace, waker = _Pace(), _Waker(self.wake)
        try:
            while True:
                stepped = await self._step(order_id, resumed)
                if not stepped.is_ours:
                    raise CommandFailed(
                        f"order {order_id} was resumed elsewhere, and goes on there"
                    )
                waker.tell(stepped.due)
                yield stepped.order
                if stepped.order.status is not OrderStatus.RUNNING:
                    return
                await pace.wait(stepped.moved, stepped.order.rate)
        finally:
            await waker.finish()

    async def keep_at(self, order_id: int, resumed: int) -> None:
        """Carries it out where nobody watches, however often the ledger is away meanwhile."""
        while True:
            try:
                async with aclosing(self.carry_out(order_id, resumed)) as orders:
                    async for order in orders:
                        status = order.status
            except LOST as error:
                log.warning("order_waits", order_id=order_id, error=describe(error))
                await asyncio.sleep(AWAY_S)
            except CommandFailed as error:
                log.info("order_left", order_id=order_id, reason=str(error))
                return
            else:
                log.info("order_ended", order_id=order_id, status=status)
                return

    async def _step(self, order_id: int, resumed: int) -> Stepped:
        for _ in range(TRIES):
            with suppress(*CONTENDED):
                async with self.session() as connection:
                    return await step(connection, order_id, resumed, self.means)
            await asyncio.sleep(random.uniform(0.01, 0.1))  # noqa: S311 (so that they miss each other)
        raise CommandFailed(f"order {order_id} gets in the way of others again and again")


class _Pace:
    """So many a second, evenly."""

    def __init__(self) -> None:
        self._free_s = time.monotonic()

    async def wait(self, moved: int, rate: int | None) -> None:
        if rate is None or not moved:
            return
        now_s = time.monotonic()
        self._free_s = max(self._free_s, now_s - 1) + moved / rate
        await asyncio.sleep(max(0, self._free_s - now_s))


class _Waker:
    """Tells workers, a piece at a time and never in the way: what they are not told, they find."""

    def __init__(self, wake: Callable[[Sequence[int]], Awaitable[None]]) -> None:
        self._wake = wake
        self._telling: asyncio.Task[None] | None = None

    def tell(self, delivery_ids: Sequence[int]) -> None:
        if delivery_ids and (self._telling is None or self._telling.done()):
            self._telling = asyncio.create_task(self._tell(delivery_ids))

    async def _tell(self, delivery_ids: Sequence[int]) -> None:
        await self._wake(delivery_ids)

    async def finish(self) -> None:
        if self._telling is not None:
            await self._telling
