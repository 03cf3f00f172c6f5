"""Carries out a rekey: everything under the first key, piece by piece, beside live traffic."""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import asyncpg

from gateway.errors import CommandFailed
from gateway.ledger.connection import CONTENDED, Connection, Pooled
from gateway.ledger.rekeying import BATCH, KINDS, START, Marked, Resealed, count_keys, reseal
from gateway.ledger.sealed import Vault
from gateway.ledger.sealing_past import seal_past

PIECE_S: Final = 2.0
"""How long one piece may go on: nobody's request runs for minutes."""

TRIES: Final = 20
PAST: Final = "past"
"""What was stored before its route was encrypted, by route."""

ORDER: Final = (*KINDS, PAST)


class Place(NamedTuple):
    """How far it has come: of which kind, of which key or route, and behind which row."""

    kind: str
    name: str
    mark: Marked = START


@dataclass(frozen=True, slots=True, kw_only=True)
class Rekeyed:
    """What a piece has done."""

    events: int = 0
    attempts: int = 0
    effects: int = 0
    rejected: int = 0
    past: int = 0
    """Events that were stored as they came, with all that belongs to them."""
    busy: int = 0
    """Those of them that run right now, and are left."""
    broken: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return self.events + self.attempts + self.effects + self.rejected + self.past

    def plus(self, kind: str, done: Resealed, busy: int = 0) -> "Rekeyed":
        counts = {name: getattr(self, name) + (done.count if name == kind else 0) for name in ORDER}
        return Rekeyed(**counts, busy=self.busy + busy, broken=self.broken + done.broken)


async def rekey(
    ledger: Connection | Pooled,
    vault: Vault,
    place: Place | None,
    *,
    route: str | None = None,
    limit: int | None = None,
) -> tuple[Rekeyed, Place | None]:
    """Goes on from a place; returns the next one, or None where it is through.

    Every batch is one commit, and what is done is done: to stop anywhere does no harm, nor does it
    to begin anew. What is under a key that is not in the ring is left as it is.
    """
    total, began_s = Rekeyed(), time.monotonic()
    if not vault.ring.ids:
        raise CommandFailed("there are no keys: set `keys` in routes.yaml")
    tasks = await _tasks(ledger, vault, route)
    here = _at(tasks, place)
    while here is not None:
        most = BATCH if limit is None else min(BATCH, limit - total.total)
        done, busy = await _patiently(ledger, vault, here, route, most)
        total = total.plus(here.kind, done, busy)
        here = _behind(tasks, here) if done.mark is None else here._replace(mark=done.mark)
        if time.monotonic() - began_s > PIECE_S or (limit is not None and total.total >= limit):
            break
    return total, here


async def _tasks(ledger: Connection | Pooled, vault: Vault, route: str | None) -> list[Place]:
    """All that there is to do, in order."""
    ring = vault.ring
    old = [use.key_id for use in await count_keys(ledger) if use.key_id != ring.first]
    routes = sorted(vault.routes if route is None else vault.routes & {route})
    return [
        *(Place(kind, key) for kind in KINDS for key in old if key in ring.ids),
        *(Place(PAST, name) for name in routes),
    ]


def _at(tasks: Sequence[Place], place: Place | None) -> Place | None:
    """The place itself, or the first one behind it that there is."""
    if place is None:
        return tasks[0] if tasks else None
    if any((place.kind, place.name) == (task.kind, task.name) for task in tasks):
        return place
    return _behind(tasks, place)


def _behind(tasks: Sequence[Place], place: Place) -> Place | None:
    return next((task for task in tasks if _rank(task) > _rank(place)), None)


def _rank(place: Place) -> tuple[int, str]:
    return ORDER.index(place.kind), place.name


async def _patiently(
    ledger: Connection | Pooled, vault: Vault, place: Place, route: str | None, most: int
) -> tuple[Resealed, int]:
    for _ in range(TRIES):
        with suppress(*CONTENDED, asyncpg.UniqueViolationError):
            if place.kind == PAST:
                return await seal_past(ledger, vault, place.name, place.mark, most=most)
            kind = KINDS[place.kind]
            done = await reseal(
                ledger, vault.ring, kind, place.name, place.mark, route=route, most=most
            )
            return done, 0
        await asyncio.sleep(random.uniform(0.01, 0.1))  # noqa: S311 (so that they miss each other)
    raise CommandFailed("the rekey gets in the way of others again and again: try it later")
