"""One step of a bulk operation: its changes and its cursor are one commit."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import asyncpg
import orjson

from gateway.base.errors import CannotOpen, CommandFailed, NotFound
from gateway.base.failpoints import reached
from gateway.config.registry import Registry
from gateway.ledger.bulk import (
    Action,
    BulkCursor,
    BulkOperation,
    BulkStatus,
    EffectPolicy,
    order_of,
)
from gateway.ledger.connection import QUERIES, Connection, Pooled
from gateway.ledger.deliveries import turns_of
from gateway.ledger.encryption import EncryptionKeys, open_event
from gateway.ledger.ordering import advance

BATCH: Final = 500
"""The rows that a step reads and moves at most: a transaction of some tens of milliseconds."""

STEPS_A_SECOND: Final = 4
"""The steps of a bulk operation with a rate: it progresses evenly, and reacts to Ctrl-C soon."""

LARGE_BYTES: Final = 256 * 1024
"""Larger bodies are parsed in a thread, because a `serve` could not answer in the meantime."""

RESOLVE: Final = {
    Action.RETRY_EFFECTS: "retry_effects",
    Action.CONFIRM_EFFECTS: "confirm_effects",
}
"""The statement with which an action resolves effects with an unknown outcome."""

Session = Connection | Pooled


class Stepped(NamedTuple):
    """The result of a step."""

    order: BulkOperation
    """The bulk operation after the step."""
    moved: int
    due: Sequence[int]
    """Deliveries that may run now."""
    is_ours: bool = True
    """Whether the caller is still the process that runs the bulk operation."""


class _Walked(NamedTuple):
    mark: BulkCursor
    is_end: bool
    chosen: int
    kept: Sequence[asyncpg.Record]
    """One row for each chosen row that has its payload, with an id if it was moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """Dependencies of steps, loaded on first use: a replay of dead letters needs no project."""

    registry: Callable[[], Registry]
    encryption: Callable[[], EncryptionKeys]


async def step(connection: Session, order_id: int, resumed: int, means: StepContext) -> Stepped:
    """Run one step of a bulk operation from its cursor.

    `resumed` is the round in which the caller runs it.
    """
    async with connection.transaction():
        row = await connection.fetchrow(QUERIES["hold_order"], order_id)
        if row is None:
            raise NotFound(f"there is no order {order_id}")
        order = order_of(row)
        if order.resumed != resumed or order.status is not BulkStatus.RUNNING:
            return Stepped(order, 0, (), order.resumed == resumed)
        if order.action is Action.DELIVER:
            walked = await _deliver(connection, order, means.registry(), means.encryption)
        elif order.action in RESOLVE:
            walked = await _resolve_effects(connection, order)
        else:
            walked = await _move_dead(connection, order)
        moved = [row for row in walked.kept if row["id"] is not None]
        skipped = walked.chosen - len(walked.kept)
        row = await connection.fetchrow(
            QUERIES["mark_order"],
            order_id,
            *walked.mark,
            len(moved),
            skipped,
            walked.is_end,
            sum(row.get("effects_kept", 0) for row in moved),
            sum(row.get("effects_unknown", 0) for row in moved),
        )
        assert row is not None  # noqa: S101 (it is held)
        reached("order.marked")
    reached("order.stepped")
    given = await advance(connection, turns_of(moved))
    due = [row["id"] for row in moved if row["order_key"] is None]
    if order.action in (Action.DISCARD, Action.CONFIRM_EFFECTS):
        due = []
    return Stepped(order_of(row), len(moved), [*due, *given])


