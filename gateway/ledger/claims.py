"""Claims events in batches: many requests share a commit, and a single one does not wait."""

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

from gateway.base.errors import StorageUnavailable
from gateway.base.failpoints import reached
from gateway.base.model import Envelope, RepeatPolicy
from gateway.ledger.connection import (
    COMMAND_TIMEOUT_S,
    CONTENDED,
    LOST,
    PREPARED_ONCE,
    QUERIES,
    Connection,
    Opener,
    close_quietly,
    describe,
    make_durable,
)
from gateway.ledger.ordering import OrderingKey, advance

MAX_ROWS: Final = 64
MAX_BYTES: Final = 8 * 1024 * 1024
FLUSHERS: Final = 2
THREAD_BYTES: Final = 128 * 1024
"""Larger bodies are encoded in a thread, because encrypting one would delay other requests."""

RECONNECT_S: Final = (0.05, 1.0)

log = structlog.get_logger(__name__)


class Claim(NamedTuple):
    """A verified request that is to become an event.

    It is a named tuple, because a frozen dataclass is slower to create.
    """

    route: str
    provider: str
    envelope: Envelope
    received_at: datetime
    digest: bytes
    headers: Mapping[str, str]
    body: bytes
    repeats: RepeatPolicy | None
    handlers: tuple[str, ...]
    order_keys: Mapping[str, str] = MappingProxyType({})
    """The ordering key of the delivery, for each handler that has one."""
    spooled: bool = False
    """Whether it was acknowledged before it was claimed."""
    delay: timedelta | None = None
    """How long a job has to wait before it may run, by the ledger's clock, like all due times."""
    reconciled: bool = False
    """Whether it was fetched from the provider's API, so that its bytes are not the signed ones."""
    verified_by: str | None = None
    """The reference of the secret under which it was verified."""
    clock_s: float | None = None
    """How far the sender's clock was behind ours on receipt, if the sender signed a time."""
    key_id: str | None = None
    """The key under which headers and body are encrypted in the body. The digest is keyed then."""
    unverified: bool = False
    """Whether it was accepted despite a wrong signature, as a route may allow in development."""
    guard: bytes | None = None
    """The digest of the signed content, if that is not the body: the same content under another id
    is a repeat. None: the digest of the body."""
    refuses: Callable[[str], bool] | None = None
    """Return whether this body is refused if it first arrived in an event of this type, by today's
    rule of the route. None: it is only flagged, whatever the type, because the request was
    acknowledged before or a person released it."""
    window: timedelta | None = None
    """How long an identical body is a duplicate, if the body's digest identifies the event because
    the sender gives no id. A later one is another event. None: the event id identifies the
    event."""
    trace: str | None = None
    """The trace context of the receiving span, as a `traceparent`. None if tracing is off."""
    encrypt: bool = False
    """Whether it was encrypted on disk, and is therefore encrypted in the ledger, even if its route
    no longer asks for it."""

    @property
    def key(self) -> tuple[str, str]:
        return self.route, self.envelope.id


