"""Claims events in batches: one commit serves many requests, a lone one waits for nobody."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

import asyncpg
import orjson
import structlog

from gateway.errors import StorageUnavailable
from gateway.failpoints import reached
from gateway.ledger.connection import (
    COMMAND_TIMEOUT_S,
    CONTENDED,
    LOST,
    PREPARED_ONCE,
    Connection,
    Opener,
    close_quietly,
    describe,
    make_durable,
)
from gateway.ledger.queries import QUERIES
from gateway.ledger.turns import Turn, advance
from gateway.model import Envelope, ReplayPolicy

MAX_ROWS: Final = 64
MAX_BYTES: Final = 8 * 1024 * 1024
FLUSHERS: Final = 2
RECONNECT_S: Final = (0.05, 1.0)

log = structlog.get_logger(__name__)


class Claim(NamedTuple):
    """A verified request that wants to become an event. (A frozen dataclass is made slower.)"""

    route: str
    provider: str
    envelope: Envelope
    received_at: datetime
    digest: bytes
    headers: Mapping[str, str]
    body: bytes
    replay: ReplayPolicy | None
    handlers: tuple[str, ...]
    order_keys: Mapping[str, str] = MappingProxyType({})
    """For handlers whose deliveries take turns: by which key they do."""
    spooled: bool = False
    """Acknowledged before it was claimed."""
    delay: timedelta | None = None
    """A job's, before which it may not run: by the clock of the ledger, as all that is due."""
    reconciled: bool = False
    """Fetched from the provider's API: its bytes are not those that were signed."""
    verified_by: str | None = None
    """The reference of the secret under which it was verified."""
    clock_s: float | None = None
    """How far the sender's clock was behind ours when it came, where it signed a time."""
    key_id: str | None = None
    """The key under which headers and body are sealed in the body; the digest is keyed then."""
    unverified: bool = False
    """Taken although its signature was wrong: in development, where the route says so."""
    guard: bytes | None = None
    """The digest of what is signed, where that is not the body: the same under another id is a
    replay. None: that of the body."""
    refuses: Callable[[str], bool] | None = None
    """Whether these bytes are refused if an event of this type brought them first: today's rule of
    the route. None: flagged, whatever the type, since the request was acknowledged before or a
    person released it."""
    window: timedelta | None = None
    """If the body's digest tells events apart, since the sender gives no id: how long an identical
    body is a duplicate. A later one is another event. None: the event id tells them apart."""
    trace: str | None = None
    """Where it was received, as a `traceparent`; None where nothing is traced."""

    @property
    def key(self) -> tuple[str, str]:
        return self.route, self.envelope.id


class Verdict(StrEnum):
    """What became of a claim."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REPLAYED = "replayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The ledger's answer to one claim."""

    verdict: Verdict
    delivery_ids: tuple[int, ...] = ()
    conflict: bool = False
    """A duplicate whose body differs from the one that was claimed."""
    first_event_id: str | None = None
    """The event that brought the same bytes before, if this one was refused, flagged, or is a
    duplicate because of its body."""
    is_spooled: bool = False
    """On the local disk, and to be claimed."""

    @property
    def is_flagged(self) -> bool:
        """Whether it was accepted although another event brought the same bytes before."""
        return self.verdict is Verdict.ACCEPTED and self.first_event_id is not None

    def event_id(self, claim: Claim) -> str:
        """Return the id of the event that the ledger has for this claim."""
        if self.verdict is Verdict.DUPLICATE and self.first_event_id is not None:
            return self.first_event_id
        return claim.envelope.id


@dataclass(slots=True, eq=False)
class _Waiter:
    claim: Claim
    answer: asyncio.Future[Claimed]
    replay_of: str | None = None
    """The event that brought the same bytes first, where its policy lets this one in, flagged."""


class Watcher(Protocol):
    """Who is told how the commits go."""

    def claimed(self, events: int, seconds: float) -> None:
        """A commit, of so many claims."""

    def repeated(self, cause: str) -> None:
        """One that has to be tried again: contended, lost or refused."""


class Unwatched:
    """Nobody is."""

    def claimed(self, events: int, seconds: float) -> None:
        pass

    def repeated(self, cause: str) -> None:
        pass


