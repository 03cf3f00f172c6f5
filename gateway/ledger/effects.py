"""External effects of deliveries: begun before the call, done with its result after it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import asyncpg
import orjson

from gateway.base.errors import LeaseLost, NotFound, TransitionRefused
from gateway.base.model import Lease, Status
from gateway.ledger.connection import QUERIES, Executor, Pool, Pooled
from gateway.ledger.deliveries import turns_of
from gateway.ledger.encryption import EncryptionKeys, blind_key, open_result, seal_result
from gateway.ledger.ordering import advance
from gateway.privacy.encryption import sealed_under

_BETWEEN: Final = "\x1f"
"""Occurs in no name and in no key, so that no two pairs of them yield the same text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The state of an effect for a run that wants it."""

    is_ours: bool
    """Whether this run has begun it, and is to make the call."""
    is_done: bool = False
    is_busy: bool = False
    """Whether the delivery of another event is making the call, or may be."""
    result: Any = None
    begun_at: datetime | None = None
    """The begin of a call with an unknown outcome."""
    by_event: str | None = None
    """The event whose delivery has the effect, if it is another one."""
    is_requested: bool = False
    """Whether a person requested the call; the outcome of an earlier one is unknown."""
    earlier_error: str | None = None
    """The error of that earlier call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectName:
    """The name of an effect in the ledger, and its reservation if it is once per key."""

    name: str
    key: str | None = None
    """The key as users may see it."""
    reserved: str | None = None
    former: str | None = None
    """The name and the reservation from before the route was encrypted."""
    former_reserved: str | None = None


def name_effect(encryption: EncryptionKeys, lease: Lease, name: str, key: str | None) -> EffectName:
    """Return the name of an effect, with its key if it is once per key."""
    if key is None:
        return EffectName(name=name)
    reserved = f"{name}{_BETWEEN}{key}"
    kept = encryption.turn_key(lease.event.route, lease.handler, reserved)
    if kept == reserved:
        return EffectName(name=with_key(name, key), key=key, reserved=reserved)
    return EffectName(
        name=with_key(name, kept),
        key=kept,
        reserved=kept,
        former=with_key(name, key),
        former_reserved=reserved,
    )


def with_key(name: str, key: str) -> str:
    """Return the displayed name of an effect that is once per key."""
    return f"{name} per {key}"


def rename_blinded(
    encryption: EncryptionKeys, route: str, handler: str, name: str, key: str
) -> tuple[str, str]:
    """Return the encrypted name and key of an effect from before its route was encrypted."""
    base = name.removesuffix(with_key("", key))
    kept = blind_key(encryption.ring, route, handler, f"{base}{_BETWEEN}{key}")
    return with_key(base, kept), kept


async def begin_effect(
    ledger: Executor,
    lease: Lease,
    name: str,
    *,
    again: bool,
    encryption: EncryptionKeys,
    key: str | None = None,
) -> Effect:
    """Record that a call is about to be made.

    If an earlier call has an unknown outcome: with `again`, or if a person has requested a retry,
    record another one, else change nothing. Raises LeaseLost, having changed nothing, if the token
    is no longer valid.
    """
    while True:
        row = await ledger.fetchrow(
            QUERIES["begin_effect"], lease.delivery_id, lease.token, name, again, key
        )
        if row is None or not row["is_held"]:
            raise LeaseLost(f"delivery {lease.delivery_id} belongs to another run now")
        if row["is_begun"]:
            return Effect(
                is_ours=True, is_requested=bool(row["is_requested"]), earlier_error=row["error"]
            )
        if row["is_another"]:
            raise ValueError(
                f"two effects are named {name!r}, one of them with per=...: rename one"
            )
        if row["status"] == "done" or not again:
            break
        # The previous run has just finished it: read its result.
    return Effect(
        is_ours=False,
        is_done=row["status"] == "done",
        result=_result(encryption, lease.delivery_id, name, row["result"], row["sealed"]),
        begun_at=row["begun_at"],
    )


async def begin_effect_of_key(
    ledger: Pool, lease: Lease, of: EffectName, *, again: bool, encryption: EncryptionKeys
) -> Effect:
    """Like begin_effect, for an effect that is once per key.

    Of all deliveries of the handler, the one that has reserved the key makes the call, and the
    others get its result.
    """
    async with ledger.acquire() as connection, connection.transaction():
        return await _begin_of_key(connection, lease, of, again=again, encryption=encryption)