class ClaimVerdict(StrEnum):
    """The result of a claim."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REPEATED_BODY = "repeated_body"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    verdict: ClaimVerdict
    delivery_ids: tuple[int, ...] = ()
    conflict: bool = False
    """Whether it is a duplicate with a different body than the claimed event."""
    first_event_id: str | None = None
    """The event that first had the same body, if this one was refused, flagged, or is a duplicate
    because of its body."""
    guard: bytes | None = None
    """The digest that `first_event_id` holds, as it is stored, if this one was refused."""
    is_spooled: bool = False
    """Whether it is on the local disk and still has to be claimed."""

    @property
    def is_flagged(self) -> bool:
        """Whether it was accepted although another event had the same body before."""
        return self.verdict is ClaimVerdict.ACCEPTED and self.first_event_id is not None

    def event_id(self, claim: Claim) -> str:
        if self.verdict is ClaimVerdict.DUPLICATE and self.first_event_id is not None:
            return self.first_event_id
        return claim.envelope.id


@dataclass(slots=True, eq=False)
class _Waiter:
    claim: Claim
    answer: asyncio.Future[Claimed]
    is_encoded: bool = False
    """Whether the codec has encoded the claim."""
    repeat_of: str | None = None
    """The event that first had the same body, if the policy accepts this one with a flag."""


class Codec(Protocol):
    """Encodes claims for storage: resolves names to identities, and encrypts if needed."""

    async def prepare(self, connection: Connection) -> None:
        """Read the required data from the ledger, on a new connection.

        Raises StorageUnavailable.
        """

    def encode(self, claim: Claim) -> Claim:
        """Return the claim in its stored form."""


class PlainCodec:
    """Stores claims unchanged."""

    async def prepare(self, connection: Connection) -> None:
        pass

    def encode(self, claim: Claim) -> Claim:
        return claim


class ClaimObserver(Protocol):
    """Observer of the commits."""

    def claimed(self, events: int, seconds: float) -> None:
        """Called after a commit, with its number of claims."""

    def repeated(self, cause: str) -> None:
        """Called if a commit has to be repeated: it was contended, lost or refused."""


class NullObserver:
    """Observer that ignores every call."""

    def claimed(self, events: int, seconds: float) -> None:
        pass

    def repeated(self, cause: str) -> None:
        pass


class Claimer:
    """Collects claims from many requests and commits them together."""

    def __init__(
        self,
        url: str,
        *,
        on_accepted: Callable[[Sequence[int]], None],
        patience_s: float = COMMAND_TIMEOUT_S,
        settings: Mapping[str, str] = PREPARED_ONCE,
        watcher: ClaimObserver | None = None,
        codec: Codec | None = None,
    ) -> None:
        self._waiting: deque[_Waiter] = deque()
        self._wake = asyncio.Event()
        self._flushers = [
            _Flusher(
                url,
                on_accepted,
                self._note_away,
                patience_s,
                settings,
                watcher or NullObserver(),
                codec or PlainCodec(),
            )
            for _ in range(FLUSHERS)
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self.working = True
        """False after a flusher has ended on an unexpected error."""
        self.is_away = False
        """Whether the ledger was unreachable, or did not answer, at the last attempt."""

    @property
    def waiting(self) -> int:
        """The number of claims that no commit has taken yet."""
        return len(self._waiting)

    @property
    def connections(self) -> tuple[int, int]:
        """The number of open connections, and their maximum."""
        return sum(flusher.is_connected for flusher in self._flushers), len(self._flushers)

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(self._flush_forever(f)) for f in self._flushers]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, _: asyncio.Task[None]) -> None:
        self.working = False

    async def stop(self) -> None:
        """Stop the flushers. Claims that still wait fail as unavailable."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for waiter in self._waiting:
            if not waiter.answer.done():
                waiter.answer.set_exception(StorageUnavailable("the gateway is shutting down"))
        for flusher in self._flushers:
            await flusher.close()

    async def claim(self, claim: Claim) -> Claimed:
        """Wait until the claim is durable.

        A caller that stops waiting withdraws the claim, unless its commit is in progress.
        """
        if not self.working:
            raise StorageUnavailable("a claim flusher has ended")
        waiter = _Waiter(claim, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._wake.set()
        return await waiter.answer

    def suspect(self) -> None:
        """Note that a claim was abandoned because it took too long."""
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
    """A connection that commits one batch after another."""

    def __init__(
        self,
        url: str,
        on_accepted: Callable[[Sequence[int]], None],
        note_away: Callable[[bool], None],
        patience_s: float,
        settings: Mapping[str, str],
        watcher: ClaimObserver,
        codec: Codec,
    ) -> None:
        self._watcher = watcher
        self._codec = codec
        self._opener = Opener(url, name="gateway claims", command_timeout_s=patience_s, **settings)
        self._on_accepted = on_accepted
        self._note_away = note_away
        self._connection: Connection | None = None

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    async def flush(self, batch: Sequence[_Waiter]) -> None:
        """Answer every waiter of the batch, however many attempts the database needs."""
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
        """Retry a batch one by one, so that a row that Postgres refuses fails alone."""
        self._watcher.repeated("refused")
        if len(batch) > 1:
            for waiter in batch:
                await self.flush([waiter])
            return
        log.error("claim_refused", route=batch[0].claim.route, error=describe(error))
        await self.close()  # the session may be the cause: one that was opened read-only stays so
        if not batch[0].answer.done():
            batch[0].answer.set_exception(
                StorageUnavailable(f"Postgres refused the event: {describe(error)}")
            )

    async def _claim(self, batch: Sequence[_Waiter]) -> None:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._opener.reach()
            await make_durable(self._connection)
            await self._codec.prepare(self._connection)
        await self._encode([waiter for waiter in batch if not waiter.is_encoded])
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

    async def _encode(self, waiters: Sequence[_Waiter]) -> None:
        for waiter in waiters:
            if len(waiter.claim.body) > THREAD_BYTES:
                waiter.claim = await asyncio.to_thread(self._codec.encode, waiter.claim)
            else:
                waiter.claim = self._codec.encode(waiter.claim)
            waiter.is_encoded = True

    async def _give_turns(self, connection: Connection, accepted: Sequence[_Waiter]) -> None:
        """Advance the ordering keys of new deliveries.

        This runs after the commit and the answer. If it fails, the sweep advances the keys.
        """
        turns = [
            OrderingKey(waiter.claim.route, handler, key)
            for waiter in accepted
            for handler, key in waiter.claim.order_keys.items()
        ]
        if not turns:
            return
        reached("turn.giving")
        if delivery_ids := await advance(connection, turns):
            self._on_accepted(delivery_ids)

    async def _explain(self, connection: Connection, waiters: Sequence[_Waiter]) -> None:
        """Answer the claims whose key was taken.

        The other claims are tried again, because the reason why they failed is gone.
        """
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
                waiter.repeat_of = row["first_event_id"]
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
    """Insert events, and return the deliveries of each new one: all, and the due ones."""
    bodies = [waiter.claim.body for waiter in waiters]
    rows = await connection.fetch(QUERIES["claim"], _as_json(waiters), bodies)
    return {(row["route"], row["event_id"]): row for row in rows}


async def _end_windows(connection: Connection, claims: Sequence[Claim]) -> None:
    """Clear the guard of events whose deduplication window is over, for these claims to take."""
    await connection.execute(
        QUERIES["end_windows"],
        [claim.route for claim in claims],
        [claim.digest for claim in claims],
        [claim.received_at - claim.window for claim in claims if claim.window is not None],
    )


def _accepted(waiter: _Waiter, delivery_ids: tuple[int, ...]) -> Claimed:
    return Claimed(
        verdict=ClaimVerdict.ACCEPTED, delivery_ids=delivery_ids, first_event_id=waiter.repeat_of
    )


def _as_json(waiters: Sequence[_Waiter]) -> str:
    """Encode everything but the bodies as one argument.

    An array per column takes asyncpg twice as long.
    """
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
            "guard": _guard(claim, repeat_of),
            "headers": claim.headers,
            "repeats": claim.repeats,
            "repeat_of": repeat_of,
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
        for n, (claim, repeat_of) in enumerate(((w.claim, w.repeat_of) for w in waiters), 1)
    ]
    return orjson.dumps(rows).decode()


def _guard(claim: Claim, repeat_of: str | None) -> str | None:
    """Return the digest that only one event of the route may hold at a time."""
    if claim.window is not None:
        return claim.digest.hex()
    if claim.repeats is None or repeat_of is not None:
        return None
    return (claim.guard or claim.digest).hex()


def _explained(claim: Claim, row: asyncpg.Record) -> Claimed | None:
    if row["digest"] is not None:
        # both digests are keyed, or neither is
        is_alike = (claim.key_id is not None) == row["sealed"]
        is_comparable = is_alike and not (claim.reconciled or row["reconciled"])
        conflict = is_comparable and row["digest"] != claim.digest
        return Claimed(verdict=ClaimVerdict.DUPLICATE, conflict=conflict)
    first_type = row["first_type"]
    if claim.window is not None:
        if first_type is None or claim.received_at - row["first_received_at"] >= claim.window:
            return None
        return Claimed(verdict=ClaimVerdict.DUPLICATE, first_event_id=row["first_event_id"])
    if first_type is not None and claim.refuses is not None and claim.refuses(first_type):
        return Claimed(
            verdict=ClaimVerdict.REPEATED_BODY,
            first_event_id=row["first_event_id"],
            guard=claim.guard or claim.digest,
        )
    return None
