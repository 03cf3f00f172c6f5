"""Bulk operations on everything that matches a filter: their rows, and their steps.

A step's changes, their audit rows and its cursor are one commit.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple

import asyncpg
import orjson
from typing_extensions import TypedDict

from gateway.base.errors import CannotOpen, CommandFailed, NotFound, TransitionRefused
from gateway.base.failpoints import reached
from gateway.config.registry import Registry
from gateway.ledger.connection import QUERIES, Connection, Executor, Pooled
from gateway.ledger.deliveries import turns_of
from gateway.ledger.encryption import EncryptionKeys, open_event
from gateway.ledger.filter import Filter
from gateway.ledger.ordering import advance
from gateway.ledger.walk import step_rows

BATCH: Final = 500
"""The rows that a step reads and moves at most: a transaction of some tens of milliseconds."""

LARGE_BYTES: Final = 256 * 1024
"""Larger bodies are parsed in a thread, because a `serve` could not answer in the meantime."""

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


RESOLVE: Final = {
    Action.RETRY_EFFECTS: "retry_effects",
    Action.CONFIRM_EFFECTS: "confirm_effects",
}
"""The statement with which an action resolves effects with an unknown outcome."""


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


class BulkOperation(TypedDict):
    """A bulk operation and its progress."""

    bulk_id: int
    action: Action
    filter: dict[str, str]
    status: BulkStatus
    is_idle: bool
    """Whether it seems to have no running process."""
    total: int
    """The number of matches when it began."""
    moved: int
    skipped: int
    """The number of matches without a payload, which were skipped."""
    rate: int | None
    """The maximum number of rows per second."""
    effects: EffectPolicy
    """For a replay: whether effects of unknown outcome are made again."""
    effects_kept: int
    """Effects of the replayed deliveries that were done and are not made again."""
    effects_unknown: int
    actor: str
    reason: str | None
    began_at: datetime
    """Rows that died, or were received, later are not included."""
    stepped_at: datetime
    finished_at: datetime | None
    resumed: int
    """How often it was resumed. A process of an earlier round makes no more steps."""


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


async def begin_bulk(ledger: Executor, new: NewBulkOperation) -> BulkOperation:
    """Record a bulk operation before its first step."""
    row = await ledger.fetchrow(
        QUERIES["begin_bulk"],
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
    return _read(row)


async def find_bulk(ledger: Executor, bulk_id: int) -> BulkOperation:
    """Return a bulk operation. Raises NotFound."""
    row = await ledger.fetchrow(QUERIES["find_bulk"], bulk_id, IDLE)
    if row is None:
        raise NotFound(f"there is no bulk operation {bulk_id}")
    return _read(row)


async def list_bulk(ledger: Executor, after: int | None, limit: int) -> list[BulkOperation]:
    """Return bulk operations, newest first, from behind a cursor."""
    return [_read(row) for row in await ledger.fetch(QUERIES["list_bulk"], limit, IDLE, after)]


async def stop_bulk(
    ledger: Executor, bulk_id: int, *, actor: str, reason: str | None
) -> BulkOperation:
    """Stop a bulk operation: no further step begins. No-op if it is stopped or done."""
    row = await ledger.fetchrow(QUERIES["stop_bulk"], bulk_id, actor, reason)
    return await find_bulk(ledger, bulk_id) if row is None else _read(row)


async def resume_bulk(
    ledger: Executor, bulk_id: int, *, actor: str, reason: str | None, rate: int | None
) -> BulkOperation:
    """Resume a bulk operation for the caller only. Raises TransitionRefused if it is done."""
    row = await ledger.fetchrow(QUERIES["resume_bulk"], bulk_id, actor, reason, rate)
    if row is not None:
        return _read(row)
    bulk = await find_bulk(ledger, bulk_id)
    raise TransitionRefused(
        f"bulk operation {bulk_id} is {bulk['status']}: there is nothing to resume"
    )


async def read_clock(ledger: Executor, as_of: datetime | None) -> datetime:
    """Return `as_of`, or the current time by the ledger's clock."""
    moment: datetime = await ledger.fetchval(QUERIES["read_clock"], as_of)
    return moment


