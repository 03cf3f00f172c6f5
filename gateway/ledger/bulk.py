"""Bulk operations on everything that matches a filter, and their progress."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

import asyncpg
import orjson

from gateway.base.errors import NotFound, TransitionRefused
from gateway.ledger.connection import QUERIES, Executor
from gateway.ledger.filter import Filter

IDLE: Final = timedelta(seconds=30)
"""After this time without a step, the process that ran a bulk operation is considered gone: even a
slow one makes a step per second."""


class Action(StrEnum):
    """The action on everything that matches."""

    REPLAY = "replay"
    DISCARD = "discard"
    DELIVER = "deliver"
    """Deliver events to a handler that has no delivery of them, because it was added later."""
    RETRY_EFFECTS = "retry_effects"
    """Run effects with an unknown outcome again."""
    CONFIRM_EFFECTS = "confirm_effects"
    """Count effects with an unknown outcome as done."""


class EffectPolicy(StrEnum):
    """How a replay treats effects with an unknown outcome. Effects that are done are kept."""

    KEEP = "keep"
    """Leave them unchanged: the handler decides, and `unknown="skip"` does not call again."""
    RETRY = "retry"
    """Run them again."""


class BulkStatus(StrEnum):
    """The state of a bulk operation."""

    RUNNING = "running"
    STOPPED = "stopped"
    DONE = "done"


class BulkCursor(NamedTuple):
    """The cursor after the last row that was read.

    For dead letters the time of death and the id; for events the time of receipt, route and id; for
    effects the time at which they became unknown, the delivery and (as `event_id`) the name.
    """

    at: datetime
    id: int = 0
    route: str = ""
    event_id: str = ""


BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOperation:
    """A bulk operation."""

    id: int
    action: Action
    filter: Filter
    actor: str
    reason: str | None
    rate: int | None
    """The maximum number of deliveries per second."""
    began_at: datetime
    """Rows that died, or were received, later are not included."""
    total: int
    """The number of matches when it began."""
    moved: int
    skipped: int
    """The number of matches without a payload, which were skipped."""
    mark: BulkCursor
    status: BulkStatus
    resumed: int
    """How often it was resumed. A process of an earlier round makes no more steps."""
    effects: EffectPolicy
    """How a replay treats effects with an unknown outcome."""
    effects_kept: int
    effects_unknown: int
    is_idle: bool
    """Whether it seems to have no running process."""
    stepped_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBulkOperation:
    """The request for a bulk operation."""

    action: Action
    filter: Filter
    actor: str
    reason: str | None
    rate: int | None
    as_of: datetime
    total: int
    effects: EffectPolicy = EffectPolicy.KEEP


async def begin_order(ledger: Executor, new: NewBulkOperation) -> BulkOperation:
    """Record a bulk operation before its first step."""
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


async def find_order(ledger: Executor, order_id: int) -> BulkOperation:
    """Return a bulk operation. Raises NotFound."""
    row = await ledger.fetchrow(QUERIES["find_order"], order_id, IDLE)
    if row is None:
        raise NotFound(f"there is no order {order_id}")
    return order_of(row)


async def list_orders(ledger: Executor, after: int | None, limit: int) -> list[BulkOperation]:
    """Return bulk operations, newest first, from behind a cursor."""
    rows = await ledger.fetch(QUERIES["list_orders"], limit, IDLE, after)
    return [order_of(row) for row in rows]


async def stop_order(
    ledger: Executor, order_id: int, *, actor: str, reason: str | None
) -> BulkOperation:
    """Stop a bulk operation: no further step begins. No-op if it is stopped or done."""
    row = await ledger.fetchrow(QUERIES["stop_order"], order_id, actor, reason)
    return await find_order(ledger, order_id) if row is None else order_of(row)


async def resume_order(
    ledger: Executor, order_id: int, *, actor: str, reason: str | None, rate: int | None
) -> BulkOperation:
    """Resume a bulk operation for the caller only. Raises TransitionRefused if it is done."""
    row = await ledger.fetchrow(QUERIES["resume_order"], order_id, actor, reason, rate)
    if row is not None:
        return order_of(row)
    order = await find_order(ledger, order_id)
    raise TransitionRefused(f"order {order.id} is {order.status}: there is nothing to go on with")


async def read_clock(ledger: Executor, as_of: datetime | None) -> datetime:
    """Return `as_of`, or the current time by the ledger's clock."""
    moment: datetime = await ledger.fetchval(QUERIES["read_clock"], as_of)
    return moment


def order_of(row: asyncpg.Record) -> BulkOperation:
    return BulkOperation(
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
        mark=BulkCursor(row["mark_at"], row["mark_id"], row["mark_route"], row["mark_event_id"]),
        status=BulkStatus(row["status"]),
        resumed=row["resumed"],
        effects=EffectPolicy(row["effects"]),
        effects_kept=row["effects_kept"],
        effects_unknown=row["effects_unknown"],
        is_idle=row["is_idle"],
        stepped_at=row["stepped_at"],
        finished_at=row["finished_at"],
    )