def _size(order: BulkOperation) -> int:
    """Return the number of rows to move in a step."""
    return BATCH if order.rate is None else max(1, min(BATCH, order.rate // STEPS_A_SECOND))


async def _move_dead(connection: Session, order: BulkOperation) -> _Walked:
    rows = await connection.fetch(
        QUERIES["walk_dead"],
        *order.filter.of_dead,
        order.id,
        order.mark.at,
        order.mark.id,
        order.began_at,
        BATCH,
        order.filter.cause,
    )
    passed, chosen = _choose(rows, [row["is_matching"] for row in rows], _size(order))
    mark = BulkCursor(passed[-1]["finished_at"], passed[-1]["id"]) if passed else order.mark
    ids = [row["id"] for row in chosen]
    arguments = (ids, order.began_at, order.actor, order.reason, order.id)
    if order.action is Action.REPLAY:
        retry = order.effects is EffectPolicy.RETRY
        kept = await connection.fetch(QUERIES["replay_dead"], *arguments, retry)
    else:
        kept = await connection.fetch(QUERIES["discard_dead"], *arguments)
    return _Walked(mark, len(passed) == len(rows) < BATCH, len(ids), kept)


async def _resolve_effects(connection: Session, order: BulkOperation) -> _Walked:
    rows = await connection.fetch(
        QUERIES["walk_unknown_effects"],
        *order.filter.of_effects,
        order.mark.at,
        order.mark.id,
        order.mark.event_id,
        order.began_at,
        BATCH,
    )
    passed, chosen = _choose(rows, [row["is_matching"] for row in rows], _size(order))
    mark = order.mark
    if passed:
        last = passed[-1]
        mark = BulkCursor(last["unknown_at"], last["delivery_id"], event_id=last["name"])
    kept = await connection.fetch(
        QUERIES[RESOLVE[order.action]],
        [row["delivery_id"] for row in chosen],
        [row["name"] for row in chosen],
        order.actor,
        order.reason,
        order.id,
    )
    return _Walked(mark, len(passed) == len(rows) < BATCH, len(chosen), kept)


async def _deliver(
    connection: Session,
    order: BulkOperation,
    registry: Registry,
    encryption: Callable[[], EncryptionKeys],
) -> _Walked:
    wanted, handler = order.filter, order.filter.handler or ""
    rows = await connection.fetch(
        QUERIES["walk_events"],
        routes_of(registry, handler, wanted.route),
        handler,
        wanted.type_pattern,
        wanted.account,
        wanted.until,
        order.mark.at,
        order.mark.route,
        order.mark.event_id,
        order.began_at,
        BATCH,
    )
    matching = [
        row["is_matching"] and handler in registry.for_event(row["route"], row["type"])
        for row in rows
    ]
    passed, chosen = _choose(rows, matching, _size(order))
    mark = _mark(passed[-1]) if passed else order.mark
    kept = await connection.fetch(
        QUERIES["deliver_events"],
        [row["route"] for row in chosen],
        [row["event_id"] for row in chosen],
        [await _order_key(connection, registry, encryption, handler, row) for row in chosen],
        handler,
        order.actor,
        order.reason,
        order.id,
    )
    return _Walked(mark, len(passed) == len(rows) < BATCH, len(chosen), kept)


def _mark(event: asyncpg.Record) -> BulkCursor:
    return BulkCursor(event["received_at"], route=event["route"], event_id=event["event_id"])


def routes_of(registry: Registry, handler: str, route: str | None) -> list[str]:
    """Return the routes of a handler, or only `route` if it is one of them."""
    found = [item.route for item in registry.subscriptions if item.handler == handler]
    return [name for name in found if route in (None, name)]


def _choose(
    rows: Sequence[asyncpg.Record], matching: Sequence[bool], size: int
) -> tuple[Sequence[asyncpg.Record], list[asyncpg.Record]]:
    """Return the rows to pass so that at most `size` of them match, and the matching ones."""
    chosen: list[asyncpg.Record] = []
    for n, (row, is_matching) in enumerate(zip(rows, matching, strict=True)):
        if is_matching and len(chosen) == size:
            return rows[:n], chosen
        if is_matching:
            chosen.append(row)
    return rows, chosen


async def _order_key(
    connection: Session,
    registry: Registry,
    encryption: Callable[[], EncryptionKeys],
    handler: str,
    event: asyncpg.Record,
) -> str | None:
    """Return the ordering key of the delivery.

    Bodies are read one at a time, because some are large.
    """
    if not registry.takes_turns(event["route"], handler):
        return None
    row = await connection.fetchrow(QUERIES["read_payload"], event["route"], event["event_id"])
    if row is None:
        return None
    read = partial(_read_key, registry, encryption(), handler, event, row)
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