class Claimer:
    """Takes claims from many requests and commits them together."""

    def __init__(
        self,
        url: str,
        *,
        on_accepted: Callable[[Sequence[int]], None],
        patience_s: float = COMMAND_TIMEOUT_S,
        settings: Mapping[str, str] = PREPARED_ONCE,
        watcher: Watcher | None = None,
    ) -> None:
        self._waiting: deque[_Waiter] = deque()
        self._wake = asyncio.Event()
        self._flushers = [
            _Flusher(
                url, on_accepted, self._note_away, patience_s, settings, watcher or Unwatched()
            )
            for _ in range(FLUSHERS)
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self.working = True
        """False once a flusher ended on an error that nobody foresaw."""
        self.is_away = False
        """Whether the ledger was not to be reached when it was last asked, or did not answer."""

    @property
    def waiting(self) -> int:
        """Claims that no commit has taken yet."""
        return len(self._waiting)

    @property
    def connections(self) -> tuple[int, int]:
        """How many are open, and how many there may be."""
        return sum(flusher.is_connected for flusher in self._flushers), len(self._flushers)

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(self._flush_forever(f)) for f in self._flushers]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, _: asyncio.Task[None]) -> None:
        self.working = False

    async def stop(self) -> None:
        """Ends the flushers; claims that still wait are refused as unavailable."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for waiter in self._waiting:
            if not waiter.answer.done():
                waiter.answer.set_exception(StorageUnavailable("the gateway is shutting down"))
        for flusher in self._flushers:
            await flusher.close()

    async def claim(self, claim: Claim) -> Claimed:
        """Waits until the claim is durable; a caller that stops waiting withdraws it if it can."""
        if not self.working:
            raise StorageUnavailable("a claim flusher has ended")
        waiter = _Waiter(claim, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._wake.set()
        return await waiter.answer

    def suspect(self) -> None:
        """Says that a claim was given up because it took too long."""
        self._note_away(True)

    def _note_away(self, is_away: bool) -> None:
        self.is_away = is_away

    async def _flush_forever(self, flusher: "_Flusher") -> None:
        while True:
            await self._wake.wait()
            batch = self._next_batch()
            if batch:
                await flusher.flush(batch)
            else:
                self._wake.clear()

    def _next_batch(self) -> list[_Waiter]:
        batch: list[_Waiter] = []
        size = 0
        while self._waiting and len(batch) < MAX_ROWS:
            waiter = self._waiting[0]
            size += len(waiter.claim.body)
            if batch and size > MAX_BYTES:
                break
            self._waiting.popleft()
            if not waiter.answer.done():
                batch.append(waiter)
        return batch


class _Flusher:
    """One connection that commits one batch after another."""

    def __init__(
        self,
        url: str,
        on_accepted: Callable[[Sequence[int]], None],
        note_away: Callable[[bool], None],
        patience_s: float,
        settings: Mapping[str, str],
        watcher: Watcher,
    ) -> None:
        self._watcher = watcher
        self._opener = Opener(url, name="gateway claims", command_timeout_s=patience_s, **settings)
        self._on_accepted = on_accepted
        self._note_away = note_away
        self._connection: Connection | None = None

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    async def flush(self, batch: Sequence[_Waiter]) -> None:
        """Answers every waiter of the batch, however often the database has to be asked."""
        delay_s = RECONNECT_S[0]
        while batch := [w for w in batch if not w.answer.done()]:
            try:
                await self._claim(batch)
            except CONTENDED:
                self._watcher.repeated("contended")
                await asyncio.sleep(random.uniform(0, RECONNECT_S[0]))  # noqa: S311 (jitter)
            except (ValueError, TypeError) as error:  # before LOST: asyncpg's DataError is both
                await self._refuse(batch, error)
            except (StorageUnavailable, *LOST) as error:
                log.warning("ledger_unreachable", error=describe(error), waiting=len(batch))
                self._watcher.repeated("lost")
                self._note_away(True)
                await self.close()
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, RECONNECT_S[1])
            except asyncpg.PostgresError as error:
                await self._refuse(batch, error)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        await close_quietly(connection)

    async def _refuse(self, batch: Sequence[_Waiter], error: Exception) -> None:
        """A row that Postgres refuses fails alone, not its neighbours in the batch."""
        self._watcher.repeated("refused")
        if len(batch) > 1:
            for waiter in batch:
                await self.flush([waiter])
            return
        log.error("claim_refused", route=batch[0].claim.route, error=describe(error))
        await self.close()  # it may be the session: one that was opened read-only stays so
        if not batch[0].answer.done():
            batch[0].answer.set_exception(
                StorageUnavailable(f"Postgres refused the event: {describe(error)}")
            )

    async def _claim(self, batch: Sequence[_Waiter]) -> None:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._opener.reach()
            await make_durable(self._connection)
        firsts = _first_of_each_key(batch)
        began_at = time.monotonic()
        accepted = await _insert(self._connection, firsts)
        self._watcher.claimed(len(firsts), time.monotonic() - began_at)
        self._note_away(False)
        reached("claim.committed")
        if due_ids := [i for row in accepted.values() for i in row["due_ids"]]:
            self._on_accepted(due_ids)
        for waiter in firsts:
            if (row := accepted.get(waiter.claim.key)) is not None:
                _set(waiter, _accepted(waiter, tuple(row["delivery_ids"])))
        await self._give_turns(self._connection, [w for w in firsts if w.claim.key in accepted])
        others = [w for w in batch if not w.answer.done()]
        if others:
            await self._explain(self._connection, others)

    async def _give_turns(self, connection: Connection, accepted: Sequence[_Waiter]) -> None:
        """After the commit, and after the answer: what gets no turn now gets it from the sweep."""
        turns = [
            Turn(waiter.claim.route, handler, key)
            for waiter in accepted
            for handler, key in waiter.claim.order_keys.items()
        ]
        if not turns:
            return
        reached("turn.giving")
        if delivery_ids := await advance(connection, turns):
            self._on_accepted(delivery_ids)

    async def _explain(self, connection: Connection, waiters: Sequence[_Waiter]) -> None:
        """Answers those whose key was taken; the rest is claimed again, the reason being gone."""
        rows = await connection.fetch(
            QUERIES["find_claims"],
            [w.claim.route for w in waiters],
            [w.claim.envelope.id for w in waiters],
            [w.claim.guard or w.claim.digest for w in waiters],
        )
        later: list[Claim] = []
        for waiter, row in zip(waiters, rows, strict=True):
            if answer := _explained(waiter.claim, row):
                _set(waiter, answer)
            elif waiter.claim.window is None:
                waiter.replay_of = row["first_event_id"]
            else:
                later.append(waiter.claim)
        if later:
            await _end_windows(connection, later)


def _set(waiter: _Waiter, answer: Claimed) -> None:
    if not waiter.answer.done():
        waiter.answer.set_result(answer)


def _first_of_each_key(batch: Sequence[_Waiter]) -> list[_Waiter]:
    firsts: dict[tuple[str, str], _Waiter] = {}
    for waiter in batch:
        firsts.setdefault(waiter.claim.key, waiter)
    return list(firsts.values())


async def _insert(
    connection: Connection, waiters: Sequence[_Waiter]
) -> dict[tuple[str, str], asyncpg.Record]:
    """The deliveries of each event that is new: all of them, and those that are due."""
    bodies = [waiter.claim.body for waiter in waiters]
    rows = await connection.fetch(QUERIES["claim"], _as_json(waiters), bodies)
    return {(row["route"], row["event_id"]): row for row in rows}


async def _end_windows(connection: Connection, claims: Sequence[Claim]) -> None:
    """Take the guard from events whose dedup window is over, so that these claims can have it."""
    await connection.execute(
        QUERIES["end_windows"],
        [claim.route for claim in claims],
        [claim.digest for claim in claims],
        [claim.received_at - claim.window for claim in claims if claim.window is not None],
    )


def _accepted(waiter: _Waiter, delivery_ids: tuple[int, ...]) -> Claimed:
    return Claimed(
        verdict=Verdict.ACCEPTED, delivery_ids=delivery_ids, first_event_id=waiter.replay_of
    )


def _as_json(waiters: Sequence[_Waiter]) -> str:
    """All but the bodies, as one argument: an array per column takes asyncpg twice as long."""
    rows = [
        {
            "n": n,
            "route": claim.route,
            "event_id": claim.envelope.id,
            "provider": claim.provider,
            "type": claim.envelope.type,
            "account": claim.envelope.account,
            "object_id": claim.envelope.object_id,
            "livemode": claim.envelope.livemode,
            "occurred_at": claim.envelope.occurred_at,
            "received_at": claim.received_at,
            "digest": claim.digest.hex(),
            "guard": _guard(claim, replay_of),
            "headers": claim.headers,
            "replay": claim.replay,
            "replay_of": replay_of,
            "handlers": claim.handlers,
            "order_keys": claim.order_keys or None,
            "spooled": claim.spooled,
            "delay_s": None if claim.delay is None else claim.delay.total_seconds(),
            "reconciled": claim.reconciled,
            "verified_by": claim.verified_by,
            "clock_s": claim.clock_s,
            "key_id": claim.key_id,
            "unverified": claim.unverified,
            "trace": claim.trace,
        }
        for n, (claim, replay_of) in enumerate(((w.claim, w.replay_of) for w in waiters), 1)
    ]
    return orjson.dumps(rows).decode()


def _guard(claim: Claim, replay_of: str | None) -> str | None:
    """The digest that this event holds, and no other event of its route beside it."""
    if claim.window is not None:
        return claim.digest.hex()
    if claim.replay is None or replay_of is not None:
        return None
    return (claim.guard or claim.digest).hex()


def _explained(claim: Claim, row: asyncpg.Record) -> Claimed | None:
    if row["digest"] is not None:
        is_alike = (claim.key_id is not None) == row["sealed"]  # both digests, or neither
        is_comparable = is_alike and not (claim.reconciled or row["reconciled"])
        conflict = is_comparable and row["digest"] != claim.digest
        return Claimed(verdict=Verdict.DUPLICATE, conflict=conflict)
    first_type = row["first_type"]
    if claim.window is not None:
        if first_type is None or claim.received_at - row["first_received_at"] >= claim.window:
            return None
        return Claimed(verdict=Verdict.DUPLICATE, first_event_id=row["first_event_id"])
    if first_type is not None and claim.refuses is not None and claim.refuses(first_type):
        return Claimed(verdict=Verdict.REPLAYED, first_event_id=row["first_event_id"])
    return None