def _read(row: asyncpg.Record) -> BulkOperation:
    return {
        "bulk_id": row["id"],
        "action": Action(row["action"]),
        "filter": orjson.loads(row["filter"]),
        "status": BulkStatus(row["status"]),
        "is_idle": row["is_idle"],
        "total": row["total"],
        "moved": row["moved"],
        "skipped": row["skipped"],
        "rate": row["rate"],
        "effects": EffectPolicy(row["effects"]),
        "effects_kept": row["effects_kept"],
        "effects_unknown": row["effects_unknown"],
        "actor": row["actor"],
        "reason": row["reason"],
        "began_at": row["began_at"],
        "stepped_at": row["stepped_at"],
        "finished_at": row["finished_at"],
        "resumed": row["resumed"],
    }


Session = Connection | Pooled


class BulkStep(NamedTuple):
    """The result of a step."""

    bulk: BulkOperation
    """The bulk operation after the step."""
    moved: int
    due: Sequence[int]
    """Deliveries that may run now."""
    is_ours: bool = True
    """Whether the caller is still the process that runs the bulk operation."""


class _Walked(NamedTuple):
    cursor: BulkCursor
    is_end: bool
    chosen: int
    kept: Sequence[asyncpg.Record]
    """One row for each chosen row that has its payload, with an id if it was moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """Dependencies of steps, loaded on first use: a replay of dead letters needs no project."""

    registry: Callable[[], Registry]
    encryption: Callable[[], EncryptionKeys]


async def step(connection: Session, bulk_id: int, resumed: int, means: StepContext) -> BulkStep:
    """Run one step of a bulk operation from its cursor.

    `resumed` is the round in which the caller runs it.
    """
    async with connection.transaction():
        row = await connection.fetchrow(QUERIES["hold_bulk"], bulk_id)
        if row is None:
            raise NotFound(f"there is no bulk operation {bulk_id}")
        bulk = _read(row)
        if bulk["resumed"] != resumed or bulk["status"] is not BulkStatus.RUNNING:
            return BulkStep(bulk, 0, (), bulk["resumed"] == resumed)
        cursor = BulkCursor(row["mark_at"], row["mark_id"], row["mark_route"], row["mark_event_id"])
        if bulk["action"] is Action.DELIVER:
            walked = await _deliver(connection, bulk, cursor, means)
        elif bulk["action"] in RESOLVE:
            walked = await _resolve_effects(connection, bulk, cursor)
        else:
            walked = await _move_dead(connection, bulk, cursor)
        moved = [row for row in walked.kept if row["id"] is not None]
        skipped = walked.chosen - len(walked.kept)
        row = await connection.fetchrow(
            QUERIES["step_bulk"],
            bulk_id,
            *walked.cursor,
            len(moved),
            skipped,
            walked.is_end,
            sum(row.get("effects_kept", 0) for row in moved),
            sum(row.get("effects_unknown", 0) for row in moved),
        )
        assert row is not None  # noqa: S101 (it is held)
        reached("bulk.marked")
    reached("bulk.stepped")
    given = await advance(connection, turns_of(moved))
    due = [row["id"] for row in moved if row["order_key"] is None]
    if bulk["action"] in (Action.DISCARD, Action.CONFIRM_EFFECTS):
        due = []
    return BulkStep(_read(row), len(moved), [*due, *given])


async def _move_dead(connection: Session, bulk: BulkOperation, cursor: BulkCursor) -> _Walked:
    filter = Filter.read(bulk["filter"])
    rows = await connection.fetch(
        QUERIES["walk_dead"],
        *filter.of_dead,
        bulk["bulk_id"],
        cursor.at,
        cursor.id,
        bulk["began_at"],
        BATCH,
        filter.cause,
    )
    passed, chosen = _choose(rows, [row["is_matching"] for row in rows], bulk["rate"])
    if passed:
        cursor = BulkCursor(passed[-1]["finished_at"], passed[-1]["id"])
    ids = [row["id"] for row in chosen]
    arguments = (ids, bulk["began_at"], bulk["actor"], bulk["reason"], bulk["bulk_id"])
    if bulk["action"] is Action.REPLAY:
        retry = bulk["effects"] is EffectPolicy.RETRY
        kept = await connection.fetch(QUERIES["replay_dead"], *arguments, retry)
    else:
        kept = await connection.fetch(QUERIES["discard_dead"], *arguments)
    return _Walked(cursor, len(passed) == len(rows) < BATCH, len(ids), kept)


async def _resolve_effects(connection: Session, bulk: BulkOperation, cursor: BulkCursor) -> _Walked:
    rows = await connection.fetch(
        QUERIES["walk_unknown_effects"],
        *Filter.read(bulk["filter"]).of_effects,
        cursor.at,
        cursor.id,
        cursor.event_id,
        bulk["began_at"],
        BATCH,
    )
    passed, chosen = _choose(rows, [row["is_matching"] for row in rows], bulk["rate"])
    if passed:
        last = passed[-1]
        cursor = BulkCursor(last["unknown_at"], last["delivery_id"], event_id=last["name"])
    kept = await connection.fetch(
        QUERIES[RESOLVE[bulk["action"]]],
        [row["delivery_id"] for row in chosen],
        [row["name"] for row in chosen],
        bulk["actor"],
        bulk["reason"],
        bulk["bulk_id"],
    )
    return _Walked(cursor, len(passed) == len(rows) < BATCH, len(chosen), kept)


async def _deliver(
    connection: Session, bulk: BulkOperation, cursor: BulkCursor, means: StepContext
) -> _Walked:
    registry, wanted = means.registry(), Filter.read(bulk["filter"])
    handler = wanted.handler or ""
    rows = await connection.fetch(
        QUERIES["walk_events"],
        routes_of(registry, handler, wanted.route),
        handler,
        wanted.type_pattern,
        wanted.account,
        wanted.until,
        cursor.at,
        cursor.route,
        cursor.event_id,
        bulk["began_at"],
        BATCH,
    )
    matching = [
        row["is_matching"] and handler in registry.for_event(row["route"], row["type"])
        for row in rows
    ]
    passed, chosen = _choose(rows, matching, bulk["rate"])
    if passed:
        last = passed[-1]
        cursor = BulkCursor(last["received_at"], route=last["route"], event_id=last["event_id"])
    kept = await connection.fetch(
        QUERIES["deliver_events"],
        [row["route"] for row in chosen],
        [row["event_id"] for row in chosen],
        [await _order_key(connection, means, handler, row) for row in chosen],
        handler,
        bulk["actor"],
        bulk["reason"],
        bulk["bulk_id"],
    )
    return _Walked(cursor, len(passed) == len(rows) < BATCH, len(chosen), kept)


def routes_of(registry: Registry, handler: str, route: str | None) -> list[str]:
    """Return the routes of a handler, or only `route` if it is one of them."""
    found = [item.route for item in registry.subscriptions if item.handler == handler]
    return [name for name in found if route in (None, name)]


def _choose(
    rows: Sequence[asyncpg.Record], matching: Sequence[bool], rate: int | None
) -> tuple[Sequence[asyncpg.Record], list[asyncpg.Record]]:
    """Return the rows to pass in one step at the rate, and the matching ones among them."""
    chosen, size = list[asyncpg.Record](), step_rows(rate, BATCH)
    for n, (row, is_matching) in enumerate(zip(rows, matching, strict=True)):
        if is_matching and len(chosen) == size:
            return rows[:n], chosen
        if is_matching:
            chosen.append(row)
    return rows, chosen


async def _order_key(
    connection: Session, means: StepContext, handler: str, event: asyncpg.Record
) -> str | None:
    """Return the ordering key of the delivery.

    Bodies are read one at a time, because some are large.
    """
    registry = means.registry()
    if not registry.takes_turns(event["route"], handler):
        return None
    row = await connection.fetchrow(QUERIES["read_payload"], event["route"], event["event_id"])
    if row is None:
        return None
    read = partial(_read_key, registry, means.encryption(), handler, event, row)
    return await asyncio.to_thread(read) if len(row["body"]) > LARGE_BYTES else read()


def _read_key(
    registry: Registry,
    encryption: EncryptionKeys,
    handler: str,
    event: asyncpg.Record,
    row: asyncpg.Record,
) -> str | None:
    route, headers, body = event["route"], orjson.loads(row["headers"] or "{}"), row["body"]
    if row["key_id"] is not None:
        try:
            headers, body = open_event(encryption.ring, route, event["event_id"], body)
        except CannotOpen as error:
            raise CommandFailed(f"event {event['event_id']} on {route}: {error}") from error
    try:
        key = registry.order_keys(route, [handler], headers, body).get(handler)
    except ValueError:  # no JSON: it is up to the handler to reject such an event
        return None
    return None if key is None else encryption.turn_key(route, handler, key)