async def _begin_of_key(
    ledger: Pooled, lease: Lease, of: EffectName, *, again: bool, encryption: EncryptionKeys
) -> Effect:
    route, handler, mine = lease.event.route, lease.handler, lease.delivery_id
    place = route, handler
    reserve = *place, of.reserved, mine, lease.token, of.former_reserved
    if not await ledger.fetchval(QUERIES["reserve_effect"], *reserve):
        raise LeaseLost(f"delivery {mine} belongs to another run now")
    keys = of.reserved, of.former_reserved
    held = await ledger.fetchrow(QUERIES["hold_effect_key"], *place, *keys)
    if held is None:
        return Effect(is_ours=False, is_busy=True)
    if held["key"] != of.reserved:  # an erasure has renamed it while this one was reserved
        await ledger.execute(QUERIES["free_effect_key"], *place, of.reserved, mine)
    holder = held["delivery_id"]
    [row] = await ledger.fetch(QUERIES["read_effect_of_key"], holder, mine, of.name, of.former)
    own = row["own_name"]
    if row["own_status"] == "done":
        result = _result(encryption, mine, own, row["own_result"], row["own_sealed"])
        return Effect(is_ours=False, is_done=True, result=result)
    if row["is_changing"] or (holder != mine and row["is_running"] and row["status"] == "begun"):
        begun_at, by_event = row["begun_at"], row["event_id"]
        return Effect(is_ours=False, is_busy=True, begun_at=begun_at, by_event=by_event)
    if own is not None and own != of.name:
        await ledger.execute(QUERIES["rename_effect"], mine, own, of.name, of.key)
    if holder == mine or row["name"] is None:
        await ledger.execute(QUERIES["take_effect_key"], *place, held["key"], mine, lease.token)
        await ledger.execute(QUERIES["forget_effect_link"], mine, of.name)
        return await begin_effect(
            ledger, lease, of.name, again=again, encryption=encryption, key=of.key
        )
    if row["status"] == "done":
        return await _share_result(ledger, lease, of, holder, row, encryption)
    former = row["calls"], row["error"], row["begun_at"]
    again = again or row["is_requested"]
    if again or row["status"] == "begun":
        await ledger.execute(QUERIES["take_effect_key"], *place, held["key"], mine, lease.token)
        names = of.name, of.key, holder, row["name"]
        await ledger.execute(QUERIES["take_effect"], mine, lease.token, *names, again, *former)
    else:
        await _link(ledger, lease, of, holder, False, row["begun_at"])
    begun_at, by_event = row["begun_at"], row["event_id"]
    return Effect(
        is_ours=again,
        begun_at=begun_at,
        by_event=by_event,
        is_requested=row["is_requested"],
        earlier_error=row["error"],
    )


async def _share_result(
    ledger: Pooled,
    lease: Lease,
    of: EffectName,
    holder: int,
    row: asyncpg.Record,
    encryption: EncryptionKeys,
) -> Effect:
    """Copy the result of the delivery that has the effect to this one.

    The other delivery may be deleted first.
    """
    document = _document(encryption, holder, row["name"], row["result"], row["sealed"])
    plain, sealed, key_id = _seal(encryption, lease, of.name, document)
    await _link(ledger, lease, of, holder, True, row["begun_at"], plain, sealed, key_id)
    result = None if document is None else orjson.loads(document)
    return Effect(is_ours=False, is_done=True, result=result, by_event=row["event_id"])


async def _link(
    ledger: Pooled,
    lease: Lease,
    of: EffectName,
    holder: int,
    is_done: bool,
    begun_at: datetime,
    *result: str | bytes | None,
) -> None:
    ours = lease.delivery_id, lease.token, of.name, of.key
    kept = result or (None, None, None)
    await ledger.execute(QUERIES["link_effect"], *ours, holder, is_done, begun_at, *kept)


def _document(
    encryption: EncryptionKeys, delivery_id: int, name: str, plain: str | None, sealed: bytes | None
) -> bytes | None:
    if sealed is not None:
        return open_result(encryption.ring, delivery_id, name, sealed)
    return None if plain is None else plain.encode()


def _result(
    encryption: EncryptionKeys, delivery_id: int, name: str, plain: str | None, sealed: bytes | None
) -> Any:
    document = _document(encryption, delivery_id, name, plain, sealed)
    return None if document is None else orjson.loads(document)


def _seal(
    encryption: EncryptionKeys, lease: Lease, name: str, result: bytes | None
) -> tuple[str | None, bytes | None, str | None]:
    """Return the stored form of a result: plain, or encrypted with the id of the key."""
    if result is None:
        return None, None, None
    if lease.event.route not in encryption.routes:
        return result.decode(), None, None
    sealed = seal_result(encryption.ring, lease.delivery_id, name, result)
    return None, sealed, sealed_under(sealed)


