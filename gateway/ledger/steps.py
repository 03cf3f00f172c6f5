"""One step of an order for everything that matches: what it moves and its mark are one commit."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import asyncpg
import orjson

from gateway.errors import CannotOpen, CommandFailed, NotFound
from gateway.failpoints import reached
from gateway.ledger.bulk import Action, Effects, Mark, Order, OrderStatus, order_of
from gateway.ledger.connection import Connection, Pooled
from gateway.ledger.deliveries import turns_of
from gateway.ledger.queries import QUERIES
from gateway.ledger.sealed import Vault, open_event
from gateway.ledger.turns import advance
from gateway.registry import Registry

BATCH: Final = 500
"""Rows that a step looks at, and moves at the most: a transaction of some tens of milliseconds."""

STEPS_A_SECOND: Final = 4
"""Of an order with a rate: evenly, and a Ctrl-C is soon heeded."""

LARGE_BYTES: Final = 256 * 1024
"""Reading such a body would keep a `serve` from answering meanwhile."""

RESOLVE: Final = {
    Action.RETRY_EFFECTS: "retry_effects",
    Action.CONFIRM_EFFECTS: "confirm_effects",
}
"""The statement by which an action resolves effects of unknown outcome."""

Session = Connection | Pooled


class Stepped(NamedTuple):
    """What came of a step."""

    order: Order
    """As it stands now."""
    moved: int
    due: Sequence[int]
    """What may run now."""
    is_ours: bool = True
    """Whether whoever made the step is still the one to carry the order out."""


class _Walked(NamedTuple):
    mark: Mark
    is_end: bool
    chosen: int
    kept: Sequence[asyncpg.Record]
    """One for each of the chosen that has its payload; an id where it was moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What steps may need, read when they do: to replay what is dead, a project need not even be
    there."""

    registry: Callable[[], Registry]
    vault: Callable[[], Vault]


async def step(connection: Session, order_id: int, resumed: int, means: Means) -> Stepped:
    """Goes on with an order from its mark. `resumed`: the round in which the caller has it."""
    async with connection.transaction():
        row = await connection.fetchrow(QUERIES["hold_order"], order_id)
        if row is None:
            raise NotFound(f"there is no order {order_id}")
        order = order_of(row)
        if order.resumed != resumed or order.status is not OrderStatus.RUNNING:
            return Stepped(order, 0, (), order.resumed == resumed)
        if order.action is Action.DELIVER:
            walked = await _deliver(connection, order, means.registry(), means.vault)
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


def _size(order: Order) -> int:
    """How many to move in a step."""
    return BATCH if order.rate is None else max(1, min(BATCH, order.rate // STEPS_A_SECOND))


async def _move_dead(connection: Session, order: Order) -> _Walked:
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
    mark = Mark(passed[-1]["finished_at"], passed[-1]["id"]) if passed else order.mark
    ids = [row["id"] for row in chosen]
    arguments = (ids, order.began_at, order.actor, order.reason, order.id)
    if order.action is Action.REPLAY:
        retry = order.effects is Effects.RETRY
        kept = await connection.fetch(QUERIES["replay_dead"], *arguments, retry)
    else:
        kept = await connection.fetch(QUERIES["discard_dead"], *arguments)
    return _Walked(mark, len(passed) == len(rows) < BATCH, len(ids), kept)


async def _resolve_effects(connection: Session, order: Order) -> _Walked:
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
        mark = Mark(last["unknown_at"], last["delivery_id"], event_id=last["name"])
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
    connection: Session, order: Order, registry: Registry, vault: Callable[[], Vault]
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
        [await _order_key(connection, registry, vault, handler, row) for row in chosen],
        handler,
        order.actor,
        order.reason,
        order.id,
    )
    return _Walked(mark, len(passed) == len(rows) < BATCH, len(chosen), kept)


def _mark(event: asyncpg.Record) -> Mark:
    return Mark(event["received_at"], route=event["route"], event_id=event["event_id"])


def routes_of(registry: Registry, handler: str, route: str | None) -> list[str]:
    """The routes on which a handler is, or the one among them that is meant."""
    found = [item.route for item in registry.subscriptions if item.handler == handler]
    return [name for name in found if route in (None, name)]


def _choose(
    rows: Sequence[asyncpg.Record], matching: Sequence[bool], size: int
) -> tuple[Sequence[asyncpg.Record], list[asyncpg.Record]]:
    """How far to go so that no more than so many match, and those that do."""
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
    vault: Callable[[], Vault],
    handler: str,
    event: asyncpg.Record,
) -> str | None:
    """By which key the delivery takes turns. Bodies are read one at a time: some are large."""
    if not registry.takes_turns(event["route"], handler):
        return None
    row = await connection.fetchrow(QUERIES["read_payload"], event["route"], event["event_id"])
    if row is None:
        return None
    read = partial(_read_key, registry, vault(), handler, event, row)
    return await asyncio.to_thread(read) if len(row["body"]) > LARGE_BYTES else read()


def _read_key(
    registry: Registry, vault: Vault, handler: str, event: asyncpg.Record, row: asyncpg.Record
) -> str | None:
    route, headers, body = event["route"], orjson.loads(row["headers"] or "{}"), row["body"]
    if row["key_id"] is not None:
        try:
            headers, body = open_event(vault.ring, route, event["event_id"], body)
        except CannotOpen as error:
            raise CommandFailed(f"event {event['event_id']} on {route}: {error}") from error
    try:
        key = registry.order_keys(route, [handler], headers, body).get(handler)
    except ValueError:  # no JSON: such an event is for its handler to refuse
        return None
    return None if key is None else vault.turn_key(route, handler, key)
