"""Orders for everything that matches a filter: what was ordered, and how far it has come."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

import asyncpg
import orjson

from gateway.errors import NotFound, TransitionRefused
from gateway.ledger.connection import Executor
from gateway.ledger.filter import Filter
from gateway.ledger.queries import QUERIES

IDLE: Final = timedelta(seconds=30)
"""Without a step for so long, whoever was at an order is gone: a slow one makes one a second."""


class Action(StrEnum):
    """What is to be done to everything that matches."""

    REPLAY = "replay"
    DISCARD = "discard"
    DELIVER = "deliver"
    """Events to a handler that has no delivery of them: it came later than they did."""
    RETRY_EFFECTS = "retry_effects"
    """Effects of unknown outcome: make them again."""
    CONFIRM_EFFECTS = "confirm_effects"
    """Effects of unknown outcome: count them as done."""


class Effects(StrEnum):
    """What a replay does about effects of unknown outcome. Those that were done are kept."""

    KEEP = "keep"
    """Leave them as they are: the handler decides, and `unknown="skip"` does not call again."""
    RETRY = "retry"
    """Make them again."""


class OrderStatus(StrEnum):
    """Whether an order goes on."""

    RUNNING = "running"
    STOPPED = "stopped"
    DONE = "done"


class Mark(NamedTuple):
    """The last row that was looked at: when it died and its id; when it came, route and id; or when
    an effect became unknown, its delivery and (as `event_id`) its name."""

    at: datetime
    id: int = 0
    route: str = ""
    event_id: str = ""


BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An order for everything that matches."""

    id: int
    action: Action
    filter: Filter
    actor: str
    reason: str | None
    rate: int | None
    """Deliveries a second."""
    began_at: datetime
    """What died, or came, later is not of this order."""
    total: int
    """How many matched when it began."""
    moved: int
    skipped: int
    """Those that have no payload any more."""
    mark: Mark
    status: OrderStatus
    resumed: int
    """How often; an earlier round makes no more steps."""
    effects: Effects
    """Of a replay."""
    effects_kept: int
    effects_unknown: int
    is_idle: bool
    """Nobody seems to be at it."""
    stepped_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOrder:
    """What a person asks for."""

    action: Action
    filter: Filter
    actor: str
    reason: str | None
    rate: int | None
    as_of: datetime
    total: int
    effects: Effects = Effects.KEEP


async def begin_order(ledger: Executor, new: NewOrder) -> Order:
    """Notes an order, before anything is done."""
    row = await ledger.fetchrow(
        QUERIES["begin_order"],
        new.action,
        orjson.dumps(new.filter.given).decode(),
        new.actor,
        new.reason,
        new.rate,
        new.as_of,
        new.total,
        new.filter.since or BEGINNING,
        new.effects,
    )
    assert row is not None  # noqa: S101 (it was inserted)
    return order_of(row)


async def find_order(ledger: Executor, order_id: int) -> Order:
    """Raises NotFound."""
    row = await ledger.fetchrow(QUERIES["find_order"], order_id, IDLE)
    if row is None:
        raise NotFound(f"there is no order {order_id}")
    return order_of(row)


async def list_orders(ledger: Executor, after: int | None, limit: int) -> list[Order]:
    """Newest first, from behind a mark."""
    rows = await ledger.fetch(QUERIES["list_orders"], limit, IDLE, after)
    return [order_of(row) for row in rows]


async def stop_order(ledger: Executor, order_id: int, *, actor: str, reason: str | None) -> Order:
    """No step is begun any more. One that is stopped or done stays so."""
    row = await ledger.fetchrow(QUERIES["stop_order"], order_id, actor, reason)
    return await find_order(ledger, order_id) if row is None else order_of(row)


async def resume_order(
    ledger: Executor, order_id: int, *, actor: str, reason: str | None, rate: int | None
) -> Order:
    """Lets it go on, by the caller and nobody else. Raises TransitionRefused where it is done."""
    row = await ledger.fetchrow(QUERIES["resume_order"], order_id, actor, reason, rate)
    if row is not None:
        return order_of(row)
    order = await find_order(ledger, order_id)
    raise TransitionRefused(f"order {order.id} is {order.status}: there is nothing to go on with")


async def read_clock(ledger: Executor, as_of: datetime | None) -> datetime:
    """Now, by the clock that the ledger goes by, or an earlier moment."""
    moment: datetime = await ledger.fetchval(QUERIES["read_clock"], as_of)
    return moment


def order_of(row: asyncpg.Record) -> Order:
    """The order of a row that has all its columns."""
    return Order(
        id=row["id"],
        action=Action(row["action"]),
        filter=Filter.read(orjson.loads(row["filter"])),
        actor=row["actor"],
        reason=row["reason"],
        rate=row["rate"],
        began_at=row["began_at"],
        total=row["total"],
        moved=row["moved"],
        skipped=row["skipped"],
        mark=Mark(row["mark_at"], row["mark_id"], row["mark_route"], row["mark_event_id"]),
        status=OrderStatus(row["status"]),
        resumed=row["resumed"],
        effects=Effects(row["effects"]),
        effects_kept=row["effects_kept"],
        effects_unknown=row["effects_unknown"],
        is_idle=row["is_idle"],
        stepped_at=row["stepped_at"],
        finished_at=row["finished_at"],
    )