async def finish_effect(
    ledger: Executor, lease: Lease, name: str, result: bytes, *, encryption: EncryptionKeys
) -> None:
    """Store the result. Raises LeaseLost if another run has begun the effect in the meantime."""
    kept = _seal(encryption, lease, name, result)
    finished = await ledger.fetchval(
        QUERIES["finish_effect"], lease.delivery_id, name, lease.token, *kept
    )
    if finished is None:
        raise LeaseLost(f"delivery {lease.delivery_id} belongs to another run now")


async def release_effect(ledger: Executor, lease: Lease, of: EffectName, begun: Effect) -> bool:
    """Delete a call that was not done, so that the next run, or another event's, makes it.

    If an earlier call of this effect may have been done, the row is kept. If a person requested
    this call, the next run makes it all the same; else the outcome stays unknown: returns False.
    """
    ours = lease.delivery_id, of.name, lease.token
    key = lease.event.route, lease.handler, of.reserved, of.former_reserved
    earlier = begun.is_requested, begun.earlier_error
    return await ledger.fetchval(QUERIES["release_effect"], *ours, *key, *earlier) is not None


async def note_effect_error(ledger: Executor, lease: Lease, name: str, error: str) -> None:
    """Store the error of a call with an unknown outcome."""
    await ledger.execute(QUERIES["note_effect_error"], lease.delivery_id, name, lease.token, error)


async def retry_effects(
    ledger: Executor, delivery_id: int, name: str | None, *, actor: str, reason: str | None
) -> tuple[list[str], list[int]]:
    """Replay a delivery and request all its effects with an unknown outcome again, or one.

    Returns their names, and the deliveries that may run now. Raises TransitionRefused if that is
    impossible.
    """
    names = await _find_unknown(ledger, delivery_id, name, is_open_too=False)
    ids = [delivery_id] * len(names)
    rows = await ledger.fetch(QUERIES["retry_effects"], ids, names, actor, reason, None)
    moved = [row for row in rows if row["id"] is not None]
    if not rows:
        raise TransitionRefused(
            f"delivery {delivery_id} cannot run again: its payload was pruned or erased; take the"
            f" effect off the list with `gateway effects confirm {delivery_id}`"
        )
    if not moved:
        raise TransitionRefused(
            f"delivery {delivery_id} is running right now: wait until its run has ended"
        )
    return names, [delivery_id, *await advance(ledger, turns_of(moved[:1]))]


async def confirm_effects(
    ledger: Executor, delivery_id: int, name: str | None, *, actor: str, reason: str | None
) -> list[str]:
    """Count the effects with an unknown outcome of a delivery, or one of them, as done.

    This includes those with a requested retry that no run has begun, and those of a dead letter.
    Returns their names.
    """
    names = await _find_unknown(ledger, delivery_id, name, is_open_too=True)
    ids = [delivery_id] * len(names)
    await ledger.fetch(QUERIES["confirm_effects"], ids, names, actor, reason, None)
    return names


async def _find_unknown(
    ledger: Executor, delivery_id: int, name: str | None, *, is_open_too: bool
) -> list[str]:
    rows = await ledger.fetch(QUERIES["find_unknown_effects"], delivery_id, name, is_open_too)
    if rows:
        return [row["name"] for row in rows]
    delivery = await ledger.fetchrow(QUERIES["find_delivery"], delivery_id)
    if delivery is None:
        raise NotFound(f"there is no delivery {delivery_id}")
    if delivery["status"] == Status.DEAD and (
        await ledger.fetch(QUERIES["find_unknown_effects"], delivery_id, name, True)
    ):
        raise TransitionRefused(
            f"delivery {delivery_id} is dead, and its replay makes its effects of unknown outcome"
            f" again: `gateway replay {delivery_id} --effects retry`"
        )
    such = "effect" if name is None else f"effect {name!r}"
    raise TransitionRefused(f"delivery {delivery_id} has no {such} of unknown outcome")


async def mark_effects_unknown(ledger: Executor, lease: Lease) -> None:
    """Mark the effects that the delivery completes without as unknown, for operators to see.

    Raises LeaseLost, having changed nothing, if the token is no longer valid.
    """
    held = await ledger.fetchval(QUERIES["mark_effects_unknown"], lease.delivery_id, lease.token)
    if not held:
        raise LeaseLost(f"delivery {lease.delivery_id} belongs to another run now")
